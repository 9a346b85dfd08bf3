//! `kernlane`: see `cli.rs` for what can be typed and `run.rs` for what it means.

mod cli;
mod command;
mod image;
mod machine;
mod order;
mod output;
mod place;
mod profile;
mod run;

use clap::Parser;
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
