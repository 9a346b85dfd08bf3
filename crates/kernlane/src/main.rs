//! `kernlane`: see `cli.rs` for what can be typed and `run.rs` for what it means.

use clap::Parser;
use kernlane::{cli, interrupt, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run::run(cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            // Programs that Ctrl-C ended fail, too; then that is not the news.
            let error = interrupt::check().err().unwrap_or(error);
            eprintln!("kernlane: {error:#}");
            ExitCode::from(2)
        }
    }
}
