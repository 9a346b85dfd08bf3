//! Recordings replayed over layouts and machines.
//!
//! Input: a recording on disk, layouts, machines. Output: result rows, or the counts behind them.
//! Replaying reports its progress. This module changes no file.

use crate::modules;
use crate::sampling::Sampling;
use anyhow::{Context, Result, bail};
use execution::opened::OpenedRecording;
use execution::part::RecordingPart;
use host::recording::Recording;
use image::module::is_of_module;
use image::{BuildId, Image};
use replay::results::{ORIGINAL, ResultRow};
use replay::rows::CodeNames;
use replay::{
    CpuOrder, ReplayLayout, ReplayTrial, Replayed, SimulationScope, bound, replay_trials, rows,
};
use sim::MachineModel;
use std::path::Path;

/// A recording to replay: over which layouts, and on which machines.
///
/// ```
/// use execution::part::RecordingPart;
/// use replay::ReplayLayout;
/// use road::replayed::ReplayRequest;
///
/// let home = road::examples::home();
/// let image = image::vmlinux::read(&home.path().join("vmlinux"))?;
/// let recording = home.path().join("loop.rec");
/// let layouts = [ReplayLayout::original()];
/// let machines = [machines::find("server-32k")?.model];
/// let usual = ReplayRequest::new(&recording, &layouts, &machines);
/// let replay = ReplayRequest { image: Some(&image), ..usual };
/// assert_eq!(replay.counts()?.layouts.len(), 1);
/// let mut rows = replay.rows()?;
/// assert_eq!(rows[0].functions[0].name, "f");
/// replay.add_bounds(&mut rows, &image)?;
/// assert!(rows[0].bound.is_some());
///
/// let half = ReplayRequest { part: RecordingPart { from: 0.5, until: 1.0 }, ..replay };
/// assert_eq!(half.rows()?[0].conditions["part"], "0.5 to 1");
/// # anyhow::Ok(())
/// ```
#[derive(Clone, Copy)]
pub struct ReplayRequest<'a> {
    /// The recording (a directory).
    pub recording: &'a Path,
    /// The layouts, in the order of the rows.
    pub layouts: &'a [ReplayLayout],
    /// The machines to simulate.
    pub machines: &'a [MachineModel],
    /// What to simulate of each machine.
    pub scope: SimulationScope,
    /// How several CPUs run on a machine with several cores.
    pub order: CpuOrder,
    /// The recorded kernel, which names functions. Layouts that move code of modules need it, with
    /// these modules ([`modules::attach`]).
    pub image: Option<&'a Image>,
    /// The part of the recording.
    pub part: RecordingPart,
    /// Which instructions out-of-order cores simulate in detail.
    pub sampling: Sampling,
}

impl<'a> ReplayRequest<'a> {
    /// The whole recording, on caches without branch prediction, with CPUs side by side, without
    /// names of functions, and with samples on out-of-order cores.
    pub fn new(
        recording: &'a Path,
        layouts: &'a [ReplayLayout],
        machines: &'a [MachineModel],
    ) -> ReplayRequest<'a> {
        ReplayRequest {
            recording,
            layouts,
            machines,
            scope: SimulationScope::Caches,
            order: CpuOrder::SideBySide,
            image: None,
            part: RecordingPart::WHOLE,
            sampling: Sampling::default(),
        }
    }

    /// The result rows, see [`rows::rows`].
    ///
    /// # Errors
    /// The recording is damaged, or a layout or the image is of another kernel.
    pub fn rows(&self) -> Result<Vec<ResultRow>> {
        let counts = self.counts()?;
        let places = self.image.map(|image| modules::places(image, self.recording));
        let copies = places.as_ref().map(|places| modules::copies(self.recording, places));
        let copies = copies.unwrap_or_default();
        let names = self.image.zip(places.as_ref());
        let names = names.map(|(image, places)| CodeNames { image, places, copies: &copies });
        let mut rows = rows::rows(&counts, self.layouts, self.machines, names);
        if !self.part.is_whole() {
            let named = |row: &mut ResultRow| {
                row.conditions.insert("part".to_owned(), self.part.to_string())
            };
            rows.iter_mut().for_each(|row| drop(named(row)));
        }
        Ok(rows)
    }

    /// The counts that the rows are made of.
    ///
    /// # Errors
    /// As [`ReplayRequest::rows`].
    pub fn counts(&self) -> Result<Replayed> {
        self.sampling.replayed(self.recording, &self.part, self.machines, |plan| {
            let trial = |layout| ReplayTrial {
                order: self.order,
                plan,
                ..ReplayTrial::new(layout, self.machines, self.scope)
            };
            let trials: Vec<_> = self.layouts.iter().map(trial).collect();
            trials_of(self.recording, &trials, self.image, &self.part)
        })
    }

    /// Adds the lower bound for any layout to the original's row of each machine. `image`: the
    /// recorded kernel. Reads the recording once for each machine.
    ///
    /// # Errors
    /// As [`ReplayRequest::rows`].
    pub fn add_bounds(&self, rows: &mut [ResultRow], image: &Image) -> Result<()> {
        for machine in self.machines {
            let recording = Recording::at(self.recording);
            let opened = OpenedRecording::open(&recording, &self.part, "bound")?.without_data();
            let found = opened.read(|reader| bound::bound(reader, image, machine))?;
            let rows =
                rows.iter_mut().filter(|row| row.machine == machine.name && row.layout == ORIGINAL);
            rows.for_each(|row| row.bound = Some(found));
        }
        Ok(())
    }
}

/// What replay counts for a part of a recording (a directory), each layout on its own machines.
/// `image`: the kernel of which the recording must be.
///
/// ```
/// use execution::part::RecordingPart;
/// use replay::{ReplayLayout, ReplayTrial, SimulationScope};
/// use road::replayed::trials_of;
///
/// let home = road::examples::home();
/// let machines = [machines::find("server-32k")?.model];
/// let original = ReplayLayout::original();
/// let trials = [ReplayTrial::new(&original, &machines, SimulationScope::Caches)];
/// let recording = home.path().join("loop.rec");
/// let replayed = trials_of(&recording, &trials, None, &RecordingPart::WHOLE)?;
/// assert_eq!(replayed.header.workload, "loop");
///
/// let mut other = image::vmlinux::read(&home.path().join("vmlinux"))?;
/// other.build_id = image::BuildId("0b".into());
/// let refused = trials_of(&recording, &trials, Some(&other), &RecordingPart::WHOLE).unwrap_err();
/// assert!(refused.to_string().contains("build id 0b"), "{refused}");
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// As [`ReplayRequest::rows`].
pub fn trials_of(
    recording: &Path,
    trials: &[ReplayTrial<'_>],
    image: Option<&Image>,
    part: &RecordingPart,
) -> Result<Replayed> {
    let mut opened = OpenedRecording::open(&Recording::at(recording), part, "replay")?;
    if !part.is_whole() {
        opened = opened.without_data();
    }
    ensure_recorded(&opened, trials, image.map(|image| &image.build_id))?;
    let carried = trials.iter().map(|trial| carried(trial.layout, image, recording));
    let carried: Vec<Option<ReplayLayout>> = carried.collect::<Result<_>>()?;
    let trials = trials.iter().zip(&carried).map(|(trial, carried)| ReplayTrial {
        layout: carried.as_ref().unwrap_or(trial.layout),
        ..*trial
    });
    let trials: Vec<ReplayTrial<'_>> = trials.collect();
    opened.read(|reader| replay_trials(reader, &trials))
}

/// A layout with the code of modules where a recording has it. `None`: the layout moves no code of
/// modules.
///
/// # Errors
/// The layout moves code of modules, and the image with these modules is missing.
pub(crate) fn carried(
    layout: &ReplayLayout,
    image: Option<&Image>,
    recording: &Path,
) -> Result<Option<ReplayLayout>> {
    if !layout.placement.blocks.iter().any(|block| is_of_module(block.old)) {
        return Ok(None);
    }
    let image = image.filter(|image| !image.modules.is_empty());
    let image = image.with_context(|| {
        format!(
            "the layout {} moves code of modules, whose files were not found: give the tree of \
             the recorded kernel",
            layout.name
        )
    })?;
    let placement = modules::places(image, recording).carried(&layout.placement);
    Ok(Some(ReplayLayout { placement, ..layout.clone() }))
}

/// Checks that layouts and kernel are those of the recording.
///
/// # Errors
/// One is not.
pub(crate) fn ensure_recorded(
    opened: &OpenedRecording,
    trials: &[ReplayTrial<'_>],
    kernel: Option<&BuildId>,
) -> Result<()> {
    let (recorded, path) = (&opened.header().build_id, opened.name());
    for layout in trials.iter().map(|trial| trial.layout) {
        if let Some(kernel) = layout.kernel.as_ref().filter(|kernel| kernel.0 != *recorded) {
            bail!(
                "{} is of the kernel with build id {}, but {path} of {recorded}",
                layout.name,
                kernel.0
            );
        }
    }
    if let Some(kernel) = kernel.filter(|kernel| kernel.0 != *recorded) {
        bail!(
            "the kernel has build id {}, but {path} is of the kernel with build id {recorded}",
            kernel.0
        );
    }
    Ok(())
}
