//! `kernlane evaluate`: makes Torrellas' figures from recordings.
//!
//! Input: recordings and their kernel. Output: tables.

use anyhow::Result;
use clap::Args;
use host::out;
use host::outln;
use image::vmlinux;
use report::evaluation;
use road::evaluation::evaluate;
use road::kernel::kernel_of_all;
use std::path::PathBuf;
use std::process::ExitCode;

/// Evaluate layouts as Torrellas, Xia and Daigle did (1998, figures 11 to 17)
///
/// Lays the kernel out with Chang-Hwu, OptS, OptL and Call, and the user's code with OptA, for the
/// average of the recordings. Replays each recording over the layouts on many instruction caches.
/// Prints misses by cause, by class of block, by address, by size, line and ways, by the size of
/// the SelfConfFree area, and with separate and reserved caches, beside the paper's numbers.
/// Addresses are nearly those that `kernlane relink` would give.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane evaluate net.rec files.rec compile.rec \
                  --machine torrellas-8k")]
pub struct EvaluateArgs {
    /// Recordings (directories) of one kernel
    #[arg(required = true, value_name = "RECORDING")]
    pub recordings: Vec<PathBuf>,

    /// The kernel that was recorded: its build tree, or its vmlinux [default: found by its build
    /// id: where it was recorded, in the cache, below /usr/lib/debug]
    #[arg(long, short, value_name = "TREE|VMLINUX")]
    pub kernel: Option<PathBuf>,

    /// The machine whose instruction cache is varied
    #[arg(long, short, value_name = "NAME|FILE.toml", default_value = "torrellas-8k")]
    pub machine: String,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

pub(crate) fn run(args: &EvaluateArgs) -> Result<ExitCode> {
    let machine = machines::find(&args.machine)?.model;
    let kernel = kernel_of_all(args.kernel.as_deref(), &args.recordings)?;
    let image = vmlinux::read(&vmlinux::path(&kernel))?;
    let evaluation = evaluate(&args.recordings, &image, &machine)?;
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&evaluation)?)?,
        false => out!("{}", evaluation::text(&evaluation))?,
    }
    Ok(ExitCode::SUCCESS)
}
