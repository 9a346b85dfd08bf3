//! Layouts judged by time: what each layout brings on two processors of today, on workloads that it
//! was not made for.
//!
//! Each workload is tested with the layouts of all algorithms, made for the average of the other
//! workloads. An out-of-order core runs the middle of its recording under each. The same cores with
//! all code at hand run the original and the default layout: no order of the same jumps is faster.
//!
//! Input: a directory, and workloads. Output: there, recordings, profiles, layouts, results and
//! `tables.md`. What exists is not made again, so an interrupted command resumes. All cycles are
//! simulated, with the fixed data behaviour of the machines.

mod at_hand;
mod tables;

use crate::directory::{Counted, StudyDirectory};
use anyhow::{Context, Result};
use execution::part::RecordingPart;
use guest::{RecordingSummary, SHIPPED, Workload};
use kernlane_layout::Algorithm;
use profile::collect::ExtraCounts;
use replay::results::ResultRow;
use std::path::{Path, PathBuf};

const MACHINES: [&str; 2] = ["golden-cove", "zen4"];
/// How many instructions of a recording are simulated, from its middle. All of all recordings under
/// all layouts would take hours.
const INSTRUCTIONS: u64 = 30_000_000;

/// The algorithms that are compared: all that use counts, and a random order.
fn algorithms() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL
        .into_iter()
        .filter(|algorithm| algorithm.uses_counts() || algorithm.name() == "random")
}

/// The workloads.
pub fn shipped() -> impl Iterator<Item = &'static str> {
    SHIPPED.iter().map(|(name, _)| *name)
}

/// Makes the tables of the named workloads, or of all, in `directory`.
///
/// # Errors
/// Something cannot be made.
pub fn layout_times(directory: &Path, names: &[String]) -> Result<()> {
    let shipped: Vec<&str> = shipped().collect();
    let study = StudyDirectory::new(directory)?;
    for workload in &shipped {
        recorded(&study, workload)?;
    }
    let mut text = String::new();
    let mut all = Vec::new();
    let is_wanted = |name: &&&str| names.is_empty() || names.iter().any(|wanted| wanted == **name);
    for workload in shipped.iter().filter(is_wanted) {
        let tested = Tested {
            workload,
            rows: tested(&study, workload, &shipped)?,
            at_hand: tested_at_hand(&study, workload)?,
        };
        text += &tables::markdown(&tested)?;
        all.push(tested);
    }
    text += &tables::means(&all)?;
    host::output::write(&study.path("tables.md"), text.as_bytes())?;
    print!("{text}");
    Ok(())
}

/// What replay counted of a workload.
struct Tested<'a> {
    workload: &'a str,
    /// Each layout on each machine.
    rows: Vec<ResultRow>,
    /// The original and the default layout on the machines that have all code at hand.
    at_hand: Vec<ResultRow>,
}

/// The recording and the profile of a workload.
fn recorded(study: &StudyDirectory, workload: &str) -> Result<()> {
    let recordings = [study.record(workload, || Workload::open(workload))?];
    let extra = ExtraCounts::TemporalEdges;
    study.profile(workload, &Counted { extra, ..Counted::averaged(&recordings) })
}

/// A workload with the layouts that were made for all others.
fn tested(study: &StudyDirectory, workload: &str, shipped: &[&str]) -> Result<Vec<ResultRow>> {
    let others = shipped.iter().filter(|name| **name != workload);
    let profiles: Vec<PathBuf> = others.map(|name| study.path(&format!("{name}.klp"))).collect();
    let made_for = made_for(workload);
    study.profile(&made_for, &Counted::averaged(&profiles))?;
    let layouts: Vec<PathBuf> =
        algorithms().map(|algorithm| study.layout(&made_for, algorithm)).collect::<Result<_>>()?;
    let recording = study.path(&format!("{workload}.rec"));
    let results = study.path(&format!("{workload}.results"));
    let part = middle(&recording)?;
    study.replayed(&results, (&recording, part), &layouts, &MACHINES.map(str::to_owned))
}

/// The name of the profile of all workloads but this one.
fn made_for(workload: &str) -> String {
    format!("not-{workload}")
}

/// A workload with the default layout, on machines that have all code at hand.
fn tested_at_hand(study: &StudyDirectory, workload: &str) -> Result<Vec<ResultRow>> {
    let layout = study.layout(&made_for(workload), Algorithm::default())?;
    let recording = study.path(&format!("{workload}.rec"));
    let mut machines = Vec::new();
    for machine in MACHINES {
        let path = study.path(&format!("{machine}{}.toml", at_hand::AT_HAND));
        let described = machines::find(machine)?;
        host::output::write(&path, at_hand::at_hand(&described.text, machine)?.as_bytes())?;
        machines.push(path.display().to_string());
    }
    let results = study.path(&format!("{workload}.at-hand.results"));
    let part = middle(&recording)?;
    study.replayed(&results, (&recording, part), &[layout], &machines)
}

/// The middle of a recording.
fn middle(recording: &Path) -> Result<RecordingPart> {
    let path = recording.join("recording.json");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let summary: RecordingSummary =
        serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let half = (INSTRUCTIONS as f64 / summary.totals.instructions.max(1) as f64 / 2.0).min(0.5);
    // Results name the part: four digits say enough.
    let share = |share: f64| format!("{share:.4}").parse::<f64>();
    Ok(RecordingPart { from: share(0.5 - half)?, until: share(0.5 + half)? })
}
