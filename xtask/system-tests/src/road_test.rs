//! `cargo xtask road-test TREE`: the whole road of a tree's kernel: a layout for a workload and a
//! random order of all blocks, each relinked, proved, booted and recorded again. What replay
//! predicted must hold.

use anyhow::{Context, Result, ensure};
use lab::run;
use replay::comparison;
use replay::results::ResultFile;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workload that goes down the road.
const WORKLOAD: &str = "files";
/// The layout for the workload.
pub(crate) const LAYOUT: &str = "ext-tsp";
/// The layout for none.
pub(crate) const RANDOM: &str = "random";

/// Where the results of a tree's kernel lie.
pub fn directory(tree: &Path) -> PathBuf {
    let name = tree.file_name().unwrap_or_default().to_string_lossy();
    PathBuf::from(format!("target/test/{WORKLOAD}-{name}"))
}

/// Relinks the kernel of a tree. `drop_call_padding`: as for `kernlane optimize`.
///
/// # Errors
/// A prediction does not hold.
pub fn road_test(tree: &Path, drop_call_padding: bool) -> Result<()> {
    let options: &[_] = if drop_call_padding { &["--drop-call-padding"] } else { &[] };
    let directory = directory(tree);
    road(tree, options, &directory)?;
    predictions_hold(&directory)
}

/// Sends the kernel of a tree down the road, into `directory`.
///
/// # Errors
/// A step fails.
pub(crate) fn road(tree: &Path, options: &[&str], directory: &Path) -> Result<()> {
    // The command `optimize` is tested.
    let mut command = Command::new(lab::kernlane()?);
    command.args(["optimize", WORKLOAD, "--machine", "server-32k", "--tree"]).arg(tree);
    command.args(["--layout", LAYOUT, "--layout", RANDOM]).args(options);
    run(command.arg("--output").arg(directory))
}

/// The largest accepted difference between predicted and recorded misses, relative to the recorded
/// number and to the same number of instructions.
const TOLERANCE: f64 = 0.02;
/// The largest accepted difference between the numbers of instructions. In a faster kernel the two
/// ends of a pipe alternate at other times.
const INSTRUCTIONS_TOLERANCE: f64 = 0.03;

/// Checks that predicted and recorded misses and taken jumps agree, and that the layout for the
/// workload is better than the original.
///
/// # Errors
/// A prediction does not hold, or there is none.
pub(crate) fn predictions_hold(directory: &Path) -> Result<()> {
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
                let made_for_it = layout.layout != RANDOM;
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
