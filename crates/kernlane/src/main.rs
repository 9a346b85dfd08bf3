//! `kernlane`: see `cli.rs` for what can be typed and `run.rs` for what it means.

use clap::Parser;
use kernlane::{cli, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run::run(cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kernlane: {error:#}");
            ExitCode::from(2)
        }
    }
}
