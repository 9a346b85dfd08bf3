//! `kernlane`: `cli.rs` defines the command line, `run.rs` runs a command.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use anyhow::Result;
use host::{ending, stdout};
use kernlane::{cli, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    ending::run("kernlane", parse_and_run)
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
