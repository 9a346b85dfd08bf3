//! `kernlane checkpoint`: saves a warm guest at the point where counting would start.
//!
//! Input: a workload and a kernel. Output: a directory.

use crate::command::record::{GuestArgs, on};
use anyhow::Result;
use clap::Args;
use host::interrupt;
use host::outln;
use std::process::ExitCode;

/// Boot, set up and warm a workload once, to record it many times from there
///
/// Saves the guest's memory and the state of its devices at the point where counting would start.
/// Recordings from a checkpoint skip boot and set-up, and all execute the same instructions in the
/// same order. A checkpoint belongs to one kernel, workload, seed and version of QEMU; `record
/// --from` refuses any other.
#[derive(Args)]
#[command(after_help = "Example:\n  \
                  kernlane checkpoint database --kernel ~/linux -o database.checkpoint\n  \
                  kernlane record database --kernel ~/linux --from database.checkpoint \
                  -o database.rec")]
pub struct CheckpointArgs {
    #[command(flatten)]
    pub guest: GuestArgs,
}

/// Runs `kernlane checkpoint`.
pub(crate) fn run(args: &CheckpointArgs) -> Result<ExitCode> {
    let request = args.guest.request()?;
    interrupt::catch()?;
    let made = road::record::checkpoint(&request)?;
    match args.guest.json {
        true => outln!("{}", serde_json::to_string_pretty(&made.summary)?)?,
        false => outln!(
            "{}: {}\n{:.0} MB; {:.0} s by this machine's clock",
            args.guest.output.display(),
            on(&made.summary.conditions),
            made.summary.state_bytes as f64 / 1e6,
            made.elapsed.as_secs_f64()
        )?,
    }
    Ok(ExitCode::SUCCESS)
}
