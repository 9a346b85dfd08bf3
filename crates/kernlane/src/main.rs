//! `kernlane`: see `cli.rs` for what can be typed and `run.rs` for what it means.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use anyhow::Result;
use host::{interrupt, note, stdout};
use kernlane::{cli, run};
use std::process::ExitCode;

/// What a shell gives for a program that SIGPIPE has ended. `kernlane … | head` ends with this
/// status in every command, and with no message. The signal itself stays ignored, since sockets to
/// QEMU must not end the tool.
const READER_GONE: u8 = 128 + 13;

fn main() -> ExitCode {
    match parse_and_run().and_then(|code| stdout::finish().map(|()| code)) {
        Ok(code) => code,
        Err(error) if stdout::reader_is_gone(&error) => ExitCode::from(READER_GONE),
        Err(error) => {
            // Programs that Ctrl-C ended fail, too; then that is not the news.
            let error = interrupt::check().err().unwrap_or(error);
            note!("kernlane: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn parse_and_run() -> Result<ExitCode> {
    match cli::Cli::read() {
        Ok(cli) => run::run(cli),
        // Help and version go to standard output, and are lost if that is full: then clap itself
        // says nothing.
        Err(answer) if !answer.use_stderr() => {
            stdout::print_with(|| answer.print()).map(|()| ExitCode::SUCCESS)
        }
        Err(mistake) => mistake.exit(),
    }
}
