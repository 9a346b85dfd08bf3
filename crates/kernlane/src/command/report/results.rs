//! What results say of layouts, and the page, which also takes recordings.
//!
//! Input: results, or recordings and their kernel. Output: tables, or a page.

use super::recordings::SHARING_MACHINE;
use super::{OpenedKernel, ReportArgs, each_opened, print};
use crate::command::replay::{LayoutFile, ensure_recorded};
use anyhow::{Result, bail, ensure};
use attribution::Attribution;
use execution::opened::OpenedRecording;
use execution::walk::SideBySide;
use host::output;
use host::recording::Recording;
use image::vmlinux;
use replay::comparison::{self, Comparison};
use replay::results::{ResultFile, ResultRow};
use replay::{Replay, ReplayLayout, ReplayTrial, SimulationScope, rows};
use report::multiprocessor::MultiprocessorBeside;
use report::overview::{LayoutMisses, Overview, OverviewExtras, StructureMisses};
use report::{page, text};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use trace::CpuCount;

/// The machine of the page, unless --machine names others.
const MACHINE: &str = "server-32k";

/// What layouts gain, as tables or on the page, beside what recordings show.
pub(super) fn comparisons_and_page(args: &ReportArgs) -> Result<()> {
    let (recordings, results) = recordings_and_results(args)?;
    if let (Some(recording), true) = (recordings.first(), args.output.is_none() && !args.json) {
        bail!(
            "{}: a recording; give --output for a page, --json for what it shows, or --services, \
             --os-share or --locality for a table",
            recording.display()
        );
    }
    let for_recordings = args.kernel.is_some()
        || args.annotations.is_some()
        || !(args.machine.is_empty() && args.layout.is_empty());
    ensure!(
        !for_recordings || !recordings.is_empty(),
        "no recording is given, only results: --kernel, --machine, --layout and --annotations are \
         for recordings"
    );
    let comparisons: Vec<Comparison> = comparison::compare(&rows_of(&results)?)?;
    let overviews = overviews(args, &recordings)?;
    if let Some(path) = &args.output {
        output::write(path, page::page(&overviews, &comparisons)?.as_bytes())?;
    }
    if args.json && !recordings.is_empty() {
        print(args, &overviews, String::new)?;
    } else if args.json || args.output.is_none() {
        print(args, &comparisons, || text::comparisons(&comparisons))?;
    }
    Ok(())
}

/// What one operation of a benchmark costs.
pub(super) fn per_operation(args: &ReportArgs) -> Result<()> {
    let (recordings, results) = recordings_and_results(args)?;
    if let Some(recording) = recordings.first() {
        bail!(
            "{}: a recording; --per-operation takes results: `kernlane replay RECORDING --json`",
            recording.display()
        );
    }
    let costs = replay::per_operation::per_operation(&rows_of(&results)?)?;
    print(args, &costs, || report::per_operation::text(&costs))
}

/// The inputs that are recordings, and those that are results.
fn recordings_and_results(args: &ReportArgs) -> Result<(Vec<&PathBuf>, Vec<&PathBuf>)> {
    let (recordings, results): (Vec<&PathBuf>, Vec<&PathBuf>) =
        args.inputs.iter().partition(|path| Recording::at(*path).exists());
    for path in &results {
        ensure!(path.exists(), "{}: there is no such file or directory", path.display());
        ensure!(
            !path.is_dir() || path.join("results.json").is_file(),
            "{}: neither a recording (it has no trace.klt) nor results (it has no results.json)",
            path.display()
        );
    }
    if let Some(path) = results.first() {
        ensure!(
            args.part.is_whole(),
            "{}: results; --from and --until cut a part out of recordings",
            path.display()
        );
    }
    Ok((recordings, results))
}

fn rows_of(results: &[&PathBuf]) -> Result<Vec<ResultRow>> {
    let mut rows = Vec::new();
    for path in results {
        rows.extend(ResultFile::read(path)?.rows);
    }
    Ok(rows)
}

/// The sections of the page that come from recordings.
fn overviews(args: &ReportArgs, recordings: &[&PathBuf]) -> Result<Vec<Overview>> {
    each_opened(args, recordings, &[MACHINE], |recording, kernel| overview(args, recording, kernel))
}

fn overview(args: &ReportArgs, recording: &Path, kernel: &OpenedKernel) -> Result<Overview> {
    let OpenedKernel { path: kernel, attribution } = kernel;
    // Only a vmlinux tells the blocks of a layout.
    let image = match args.layout.is_empty() {
        true => None,
        false => Some(vmlinux::read(&vmlinux::path(kernel))?),
    };
    let mut layouts = vec![ReplayLayout::original()];
    for path in &args.layout {
        layouts.push(LayoutFile::read(path)?.placed(Some(kernel), image.as_ref())?);
    }
    let machines = &attribution.machines;
    let scope = SimulationScope::Caches;
    let trial = |layout| ReplayTrial::new(layout, machines, scope);
    let trials: Vec<ReplayTrial<'_>> = layouts.iter().map(trial).collect();
    let opened = OpenedRecording::open(&Recording::at(recording), &args.part, "recording")?;
    ensure_recorded(&opened, &trials, attribution.symbols.build_id.as_ref())?;
    let mut walk = attribution.page_walk(&opened, kernel)?;
    let mut replay = Replay::new(&trials)?;
    if !args.part.is_whole() {
        replay = replay.without_data();
    }
    let mut observers = walk.observers();
    observers.push(&mut replay);
    opened.walk(&mut SideBySide(observers))?;
    let (tables, replayed) = (walk.finish()?, replay.finish()?);
    let rows = rows::rows(&replayed, &layouts, machines, None);
    let misses: Vec<LayoutMisses<'_>> = layouts
        .iter()
        .zip(&replayed.layouts)
        .map(|(layout, counts)| LayoutMisses {
            layout: &layout.name,
            machine: &machines[0].name,
            placement: &layout.placement,
            misses_at: &counts.machines[0].misses_at,
        })
        .collect();
    let mut conditions: BTreeMap<_, _> = replayed.header.conditions.iter().cloned().collect();
    if !args.part.is_whole() {
        conditions.insert("part".to_owned(), args.part.to_string());
    }
    let several = replayed.header.cpus != CpuCount::ONE;
    let extras = OverviewExtras {
        sizes: Some(tables.sizes),
        data: tables.misses.map(StructureMisses::from),
        generations: tables.generations,
        multiprocessor: match several {
            true => multiprocessor(attribution, recording)?,
            false => None,
        },
    };
    Ok(Overview::new(tables.observed, conditions, rows, &misses, extras))
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
    let usual = machines::find(SHARING_MACHINE)?.model;
    let coherent = attribution.machines.iter().find(|machine| machine.coherence.is_some());
    Ok(Some(attribution.multiprocessor_on(coherent.unwrap_or(&usual), recording, None)?.into()))
}
