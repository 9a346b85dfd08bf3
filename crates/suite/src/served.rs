//! Benchmarks whose slices are requested from outside of the machine: for kernels that run side by
//! side.
//!
//! The input has lines `NAME COMMAND`. Each is answered with a line `suite ANSWER`. The command
//! `start` starts the benchmark's process; every other line is for that process, and the answer is
//! its own (`worker.rs`). A benchmark stays prepared until input ends, or its process has ended.
//!
//! [`result`] makes a result from such measurements. This module runs benchmarks, but measures no
//! time itself.

use crate::conditions::Conditions;
use crate::list;
use crate::result::{Entry, FORMAT, MeasuredRounds, Outcome, Results};
use anyhow::{Context, Result};
use host::outln;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Answers lines of standard input until it ends. Files are made in `directory`.
///
/// # Errors
/// The program cannot start itself, a line names no benchmark that was started, or nobody listens.
pub(crate) fn serve(directory: &Path) -> Result<()> {
    let mut started = BTreeMap::new();
    outln!("suite served")?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let (name, command) = line.split_once(' ').context("no line NAME COMMAND came")?;
        if command == "start" {
            started.insert(name.to_owned(), Prepared::start(name, directory)?);
        }
        let prepared = started.get_mut(name).with_context(|| format!("{name} was not started"))?;
        if command != "start" {
            writeln!(prepared.into, "{command}").with_context(|| name.to_owned())?;
        }
        let answer = prepared.answer().with_context(|| name.to_owned())?;
        if answer.starts_with("lacks ") || answer.starts_with("wrong ") {
            started.remove(name);
        }
        outln!("suite {answer}")?;
    }
    Ok(())
}

/// A benchmark's process.
struct Prepared {
    child: Child,
    into: ChildStdin,
    out: BufReader<ChildStdout>,
}

impl Prepared {
    fn start(name: &str, directory: &Path) -> Result<Prepared> {
        let place = directory.join(name.replace('/', "-"));
        std::fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
        // Without a guard (`host::interrupt`): that is a shell, which such a machine need not have.
        let mut command = Command::new("/proc/self/exe");
        command.args(["--worker", name, "--directory"]).arg(&place);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("/proc/self/exe cannot be started")?;
        let into = child.stdin.take().context("a worker has no standard input")?;
        let out = BufReader::new(child.stdout.take().context("a worker has no standard output")?);
        Ok(Prepared { child, into, out })
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        match line.trim_end() {
            "" => Ok("wrong its process has ended".to_owned()),
            answer => Ok(answer.to_owned()),
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // A process that has already ended is not an error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The measurements of a benchmark.
#[derive(Clone, Debug, Default)]
pub struct ServedRounds {
    /// Operations in a slice.
    pub operations: u64,
    /// Nanoseconds an operation, one value for each boot.
    pub rounds: Vec<f64>,
}

/// The text of a result, as `kernlane bench --output` writes it. `kernel`: what ran. `warnings`:
/// sentences that a reader should know.
///
/// # Errors
/// A name is not the name of a benchmark.
pub fn result(
    kernel: &str,
    precision_percent: f64,
    measured: &BTreeMap<String, ServedRounds>,
    warnings: &[String],
) -> Result<String> {
    let entry = |(name, served): (&String, &ServedRounds)| {
        let benchmark =
            list::named(name).with_context(|| format!("no benchmark is named {name}"))?;
        let found =
            MeasuredRounds::new(served.rounds.clone(), served.operations, precision_percent);
        let outcome = Outcome::Measured(found);
        Ok(Entry { name: name.clone(), version: benchmark.version, program: None, outcome })
    };
    let conditions = Conditions {
        kernel_version: kernel.to_owned(),
        warnings: warnings.to_vec(),
        ..Conditions::default()
    };
    let results = Results {
        format: FORMAT,
        suite: env!("CARGO_PKG_VERSION").into(),
        seed: 0,
        precision_percent,
        conditions,
        benchmarks: measured.iter().map(entry).collect::<Result<_>>()?,
    };
    results.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{Comparison, Verdict};

    #[test]
    fn what_was_served_can_be_compared() {
        let directory = tempfile::tempdir().unwrap();
        let written = |name: &str, umask: f64| {
            let served = |level: f64| {
                let rounds = (0..20).map(|n| level + f64::from(n % 5) / 10.0).collect();
                ServedRounds { operations: 10, rounds }
            };
            let measured = [("call/umask", umask), ("call/getpid", 100.0)];
            let measured = measured.map(|(of, level)| (of.to_owned(), served(level)));
            let path = directory.path().join(name);
            let text = result(name, 1.0, &measured.into(), &["in slices".to_owned()]).unwrap();
            std::fs::write(&path, text).unwrap();
            Results::read(&path).unwrap()
        };
        let comparison = Comparison::new(&written("original", 100.0), &written("slowed", 102.0));
        assert_eq!(comparison.rows.len(), 2);
        assert_eq!(comparison.count(Verdict::Slower), 1);
        assert_eq!(comparison.warnings[0], ["in slices"]);
        let unknown = [("call/unheard".to_owned(), ServedRounds::default())].into();
        let error = result("original", 1.0, &unknown, &[]).unwrap_err();
        assert_eq!(error.to_string(), "no benchmark is named call/unheard");
    }
}
