//! Samples beside the simulation of every instruction: how far estimates are off, and whether their
//! intervals say so.
//!
//! Each workload is recorded in a guest like each processor, with and without data accesses, and
//! laid out for itself. The core runs the original and the layout, once in detail and then by
//! samples at the places of several seeds.
//!
//! Input: a directory, and workloads. Output: there, recordings, layouts, what each run counted,
//! and `tables.md`. What exists is not made again, so an interrupted command resumes.

use crate::directory::{Counted, StudyDirectory};
use anyhow::{Context, Result};
use execution::opened;
use execution::part::RecordingPart;
use guest::{SHIPPED, Workload};
use host::output;
use host::recording::Recording;
use kernlane_layout::Algorithm;
use lab::made::make;
use profile::collect::ExtraCounts;
use replay::{CoreCounts, Estimate, ReplayLayout, ReplayTrial, SamplePlan, SimulationScope};
use road::replayed::trials_of;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::Path;

const MACHINES: [&str; 2] = ["zen4", "golden-cove"];
/// The units of a plan, as `kernlane replay --within 1` begins.
const UNITS: u64 = 20_000;
/// The places of samples that are tried.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=4;

/// What a run gave for the original and for the layout: the kernel, user code, both.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    original: [Estimate; 3],
    layout: [Estimate; 3],
    /// The change from original to layout in per cent; of samples, with its interval.
    change: [Estimate; 3],
    /// Processor time, in seconds.
    seconds: f64,
}

/// The workloads that run on the demo kernel: those that need no modules.
pub fn shipped() -> impl Iterator<Item = &'static str> {
    let names = SHIPPED.iter().map(|(name, _)| *name);
    names.filter(|name| Workload::open(name).is_ok_and(|workload| workload.modules.is_empty()))
}

/// Makes the tables of the named workloads in `directory`.
///
/// # Errors
/// Something cannot be made.
pub fn sampling(directory: &Path, workloads: &[String]) -> Result<()> {
    let study = StudyDirectory::new(directory)?;
    let mut text = String::from(
        "| workload, machine | | exact, M slots | error of each seed, % (half of the interval) | inside \
         | layout: change, % | error of each seed, points (half of the interval) | inside | processor \
         time, exact and samples, s |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let mut all = [0; 4];
    for workload in workloads {
        for machine in MACHINES {
            for has_data in [false, true] {
                all = line(&study, (workload, machine, has_data), &mut text, all)?;
            }
        }
    }
    let [inside, estimates, changes_inside, changes] = all;
    let _ = writeln!(
        text,
        "\n{inside} of {estimates} times and {changes_inside} of {changes} changes lie in their 95 % \
         intervals."
    );
    output::write(&study.path("tables.md"), text.as_bytes())?;
    print!("{text}");
    Ok(())
}

/// Adds the lines of a workload on a machine. `all`: how many estimates lay in their intervals, of
/// how many; the same of changes.
fn line(
    study: &StudyDirectory,
    (workload, machine, has_data): (&str, &str, bool),
    text: &mut String,
    mut all: [usize; 4],
) -> Result<[usize; 4]> {
    let name = format!("{workload}-{machine}{}", if has_data { "-data" } else { "" });
    let recording = study.record(&name, (Some(machine), has_data), || Workload::open(workload))?;
    let inputs = [recording.clone()];
    study.profile(&name, &Counted { extra: ExtraCounts::None, ..Counted::averaged(&inputs) })?;
    let layouts =
        [ReplayLayout::original(), study.placed(&study.layout(&name, Algorithm::default())?)?];
    let recorded = (&*recording, machine);
    let exact = run(study, &format!("{name}.exact.json"), recorded, &layouts, None)?;
    let seeds: Vec<Run> = SEEDS
        .map(|seed| run(study, &format!("{name}.{seed}.json"), recorded, &layouts, Some(seed)))
        .collect::<Result<_>>()?;
    for (mode, of) in ["kernel", "user", "both"].iter().enumerate() {
        let truth = exact.original[mode].value;
        let (mut errors, mut inside) = (Vec::new(), 0);
        let (mut points, mut changes_inside) = (Vec::new(), 0);
        for run in &seeds {
            let estimate = run.original[mode];
            let error = estimate.value - truth;
            inside += usize::from(error.abs() <= estimate.within.max(0.5));
            let percent = |slots: f64| 100.0 * slots / truth.max(1.0);
            errors.push(format!("{:+.2} ({:.2})", percent(error), percent(estimate.within)));
            let change = run.change[mode];
            let error = change.value - exact.change[mode].value;
            changes_inside += usize::from(error.abs() <= change.within.max(1e-6));
            points.push(format!("{error:+.3} ({:.3})", change.within));
        }
        let _ = writeln!(
            text,
            "| {name} | {of} | {:.1} | {} | {inside} of {} | {:+.2} | {} | {changes_inside} of {} | \
             {:.0}, {:.0} |",
            truth / 1e6,
            errors.join(", "),
            seeds.len(),
            exact.change[mode].value,
            points.join(", "),
            seeds.len(),
            exact.seconds,
            seeds.iter().map(|run| run.seconds).sum::<f64>() / seeds.len() as f64,
        );
        let more = [inside, seeds.len(), changes_inside, seeds.len()];
        all.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
    Ok(all)
}

/// Runs original and layout by samples at the places of a seed, or in detail. The result is kept.
fn run(
    study: &StudyDirectory,
    kept: &str,
    (recording, machine): (&Path, &str),
    layouts: &[ReplayLayout; 2],
    seed: Option<u64>,
) -> Result<Run> {
    let path = study.path(kept);
    make(&path, || {
        let whole = RecordingPart::WHOLE;
        let all = opened::instructions_of(&Recording::at(recording), &whole)?;
        let plan = seed.and_then(|seed| SamplePlan::new(all, UNITS, seed));
        let machines = machines::models(&[machine])?;
        let trial = |layout| ReplayTrial {
            plan,
            ..ReplayTrial::new(layout, &machines, SimulationScope::Caches)
        };
        let trials = layouts.each_ref().map(trial);
        let before = processor_seconds()?;
        let replayed = trials_of(recording, &trials, None, &whole)?;
        let seconds = processor_seconds()? - before;
        let core = |layout: usize| {
            replayed.layouts[layout].machines[0].core.as_ref().context("the machine has no core")
        };
        let (original, layout) = (slots(core(0)?), slots(core(1)?));
        let paired = core(1)?.sampled.as_ref().zip(core(0)?.sampled.as_ref());
        let exactly = [0, 1, 2].map(|mode| Estimate {
            value: 100.0 * (layout[mode].value / original[mode].value.max(1.0) - 1.0),
            within: 0.0,
        });
        let change = paired.and_then(|(layout, original)| layout.change(original));
        let run = Run { original, layout, change: change.unwrap_or(exactly), seconds };
        output::write(&path, serde_json::to_string_pretty(&run)?.as_bytes())
    })?;
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// The slots of the kernel, of user code, and of both.
fn slots(core: &CoreCounts) -> [Estimate; 3] {
    match &core.sampled {
        Some(sampled) => [sampled.slots.kernel, sampled.slots.user, sampled.all],
        None => {
            let modes = [core.counters.kernel, core.counters.user];
            let [kernel, user] = modes.map(|mode| mode.slots.total() as f64);
            [kernel, user, kernel + user].map(|value| Estimate { value, within: 0.0 })
        }
    }
}

/// The processor time of this process so far.
fn processor_seconds() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").context("/proc/self/stat")?;
    // Behind the name, which may hold spaces, come state, parent and so on: see proc(5).
    let fields = text.rsplit_once(')').context("/proc/self/stat has no name")?.1;
    let mut ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    let mut next =
        || ticks.next().context("/proc/self/stat is too short")?.context("/proc/self/stat");
    // Linux counts these in hundredths of a second on x86-64.
    Ok((next()? + next()?) / 100.0)
}
