//! Writes how many inputs each target has had, and what they reached, as `bench/fuzz.txt`.
//!
//! Input: the state of the targets, and the file as it was: it keeps the rows of targets that have
//! no state on this machine. Output: the file. Runs nothing.

use super::engine::{Engine, TargetProgress};
use anyhow::{Context, Result};
use host::table::{Column, TextTable};
use kernlane_fuzz::targets;
use std::path::Path;
use std::process::Command;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/fuzz.txt");

pub(super) fn write(engine: &Engine) -> Result<()> {
    host::output::write(Path::new(FILE), text(engine)?.as_bytes())
}

pub(super) fn text(engine: &Engine) -> Result<String> {
    let before = std::fs::read_to_string(FILE).with_context(|| FILE.to_owned())?;
    let mut rows = Vec::new();
    for target in &targets::ALL {
        let path = engine.state(target);
        let state = if path.exists() { Some(TargetProgress::read(&path)?) } else { None };
        rows.push((target.name, state));
    }
    let version = printed(Command::new("rustc").arg("--version"))?;
    let commit = printed(Command::new("git").args(["describe", "--always", "--dirty"]))?;
    Ok(format!(
        "cargo xtask fuzz\n\
         Last run at commit {commit}; {version};\n\
         {}, libFuzzer without sanitizers, with overflow checks and debug\n\
         assertions. Seconds by the clock, other work runs beside. A target fails when it panics, \
         takes\n\
         more than 1 s of processor time or more than 256 MB of memory.\n\n{}",
        engine.version,
        table(&rows, &before)
    ))
}

fn printed(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The table, with the row of `before` for a target without a state.
fn table(rows: &[(&str, Option<TargetProgress>)], before: &str) -> String {
    let counts = [("inputs", 10), ("seconds", 8), ("edges", 8), ("files", 8), ("bytes", 8)];
    let counts = counts.into_iter().chain([("crashes", 8)]);
    let counts = counts.map(|(title, wide)| Column::right(title).fixed(wide).gap(1));
    let mut table = TextTable::of([Column::left("target").fixed(20)].into_iter().chain(counts));
    for (name, state) in rows {
        let cells_before = before.lines().map(|line| line.split_whitespace());
        let mut cells_before = cells_before.filter(|cells| cells.clone().next() == Some(*name));
        table.push(match (state, cells_before.next()) {
            (Some(state), _) => row(name, state),
            (None, Some(cells)) => cells.map(str::to_owned).collect(),
            (None, None) => row(name, &TargetProgress::default()),
        });
    }
    table.to_text()
}

fn row(name: &str, state: &TargetProgress) -> Vec<String> {
    let (files, bytes) = state.corpus;
    vec![
        name.to_owned(),
        state.inputs.to_string(),
        format!("{:.0}", state.seconds),
        state.edges.to_string(),
        files.to_string(),
        bytes.to_string(),
        state.crashes.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_a_target_has_had() {
        let state =
            TargetProgress { inputs: 2000, seconds: 3.4, edges: 155, corpus: (12, 90), crashes: 1 };
        let text = table(&[("maps", Some(state)), ("btf", None)], "");
        let words: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["maps", "2000", "3", "155", "12", "90", "1"]);
        assert_eq!(words[2], ["btf", "0", "0", "0", "0", "0", "0"]);
    }

    #[test]
    fn the_row_of_a_target_without_a_state_stays() {
        let state = || Some(TargetProgress { inputs: 2000, ..TargetProgress::default() });
        let before = table(&[("maps", state()), ("btf", state())], "");
        let after = table(&[("maps", Some(TargetProgress::default())), ("btf", None)], &before);
        assert_eq!(after.lines().nth(2), before.lines().nth(2));
        assert_ne!(after.lines().nth(1), before.lines().nth(1));
    }
}
