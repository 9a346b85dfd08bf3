//! `cargo xtask check-test TREE`: the checker accepts the tree's kernel against itself, and refuses
//! each wrong copy.

use anyhow::{Result, ensure};
use check::{KernelBuild, check, mutation};
use image::place::Placement;
use lab::score::TestScore;
use std::path::Path;

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn check_test(tree: &Path) -> Result<()> {
    let build = KernelBuild::read(tree)?;
    let good = build.kernel()?;
    let findings = check(&good, &good, &Placement::default())?;
    ensure!(
        findings.equal(),
        "a kernel is not equal to itself:\n{}",
        findings.text(&good.kernel, &good.kernel, 5)
    );
    let mut score = TestScore::default();
    score.holds("a kernel is equal to itself", true);
    for mutation in mutation::all(&build, &good)? {
        let found = mutation.is_found(&build, &good)?;
        let how = if found { "found" } else { "not found" };
        score.holds(&format!("{how}: {}", mutation.name), found);
    }
    score.finish("the checker accepts wrong kernels")
}
