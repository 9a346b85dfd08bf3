//! Speer's tables for Linux (Speer 1994, section 3): one kernel for each of the paper's four
//! benchmarks, tested on all four, beside one kernel for their average.
//!
//! Input: a directory. Output: there, what `kernlane study bench/studies/speer.toml` makes,
//! `speer.json` and `tables.md`. Times are cycles of a simulated machine; instructions and branches
//! are exact. A study's file says what is made; this module sets the paper's figures beside it.

mod layouts;
mod paper;
mod tables;

use anyhow::{Context, Result};
use replay::per_operation::{OperationCost, per_operation};
use replay::results::ResultFile;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The study, from the project's directory.
const STUDY: &str = "bench/studies/speer.toml";
/// What `kernlane study --json` prints, as far as it is needed.
#[derive(Deserialize)]
struct StudyResults {
    rows: Vec<StudyRow>,
}

#[derive(Deserialize)]
struct StudyRow {
    layout: String,
    results: PathBuf,
    layout_in_results: String,
}

/// Makes the tables in `directory`.
///
/// # Errors
/// Something cannot be made, or is not what the study expects.
pub fn speer(directory: &Path) -> Result<()> {
    lab::build_plugin()?;
    let mut study = Command::new(lab::kernlane()?);
    study.args(["study", STUDY, "--json", "--output"]).arg(directory);
    study.env("KERNLANE_BENCH", lab::static_suite()?);
    let printed = lab::succeeded(&mut study)?.stdout;
    let found: StudyResults = serde_json::from_slice(&printed).context("the study's results")?;
    let costs: Vec<OperationCost> =
        found.rows.iter().map(|row| cost(directory, row)).collect::<Result<_>>()?;
    let text = tables::markdown(&costs)?;
    let json = serde_json::to_string_pretty(&costs)? + "\n";
    host::output::write(&directory.join("speer.json"), json.as_bytes())?;
    host::output::write(&directory.join("tables.md"), text.as_bytes())?;
    print!("{text}");
    Ok(())
}

/// What an operation costs in a row of the study.
fn cost(directory: &Path, row: &StudyRow) -> Result<OperationCost> {
    let path = directory.join(&row.results);
    let mut rows = ResultFile::read(&path)?.rows;
    rows.retain(|found| found.layout == row.layout_in_results);
    let costs = per_operation(&rows).with_context(|| path.display().to_string())?;
    let cost = costs.into_iter().next();
    let cost = cost.with_context(|| format!("{}: no {}", path.display(), row.layout_in_results))?;
    // The study's name says for what the layout was made.
    Ok(OperationCost { layout: row.layout.clone(), ..cost })
}

#[cfg(test)]
mod tests {
    use super::layouts::{ALGORITHMS, AVERAGE};
    use super::paper::{GROUPS, Group};
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Deserialize)]
    struct StudyFile {
        workloads: Vec<String>,
        layouts: Vec<String>,
        train: BTreeMap<String, Vec<String>>,
    }

    #[test]
    fn the_study_has_every_benchmark_of_the_groups() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(STUDY);
        let study: StudyFile = toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(study.layouts, ALGORITHMS);
        let mut all = Vec::new();
        for group in GROUPS {
            let names = group.benchmarks().into_iter().map(|it| format!("bench:{}", it.name));
            let names: Vec<String> = names.collect();
            let sorted = |names: &[String]| {
                let mut names = names.to_vec();
                names.sort();
                names
            };
            assert_eq!(sorted(&study.train[group.name]), sorted(&names));
            all.extend(study.train[group.name].iter().cloned());
        }
        assert_eq!(study.workloads, all);
        assert_eq!(study.train[AVERAGE], GROUPS.map(|group: Group| group.name));
    }
}
