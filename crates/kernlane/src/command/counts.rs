//! `kernlane counts`: makes a profile from the counters of a counting kernel.
//!
//! Input: a running process, its kernel and the list of counters. Output: a profile.

use anyhow::{Context, Result};
use clap::Args;
use emit::counting::profile::{CountQuality, CountedKernel, profile};
use emit::counting::{Counters, memory};
use emit::kbuild::BuildTree;
use emit::relink::{COUNTERS, Originals, noreturns};
use host::outln;
use host::output;
use image::object::linked::LinkAddresses;
use image::object::{KernelObject, ObjectHints};
use image::vmlinux;
use profile::Profile;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Make a profile from a counting kernel's counters
///
/// Reads the counters of a running kernel that `kernlane relink --count` made. The kernel is a
/// process (User Mode Linux). Derives the counts of all blocks, edges and calls. The profile
/// belongs to the tree's original kernel; `kernlane layout` takes it.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane counts counting.kernel --tree ~/linux-um --pid 4242 \
                  -o net.klp\n  \
    kernlane layout net.klp --kernel ~/linux-um --algorithm ext-tsp -o net.kll")]
pub struct CountsArgs {
    /// The directory of the counting kernel
    #[arg(value_name = "DIR")]
    pub counting: PathBuf,

    /// The tree that it was relinked from
    #[arg(long, value_name = "DIR")]
    pub tree: PathBuf,

    /// The process that runs the counting kernel: the first of its processes
    #[arg(long)]
    pub pid: u32,

    /// The workload's name in the profile
    #[arg(long, default_value = "counted")]
    pub workload: String,

    /// Where to write the profile
    #[arg(long, short, value_name = "FILE.klp")]
    pub output: PathBuf,

    /// Print how well the counts determine the profile as JSON
    #[arg(long)]
    pub json: bool,
}

pub(crate) fn run(args: &CountsArgs) -> Result<ExitCode> {
    let counters = listed(&args.counting.join(COUNTERS))?;
    // First, because the process may end while the rest takes time.
    let counts = memory::read(args.pid, &args.counting.join("vmlinux"), counters.blocks.len())?;
    let tree = BuildTree::open(&args.tree, &[])?;
    let (profile, quality) = of_counts(&tree, &counters, &counts, &args.workload)?;
    output::write(&args.output, profile.to_json().as_bytes())?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&quality)?)?;
    } else {
        print(&quality, &args.output, &profile)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The counters of a counting kernel.
fn listed(path: &Path) -> Result<Counters> {
    let text = fs::read_to_string(path).with_context(|| {
        format!("{}: cannot be read; is it from `kernlane relink --count`?", path.display())
    })?;
    Counters::from_text(&text).with_context(|| path.display().to_string())
}

/// The profile that the counters of a counting kernel, made from this tree, give.
fn of_counts(
    tree: &BuildTree,
    counters: &Counters,
    counts: &[u64],
    workload: &str,
) -> Result<(Profile, CountQuality)> {
    let originals = Originals::read(tree)?;
    let name = || tree.file("vmlinux.o").display().to_string();
    let hints = ObjectHints { noreturn: noreturns(tree), ..ObjectHints::default() };
    let object = KernelObject::read(&originals.object, &hints).with_context(name)?;
    let linked = LinkAddresses::read(&originals.vmlinux)
        .with_context(|| tree.file("vmlinux").display().to_string())?;
    let image = vmlinux::parse(&originals.vmlinux)
        .with_context(|| tree.file("vmlinux").display().to_string())?;
    let subject = CountedKernel {
        object: &object,
        base: linked.text_base(&object).with_context(name)?,
        image: &image,
    };
    profile(&subject, counters, counts, workload)
}

fn print(quality: &CountQuality, output: &Path, profile: &Profile) -> Result<()> {
    let CountQuality {
        counters,
        blocks,
        unknown_blocks,
        negative_blocks,
        edges,
        bounded_edges,
        bounded_share,
        through_registers,
        through_registers_known,
    } = quality;
    outln!(
        "{}: {} blocks ran, {} instructions",
        output.display(),
        profile.blocks.len(),
        profile.kernel_instructions()
    )?;
    outln!(
        "{counters} counters for {blocks} blocks; {unknown_blocks} blocks are not determined by \
         any counter, {negative_blocks} had negative counts, clamped to 0"
    )?;
    outln!(
        "{edges} edges; {bounded_edges} edges that ran are known only within bounds, {:.2} % of \
         all counts",
        100.0 * bounded_share
    )?;
    outln!(
        "{through_registers} calls through registers, {through_registers_known} of them to \
         functions that the code names"
    )
}
