//! `kernlane cross-validate`: tests layouts on other workloads than they were made from.
//!
//! Input: recordings and their kernel. Output: tables.

use crate::command::layout::algorithms;
use anyhow::Result;
use clap::Args;
use host::out;
use host::outln;
use image::vmlinux;
use layout::Algorithm;
use report::cross_validation;
use road::cross_validation::CrossValidation;
use road::kernel::kernel_of_all;
use sim::MachineModel;
use std::path::PathBuf;
use std::process::ExitCode;

/// Test layouts on workloads that they were not made from: what a wrong profile costs
///
/// Tests each recording with layouts made from itself, from each other recording, from the average
/// of the others and from the average of all (Torrellas 1998, section 5). Also with layouts made
/// from less exact counts of itself: branches sampled at several rates, and block counts without
/// edges. Last, tests its second half with a layout made from its first half. Addresses are nearly
/// those that `kernlane relink` would give.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane cross-validate net.rec files.rec compile.rec \
                  --algorithm joint --algorithm ext-tsp")]
pub struct CrossValidateArgs {
    /// Recordings (directories) of one kernel, each of another workload
    #[arg(required = true, num_args = 2.., value_name = "RECORDING")]
    pub recordings: Vec<PathBuf>,

    /// The kernel that was recorded: its build tree, or its vmlinux [default: found by its build
    /// id: where it was recorded, in the cache, below /usr/lib/debug]
    #[arg(long, short, value_name = "TREE|VMLINUX")]
    pub kernel: Option<PathBuf>,

    /// A layout algorithm; may be given several times
    #[arg(long, short, default_values_t = [Algorithm::default()], value_parser = algorithms())]
    pub algorithm: Vec<Algorithm>,

    /// A machine; may be given several times
    #[arg(long, short, value_name = "NAME|FILE.toml", default_value = "server-32k")]
    pub machine: Vec<String>,

    /// The sampling period: one sample in N executions; may be given several times
    #[arg(
        long,
        value_name = "N",
        default_values_t = [1_000, 10_000, 100_000],
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub sample: Vec<u64>,

    /// Seed of the sampling, and of random orders
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

pub(crate) fn run(args: &CrossValidateArgs) -> Result<ExitCode> {
    let machines: Vec<MachineModel> = machines::models(&args.machine)?;
    let kernel = kernel_of_all(args.kernel.as_deref(), &args.recordings)?;
    let image = vmlinux::read(&vmlinux::path(&kernel))?;
    let tested = CrossValidation {
        recordings: &args.recordings,
        image: &image,
        machines: &machines,
        algorithms: &args.algorithm,
        sampling: &args.sample,
        seed: args.seed,
    }
    .run()?;
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&tested)?)?,
        false => out!("{}", cross_validation::text(&tested))?,
    }
    Ok(ExitCode::SUCCESS)
}
