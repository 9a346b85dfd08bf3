//! The fuzzer: libFuzzer, started by cargo-bolero, for a limited time at once, so that little is
//! lost when it is interrupted.

use anyhow::{Context, Result, bail, ensure};
use kernlane_fuzz::targets::{LONGEST, Target};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

/// Seconds after which the fuzzer stops, so that the state is written.
const AT_ONCE: u64 = 60;
/// Seconds that an input may take by the clock on a busy machine. The harness limits processor time
/// to one second.
const TIMEOUT: u64 = 60;

/// Begins the options of LLVM's instrumentation. Of an option given twice, the last one counts.
const FLAG: &str = "-Cllvm-args=-sanitizer-coverage-";

/// cargo-bolero, and where it works.
pub(super) struct Engine {
    directory: PathBuf,
    pub version: String,
}

impl Engine {
    pub(super) fn find(directory: &Path) -> Result<Engine> {
        let asked = Command::new("cargo").args(["bolero", "--version"]).output()?;
        ensure!(
            asked.status.success(),
            "cargo-bolero is not installed: run `cargo install cargo-bolero --version 0.13.5`"
        );
        let version = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
        Ok(Engine { directory: directory.to_owned(), version })
    }

    /// The corpus that the fuzzer has found for a target; it grows.
    pub(super) fn corpus(&self, target: &Target) -> PathBuf {
        self.directory.join(target.name).join("corpus")
    }

    /// Inputs on which a target failed.
    pub(super) fn crashes(&self, target: &Target) -> PathBuf {
        self.directory.join(target.name).join("crashes")
    }

    pub(super) fn state(&self, target: &Target) -> PathBuf {
        self.directory.join(target.name).join("state.json")
    }

    /// cargo-bolero, for a target, with the corpus and the options that every run needs.
    fn command(&self, target: &Target) -> Command {
        let mut command = Command::new("cargo");
        command.args(["bolero", "test", target.name, "--package", "kernlane-fuzz"]);
        // The sanitizers need another toolchain. What they find is what unsafe code does, and the
        // crates under test have none.
        command.args(["--engine", "libfuzzer", "--rustc-bootstrap", "--sanitizer", "NONE"]);
        let mut build = "build";
        if !target.read {
            // What the code compares, and how deep its stack gets, say nothing of a generator's
            // choices, and to note them takes more than half of the time.
            command.env("RUSTFLAGS", format!("{FLAG}trace-compares=0 {FLAG}stack-depth=0"));
            build = "build-generated";
        }
        command.arg("--target-dir").arg(self.directory.join(build));
        command.arg("--corpus-dir").arg(self.corpus(target));
        command.arg("--crashes-dir").arg(self.crashes(target));
        command.args(["--timeout", &format!("{TIMEOUT}s")]);
        command.args(["--max-input-length", &LONGEST.to_string()]);
        command.current_dir(super::package());
        command
    }

    /// The files that, in this order, reach something that none before reaches.
    pub(super) fn reaching(&self, target: &Target, files: &[(PathBuf, u64)]) -> Result<Vec<usize>> {
        // The file by which libFuzzer's processes speak when it merges corpora (FuzzerMerge.cpp).
        let path = self.state(target).with_file_name("merge");
        let mut control = format!("{0}\n{0}\n", files.len());
        files.iter().for_each(|(file, _)| control += &format!("{}\n", file.display()));
        fs::write(&path, control)?;
        let mut command = self.command(target);
        command.arg("--engine-args=-merge_inner=1");
        command.arg(format!("--engine-args=-merge_control_file={}", path.display()));
        let output = command.output()?;
        let printed = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the corpus cannot be reduced:\n{printed}");
        Ok(reaching(&fs::read_to_string(&path)?))
    }
}

/// The files of a control file whose line of features names one.
fn reaching(control: &str) -> Vec<usize> {
    let features = control.lines().filter_map(|line| line.strip_prefix("FT "));
    features.filter_map(|line| line.split_once(' ')?.0.parse().ok()).collect()
}

/// The fuzzing of a target until now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct TargetProgress {
    pub inputs: u64,
    pub seconds: f64,
    /// Edges of the control flow graph that some input reached.
    pub edges: u64,
    /// Files and bytes of the corpus that is kept.
    pub corpus: (usize, u64),
    pub crashes: usize,
}

impl TargetProgress {
    pub(super) fn read(path: &Path) -> Result<TargetProgress> {
        let text = fs::read(path).with_context(|| path.display().to_string())?;
        serde_json::from_slice(&text).with_context(|| path.display().to_string())
    }
}

/// A target while it is fuzzed.
pub(super) struct Session {
    pub state: TargetProgress,
    path: PathBuf,
}

impl Session {
    pub(super) fn open(engine: &Engine, target: &Target) -> Result<Session> {
        let path = engine.state(target);
        let state =
            if path.exists() { TargetProgress::read(&path)? } else { TargetProgress::default() };
        Ok(Session { state, path })
    }

    pub(super) fn save(&self) -> Result<()> {
        host::output::write(&self.path, &serde_json::to_vec_pretty(&self.state)?)
    }

    /// Runs `jobs` fuzzers, which share a corpus, until they have given the target `inputs` inputs
    /// or [`AT_ONCE`] has passed.
    ///
    /// # Errors
    /// The target failed on one, or the fuzzers could not be run.
    pub(super) fn run(
        &mut self,
        engine: &Engine,
        target: &Target,
        inputs: u64,
        jobs: u64,
    ) -> Result<()> {
        let crashes = engine.crashes(target);
        let begun = Instant::now();
        let start = |_| {
            let mut command = engine.command(target);
            command.args(["--runs", &inputs.div_ceil(jobs).to_string()]);
            command.args(["-T", &format!("{AT_ONCE}s"), "--engine-args=-print_final_stats=1"]);
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
        };
        let fuzzers: Vec<Child> = (0..jobs).map(start).collect::<Result<_, _>>()?;
        // Each on a thread: one that nobody reads from would wait.
        let outputs: Vec<Output> = std::thread::scope(|scope| {
            let wait = |fuzzer: Child| scope.spawn(|| fuzzer.wait_with_output());
            let waiting: Vec<_> = fuzzers.into_iter().map(wait).collect();
            let finished = waiting.into_iter().map(|w| w.join().expect("waiting does not panic"));
            finished.collect::<std::io::Result<_>>()
        })?;
        self.state.seconds += begun.elapsed().as_secs_f64();
        self.state.crashes = fs::read_dir(&crashes).map_or(0, Iterator::count);
        let printed = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
        let all: Vec<String> = outputs.iter().map(printed).collect();
        fs::write(engine.state(target).with_file_name("log"), all.concat())?;
        all.iter().for_each(|printed| self.add(printed));
        outputs
            .iter()
            .zip(&all)
            .try_for_each(|(output, printed)| failure_of(output, printed, &crashes))
    }

    fn add(&mut self, printed: &str) {
        self.state.inputs += inputs_of(printed).unwrap_or(0);
        self.state.edges = self.state.edges.max(edges_of(printed).unwrap_or(0));
    }
}

fn failure_of(output: &Output, printed: &str, crashes: &Path) -> Result<()> {
    if output.status.success() {
        ensure!(
            inputs_of(printed).is_some_and(|inputs| inputs > 0),
            "the fuzzer ran no input:\n{printed}"
        );
        return Ok(());
    }
    let lines: Vec<&str> = printed.lines().collect();
    let last = lines[lines.len().saturating_sub(40)..].join("\n");
    bail!("{last}\nthe fuzzer failed; failing inputs are kept in {}", crashes.display())
}

/// How many inputs libFuzzer ran: its final statistics, or, when it was stopped by a failure, the
/// number at the start of its last line.
fn inputs_of(printed: &str) -> Option<u64> {
    let last = printed.lines().rev().find_map(|line| {
        let total = line.strip_prefix("stat::number_of_executed_units:").map(str::trim);
        let number = line.strip_prefix('#').and_then(|rest| rest.split_whitespace().next());
        total.or(number)
    });
    last?.parse().ok()
}

/// The edges reached, as libFuzzer's last line has them.
fn edges_of(printed: &str) -> Option<u64> {
    let line = printed.lines().rev().find(|line| line.contains(" cov: "))?;
    line.split(" cov: ").nth(1)?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
#2\tINITED cov: 120 ft: 121 corp: 1/1b exec/s: 0 rss: 30Mb
#1024\tpulse  cov: 155 ft: 300 corp: 12/90b lim: 4 exec/s: 512 rss: 31Mb
Done 2000 runs in 3 second(s)
";

    #[test]
    fn what_the_fuzzer_says_is_understood() {
        assert_eq!((inputs_of(SAID), edges_of(SAID)), (Some(1024), Some(155)));
        let whole = format!("{SAID}stat::number_of_executed_units: 2000\n");
        assert_eq!((inputs_of(&whole), edges_of(&whole)), (Some(2000), Some(155)));
        assert_eq!((inputs_of(""), edges_of("error")), (None, None));
    }

    #[test]
    fn inputs_that_reach_nothing_new_are_not_kept() {
        let control = "3\n3\na\nb\nc\nSTARTED 0 1\nFT 0 7 9\nCOV 0 7\nSTARTED 1 2\nFT 1\nCOV 1\n\
                       STARTED 2 3\nFT 2 8\nCOV 2\n";
        assert_eq!(reaching(control), [0, 2]);
    }
}
