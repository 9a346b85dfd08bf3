//! `make test`: everything that must hold, the quick before the slow.

use crate::kernel::{self, Compiler};
use crate::{
    book_test, check_test, diff_test, export_test, guest_test, layout_test, live_test, memory_test,
    page_test, record_test, relink_test, run, services_test, shift_test, uml_test, vm_test,
};
use anyhow::{Context, Result, anyhow, ensure};
use replay::comparison;
use replay::results::ResultFile;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Runs every test, and prints how long each part took, even if one fails.
pub fn test() -> Result<()> {
    let outcome = quick().and_then(|()| with_kernels());
    print_durations();
    outcome
}

/// What needs neither a kernel nor a virtual machine.
pub fn quick() -> Result<()> {
    step("format, lints, units");
    run(Command::new("cargo").args(["fmt", "--all", "--check"]))?;
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
    // Most tests leave a processor idle.
    let others = std::thread::spawn(|| [Compiler::GccUserMode, Compiler::Clang].map(kernel::tree));
    step("the checker finds wrong kernels");
    check_test::check_test(&gcc)?;
    step("the checker accepts every place of the data behind kallsyms");
    shift_test::shift_test(&gcc)?;
    step("recordings are exact");
    record_test::record_test(&gcc)?;
    step("caches see what cachegrind sees");
    memory_test::memory_test(&gcc)?;
    step("services are counted as the guest counts them");
    services_test::services_test(&gcc)?;
    step("recordings are repeatable, and failures are said");
    guest_test::guest_test(&gcc)?;
    let road = relinked_kernels_hold(&kernlane, &gcc, &[])?;
    step("a difference names the function that a patch changed, and why");
    diff_test::diff_test(&gcc, &road.join("random.kernel"))?;
    step("the page works in Chromium, and other tools read what it shows");
    page_test::page_test(&road.join("original.rec"), &gcc)?;
    step("the book's links hold, and the commands of its first hour run");
    book_test::book_test(&road, &gcc)?;
    step("clang, lld and BOLT take what is exported");
    export_test::export_test()?;
    step("layouts are as good as those of LLVM and lld");
    layout_test::layout_test(&gcc, &road.join("profile.klp"))?;

    step("functions of Debian's running kernel are replaced and put back");
    live_test::live_test(None, None)?;

    step("the demo kernels for User Mode Linux and by clang");
    let [user_mode, clang] = others.join().map_err(|_| anyhow!("building them panicked"))?;
    let (_, clang) = (user_mode?, clang?);
    step("a kernel for User Mode Linux in a random order does what the original does");
    uml_test::uml_test()?;

    step("the checker finds wrong kernels built by clang");
    check_test::check_test(&clang)?;
    step("the checker accepts every place of the data behind kallsyms, laid out by lld");
    shift_test::shift_test(&clang)?;
    relinked_kernels_hold(&kernlane, &clang, &["1 CPU", "Skylake", "EPYC"])?;
    println!("\nall tests passed");
    Ok(())
}

/// Relinks a tree's kernel in the original order, for a workload, and in a random order, which is
/// booted on the `machines` (all of them if none is named). Gives the directory with the workload's
/// profile and the relinked kernels.
fn relinked_kernels_hold(kernlane: &Path, tree: &Path, machines: &[&str]) -> Result<PathBuf> {
    step("the original order is the original kernel, and objtool judges others");
    relink_test::relink_test(tree)?;
    step("the whole road: a layout made for a workload, and all blocks in a random order");
    let road = optimized(kernlane, "files", tree, &["packed", "random"])?;
    predictions_hold(&road)?;
    step("the kernel in a random order does in a guest what the original does");
    vm_test::vm_test(tree, &road.join("random.kernel"), machines)?;
    Ok(road)
}

/// By how much replay may miss what the relinked kernel is then seen to do, instruction for
/// instruction.
const TOLERANCE: f64 = 0.02;
/// By how much the number of instructions itself may differ: in a faster kernel the two ends of a
/// pipe take turns at other times.
const INSTRUCTIONS_TOLERANCE: f64 = 0.03;

/// Predicted and recorded misses and taken jumps agree, and the layout made for the workload is
/// better than the original.
fn predictions_hold(directory: &Path) -> Result<()> {
    let results = ResultFile::read(directory)?;
    for comparison in comparison::compare(&results.rows)? {
        for layout in &comparison.layouts {
            let what =
                format!("{} on {}, {}", comparison.workload, comparison.machine, layout.layout);
            let metric = |name: &str| {
                let found = layout.metrics.iter().find(|metric| metric.name == name);
                let metric = found.with_context(|| format!("{what}: no {name}"))?;
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

/// What replay has to predict.
const PREDICTED: [&str; 2] = ["kernel L1I misses", "kernel taken jumps (conditional and direct)"];

/// The parts begun so far, each with its beginning.
static PARTS: Mutex<Vec<(String, Instant)>> = Mutex::new(Vec::new());

/// Ends the part before, and says what comes now and how long all before it took.
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
        println!("{:>6}  in all", minutes(now - *start));
    }
}

fn minutes(duration: Duration) -> String {
    let seconds = duration.as_secs();
    format!("{:02}:{:02}", seconds / 60, seconds % 60)
}

/// Sends the workload down the whole road, which includes the proof of each relinked kernel; gives
/// the directory.
fn optimized(kernlane: &Path, workload: &str, tree: &Path, layouts: &[&str]) -> Result<PathBuf> {
    let name = tree.file_name().unwrap_or_default().to_string_lossy();
    let directory = PathBuf::from(format!("target/test/{workload}-{name}"));
    let mut command = Command::new(kernlane);
    command.args(["optimize", workload, "--machine", "server-32k", "--tree"]).arg(tree);
    command.arg("--output").arg(&directory);
    for layout in layouts {
        command.args(["--layout", layout]);
    }
    run(&mut command)?;
    Ok(directory)
}
