//! `cargo xtask check-test TREE`: the checker accepts the tree's kernel against itself, and refuses
//! each wrong copy.

use anyhow::{Result, bail, ensure};
use check::{KernelBuild, check, mutation};
use image::place::Placement;
use std::path::Path;

pub(crate) fn check_test(tree: &Path) -> Result<()> {
    let build = KernelBuild::read(tree)?;
    let good = build.kernel()?;
    let findings = check(&good, &good, &Placement::default())?;
    ensure!(
        findings.equal(),
        "a kernel is not equal to itself:\n{}",
        findings.text(&good.kernel, &good.kernel, 5)
    );
    println!("passed: a kernel is equal to itself");

    let (mut passed, mut failed) = (1, 0);
    for mutation in mutation::all(&build, &good)? {
        if mutation.is_found(&build, &good)? {
            passed += 1;
            println!("passed: found: {}", mutation.name);
        } else {
            failed += 1;
            println!("FAILED: not found: {}", mutation.name);
        }
    }
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        bail!("the checker accepts wrong kernels");
    }
    Ok(())
}
