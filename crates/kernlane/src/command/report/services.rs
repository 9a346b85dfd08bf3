//! Reports of services and functions.
//!
//! Input: recordings and their kernel. Output: tables on standard output.

use super::opening::{MachineArgs, RecordingsArgs, TopArgs};
use crate::command::sampling::SamplingArgs;
use ::services::generations::check;
use ::services::locality::Locality;
use ::services::share::OsShare;
use ::services::table::ServiceTable;
use anyhow::{Result, bail};
use clap::Args;
use image::vmlinux;
use report::generations::GenerationsBeside;
use road::service_time;

/// The machines of `generations`, unless others are named.
const GENERATIONS: [&str; 6] =
    ["i486", "simos-1994", "simos-1996", "simos-1998", "pentium4", "zen4"];

/// Print the time by service of the system: each system call, kind of page fault, interrupt,
/// softirq, kernel thread
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane report services net.rec --machine torrellas-8k --machine server-32k
  kernlane report services net.rec --machine zen4 --within 0.5
  kernlane report services net.rec --branches --machine server-32k")]
pub struct ServicesArgs {
    #[command(flatten)]
    pub recordings: RecordingsArgs,

    /// Print mispredictions by service, on machines with a branch predictor
    #[arg(long, requires = "machine")]
    pub branches: bool,

    #[command(flatten)]
    pub machines: MachineArgs,

    #[command(flatten)]
    pub sampling: SamplingArgs,

    #[command(flatten)]
    pub top: TopArgs,
}

pub(super) fn services(args: &ServicesArgs) -> Result<()> {
    let sampling = args.sampling.sampling()?;
    let tables = args.recordings.each(&args.machines.machine, |path, kernel| {
        service_time::table(&kernel.attribution, path, args.branches, sampling)
    })?;
    args.recordings
        .table
        .print_each(&tables, |table| report::services::table(table, args.top.rows()))
}

/// Print the system's share of the work, and the length of each visit to the kernel
#[derive(Args)]
#[command(after_help = "Example:
  kernlane report os-share net.rec files.rec --machine server-32k")]
pub struct OsShareArgs {
    #[command(flatten)]
    pub recordings: RecordingsArgs,

    #[command(flatten)]
    pub machines: MachineArgs,

    #[command(flatten)]
    pub sampling: SamplingArgs,

    #[command(flatten)]
    pub top: TopArgs,
}

pub(super) fn os_share(args: &OsShareArgs) -> Result<()> {
    let sampling = args.sampling.sampling()?;
    let tables: Vec<ServiceTable> =
        args.recordings.each(&args.machines.machine, |path, kernel| {
            service_time::table(&kernel.attribution, path, false, sampling)
        })?;
    let shares: Vec<OsShare> = tables.iter().map(OsShare::new).collect();
    args.recordings.table.print(&shares, || report::services::shares(&shares, args.top.top))
}

/// Print each service on machines of several generations
///
/// Splits P, how many times faster each machine is than the first, into the ratio of the clocks (T)
/// and that of the cycles for the same instructions (A): P = T × A. Beside it stand the numbers of
/// Nellans 2005 and Rosenblum 1995. Without --machine the machines are i486, simos-1994,
/// simos-1996, simos-1998, pentium4 and zen4.
#[derive(Args)]
#[command(after_help = "Example:
  kernlane report generations net.rec --machine i486,pentium4,zen4")]
pub struct GenerationsArgs {
    #[command(flatten)]
    pub recordings: RecordingsArgs,

    #[command(flatten)]
    pub machines: MachineArgs,

    #[command(flatten)]
    pub sampling: SamplingArgs,

    #[command(flatten)]
    pub top: TopArgs,
}

pub(super) fn generations(args: &GenerationsArgs) -> Result<()> {
    if let [one] = &args.machines.machine[..] {
        bail!("--machine {one}: generations are at least two machines, the oldest first");
    }
    let sampling = args.sampling.sampling()?;
    let machines = args.machines.or(&GENERATIONS);
    let all = args.recordings.each(&machines, |path, kernel| {
        let attribution = &kernel.attribution;
        check(&attribution.machines)?;
        Ok(GenerationsBeside::new(service_time::generations(attribution, path, sampling)?))
    })?;
    args.recordings.table.print_each(&all, |one| report::generations::text(one, args.top.rows()))
}

/// Print how much of the kernel's code runs, why it is entered, its branches, loops and popular
/// functions, beside Torrellas' numbers
#[derive(Args)]
#[command(after_help = "Example:
  kernlane report locality net.rec files.rec")]
pub struct LocalityArgs {
    #[command(flatten)]
    pub recordings: RecordingsArgs,
}

pub(super) fn locality(args: &LocalityArgs) -> Result<()> {
    let localities: Vec<Locality> = args.recordings.each(&[], |path, kernel| {
        let image = vmlinux::read(&vmlinux::path(&kernel.path))?;
        kernel.attribution.locality(path, &image)
    })?;
    args.recordings.table.print(&localities, || report::locality::text(&localities))
}
