//! `kernlane counts`: makes a profile from the counters of a counting kernel.
//!
//! Input: a running process, its kernel and the list of counters. Output: a profile.

use anyhow::Result;
use clap::Args;
use emit::counting::profile::CountQuality;
use host::outln;
use host::output;
use profile::Profile;
use road::counters;
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
    let CountsArgs { pid, counting, tree, workload, .. } = args;
    let (profile, quality) = counters::of_process(*pid, counting, tree, workload)?;
    output::write(&args.output, profile.to_json().as_bytes())?;
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&quality)?)?;
    } else {
        print(&quality, &args.output, &profile)?;
    }
    Ok(ExitCode::SUCCESS)
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
