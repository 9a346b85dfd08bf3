//! A kernel's blocks in random order, judged by the kernel's own objtool. For the project's tests.
//!
//! Input: a built tree. Output: where objtool and the rewriting agree.

use anyhow::{Context, Result};
use check::objtool::{self, ObjtoolAgreement};
use emit::kbuild::BuildTree;
use emit::object::{PartNames, RewritePlan, rewrite, two_regions};
use emit::originals::Originals;
use emit::relink::noreturns;
use image::object::ObjectHints;
use image::object::linked::LinkAddresses;
use std::path::Path;

/// Splits every function of the tree's kernel into two parts, puts the blocks of each part and the
/// functions into the random order of `seed`, and asks objtool.
///
/// ```no_run
/// let agreement = road::objtool::agreement("linux".as_ref(), 1)?;
/// assert!(agreement.is_sufficient(64));
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// The tree is not built, or objtool cannot be run.
pub fn agreement(tree: &Path, seed: u64) -> Result<ObjtoolAgreement> {
    let tree = BuildTree::open(tree, &[])?;
    let originals = Originals::read(&tree)?;
    let linked = LinkAddresses::read(&originals.vmlinux)
        .with_context(|| tree.file("vmlinux").display().to_string())?;
    let hints = ObjectHints { noreturn: noreturns(&tree), ..ObjectHints::default() };
    let object = originals.read_object(&hints)?;
    let base = linked.text_base(&object)?;
    let (order, hot) = two_regions(&object, seed);
    let rewritten = rewrite(
        &object,
        &RewritePlan { order: &order, hot, base, names: PartNames::Joinable, counters: &[] },
    )?;
    let scratch = tempfile::tempdir().context("no scratch directory can be made")?;
    objtool::compare(&tree.path, &rewritten.bytes, scratch.path())
}
