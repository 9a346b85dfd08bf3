//! Layouts judged by time: what each layout brings on two processors of today, on workloads that it
//! was not made for.
//!
//! Each workload is recorded in a guest like each processor. It is tested with the layouts of all
//! algorithms, made for the average of the other workloads in all guests. An out-of-order core runs
//! samples of the whole recording of the guest like it under each layout. The same core with all
//! code at hand runs the original and the default layout: no order of the same jumps is faster.
//!
//! Input: a directory, and workloads. Output: there, recordings, profiles, layouts, results and
//! `tables.md`. What exists is not made again, so an interrupted command resumes. All cycles are
//! simulated, with the fixed data behaviour of the machines.

mod at_hand;
mod tables;

use crate::directory::{Counted, StudyDirectory};
use anyhow::Result;
use execution::part::RecordingPart;
use guest::{SHIPPED, Workload};
use kernlane_layout::Algorithm;
use profile::collect::ExtraCounts;
use replay::results::ResultRow;
use std::path::{Path, PathBuf};

const MACHINES: [&str; 2] = ["golden-cove", "zen4"];

/// The algorithms that are compared: all that use counts, and a random order.
fn algorithms() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL
        .into_iter()
        .filter(|algorithm| algorithm.uses_counts() || algorithm.name() == "random")
}

/// The workloads that run on the demo kernel: those that need no modules.
pub fn shipped() -> impl Iterator<Item = &'static str> {
    let names = SHIPPED.iter().map(|(name, _)| *name);
    names.filter(|name| Workload::open(name).is_ok_and(|workload| workload.modules.is_empty()))
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

/// The name of a workload in the guest like a machine.
fn in_guest(workload: &str, machine: &str) -> String {
    format!("{workload}-{machine}")
}

/// The recordings and the profiles of a workload.
fn recorded(study: &StudyDirectory, workload: &str) -> Result<()> {
    for machine in MACHINES {
        let name = in_guest(workload, machine);
        let recordings =
            [study.record(&name, (Some(machine), false), || Workload::open(workload))?];
        let extra = ExtraCounts::TemporalEdges;
        study.profile(&name, &Counted { extra, ..Counted::averaged(&recordings) })?;
    }
    Ok(())
}

/// A workload with the layouts that were made for all others.
fn tested(study: &StudyDirectory, workload: &str, shipped: &[&str]) -> Result<Vec<ResultRow>> {
    let others = shipped.iter().filter(|name| **name != workload);
    let profile = |name, machine| study.path(&format!("{}.klp", in_guest(name, machine)));
    let profiles: Vec<PathBuf> =
        others.flat_map(|name| MACHINES.map(|machine| profile(name, machine))).collect();
    let made_for = made_for(workload);
    study.profile(&made_for, &Counted::averaged(&profiles))?;
    let layouts: Vec<PathBuf> =
        algorithms().map(|algorithm| study.layout(&made_for, algorithm)).collect::<Result<_>>()?;
    let mut rows = Vec::new();
    for machine in MACHINES {
        let name = in_guest(workload, machine);
        rows.extend(replayed(study, &name, &name, &layouts, machine)?);
    }
    Ok(rows)
}

/// The rows `RESULTS.results` of the whole recording `NAME.rec`.
fn replayed(
    study: &StudyDirectory,
    name: &str,
    results: &str,
    layouts: &[PathBuf],
    machine: &str,
) -> Result<Vec<ResultRow>> {
    let recording = study.path(&format!("{name}.rec"));
    let results = study.path(&format!("{results}.results"));
    let whole = (&*recording, RecordingPart::WHOLE);
    study.replayed(&results, whole, layouts, &[machine.to_owned()])
}

/// The name of the profile of all workloads but this one.
fn made_for(workload: &str) -> String {
    format!("not-{workload}")
}

/// A workload with the default layout, on machines that have all code at hand.
fn tested_at_hand(study: &StudyDirectory, workload: &str) -> Result<Vec<ResultRow>> {
    let layouts = [study.layout(&made_for(workload), Algorithm::default())?];
    let mut rows = Vec::new();
    for machine in MACHINES {
        let path = study.path(&format!("{machine}{}.toml", at_hand::AT_HAND));
        let described = machines::find(machine)?;
        host::output::write(&path, at_hand::at_hand(&described.text, machine)?.as_bytes())?;
        let name = in_guest(workload, machine);
        let results = format!("{name}.at-hand");
        rows.extend(replayed(study, &name, &results, &layouts, &path.display().to_string())?);
    }
    Ok(rows)
}
