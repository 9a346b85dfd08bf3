//! `kernlane`: `cli.rs` defines the command line, `run.rs` runs a command.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use anyhow::Result;
use host::{interrupt, note, stdout};
use kernlane::{cli, run};
use std::process::ExitCode;

/// The status that a shell reports for a program ended by SIGPIPE. In `kernlane … | head` every
/// command ends with this status and without a message. The signal itself stays ignored, because a
/// closed socket to QEMU must not end the program.
const READER_GONE: u8 = 128 + 13;

fn main() -> ExitCode {
    match parse_and_run().and_then(|code| stdout::finish().map(|()| code)) {
        Ok(code) => code,
        Err(error) if stdout::reader_is_gone(&error) => ExitCode::from(READER_GONE),
        Err(error) => {
            // After Ctrl-C the programs that were started fail, too. Their errors are not news.
            let error = interrupt::check().err().unwrap_or(error);
            note!("kernlane: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn parse_and_run() -> Result<ExitCode> {
    match cli::Cli::read() {
        Ok(cli) => run::run(cli),
        // clap does not report that help or version could not be written to standard output.
        Err(answer) if !answer.use_stderr() => {
            stdout::print_with(|| answer.print()).map(|()| ExitCode::SUCCESS)
        }
        Err(mistake) => mistake.exit(),
    }
}
