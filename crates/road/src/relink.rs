//! Kernels with their code in another order, or with counters.
//!
//! Input: a built tree, and what to do with its code. Output: a kernel and its map, where the
//! program wants them. [`emit::relink`] makes them; this module reports the steps.

use crate::staying;
use anyhow::Result;
use emit::kbuild::BuildTree;
use emit::relink::{self, Destination, RelinkWork, RelinkedKernel};
use host::note;
use host::progress::Progress;

/// Relinks the kernel of a tree. A kernel at the destination that was made from the same input by
/// the same program is used again.
///
/// ```no_run
/// use emit::kbuild::BuildTree;
/// use emit::relink::{Destination, RelinkWork};
///
/// let tree = BuildTree::open("linux".as_ref(), &[])?;
/// let work = RelinkWork::Order(road::layout_file::read_layout("net.kll".as_ref())?);
/// let destination = Destination::Directory("net.kernel".as_ref());
/// let kernel = road::relink::relink(&tree, &work, &destination)?;
/// assert!(kernel.map.is_some_and(|map| map.build_id == kernel.report.old_build_id));
///
/// // A kernel that counts its blocks; `road::counters` makes a profile of the counts.
/// let destination = Destination::Directory("counting.kernel".as_ref());
/// road::relink::relink(&tree, &RelinkWork::Count, &destination)?;
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// The tree is not built, or belongs to another kernel than the layout. The kernel cannot be
/// rewritten, linked or written. The user interrupts. After an error nothing half done is left at
/// the destination.
pub fn relink(
    tree: &BuildTree,
    work: &RelinkWork,
    destination: &Destination<'_>,
) -> Result<RelinkedKernel> {
    let progress = Progress::new("reading the kernel");
    let made = relink::relink(tree, work, destination, &|step| progress.say(step))?;
    drop(progress);
    let report = &made.report;
    let reasons = report.whole.iter().max_by_key(|whole| whole.bytes);
    let reason = reasons.map_or("", |whole| &whole.reason);
    let doubts =
        [staying::doubt(report.hot_staying), staying::doubt_of_whole(report.hot_whole, reason)];
    doubts.iter().flatten().for_each(|doubt| note!("warning: {doubt}"));
    Ok(made)
}
