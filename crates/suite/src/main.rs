//! `kernlane-bench`: the suite as a program of its own, for machines without Kernlane.

#![deny(clippy::print_stdout, clippy::print_stderr)]

use anyhow::Result;
use clap::Parser;
use host::{ending, stdout};
use kernlane_suite::command::{self, BenchArgs};
use std::process::ExitCode;

/// Measure what each service of the running kernel costs, or compare two measurements
#[derive(Parser)]
#[command(name = "kernlane-bench", version)]
struct Cli {
    #[command(flatten)]
    args: BenchArgs,
}

fn main() -> ExitCode {
    ending::run("kernlane-bench", parse_and_run)
}

fn parse_and_run() -> Result<ExitCode> {
    match Cli::try_parse() {
        Ok(cli) => command::run(&cli.args, &[]),
        Err(answer) if !answer.use_stderr() => {
            stdout::print_with(|| answer.print()).map(|()| ExitCode::SUCCESS)
        }
        Err(mistake) => mistake.exit(),
    }
}
