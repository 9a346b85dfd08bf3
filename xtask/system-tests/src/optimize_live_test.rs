//! `cargo xtask optimize-live-test`: a stock kernel of Debian in a guest, its functions replaced
//! while it runs, with a layout and with inlined calls.
//!
//! The numbers must move as they do where the copies run, a second call must make no recording
//! again, and another profile must make other copies.

use anyhow::{Context, Result, ensure};
use lab::live_tool::debian::{self, Flavour};
use lab::{run, succeeded};
use replay::comparison::{self, Comparison};
use replay::results::ResultFile;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A short one, most of whose time the kernel takes.
const WORKLOAD: &str = "files";
const DIRECTORY: &str = "target/test/files-live";
const LAYOUT: &str = "ext-tsp-global";
const INLINED: &str = "ext-tsp-global-inlined";
/// What each number must at least change by, with the layout and with inlined calls. A layout moves
/// no return.
const CHANGES: [(&str, f64, f64); 4] = [
    ("kernel cycles, out-of-order core", -0.02, -0.10),
    ("kernel L1I misses", -0.15, -0.15),
    ("kernel taken jumps (conditional and direct)", -0.20, -0.25),
    ("kernel returns", 0.02, -0.15),
];

/// Runs the command as `make demo` does.
///
/// # Errors
/// A step fails, or a number does not move.
pub fn optimize_live_test() -> Result<()> {
    let directory = Path::new(DIRECTORY);
    let (kernel, headers) = debian::kernel_with_headers(Flavour::Cloud)?;
    let program = lab::kernlane()?;
    let command = |options: &[&str]| {
        let mut command = Command::new(&program);
        command.args(["optimize", WORKLOAD, "--live", "--inline", "--machine", "zen4"]);
        command.arg("--kernel").arg(&kernel).arg("--headers").arg(&headers);
        command.args(options).arg("-o").arg(directory);
        command
    };
    run(&mut command(&[]))?;
    let results = ResultFile::read(directory)?;
    numbers_move(&comparison::compare(&results.rows)?)?;
    ensure!(directory.join("report.html").exists(), "there is no report");
    ensure!(!directory.join("original.guest").exists(), "a guest was left behind");

    let before = fs::read(directory.join("results.json"))?;
    let again = succeeded(&mut command(&["--json"]))?;
    let said = String::from_utf8_lossy(&again.stderr);
    let kept = said.matches("using the existing recording").count();
    ensure!(kept == 3, "a second call keeps {kept} recordings of 3:\n{said}");
    ensure!(fs::read(directory.join("results.json"))? == before, "a second call has other results");
    let json: serde_json::Value = serde_json::from_slice(&again.stdout).context("--json")?;
    ensure!(json.is_object(), "--json prints no object");
    println!("passed: a second call takes the same recordings, with the same results");
    another_kernels_profile_is_refused(&mut command(&[]), directory)
}

fn numbers_move(comparisons: &[Comparison]) -> Result<()> {
    let [comparison] = comparisons else { anyhow::bail!("{} comparisons", comparisons.len()) };
    for (layout, is_inlined) in [(LAYOUT, false), (INLINED, true)] {
        let found = comparison.layouts.iter().find(|found| found.layout == layout);
        let found = found.with_context(|| format!("no results of {layout}"))?;
        for (name, by_layout, by_inlining) in CHANGES {
            let metric = found.metrics.iter().find(|metric| metric.name == name);
            let metric = metric.with_context(|| format!("{layout}: there is no {name}"))?;
            let change = metric.recorded_change.context("no change")?;
            let most = if is_inlined { by_inlining } else { by_layout };
            ensure!(change <= most, "{layout}: {name}: changed by {:+.1} %", 100.0 * change);
            println!("passed: {layout}: {name}: {:+.1} %", 100.0 * change);
        }
    }
    Ok(())
}

fn another_kernels_profile_is_refused(command: &mut Command, directory: &Path) -> Result<()> {
    let profile = directory.join("profile.klp");
    let text = fs::read_to_string(&profile).context("the profile")?;
    let id = text.split("\"kernel\":\"").nth(1).and_then(|rest| rest.get(..40));
    let other = directory.with_extension("other.klp");
    fs::write(&other, text.replace(id.context("the profile names no kernel")?, &"ab".repeat(20)))?;
    let output = command.arg("--profile").arg(&other).output().context("kernlane")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(2) && said.contains(&other.display().to_string()),
        "a profile that was changed: {}, {said}",
        output.status
    );
    println!("passed: a profile that was changed is refused");
    Ok(())
}
