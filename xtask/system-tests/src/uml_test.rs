//! `cargo xtask uml-test`: relinks a kernel that is a program (User Mode Linux).
//!
//! The original order gives the original program, byte for byte. Kernels in a random and in the
//! reversed order run the loads of `load.c`, which compares everything that it receives. A kernel
//! with counters also runs the loads, and its counts must be right.

use anyhow::{Context, Result, ensure};
use image::order::Layout;
use image::vmlinux;
use lab::kernel::{self, Compiler};
use lab::timed;
use lab::uml::{DATAGRAMS, LOADS, REQUESTS, UmlGuest, judge};
use profile::Profile;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The rounds of each load. They take less than a second.
const ROUNDS: u64 = 50;
/// The loads whose calls of some functions are known.
const COUNTED: [&str; 3] = ["mmsg", "uring", "pktgen"];

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn uml_test() -> Result<()> {
    // The commands `layout`, `relink` and `counts` are tested.
    let kernlane = lab::kernlane()?;
    let tree = kernel::tree(Compiler::GccUserMode)?;
    let scratch = tempfile::tempdir().context("no scratch directory can be made")?;
    let guest = UmlGuest::new(scratch.path())?;
    passes(&guest, &tree.join("vmlinux"), "the original kernel")?;

    let original = in_order(&kernlane, &tree, "original", scratch.path())?;
    for name in ["vmlinux", "System.map"] {
        ensure!(
            fs::read(tree.join(name))? == fs::read(original.join(name))?,
            "the original order gave another {name}"
        );
    }
    println!("passed: the original order gives the original program, byte for byte");
    for algorithm in ["random", "reverse"] {
        let kernel = in_order(&kernlane, &tree, algorithm, scratch.path())?;
        passes(&guest, &kernel.join("vmlinux"), &format!("the kernel in {algorithm} order"))?;
    }
    serves(&guest, &tree.join("vmlinux"))?;
    counts(&kernlane, &tree, &guest, scratch.path())
}

/// A kernel runs slices of its loads, one after the other.
fn serves(guest: &UmlGuest, kernel: &Path) -> Result<()> {
    let mut server = guest.serve(kernel)?;
    server.wait_for("ready")?;
    for load in LOADS.iter().chain(&LOADS) {
        server.tell(&format!("{load} 2\n"))?;
        let printed = server.wait_for("slice ")?;
        let slice = timed::slice(printed.trim_start_matches("slice "));
        let slice = slice.with_context(|| format!("{load}: {printed:?} is not a slice"))?;
        ensure!(slice.is_none_or(|slice| slice.time > 10_000.0), "{load} took {slice:?}");
    }
    println!("passed: a kernel runs slices of {}", LOADS.join(", "));
    Ok(())
}

/// The tree's kernel in its original order, or in the order of an algorithm that needs no counts.
fn in_order(kernlane: &Path, tree: &Path, algorithm: &str, scratch: &Path) -> Result<PathBuf> {
    let layout = scratch.join(format!("{algorithm}.kll"));
    let build_id = vmlinux::read(&tree.join("vmlinux"))?.build_id;
    if algorithm == "original" {
        fs::write(&layout, Layout::original(build_id).to_text())?;
    } else {
        let profile = scratch.join("none.klp");
        fs::write(&profile, Profile::empty(build_id).to_json())?;
        let mut command = Command::new(kernlane);
        command.arg("layout").arg(&profile).arg("--kernel").arg(tree);
        lab::run(
            command.args(["--algorithm", algorithm, "--output"]).arg(&layout).stdout(Stdio::null()),
        )?;
    }
    let layout = layout.to_string_lossy();
    relinked(kernlane, tree, &["--layout", &layout], scratch.join(format!("{algorithm}.kernel")))
}

/// Relinks the tree's kernel with `kernlane relink` and these arguments.
fn relinked(kernlane: &Path, tree: &Path, arguments: &[&str], output: PathBuf) -> Result<PathBuf> {
    let mut command = Command::new(kernlane);
    command.arg("relink").arg("--tree").arg(tree).args(arguments).arg("--output").arg(&output);
    lab::run(command.stdout(Stdio::null()))?;
    Ok(output)
}

/// Boots a kernel with all loads. Fails unless each load passes.
fn passes(guest: &UmlGuest, kernel: &Path, what: &str) -> Result<()> {
    let printed = guest.boot(kernel, &["all", &ROUNDS.to_string()])?.ended()?;
    judge(&printed, &LOADS, what)?;
    println!("passed: {what} runs {}", LOADS.join(", "));
    Ok(())
}

/// Checks a counting kernel: its counts equal the numbers that the loads request. Most of these
/// counts are derived from a few counters.
fn counts(kernlane: &Path, tree: &Path, guest: &UmlGuest, scratch: &Path) -> Result<()> {
    let counting = relinked(kernlane, tree, &["--count"], scratch.join("counting.kernel"))?;
    let mut running = guest.boot(
        &counting.join("vmlinux"),
        &[COUNTED.join(",").as_str(), &ROUNDS.to_string(), "stay"],
    )?;
    running.stays()?;
    judge(&running.console()?, &COUNTED, "the counting kernel")?;
    let file = scratch.join("counted.klp");
    let mut command = Command::new(kernlane);
    command.arg("counts").arg(&counting).arg("--tree").arg(tree);
    lab::run(command.arg("--pid").arg(running.pid().to_string()).arg("--output").arg(&file))?;
    let profile = Profile::from_json(&fs::read_to_string(&file)?)?;
    let image = vmlinux::read(&tree.join("vmlinux"))?;
    let datagrams = ROUNDS * DATAGRAMS;
    for (function, expected) in [
        ("udp_sendmsg", datagrams),
        ("udp_recvmsg", datagrams),
        ("udp_queue_rcv_one_skb", datagrams),
        // UDP's and pktgen's.
        ("loopback_xmit", 2 * datagrams),
        ("ip_rcv", 2 * datagrams),
        // Every other request is a no-op.
        ("io_nop", ROUNDS * REQUESTS / 2),
        ("panic", 0),
    ] {
        let found = image.functions.iter().find(|f| f.name == function);
        let found = found.with_context(|| format!("the kernel has no {function}"))?;
        let count = profile.blocks.get(&found.addr).copied().unwrap_or(0);
        ensure!(count == expected, "{function} ran {expected} times, {count} were counted");
    }
    println!("passed: a kernel with counters has counted what it was asked for");
    Ok(())
}
