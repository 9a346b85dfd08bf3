//! Speer's tables for Linux (Speer 1994, section 3): one kernel for each of the paper's four
//! benchmarks, tested on all four, beside one kernel for their average.
//!
//! Input: a directory. Output: there, a recording of each benchmark on the demo kernel, five
//! kernels for each layout algorithm, results, `speer.json` and `tables.md`. What exists is not
//! made again, so an interrupted command resumes. Times are cycles of a simulated machine;
//! instructions and branches are exact.

mod layouts;
mod paper;
mod tables;

use crate::directory::StudyDirectory;
use anyhow::{Context, Result, ensure};
use layouts::{ALGORITHMS, AVERAGE, layout_name};
use paper::{GROUPS, Group};
use replay::per_operation::{OperationCost, per_operation};
use std::path::{Path, PathBuf};
use suite::benchmark::Benchmark;

const MACHINE: &str = "zen4";

/// Makes the tables in `directory`.
///
/// # Errors
/// Something cannot be made, or is not what the study expects.
pub fn speer(directory: &Path) -> Result<()> {
    let work = Work { suite: lab::static_suite()?, study: StudyDirectory::new(directory)? };
    for group in GROUPS {
        let benchmarks = group.benchmarks();
        let recordings: Vec<PathBuf> =
            benchmarks.iter().map(|benchmark| work.recorded(benchmark)).collect::<Result<_>>()?;
        work.study.profile(group.name, &recordings, &[])?;
    }
    let profile = |group: &Group| work.study.path(&format!("{}.klp", group.name));
    work.study.profile(AVERAGE, &GROUPS.iter().map(profile).collect::<Vec<_>>(), &[])?;
    let mut maps = Vec::new();
    for algorithm in ALGORITHMS {
        for kernel in GROUPS.iter().map(|group| group.name).chain([AVERAGE]) {
            maps.push(work.kernel(kernel, algorithm)?);
        }
    }
    let mut costs = Vec::new();
    for benchmark in GROUPS.iter().flat_map(Group::benchmarks) {
        costs.extend(work.replayed(benchmark, &maps)?);
    }
    let text = tables::markdown(&costs)?;
    let json = serde_json::to_string_pretty(&costs)? + "\n";
    host::output::write(&work.study.path("speer.json"), json.as_bytes())?;
    host::output::write(&work.study.path("tables.md"), text.as_bytes())?;
    print!("{text}");
    Ok(())
}

struct Work {
    study: StudyDirectory,
    suite: PathBuf,
}

impl Work {
    /// A path whose name is that of a benchmark.
    fn of(&self, benchmark: &Benchmark, ending: &str) -> PathBuf {
        self.study.path(&format!("{}.{ending}", benchmark.name.replace('/', "-")))
    }

    fn recorded(&self, benchmark: &Benchmark) -> Result<PathBuf> {
        let output = self.of(benchmark, "rec");
        let mut command = self.study.kernlane("record");
        command.env("KERNLANE_BENCH", &self.suite);
        command.arg(format!("bench:{}", benchmark.name)).arg("--kernel").arg(&self.study.tree);
        self.study.make(&output, &mut command)?;
        Ok(output)
    }

    /// Lays out, relinks, and returns the map from the old kernel to the new one.
    fn kernel(&self, name: &str, algorithm: &str) -> Result<PathBuf> {
        let layout = self.study.layout(name, algorithm)?;
        let directory = self.study.path(&format!("{}.kernel", layout_name(name, algorithm)));
        let mut command = self.study.kernlane("relink");
        command.arg("--tree").arg(&self.study.tree).arg("--layout").arg(&layout);
        self.study.make(&directory, &mut command)?;
        // Results name a layout by the file of its map.
        let map = self.study.path(&format!("{}.klm", layout_name(name, algorithm)));
        let text = std::fs::read(directory.join("vmlinux.klm"))
            .with_context(|| format!("the map of {}", directory.display()))?;
        host::output::write(&map, &text)?;
        Ok(map)
    }

    /// What an operation costs on the original kernel and on each other.
    fn replayed(&self, benchmark: &Benchmark, maps: &[PathBuf]) -> Result<Vec<OperationCost>> {
        let path = self.of(benchmark, "results");
        let mut command = self.study.kernlane("replay");
        command.arg(self.of(benchmark, "rec")).args(["--machine", MACHINE]);
        for map in maps {
            command.arg("--layout").arg(map);
        }
        let rows = self.study.replayed(&path, &mut command)?;
        ensure!(
            rows.len() == 1 + maps.len(),
            "{} is of other kernels: remove the file",
            path.display()
        );
        per_operation(&rows).with_context(|| path.display().to_string())
    }
}
