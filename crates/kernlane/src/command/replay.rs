//! `kernlane replay`: a recording runs again over layouts and machines.
//!
//! Input: a recording, layouts and machines. Output: tables or result rows.

use crate::command::order::OrderArg;
use crate::command::part::PartArgs;
use crate::command::record::warn_unlike;
use crate::command::sampling::SamplingArgs;
use anyhow::{Result, ensure};
use clap::Args;
use host::note;
use host::out;
use host::recording::Recording;
use replay::guard::{self, LayoutLoss};
use replay::results::ResultFile;
use replay::{self, ReplayLayout, SimulationScope};
use report::text;
use road::kernel::kernel_of;
use road::layout_file::LayoutFile;
use road::modules;
use road::replayed::ReplayRequest;
use sim::MachineModel;
use std::path::PathBuf;
use std::process::ExitCode;

/// Run a recorded execution again over layouts and machines
///
/// Prints counts of a simulated machine for each layout, the original first: L1I misses by cause,
/// iTLB misses, taken branches, fetched and touched bytes, and time by a simple model. Recordings
/// with data accesses add misses of data caches, second-level caches and TLBs, and time by SimOS'
/// in-order model. --branches adds mispredictions. Machines with an out-of-order core (golden-cove,
/// zen4, zen5, gracemont, simos-1996, simos-1998, pentium4) add its cycles, and what each slot of
/// them was for. A recording of several CPUs with data accesses, on a machine with several cores
/// (server-8, simos-1994-8), adds each CPU's misses by class, and its time. One pass over the
/// recording serves all layouts and machines.
#[derive(Args)]
#[command(after_help = "Examples:\n  kernlane replay net.rec --layout net.kll --machine \
                  server-32k --machine torrellas-8k\n  kernlane replay net.rec --layout net.kll \
                  --branches\n  kernlane replay four.rec --machine server-8 --order recorded")]
pub struct ReplayArgs {
    /// A recording (directory)
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,

    /// Another layout, from `kernlane layout` (*.kll), or the map of one from `kernlane relink`
    /// (*.klm); may be given several times
    #[arg(long, short, value_name = "FILE")]
    pub layout: Vec<PathBuf>,

    #[arg(long, short, value_name = "NAME|FILE.toml", default_value = "server-32k", help = machine_help())]
    pub machine: Vec<String>,

    /// The kernel that was recorded: its build tree, or its vmlinux [default: found by its build
    /// id: where it was recorded, in the cache, below /usr/lib/debug]. It is needed for *.kll, and
    /// names functions. With a tree, layouts are placed as `kernlane relink` would; with a vmlinux
    /// alone, nearly so
    #[arg(long, short, alias = "tree", value_name = "TREE|VMLINUX")]
    pub kernel: Option<PathBuf>,

    #[command(flatten)]
    pub part: PartArgs,

    /// Also print the lower bound for any layout: the misses of a cache that wastes no byte, by
    /// Belady's policy and by LRU
    #[arg(long)]
    pub bound: bool,

    /// Also predict branches, on machines that describe a branch predictor
    #[arg(long)]
    pub branches: bool,

    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// How several CPUs run on a machine with several cores
    #[arg(long, value_enum, default_value = "side-by-side", value_name = "ORDER")]
    pub order: OrderArg,

    /// Print the result rows as JSON, as `kernlane report` takes them
    #[arg(long)]
    pub json: bool,
}

fn machine_help() -> String {
    format!("A machine: {}, or a file; may be given several times", machines::names())
}

pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode> {
    let part = args.part.part()?;
    let machines: Vec<MachineModel> = machines::models(&args.machine)?;
    let files = LayoutFile::read_all(&args.layout)?;
    let kernel = wanted_kernel(args, &files)?;
    let kernel = kernel.as_deref();
    let recordings = std::slice::from_ref(&args.recording);
    let image = kernel.map(|kernel| modules::image_of(kernel, recordings)).transpose()?;
    let mut layouts = vec![ReplayLayout::original()];
    for file in files {
        layouts.push(file.placed(kernel, image.as_ref())?);
    }
    let scope = simulation_scope(args.branches, &machines)?;
    let replay = ReplayRequest {
        scope,
        order: args.order.into(),
        image: image.as_ref(),
        part,
        sampling: args.sampling.sampling()?,
        ..ReplayRequest::new(&args.recording, &layouts, &machines)
    };
    let mut rows = replay.rows()?;
    if let (true, Some(image)) = (args.bound, &image) {
        replay.add_bounds(&mut rows, image)?;
    }
    let losses = guard::losses(&rows);
    warn_unlike(&args.recording, &args.machine)?;
    if args.json {
        if image.is_none() {
            note!("no kernel was found, so functions have no names: give it with --kernel");
        }
        out!("{}", ResultFile::new(rows).to_json()?)?;
    } else {
        out!("{}", text::rows(&rows))?;
    }
    warn(&losses);
    Ok(ExitCode::SUCCESS)
}

/// The kernel, if there is one: without it, the functions of the recording have no names.
///
/// # Errors
/// There is none, and a layout or the bound needs it.
fn wanted_kernel(args: &ReplayArgs, layouts: &[LayoutFile]) -> Result<Option<PathBuf>> {
    let is_needed =
        args.bound || args.kernel.is_some() || layouts.iter().any(LayoutFile::needs_kernel);
    let kernel = kernel_of(args.kernel.as_deref(), &args.recording);
    match is_needed || !Recording::at(&args.recording).exists() {
        true => kernel.map(Some),
        false => Ok(kernel.ok()),
    }
}

/// The machines that can predict branches, for `--branches`.
///
/// # Errors
/// No machine describes a branch predictor.
pub(crate) fn simulation_scope(
    branches: bool,
    machines: &[MachineModel],
) -> Result<SimulationScope> {
    if !branches {
        return Ok(SimulationScope::Caches);
    }
    ensure!(
        machines.iter().any(|machine| machine.branch.is_some()),
        "--branches needs a --machine with a table [branch] in its file: server-32k, for example"
    );
    Ok(SimulationScope::CachesAndBranches)
}

/// Warns of layouts that are worse than the original.
pub(crate) fn warn(losses: &[LayoutLoss]) {
    losses.iter().for_each(|loss| note!("warning: {}", loss.text()));
}
