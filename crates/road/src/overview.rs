//! What a page shows of a recording.
//!
//! Input: an opened recording, and layouts of its kernel. Output: the numbers of the page, which
//! [`report::page`] draws.

use crate::layout_file::LayoutFile;
use crate::modules;
use crate::opened::OpenedKernel;
use crate::page_walk::PageWalk;
use crate::replayed::{carried, ensure_recorded};
use crate::sampling::Sampling;
use anyhow::Result;
use execution::cpu_order::CpuOrder;
use execution::opened::OpenedRecording;
use execution::sampling::SamplePlan;
use execution::walk::SideBySide;
use host::recording::Recording;
use replay::{Replay, ReplayLayout, ReplayTrial, SimulationScope, rows};
use report::multiprocessor::MultiprocessorBeside;
use report::overview::{LayoutMisses, Overview, OverviewExtras, StructureMisses};
use services::Attribution;
use services::generations::Generations;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use trace::CpuCount;

/// The machine of several CPUs, unless one of those that are named has coherent caches.
const SEVERAL_CPUS: &str = "server-8";

/// The section of a page that a recording (a directory) gives. `layouts`: files of other layouts,
/// whose misses stand beside the original's. `sampling`: which instructions out-of-order cores
/// simulate in detail.
///
/// ```
/// use execution::part::RecordingPart;
/// use road::opened::Opening;
/// use road::sampling::Sampling;
///
/// let home = road::examples::home();
/// let recording = home.path().join("loop.rec");
/// let machines = ["server-32k".to_owned()];
/// let part = RecordingPart::WHOLE;
/// let opening = Opening { kernel: None, annotations: None, machines: &machines, part };
/// let kernel = opening.open(&recording)?;
/// let overview = road::overview::overview(&recording, &kernel, &[], Sampling::default())?;
/// assert_eq!((overview.workload.as_str(), overview.table.instructions > 0), ("loop", true));
/// assert!(report::page::page(&[overview], &[])?.starts_with("<!doctype html>"));
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// The recording is damaged or of another kernel, or a layout cannot be read.
pub fn overview(
    recording: &Path,
    kernel: &OpenedKernel,
    layouts: &[PathBuf],
    sampling: Sampling,
) -> Result<Overview> {
    let OpenedKernel { path, attribution } = kernel;
    // Only a vmlinux tells the blocks of a layout.
    let image = match layouts.is_empty() {
        true => None,
        false => Some(modules::image_of(path, std::slice::from_ref(&recording.to_owned()))?),
    };
    let files = layouts;
    let mut layouts = vec![ReplayLayout::original()];
    for layout in files {
        let placed = LayoutFile::read(layout)?.placed(Some(path), image.as_ref())?;
        layouts.push(carried(&placed, image.as_ref(), recording)?.unwrap_or(placed));
    }
    let Attribution { machines, part, .. } = attribution;
    let walk = |plan| walked(recording, kernel, &layouts, plan);
    let widest =
        |overview: &Overview| overview.generations.as_ref().map_or(0.0, Generations::widest);
    sampling.until_narrow(recording, part, machines, walk, widest)
}

/// What two walks over the recording give. The first one finds where the slices of the recording
/// begin, in which the second one counts.
fn walked(
    recording: &Path,
    kernel: &OpenedKernel,
    layouts: &[ReplayLayout],
    plan: Option<SamplePlan>,
) -> Result<Overview> {
    let OpenedKernel { path: kernel, attribution } = kernel;
    let (machines, part) = (&attribution.machines, &attribution.part);
    let trial = |layout| ReplayTrial::new(layout, machines, SimulationScope::Caches);
    let trials: Vec<ReplayTrial<'_>> = layouts.iter().map(trial).collect();
    let open = || OpenedRecording::open(&Recording::at(recording), part, "recording");
    ensure_recorded(&open()?, &trials, attribution.symbols.build_id.as_ref())?;
    let observed = attribution.observed(recording)?;
    let opened = open()?;
    let starts = &observed.timeline.starts;
    let mut walk = PageWalk::new(attribution, &opened, kernel, plan, starts)?;
    let mut replay = Replay::new(&trials)?.in_slices(starts);
    if !part.is_whole() {
        replay = replay.without_data();
    }
    let mut observers = walk.observers();
    observers.push(&mut replay);
    opened.walk(&mut SideBySide(observers))?;
    let (tables, replayed) = (walk.finish()?, replay.finish()?);
    let rows = rows::rows(&replayed, layouts, machines, None);
    // In the order of the rows.
    let slices = (0..machines.len()).flat_map(|machine| {
        replayed.layouts.iter().map(move |counts| &counts.machines[machine].slices[..])
    });
    let rows = rows.into_iter().zip(slices).collect();
    let misses: Vec<LayoutMisses<'_>> = layouts
        .iter()
        .zip(&replayed.layouts)
        .map(|(layout, counts)| LayoutMisses {
            layout: &layout.name,
            machine: &machines[0].name,
            placement: &layout.placement,
            misses_at: &counts.machines[0].misses_at,
            slices: &counts.machines[0].slices,
        })
        .collect();
    let mut conditions: BTreeMap<_, _> = replayed.header.conditions.iter().cloned().collect();
    if !part.is_whole() {
        conditions.insert("part".to_owned(), part.to_string());
    }
    let several = replayed.header.cpus != CpuCount::ONE;
    let extras = OverviewExtras {
        sizes: Some(tables.sizes),
        sliced_sizes: tables.sliced_sizes,
        data: tables.misses.map(StructureMisses::from),
        generations: tables.generations,
        multiprocessor: match several {
            true => multiprocessor(attribution, recording)?,
            false => None,
        },
    };
    Ok(Overview::new(observed, conditions, rows, &misses, extras))
}

/// The services of several CPUs on the first machine with several cores; `None` without data
/// accesses.
fn multiprocessor(
    attribution: &Attribution,
    recording: &Path,
) -> Result<Option<MultiprocessorBeside>> {
    if !OpenedRecording::whole(&Recording::at(recording), "data")?.has_data() {
        return Ok(None);
    }
    let usual = machines::find(SEVERAL_CPUS)?.model;
    let coherent = attribution.machines.iter().find(|machine| machine.coherence.is_some());
    let machine = coherent.unwrap_or(&usual);
    let order = CpuOrder::SideBySide;
    Ok(Some(coherence::multiprocessor_on(attribution, machine, order, recording, None)?.into()))
}
