//! Profiles from counting kernels, whose code counts its own blocks.
//!
//! Input: a running process, its kernel with the list of counters, and the tree that it was made
//! from. Output: a profile of the tree's original kernel, and how well the counters determine it.

use anyhow::{Context, Result};
use emit::counting::profile::{CountQuality, CountedKernel, profile};
use emit::counting::{Counters, memory};
use emit::kbuild::BuildTree;
use emit::originals::Originals;
use emit::relink::{COUNTERS, noreturns};
use image::object::ObjectHints;
use image::object::linked::LinkAddresses;
use image::vmlinux;
use profile::Profile;
use std::fs;
use std::path::Path;

/// The counts of a process that runs the kernel in the directory `counting`, which was relinked
/// with counters from `tree`. `workload`: its name in the profile.
///
/// ```no_run
/// let (counting, tree) = ("counting.kernel".as_ref(), "linux-um".as_ref());
/// let (profile, quality) = road::counters::of_process(4242, counting, tree, "net")?;
/// assert!(profile.blocks.len() + quality.unknown_blocks <= quality.blocks);
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// There is no such process, its memory cannot be read, or process, kernel and tree do not belong
/// together.
pub fn of_process(
    pid: u32,
    counting: &Path,
    tree: &Path,
    workload: &str,
) -> Result<(Profile, CountQuality)> {
    let counters = listed(&counting.join(COUNTERS))?;
    // First, because the process may end while the rest takes time.
    let counts = memory::read(pid, &counting.join("vmlinux"), counters.blocks.len())?;
    let tree = BuildTree::open(tree, &[])?;
    of_counts(&tree, &counters, &counts, workload)
}

/// The counters of a counting kernel.
fn listed(path: &Path) -> Result<Counters> {
    let text = fs::read_to_string(path).with_context(|| {
        format!("{}: cannot be read; was the kernel relinked with counters?", path.display())
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
    let object = originals.read_object(&hints)?;
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
