//! Writes how many inputs each target has had, and what they reached, as `bench/fuzz.txt`.
//!
//! Input: the state of the targets. Output: a file. Runs nothing.

use super::engine::{Engine, State};
use anyhow::{Context, Result};
use kernlane_fuzz::targets;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/fuzz.txt");

pub(super) fn write(engine: &Engine) -> Result<()> {
    host::output::write(Path::new(FILE), text(engine)?.as_bytes())
}

pub(super) fn text(engine: &Engine) -> Result<String> {
    let mut rows = Vec::new();
    for target in &targets::ALL {
        let path = engine.state(target);
        let state = if path.exists() { State::read(&path)? } else { State::default() };
        rows.push((target.name, state));
    }
    let version = said(Command::new("rustc").arg("--version"))?;
    let commit = said(Command::new("git").args(["describe", "--always", "--dirty"]))?;
    Ok(format!(
        "cargo xtask fuzz\nCommit {commit}; {version}; {}, libFuzzer without sanitizers, with \
         overflow\n\
         checks and debug assertions. Seconds by the clock, other work runs beside. A target \
         fails when\n\
         it panics, takes more than 1 s of processor time or more than 256 MB of memory.\n\n{}",
        engine.version,
        table(&rows)
    ))
}

fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn table(rows: &[(&str, State)]) -> String {
    let mut text = format!(
        "{:<20} {:>10} {:>8} {:>8} {:>8} {:>8} {:>8}\n",
        "target", "inputs", "seconds", "edges", "files", "bytes", "crashes"
    );
    for (name, state) in rows {
        let (files, bytes) = state.corpus;
        let _ = writeln!(
            text,
            "{name:<20} {:>10} {:>8.0} {:>8} {files:>8} {bytes:>8} {:>8}",
            state.inputs, state.seconds, state.edges, state.crashes
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_a_target_has_had() {
        let state = State { inputs: 2000, seconds: 3.4, edges: 155, corpus: (12, 90), crashes: 1 };
        let text = table(&[("maps", state), ("btf", State::default())]);
        let words: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["maps", "2000", "3", "155", "12", "90", "1"]);
        assert_eq!(words[2], ["btf", "0", "0", "0", "0", "0", "0"]);
    }
}
