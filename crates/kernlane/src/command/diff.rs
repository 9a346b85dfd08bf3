//! `kernlane diff`: what changed between two recordings, and why.
//!
//! Input: two recordings and their kernels. Output: tables, and an exit status for --limit.

use crate::command::sampling::SamplingArgs;
use anyhow::{Result, ensure};
use clap::Args;
use host::note;
use host::out;
use host::outln;
use report::difference;
use road::difference::Compared;
use std::path::PathBuf;
use std::process::ExitCode;

/// Say what changed between two recordings, service by service and function by function, and why
///
/// Compares a workload before and after a patch to the kernel, or on two kernels. Each change has
/// three parts that add up: the number of calls, instructions per call, and misses per call, or, on
/// a machine with an out-of-order core, cycles per instruction. With --limit the exit status is 1
/// when the kernel or one of its services grew by more; of times that are estimated from samples,
/// only the growth beyond the 95 % interval counts.
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane diff old.rec new.rec --machine server-32k
  kernlane diff old.rec new.rec --machine zen4
  kernlane diff old.rec new.rec --limit 2 || echo slower")]
pub struct DiffArgs {
    /// The recording before (a directory)
    pub before: PathBuf,

    /// The recording after
    pub after: PathBuf,

    /// The kernel of the first recording: its build tree, its vmlinux, or its System.map [default:
    /// found by its build id: where it was recorded, in the cache, below /usr/lib/debug]
    #[arg(long, short, value_name = "TREE|VMLINUX|SYSTEM.MAP")]
    pub kernel: Option<PathBuf>,

    /// The kernel of the second recording [default: --kernel; without that, found as the first's]
    #[arg(long, value_name = "TREE|VMLINUX|SYSTEM.MAP")]
    pub kernel_after: Option<PathBuf>,

    /// A machine to simulate: costs are then its cycles, otherwise instructions
    #[arg(long, short, value_name = "NAME|FILE.toml")]
    pub machine: Option<String>,

    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// What the kernel's functions mean, instead of annotations/linux.toml
    #[arg(long, value_name = "FILE.toml")]
    pub annotations: Option<PathBuf>,

    /// Exit with status 1 if the kernel or a service grew by more than this percentage
    #[arg(long, value_name = "PERCENT")]
    pub limit: Option<f64>,

    /// The limit does not apply to services below this percentage of the kernel, before and after
    #[arg(long, value_name = "PERCENT", default_value_t = 0.5)]
    pub least: f64,

    /// How many services and functions to print
    #[arg(long, default_value_t = 20)]
    pub top: usize,

    /// Print the difference as JSON
    #[arg(long)]
    pub json: bool,
}

pub(crate) fn run(args: &DiffArgs) -> Result<ExitCode> {
    for percent in args.limit.iter().chain([&args.least]) {
        ensure!(percent.is_finite() && *percent >= 0.0, "{percent} is not a percentage");
    }
    let kernel_after = args.kernel_after.as_deref().or(args.kernel.as_deref());
    let compared = Compared {
        recordings: [&args.before, &args.after],
        kernels: [args.kernel.as_deref(), kernel_after],
        machine: args.machine.as_deref(),
        annotations: args.annotations.as_deref(),
        sampling: args.sampling.sampling()?,
    };
    let difference = compared.difference()?;
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&difference)?)?,
        false => out!("{}", difference::text(&difference, args.top))?,
    }
    let Some(limit) = args.limit else { return Ok(ExitCode::SUCCESS) };
    let over = difference.over(limit / 100.0, args.least / 100.0);
    for change in &over {
        let grew = change
            .growth()
            .map_or("is new".to_owned(), |growth| format!("grew by {:.1} %", 100.0 * growth));
        let kind = change.kind.map_or(String::new(), |kind| format!("{} ", kind.title()));
        note!("over the limit: {kind}{} {grew}", change.name);
    }
    Ok(if over.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
