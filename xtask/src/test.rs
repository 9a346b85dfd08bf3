//! `make test`: all tests, quick ones first.

use crate::kernel::{self, Compiler};
use crate::{
    book_test, check_test, diff_test, export_test, guest_test, layout_test, live_fuzz, live_test,
    memory_test, page_test, record_test, relink_test, run, services_test, shift_test, uml_test,
    vm_test,
};
use anyhow::{Context, Result, anyhow, ensure};
use replay::comparison;
use replay::results::ResultFile;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Runs every test. Prints how long each part took, even if a test fails.
pub(crate) fn test() -> Result<()> {
    let outcome = quick().and_then(|()| with_kernels());
    print_durations();
    outcome
}

/// Runs the tests that need neither a kernel nor a virtual machine.
pub(crate) fn quick() -> Result<()> {
    step("format, lints, units");
    // Not `cargo fmt`: it does not see the modules that tables declare.
    run(Command::new("make").args(["format", "CHECK=--check"]))
        .context("run `make format`, which formats every file")?;
    run(Command::new("cargo").args([
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))?;
    run(Command::new("cargo").args(["test", "--workspace"]))
}

fn with_kernels() -> Result<()> {
    step("the demo kernel, built by gcc");
    let kernlane = crate::kernlane()?;
    let gcc = kernel::tree(Compiler::Gcc)?;
    // Most tests use only one processor, so other kernels are built and tested at the same time.
    let others = std::thread::spawn(other_kernels);
    step("the checker refuses wrong kernels");
    check_test::check_test(&gcc)?;
    step("the checker accepts every position of the data behind kallsyms");
    shift_test::shift_test(&gcc)?;
    step("recordings are exact");
    record_test::record_test(&gcc)?;
    step("simulated caches agree with cachegrind");
    memory_test::memory_test(&gcc)?;
    step("counts of services agree with the guest's own counts");
    services_test::services_test(&gcc)?;
    step("recordings are repeatable, and failures are reported");
    guest_test::guest_test(&gcc)?;
    let road = relinked_kernels_hold(&kernlane, &gcc, &[], &[])?;
    step("a difference names the function that a patch changed, and why");
    diff_test::diff_test(&gcc, &road.join("random.kernel"))?;
    step("the page works in Chromium, and other tools read the same numbers");
    page_test::page_test(&road.join("original.rec"), &gcc)?;
    step("the book's links work, and so do the commands of its first hour");
    book_test::book_test(&road, &gcc)?;
    step("clang, lld and BOLT accept the exported files");
    export_test::export_test()?;
    step("layouts are as good as those of LLVM and lld");
    layout_test::layout_test(&gcc, &road.join("profile.klp"))?;

    step("functions of Debian's running kernel are replaced and restored");
    live_test::live_test(None, None)?;
    step("the live module's interface, fuzzed for a minute");
    live_fuzz::short()?;

    step("the demo kernels for User Mode Linux and by clang, and the tests of clang's");
    let said = others.join().map_err(|_| anyhow!("building them panicked"))??;
    said.iter().for_each(|said| println!("{said}"));
    step("a kernel for User Mode Linux in a random order works like the original");
    uml_test::uml_test()?;
    println!("\nall tests passed");
    Ok(())
}

/// Builds the demo kernels for User Mode Linux and by clang. The checker must refuse wrong kernels
/// built by clang, and accept every position of the data behind kallsyms after a link by lld. The
/// kernel by clang must take the whole road. Returns what these tests printed.
fn other_kernels() -> Result<Vec<String>> {
    kernel::tree(Compiler::GccUserMode)?;
    let clang = kernel::tree(Compiler::Clang)?;
    let tests = ["check-test", "shift-test", "road-test"];
    tests.into_iter().map(|test| beside_others(test, &clang)).collect()
}

/// The whole road of a tree's kernel, without call padding, on some machines.
pub(crate) fn road_test(tree: &Path) -> Result<()> {
    let machines = ["1 CPU", "Skylake", "EPYC"];
    relinked_kernels_hold(&crate::kernlane()?, tree, &["--drop-call-padding"], &machines)?;
    Ok(())
}

/// Runs a test of a tree with low priority. Returns what it printed.
fn beside_others(test: &str, tree: &Path) -> Result<String> {
    let begun = Instant::now();
    let mut command = Command::new("nice");
    let output = command.args(["-n", "19"]).arg(std::env::current_exe()?).arg(test).arg(tree);
    let output = output.output().context("nice cannot be run")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo xtask {test} {}:\n{said}{error}", tree.display());
    let took = minutes(begun.elapsed());
    Ok(format!("-- cargo xtask {test} {} ({took} beside other tests)\n{said}", tree.display()))
}

/// Relinks a tree's kernel in the original order, for a workload, and in a random order. Boots the
/// random one on the `machines`, or on all machines if none is named. `options` are those of
/// `kernlane optimize`. Returns the directory with the workload's profile and the relinked kernels.
fn relinked_kernels_hold(
    kernlane: &Path,
    tree: &Path,
    options: &[&str],
    machines: &[&str],
) -> Result<PathBuf> {
    step("the original order gives the original kernel, and objtool accepts other orders");
    relink_test::relink_test(tree)?;
    step("the whole road: a layout for a workload, and a random order of all blocks");
    let road = optimized(kernlane, "files", tree, &["ext-tsp", "random"], options)?;
    predictions_hold(&road)?;
    step("in a guest, the kernel in a random order works like the original");
    vm_test::vm_test(tree, &road.join("random.kernel"), machines)?;
    Ok(road)
}

/// The largest accepted difference between predicted and recorded misses, relative to the recorded
/// number and to the same number of instructions.
const TOLERANCE: f64 = 0.02;
/// The largest accepted difference between the numbers of instructions. In a faster kernel the two
/// ends of a pipe alternate at other times.
const INSTRUCTIONS_TOLERANCE: f64 = 0.03;

/// Checks that predicted and recorded misses and taken jumps agree, and that the layout for the
/// workload is better than the original.
fn predictions_hold(directory: &Path) -> Result<()> {
    let results = ResultFile::read(directory)?;
    for comparison in comparison::compare(&results.rows)? {
        for layout in &comparison.layouts {
            let what =
                format!("{} on {}, {}", comparison.workload, comparison.machine, layout.layout);
            let metric = |name: &str| {
                let found = layout.metrics.iter().find(|metric| metric.name == name);
                let metric = found.with_context(|| format!("{what}: there is no {name}"))?;
                let off = metric.difference.with_context(|| {
                    format!("{what}: {name} is not both predicted and recorded")
                })?;
                anyhow::Ok((metric, off))
            };
            let (_, instructions) = metric("kernel instructions")?;
            ensure!(
                instructions.abs() <= INSTRUCTIONS_TOLERANCE,
                "{what}: predicted {:.2} % other instructions",
                100.0 * instructions
            );
            for name in PREDICTED {
                let (metric, off) = metric(name)?;
                let off = (1.0 + off) / (1.0 + instructions) - 1.0;
                ensure!(
                    off.abs() <= TOLERANCE,
                    "{what}: {name}: predicted {:.2} % off",
                    100.0 * off
                );
                let change = metric.recorded_change.context("no change")?;
                let made_for_it = layout.layout != "random";
                ensure!(
                    !made_for_it || change < -0.3,
                    "{what}: {name}: changed by only {:.1} %",
                    100.0 * change
                );
                println!(
                    "passed: {what}: {name}: {:+.1} %, predicted within {:.2} %",
                    100.0 * change,
                    100.0 * off.abs()
                );
            }
        }
    }
    Ok(())
}

/// The numbers that replay must predict.
const PREDICTED: [&str; 2] = ["kernel L1I misses", "kernel taken jumps (conditional and direct)"];

/// The parts that began, each with its start time.
static PARTS: Mutex<Vec<(String, Instant)>> = Mutex::new(Vec::new());

/// Ends the previous part. Prints the next part, and the time since the first part began.
fn step(what: &str) {
    let mut parts = PARTS.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    let start = parts.first().map_or(now, |(_, begun)| *begun);
    println!("\n== [{}] {what}", minutes(now - start));
    parts.push((what.to_owned(), now));
}

/// Prints how long each part took, in the order in which they ran.
fn print_durations() {
    let parts = PARTS.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    println!("\n== how long each part took (minutes:seconds)");
    for (at, (what, begun)) in parts.iter().enumerate() {
        let end = parts.get(at + 1).map_or(now, |(_, begun)| *begun);
        println!("{:>6}  {what}", minutes(end - *begun));
    }
    if let Some((_, start)) = parts.first() {
        println!("{:>6}  in total", minutes(now - *start));
    }
}

fn minutes(duration: Duration) -> String {
    let seconds = duration.as_secs();
    format!("{:02}:{:02}", seconds / 60, seconds % 60)
}

/// Sends the workload down the whole road, which includes the proof of each relinked kernel.
/// Returns the directory with the results.
fn optimized(
    kernlane: &Path,
    workload: &str,
    tree: &Path,
    layouts: &[&str],
    options: &[&str],
) -> Result<PathBuf> {
    let name = tree.file_name().unwrap_or_default().to_string_lossy();
    let directory = PathBuf::from(format!("target/test/{workload}-{name}"));
    let mut command = Command::new(kernlane);
    command.args(["optimize", workload, "--machine", "server-32k", "--tree"]).arg(tree);
    command.arg("--output").arg(&directory).args(options);
    for layout in layouts {
        command.args(["--layout", layout]);
    }
    run(&mut command)?;
    Ok(directory)
}
