//! Runs the commands along the one road: record → attribute → order → place → emit → check → replay
//! → report.

use crate::cli::{self, Cli, Command};
use crate::command::{
    ask, check, checkpoint, counts, cross_validate, diff, doctor, dump, evaluate, export, import,
    layout, live, manual, objtool, optimize, profile, record, relink, replay, report, study, trial,
};
use crate::remedy;
use anyhow::Result;
use clap::CommandFactory;
use std::process::ExitCode;

/// Runs one command. Exit status 0: done. 1: done, and the answer is "no" (a check failed). 2: the
/// command could not do its work.
pub fn run(cli: Cli) -> Result<ExitCode> {
    command(cli).map_err(remedy::add)
}

fn command(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Record(args) => record::run(&args),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Workload(args) => trial::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Layout(args) => layout::run(&args),
        Command::Live(args) => live::run(&args),
        Command::Relink(args) => relink::run(&args),
        Command::Counts(args) => counts::run(&args),
        Command::Objtool(args) => objtool::run(&args),
        Command::Man(args) => manual::man(&args, Cli::command()),
        Command::Completions(args) => manual::completions(&args, Cli::command()),
        Command::Optimize(args) => optimize::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::CrossValidate(args) => cross_validate::run(&args),
        Command::Evaluate(args) => evaluate::run(&args),
        Command::Study(args) => study::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Ask(args) => ask::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Bench(args) => suite::command::run(&args, &["bench"]),
        Command::Check(args) => check::run(&args),
        Command::Doctor(args) => doctor::run(&args, &Cli::command(), cli::NEEDS),
    }
}
