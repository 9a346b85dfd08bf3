//! `cargo xtask relink-test TREE`: tests rewriting and relinking on a real kernel without booting
//! it.

use anyhow::{Context, Result, ensure};
use image::BuildId;
use image::object::linked::LinkAddresses;
use image::order::Layout;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

/// The files that a link writes to a tree.
const RESULTS: [&str; 3] = ["vmlinux", "System.map", "arch/x86/boot/bzImage"];
/// The seeds of the orders that objtool checks.
const SEEDS: [&str; 2] = ["1", "2"];
/// After this time the link has begun, but has not ended.
const BEFORE_INTERRUPT: Duration = Duration::from_secs(4);

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn relink_test(tree: &Path) -> Result<()> {
    // The commands `relink` and `objtool` are tested, also when they are killed.
    let kernlane = lab::kernlane()?;
    let scratch = tempfile::tempdir().context("no scratch directory can be made")?;
    let before = results(tree)?;
    let vmlinux = fs::read(tree.join("vmlinux"))?;
    let build_id = LinkAddresses::read(&vmlinux)?.build_id;

    original_order(&kernlane, tree, &build_id, scratch.path(), &before)?;
    passed("the original order gives the original kernel, byte for byte");
    for seed in SEEDS {
        lab::run(Command::new(&kernlane).args(["objtool", "--seed", seed, "--tree"]).arg(tree))?;
    }
    passed("objtool makes the same tables for a shuffled object as the rewriter");
    other_kernel(&kernlane, tree, scratch.path())?;
    passed("a layout for another kernel is refused");
    interrupted(&kernlane, tree, &build_id, scratch.path())?;
    passed("an interrupted relink leaves nothing behind");
    killed(&kernlane, tree, &build_id, scratch.path())?;
    passed("a killed relink leaves no kernel and nothing running");
    ensure!(results(tree)? == before, "the tree was written to");
    passed("the tree is unchanged");
    Ok(())
}

/// Relinks a tree's kernel in its original order.
///
/// # Errors
/// The result is another kernel.
pub(crate) fn the_original_order_is_the_original(tree: &Path) -> Result<()> {
    let scratch = tempfile::tempdir().context("no scratch directory can be made")?;
    let vmlinux = fs::read(tree.join("vmlinux"))?;
    let build_id = LinkAddresses::read(&vmlinux)?.build_id;
    original_order(&lab::kernlane()?, tree, &build_id, scratch.path(), &results(tree)?)
}

fn passed(what: &str) {
    println!("passed: {what}");
}

fn results(root: &Path) -> Result<Vec<Vec<u8>>> {
    let read = |name: &&str| {
        fs::read(root.join(name))
            .with_context(|| format!("{}: cannot be read", root.join(name).display()))
    };
    RESULTS.iter().map(read).collect()
}

fn relink(
    kernlane: &Path,
    tree: &Path,
    layout: &Layout,
    scratch: &Path,
    output: &Path,
) -> Result<Command> {
    let path = scratch.join("layout.kll");
    fs::write(&path, layout.to_text())?;
    let mut command = Command::new(kernlane);
    command
        .arg("relink")
        .arg("--tree")
        .arg(tree)
        .arg("--layout")
        .arg(&path)
        .arg("--output")
        .arg(output);
    Ok(command)
}

fn original_order(
    kernlane: &Path,
    tree: &Path,
    build_id: &BuildId,
    scratch: &Path,
    before: &[Vec<u8>],
) -> Result<()> {
    let output = scratch.join("original");
    let original = Layout::original(build_id.clone());
    lab::succeeded(&mut relink(kernlane, tree, &original, scratch, &output)?)?;
    for ((name, old), new) in RESULTS.iter().zip(before).zip(results(&output)?) {
        ensure!(*old == new, "the original order gave another {name}");
    }
    Ok(())
}

fn other_kernel(kernlane: &Path, tree: &Path, scratch: &Path) -> Result<()> {
    let output = scratch.join("other");
    let Output { status, stderr, .. } =
        relink(kernlane, tree, &Layout::original(BuildId("00ff".into())), scratch, &output)?
            .output()?;
    let message = String::from_utf8_lossy(&stderr);
    ensure!(
        status.code() == Some(2) && message.contains("00ff"),
        "not refused ({status}): {message}"
    );
    ensure!(!output.join("vmlinux").exists(), "a refused layout left a kernel behind");
    Ok(())
}

fn interrupted(kernlane: &Path, tree: &Path, build_id: &BuildId, scratch: &Path) -> Result<()> {
    let output = scratch.join("interrupted");
    let mut child =
        relink(kernlane, tree, &Layout::original(build_id.clone()), scratch, &output)?.spawn()?;
    std::thread::sleep(BEFORE_INTERRUPT);
    ensure!(child.try_wait()?.is_none(), "the relink ended before it could be interrupted");
    lab::run(Command::new("kill").args(["-INT", &child.id().to_string()]))?;
    let status = child.wait()?;
    ensure!(status.code() == Some(2), "an interrupted relink ended with {status}");
    ensure!(!output.exists(), "an interrupted relink left something in {}", output.display());
    Ok(())
}

/// A relink that cannot put anything back takes all that it started with it.
fn killed(kernlane: &Path, tree: &Path, build_id: &BuildId, scratch: &Path) -> Result<()> {
    let holder = scratch.join("killed");
    fs::create_dir(&holder)?;
    let output = holder.join("kernel");
    let mut child =
        relink(kernlane, tree, &Layout::original(build_id.clone()), scratch, &output)?.spawn()?;
    std::thread::sleep(BEFORE_INTERRUPT);
    ensure!(child.try_wait()?.is_none(), "the relink ended before it could be killed");
    child.kill()?;
    child.wait()?;
    // A make that survived would end when it has linked the kernel.
    while works_in(&holder) {
        std::thread::sleep(BEFORE_INTERRUPT / 10);
    }
    ensure!(!output.exists(), "a killed relink left {}", output.display());
    for entry in fs::read_dir(&holder)? {
        for scratch in fs::read_dir(entry?.path().join("new"))? {
            let linked = scratch?.path().join("arch/x86/boot/bzImage");
            ensure!(!linked.exists(), "{}: make outlived a killed relink", linked.display());
        }
    }
    Ok(())
}

/// Whether a process is at work below the directory.
fn works_in(directory: &Path) -> bool {
    fs::read_dir("/proc").into_iter().flatten().flatten().any(|process| {
        fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(directory))
    })
}
