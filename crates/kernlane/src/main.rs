//! `kernlane`: see `cli.rs` for what can be typed and `run.rs` for what it means.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use anyhow::Result;
use host::{ending, stdout};
use kernlane::{cli, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    ending::status("kernlane", parse_and_run())
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
