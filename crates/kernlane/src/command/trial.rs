//! `kernlane workload check`: runs a workload once without recording it, and shows what it does.
//!
//! Input: a workload and a kernel. Output: what the workload's scripts print while they run, and
//! the line of the script that failed.

use crate::command::record::BootedArgs;
use anyhow::Result;
use clap::{Args, Subcommand};
use guest::{TrialEvent, TrialFailure, trial};
use host::interrupt;
use host::note;
use host::progress::Progress;
use host::{out, outln};
use std::process::ExitCode;

/// Try a workload
#[derive(Args)]
#[command(
    after_help = "Example:\n  kernlane workload check ./mine.toml --kernel ~/linux",
    arg_required_else_help = true
)]
pub struct WorkloadCommandArgs {
    #[command(subcommand)]
    pub command: WorkloadCommand,
}

#[derive(Subcommand)]
pub enum WorkloadCommand {
    /// Boot a workload once without recording it, and show what its scripts print
    ///
    /// The scripts set-up, run and check run as in a recording. Names the script that fails, its
    /// line and its output. To find the line, boots once more. Exit status 0: the workload can be
    /// recorded. 1: a script failed. 2: the guest could not be made or booted.
    #[command(after_help = "Example:\n  kernlane workload check ./mine.toml --kernel ~/linux")]
    Check(BootedArgs),
}

/// Runs `kernlane workload`.
pub(crate) fn run(args: &WorkloadCommandArgs) -> Result<ExitCode> {
    let WorkloadCommand::Check(args) = &args.command;
    let request = args.request()?;
    interrupt::catch()?;
    let progress = Progress::new("making the guest");
    let mut printed = Ok(());
    let mut last_ended_line = true;
    let trial = trial(&request, &mut |event| {
        if printed.is_err() {
            return;
        }
        printed = match event {
            TrialEvent::Step(step) => {
                progress.say(format!("guest: {step}"));
                let break_line = if last_ended_line { "" } else { "\n" };
                last_ended_line = true;
                out!("{break_line}== {step}\n")
            }
            TrialEvent::Output(text) => {
                last_ended_line = text.ends_with('\n');
                out!("{text}")
            }
        };
    })?;
    drop(progress);
    printed?;
    trial.warnings.iter().for_each(|warning| note!("warning: {warning}"));
    match &trial.failure {
        None => {
            outln!("== the workload {} did its work", request.workload.name)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(failure) => {
            note!("{}", failed(failure));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// What failed, in which line, and the last lines of its output.
fn failed(failure: &TrialFailure) -> String {
    let TrialFailure { script, status, line, output } = failure;
    let mut text = match line {
        Some((number, line)) => {
            format!("{script} failed with status {status} in its line {number}: {line}")
        }
        None => format!("{script} failed with status {status}"),
    };
    if !output.trim().is_empty() {
        text.push_str(&format!("\n--- the output of {script}, last lines:\n{}", output.trim_end()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_script_line_and_output() {
        let mut failure = TrialFailure {
            script: "set-up".into(),
            status: 5,
            line: Some((3, "cp a b".into())),
            output: "cp: no a\n".into(),
        };
        let expected = "set-up failed with status 5 in its line 3: cp a b\n\
            --- the output of set-up, last lines:\ncp: no a";
        assert_eq!(failed(&failure), expected);
        failure.line = None;
        failure.output.clear();
        assert_eq!(failed(&failure), "set-up failed with status 5");
    }
}
