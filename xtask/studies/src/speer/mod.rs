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

use crate::directory::{Counted, StudyDirectory};
use anyhow::{Context, Result, ensure};
use emit::kbuild::BuildTree;
use emit::relink::{Destination, MAP, RelinkWork};
use execution::part::RecordingPart;
use lab::made::make;
use layouts::{ALGORITHMS, AVERAGE, layout_name};
use paper::{GROUPS, Group};
use replay::per_operation::{OperationCost, per_operation};
use road::layout_file::read_layout;
use road::relink::relink;
use road::workload;
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
        work.study.profile(group.name, &Counted::averaged(&recordings))?;
    }
    let profiles = GROUPS.map(|group| work.study.path(&format!("{}.klp", group.name)));
    work.study.profile(AVERAGE, &Counted::averaged(&profiles))?;
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

/// The name of a benchmark, as files have it.
fn file_name(benchmark: &Benchmark) -> String {
    benchmark.name.replace('/', "-")
}

struct Work {
    study: StudyDirectory,
    suite: PathBuf,
}

impl Work {
    fn recorded(&self, benchmark: &Benchmark) -> Result<PathBuf> {
        let workload = || workload::open_with(&format!("bench:{}", benchmark.name), &self.suite);
        self.study.record(&file_name(benchmark), (None, false), workload)
    }

    /// Lays out, relinks, and returns the map from the old kernel to the new one.
    fn kernel(&self, name: &str, algorithm: &str) -> Result<PathBuf> {
        let layout = self.study.layout(name, algorithm.parse()?)?;
        let directory = self.study.path(&format!("{}.kernel", layout_name(name, algorithm)));
        make(&directory, || {
            let tree = BuildTree::open(&self.study.tree, &[])?;
            let work = RelinkWork::Order(read_layout(&layout)?);
            relink(&tree, &work, &Destination::Directory(&directory)).map(drop)
        })?;
        // Results name a layout by the file of its map.
        let map = self.study.path(&format!("{}.klm", layout_name(name, algorithm)));
        let text = std::fs::read(directory.join(MAP))
            .with_context(|| format!("the map of {}", directory.display()))?;
        host::output::write(&map, &text)?;
        Ok(map)
    }

    /// What an operation costs on the original kernel and on each other.
    fn replayed(&self, benchmark: &Benchmark, maps: &[PathBuf]) -> Result<Vec<OperationCost>> {
        let path = self.study.path(&format!("{}.results", file_name(benchmark)));
        let whole = (&*self.recorded(benchmark)?, RecordingPart::WHOLE);
        let rows = self.study.replayed(&path, whole, maps, &[MACHINE.to_owned()])?;
        ensure!(
            rows.len() == 1 + maps.len(),
            "{} is of other kernels: remove the file",
            path.display()
        );
        per_operation(&rows).with_context(|| path.display().to_string())
    }
}
