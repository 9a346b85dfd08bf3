//! `kernlane live watch` and `kernlane live count`: exact block counts of the running kernel.

use super::ModuleArgs;
use super::roots::RootArgs;
use anyhow::{Context, Result, ensure};
use clap::Args;
use host::note;
use host::outln;
use image::linked::LinkedKernel;
use live::choice;
use live::device::Device;
use live::hot::HotGroup;
use live::lasting;
use live::owners::Owners;
use live::running::RunningKernel;
use live::watch::{Watch, Watched};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Count the blocks of functions, and of what they call, in the running kernel
///
/// For a while, copies with a counter in each block run instead of the functions, one level of the
/// call graph after the other. The counts of blocks are exact; counts of edges are derived from
/// them where they determine them. Up to 65 536 blocks are counted at a time. Before that, the
/// command asks the hardware counters whether the instruction cache is a bottleneck; afterwards it
/// draws the hot blocks over the cache's sets. The result is a profile for `kernlane live apply`.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane live watch --root tcp_v4_rcv --time 20 -o net.klp")]
pub struct WatchArgs {
    /// The running kernel's vmlinux; by default where distributions put it
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,

    #[command(flatten)]
    pub modules: ModuleArgs,

    #[command(flatten)]
    pub roots: RootArgs,

    /// For how many seconds each batch of functions is counted
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    pub time: f64,

    /// How many levels of calls to follow
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub depth: usize,

    /// What counts as hot for the picture of the instruction cache, in percent of a root's calls
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub threshold: f64,

    /// The profile to write
    #[arg(short, long, value_name = "FILE.klp")]
    pub output: PathBuf,
}

/// Count how often each block of a function runs
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane live count vfs_read --time 5")]
pub struct CountArgs {
    /// The function
    pub function: String,

    /// The running kernel's vmlinux; by default where distributions put it
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,

    #[command(flatten)]
    pub modules: ModuleArgs,

    /// For how many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    pub time: f64,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn watch(args: &WatchArgs) -> Result<ExitCode> {
    ready_to_count(args.vmlinux.as_deref(), &args.modules, |kernel, running, device| {
        watch_roots(args, kernel, running, device)
    })
}

/// Opens the running kernel and the device, refuses if a group is installed, and catches Ctrl-C.
fn ready_to_count(
    vmlinux: Option<&Path>,
    modules: &ModuleArgs,
    work: impl FnOnce(&LinkedKernel<'_>, &RunningKernel, &Device) -> Result<ExitCode>,
) -> Result<ExitCode> {
    let device = Device::open()?;
    super::on_running_kernel(vmlinux, modules.with(Some(&device)), |kernel, running| {
        super::undo::refuse_installed()?;
        host::interrupt::catch()?;
        work(kernel, running, &device)
    })
}

fn watch_roots(
    args: &WatchArgs,
    kernel: &LinkedKernel<'_>,
    running: &RunningKernel,
    device: &Device,
) -> Result<ExitCode> {
    super::cache::ask()?;
    let roots = args.roots.choose(kernel, running)?;
    let found = count_from(kernel, running, device, &roots, args.time, args.depth)?;
    let profile = lasting::lasting(kernel, found.profile.clone());
    host::output::write(&args.output, profile.to_json().as_bytes())?;
    let hot = HotGroup::new(kernel, running, &found.profile, &roots, args.threshold / 100.0)?;
    super::cache::draw_original(&hot.original(super::cache::geometry()?))?;
    print_counted(&found)?;
    Ok(ExitCode::SUCCESS)
}

/// Counts each batch for `time` seconds.
fn count_from(
    kernel: &LinkedKernel<'_>,
    running: &RunningKernel,
    device: &Device,
    roots: &[usize],
    time: f64,
    depth: usize,
) -> Result<Watched> {
    let mut watch = Watch {
        kernel,
        running,
        device,
        time: Duration::try_from_secs_f64(time).context("--time")?,
        told: &mut |what| note!("{what}"),
    };
    watch.from_roots(roots, depth)
}

pub(super) fn print_counted(found: &Watched) -> Result<()> {
    outln!(
        "{} functions on {} levels: {} blocks by {} counters ({} unknown), {} edges, \
         {:.1} % of them exact",
        found.functions(),
        found.levels.len(),
        found.blocks,
        found.counters,
        found.unknown_blocks,
        found.edges,
        found.exact_percent()
    )
}

pub(super) fn count(args: &CountArgs) -> Result<ExitCode> {
    ready_to_count(args.vmlinux.as_deref(), &args.modules, |kernel, running, device| {
        count_blocks(args, kernel, running, device)
    })
}

fn count_blocks(
    args: &CountArgs,
    kernel: &LinkedKernel<'_>,
    running: &RunningKernel,
    device: &Device,
) -> Result<ExitCode> {
    let name = std::slice::from_ref(&args.function);
    let function = choice::countable(kernel, running, &Owners::read(), name)?;
    let found = count_from(kernel, running, device, &function, args.time, 0)?;
    ensure!(!found.profile.blocks.is_empty(), "{}: nothing was counted", args.function);
    let counts = found.block_counts(kernel);
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&counts)?)?;
    } else {
        for (at, count) in counts {
            outln!("{at} {count:>12}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
