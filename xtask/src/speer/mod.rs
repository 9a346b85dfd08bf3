//! Speer's tables for Linux (Speer 1994, section 3): one kernel for each of his four benchmarks,
//! tested on all four, beside one kernel for their average.
//!
//! Input: a directory. Output: there, a recording of each benchmark on the demo kernel, five
//! kernels for each layout algorithm, results, `speer.json` and `tables.md`. What exists is not
//! made again, so an interrupted command resumes. Times are cycles of a simulated machine;
//! instructions and branches are exact.

mod layouts;
mod paper;
mod tables;

use crate::kernel::{self, Compiler};
use anyhow::{Context, Result, ensure};
use layouts::{ALGORITHMS, AVERAGE, layout_name};
use paper::{GROUPS, Group};
use replay::per_operation::{OperationCost, per_operation};
use replay::results::ResultFile;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use suite::benchmark::Benchmark;

const MACHINE: &str = "server-32k";

/// Makes the tables in `directory`.
pub(crate) fn speer(directory: &Path) -> Result<()> {
    let tree = kernel::tree(Compiler::Gcc)?;
    let work = Work {
        kernlane: crate::kernlane()?,
        suite: static_suite()?,
        tree,
        directory: directory.to_owned(),
    };
    std::fs::create_dir_all(directory)
        .with_context(|| format!("making {}", directory.display()))?;
    for group in GROUPS {
        for benchmark in group.benchmarks() {
            work.recorded(benchmark)?;
        }
        work.profile(&group)?;
    }
    work.average()?;
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
    host::output::write(&work.path("speer.json"), json.as_bytes())?;
    host::output::write(&work.path("tables.md"), text.as_bytes())?;
    print!("{text}");
    Ok(())
}

/// The suite's program for guests, built without shared libraries.
fn static_suite() -> Result<PathBuf> {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let mut command = Command::new("cargo");
    command.args(["build", "--quiet", "--release", "-p", "kernlane-suite", "--target", TARGET]);
    crate::run(command.env("RUSTFLAGS", "-C target-feature=+crt-static"))?;
    let executable = std::env::current_exe()?;
    let target = executable.ancestors().nth(2).context("xtask is not in a target directory")?;
    let program = target.join(TARGET).join("release/kernlane-bench");
    ensure!(program.is_file(), "{} does not exist after the build", program.display());
    Ok(program)
}

struct Work {
    kernlane: PathBuf,
    suite: PathBuf,
    tree: PathBuf,
    directory: PathBuf,
}

impl Work {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A path whose name is that of a benchmark.
    fn of(&self, benchmark: &Benchmark, ending: &str) -> PathBuf {
        self.path(&format!("{}.{ending}", benchmark.name.replace('/', "-")))
    }

    fn kernlane(&self, command: &str) -> Command {
        let mut kernlane = Command::new(&self.kernlane);
        kernlane.arg(command).env("KERNLANE_BENCH", &self.suite);
        kernlane
    }

    fn recorded(&self, benchmark: &Benchmark) -> Result<()> {
        let output = self.of(benchmark, "rec");
        if output.is_dir() {
            return Ok(());
        }
        eprintln!("recording {}", benchmark.name);
        let mut command = self.kernlane("record");
        command.arg(format!("bench:{}", benchmark.name)).arg("--kernel").arg(&self.tree);
        crate::run(command.arg("--output").arg(&output).stdout(Stdio::null()))
    }

    fn profile(&self, group: &Group) -> Result<()> {
        let recordings: Vec<PathBuf> =
            group.benchmarks().iter().map(|benchmark| self.of(benchmark, "rec")).collect();
        self.merged(group.name, &recordings)
    }

    fn average(&self) -> Result<()> {
        let profiles: Vec<PathBuf> =
            GROUPS.iter().map(|group| self.path(&format!("{}.klp", group.name))).collect();
        self.merged(AVERAGE, &profiles)
    }

    /// A profile in which each input weighs the same.
    fn merged(&self, name: &str, inputs: &[PathBuf]) -> Result<()> {
        let output = self.path(&format!("{name}.klp"));
        if output.is_file() {
            return Ok(());
        }
        eprintln!("the profile {name}");
        let mut command = self.kernlane("profile");
        command.args(inputs).arg("--kernel").arg(&self.tree).args(["--merge", "average"]);
        crate::run(command.arg("--output").arg(&output).stdout(Stdio::null()))
    }

    /// Lays out, relinks, and returns the map from the old kernel to the new one.
    fn kernel(&self, name: &str, algorithm: &str) -> Result<PathBuf> {
        let layout_name = layout_name(name, algorithm);
        let map = self.path(&format!("{layout_name}.klm"));
        if map.is_file() {
            return Ok(map);
        }
        eprintln!("the kernel {layout_name}");
        let layout = self.path(&format!("{layout_name}.kll"));
        let mut command = self.kernlane("layout");
        command.arg(self.path(&format!("{name}.klp"))).arg("--kernel").arg(&self.tree);
        command.args(["--algorithm", algorithm, "--output"]).arg(&layout);
        crate::run(command.stdout(Stdio::null()))?;
        let output = self.path(&format!("{layout_name}.kernel"));
        if !output.is_dir() {
            let mut command = self.kernlane("relink");
            command.arg("--tree").arg(&self.tree).arg("--layout").arg(&layout);
            crate::run(command.arg("--output").arg(&output).stdout(Stdio::null()))?;
        }
        let text = std::fs::read(output.join("vmlinux.klm"))
            .with_context(|| format!("the map of {}", output.display()))?;
        host::output::write(&map, &text)?;
        Ok(map)
    }

    /// What an operation costs on the original kernel and on each other.
    fn replayed(&self, benchmark: &Benchmark, maps: &[PathBuf]) -> Result<Vec<OperationCost>> {
        let path = self.of(benchmark, "results");
        if !path.is_file() {
            eprintln!("replaying {}", benchmark.name);
            let mut command = self.kernlane("replay");
            command.arg(self.of(benchmark, "rec")).args(["--machine", MACHINE, "--json"]);
            for map in maps {
                command.arg("--layout").arg(map);
            }
            let output = command.stderr(Stdio::inherit()).output()?;
            ensure!(output.status.success(), "{command:?}: {}", output.status);
            host::output::write(&path, &output.stdout)?;
        }
        let rows = ResultFile::read(&path)?.rows;
        ensure!(
            rows.len() == 1 + maps.len(),
            "{} is of other kernels: remove the file",
            path.display()
        );
        per_operation(&rows).with_context(|| path.display().to_string())
    }
}
