//! Replays a recorded execution over any number of layouts and machines.
//!
//! Input: a recording, placements and machines. Output: counters: L1I misses by cause, iTLB misses,
//! taken branches, bytes fetched, lines and pages touched, and time by Torrellas' simple model. On
//! request it also counts mispredictions. For a recording with data accesses it also counts the
//! misses of all caches and TLBs, and time by SimOS' 1994 model. The crate reads the recording
//! once. It never changes a layout and never looks at ELF.
//!
//! ```text
//! trace → flow: fragments ─┬→ moved: fetches of layout A → numbering → simulation on each machine
//!                          └→ moved: fetches of layout B → numbering → simulation on each machine
//! ```
//!
//! Replays a recording of one no-op of the kernel, which misses once:
//!
//! ```
//! use kernlane_replay::{ReplayLayout, replay};
//! use trace::{
//!     RecordingHeader, RecordingReader, RecordingWriter, RunAddr, StreamEvent, Translation,
//!     TranslationId,
//! };
//!
//! let mut writer = RecordingWriter::new(Vec::new(), &RecordingHeader::default())?;
//! writer.translations(&[Translation {
//!     id: TranslationId(0),
//!     addr: RunAddr(0xffff_ffff_8100_0000),
//!     lengths: [1].into(),
//!     code: [0x90].into(),
//! }])?;
//! let mut words = Vec::new();
//! StreamEvent::Executed(TranslationId(0)).append_to(&mut words);
//! writer.stream(&words)?;
//! let (recording, _) = writer.end()?;
//!
//! let machines = [machines::find("server-32k")?.model];
//! let layouts = [ReplayLayout::original()];
//! let replayed = replay(RecordingReader::new(&recording[..])?, &layouts, &machines)?;
//! assert_eq!(replayed.layouts[0].machines[0].l1i.kernel.cold, 1);
//! # anyhow::Ok(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

mod amounts;
pub mod application;
pub mod bound;
pub mod call_costs;
pub mod comparison;
pub mod evaluation;
#[cfg(any(test, feature = "examples"))]
pub mod examples;
pub mod module_places;
pub mod per_operation;
pub mod results;
pub mod rows;
pub mod search;
mod simulation;
mod slices;
#[cfg(test)]
mod tests;

use crate::application::Spaces;
use anyhow::{Context, Result, ensure};
use execution::code::TranslatedCode;
pub(crate) use execution::coherent_run::stalls;
pub use execution::coherent_run::{CoherenceCounts, LineSharing};
pub use execution::core_run::CoreCounts;
use execution::core_run::UopCodes;
pub use execution::cpu_order::{CpuOrder, CpuWaits};
use execution::cpu_order::{CpuSteps, DataTurn};
use execution::data::DataWish;
use execution::division::SetDivision;
use execution::flow::Interruptions;
pub use execution::sampling::{Estimate, SamplePlan, Sampled};
use execution::slices::{SliceClock, SliceStarts};
use execution::walk::{Observer, Piece, PieceControl, WalkedRecording, Wants, walk};
use image::BuildId;
use image::place::Placement;
use rayon::prelude::*;
use results::ResultKind;
pub use results::guard;
use sim::MachineModel;
pub use simulation::SimulationScope;
use simulation::{LayoutAmounts, ReplayMachineCounts, Simulation};
pub use slices::SliceCounts;
use std::io::Read;
use trace::{CpuCount, RecordingHeader, RecordingReader, RecordingTotals, RunAddr, Translation};

/// A layout to replay over.
#[derive(Clone, Debug)]
pub struct ReplayLayout {
    /// The layout's name in result rows.
    pub name: String,
    /// Whether the recorded kernel has this layout, or the recording is carried over to it.
    pub kind: ResultKind,
    /// The kernel whose blocks it places; `None` for the recorded layout, which places none.
    pub kernel: Option<BuildId>,
    /// Where each block of the old kernel lies.
    pub placement: Placement,
}

impl ReplayLayout {
    /// The layout of a kernel as its own build laid it out. The recording is of this kernel:
    /// nothing moves.
    pub fn original() -> ReplayLayout {
        ReplayLayout::recorded(crate::results::ORIGINAL)
    }

    /// The layout that the recorded kernel has: nothing moves.
    pub fn recorded(name: impl Into<String>) -> ReplayLayout {
        ReplayLayout {
            name: name.into(),
            kind: ResultKind::Recorded,
            kernel: None,
            placement: Placement::default(),
        }
    }

    /// A layout to which a recording of `kernel` is carried over.
    pub fn predicted(
        name: impl Into<String>,
        kernel: BuildId,
        placement: Placement,
    ) -> ReplayLayout {
        let (name, kind) = (name.into(), ResultKind::Predicted);
        ReplayLayout { name, kind, kernel: Some(kernel), placement }
    }
}

/// The counts of one layout.
#[derive(Clone, Debug, PartialEq)]
pub struct LayoutCounts {
    /// The amounts that are the same on every machine.
    pub amounts: LayoutAmounts,
    /// The counts of each machine, in the order of the machines.
    pub machines: Vec<ReplayMachineCounts>,
}

/// The counts of the whole recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The header of the recording.
    pub header: RecordingHeader,
    /// The totals of the recording.
    pub totals: RecordingTotals,
    /// Exceptions and interrupts.
    pub interruptions: Interruptions,
    /// Kernel code that ran, as disjoint ranges (start, end), ascending.
    pub kernel_code: Vec<(RunAddr, RunAddr)>,
    /// The counts of each layout, in the order of the layouts.
    pub layouts: Vec<LayoutCounts>,
}

/// Replays a recording over `layouts` on the caches of `machines`.
///
/// # Errors
/// The recording is damaged or cut off, or runs more code than can be simulated.
pub fn replay<R: Read>(
    reader: RecordingReader<R>,
    layouts: &[ReplayLayout],
    machines: &[MachineModel],
) -> Result<Replayed> {
    let trial = |layout| ReplayTrial::new(layout, machines, SimulationScope::Caches);
    replay_trials(reader, &layouts.iter().map(trial).collect::<Vec<_>>())
}

/// A layout, the machines to simulate, and what to simulate of them.
#[derive(Clone, Copy)]
pub struct ReplayTrial<'a> {
    /// The layout.
    pub layout: &'a ReplayLayout,
    /// The machines to simulate.
    pub machines: &'a [MachineModel],
    /// What to simulate of each machine.
    pub scope: SimulationScope,
    /// How the sets of the L1I of all machines are divided. A divided cache needs machines with one
    /// number of sets, and no data accesses.
    pub division: &'a SetDivision,
    /// Where the layout's placement puts user code, if it moves user code. Such a layout needs a
    /// recording without data accesses.
    pub application: Option<&'a Spaces>,
    /// The order in which several CPUs make their steps on machines with several cores.
    pub order: CpuOrder,
    /// Where out-of-order cores are simulated in detail; `None`: everywhere.
    pub plan: Option<SamplePlan>,
}

impl<'a> ReplayTrial<'a> {
    /// A trial on caches that are not divided, with CPUs side by side.
    pub fn new(
        layout: &'a ReplayLayout,
        machines: &'a [MachineModel],
        scope: SimulationScope,
    ) -> ReplayTrial<'a> {
        ReplayTrial {
            layout,
            machines,
            scope,
            division: &SetDivision::Whole,
            application: None,
            order: CpuOrder::SideBySide,
            plan: None,
        }
    }

    fn check(&self) -> Result<()> {
        let sets = || self.machines.iter().map(|machine| machine.l1i.sets());
        let same = sets().min() == sets().max();
        ensure!(
            *self.division == SetDivision::Whole
                || same && sets().all(|sets| self.division.fits(sets)),
            "the caches for the layout {} cannot be divided in this way",
            self.layout.name
        );
        Ok(())
    }
}

/// As [`replay`], with machines for each layout. Data accesses are followed only when all trials
/// have the same machines and no user code moves.
///
/// # Errors
/// As [`replay`]. A cache cannot be divided as a trial wants, or the placement of user code lacks a
/// translation block of the recording.
pub fn replay_trials<R: Read>(
    reader: RecordingReader<R>,
    trials: &[ReplayTrial<'_>],
) -> Result<Replayed> {
    let mut replay = Replay::new(trials)?;
    walk(reader, &mut replay)?;
    replay.finish()
}

/// An observer that replays a recording on all layouts and machines. The caches are empty where the
/// recording begins.
pub struct Replay<'t> {
    trials: &'t [ReplayTrial<'t>],
    codes: UopCodes,
    simulations: Vec<Simulation<'t>>,
    /// `None`: the recording has one CPU.
    steps: Option<CpuSteps>,
    takes_data: bool,
    /// `None`: slices are not counted.
    clock: Option<SliceClock>,
    header: RecordingHeader,
    replayed: Option<Replayed>,
}

impl<'t> Replay<'t> {
    /// # Errors
    /// A cache cannot be divided as a trial wants, or the numbers of a machine contradict each
    /// other.
    pub fn new(trials: &'t [ReplayTrial<'t>]) -> Result<Replay<'t>> {
        trials.iter().try_for_each(ReplayTrial::check)?;
        Ok(Replay {
            trials,
            codes: UopCodes::new(trials.iter().flat_map(|trial| trial.machines))?,
            simulations: Vec::new(),
            steps: None,
            takes_data: true,
            clock: None,
            header: RecordingHeader::default(),
            replayed: None,
        })
    }

    /// Leaves the data accesses out.
    pub fn without_data(self) -> Replay<'t> {
        Replay { takes_data: false, ..self }
    }

    /// Also counts the misses of each slice.
    pub fn in_slices(self, starts: &SliceStarts) -> Replay<'t> {
        Replay { clock: Some(SliceClock::new(starts)), ..self }
    }

    /// What was counted.
    ///
    /// # Errors
    /// The walk did not come to the recording's end.
    pub fn finish(self) -> Result<Replayed> {
        self.replayed.context("the recording has no clean end")
    }
}

impl Observer for Replay<'_> {
    fn begin(&mut self, header: &RecordingHeader, _has_data: bool) -> Result<Wants> {
        let of_trial = |trial| Simulation::new(trial, header.cpus);
        self.simulations = self.trials.iter().map(of_trial).collect::<Result<_>>()?;
        if self.clock.is_some() {
            self.simulations.iter_mut().for_each(Simulation::keep_slices);
        }
        self.steps = (header.cpus != CpuCount::ONE).then(|| CpuSteps::new(header.cpus));
        self.header = header.clone();
        let machines = self.trials.first().map_or(&[][..], |trial| trial.machines);
        let all_alike = (self.trials.iter())
            .all(|trial| trial.machines == machines && trial.application.is_none());
        self.takes_data &= all_alike;
        let data = self.takes_data.then(|| DataWish::of(machines));
        Ok(Wants { control: true, data, ..Wants::default() })
    }

    fn define(&mut self, translations: &[Translation], _: &[TranslatedCode]) -> Result<()> {
        self.codes.define(translations);
        self.steps.iter_mut().for_each(|steps| steps.define(translations));
        self.simulations.iter_mut().try_for_each(|simulation| simulation.define(translations))
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        if piece.is_tail {
            self.steps.iter_mut().for_each(CpuSteps::end);
        }
        match &piece.control {
            Some(control) => self.simulate(piece, control),
            None => Ok(()),
        }
    }

    fn end(&mut self, walked: &WalkedRecording<'_>) -> Result<()> {
        let simulations = &mut *self.simulations;
        if let Some(steps) = &mut self.steps {
            steps.finish(|window| simulations.par_iter_mut().for_each(|it| it.advance(window)));
        }
        simulations.iter_mut().for_each(Simulation::finish);
        let WalkedRecording { totals, flow } = *walked;
        let layouts = self.simulations.iter().map(|simulation| LayoutCounts {
            amounts: simulation.amounts(&flow.counts),
            machines: simulation.machine_counts(flow),
        });
        self.replayed = Some(Replayed {
            header: self.header.clone(),
            totals: *totals,
            interruptions: flow.interruptions,
            kernel_code: flow.kernel_code(),
            layouts: layouts.collect(),
        });
        Ok(())
    }
}

impl Replay<'_> {
    fn simulate(&mut self, piece: &Piece<'_>, control: &PieceControl<'_>) -> Result<()> {
        let Replay { codes, simulations, steps, takes_data, clock, .. } = self;
        let PieceControl { fragments, flow, .. } = *control;
        let stays = slices::stays(clock.as_mut(), flow, fragments);
        let data = piece.data.as_ref().filter(|_| *takes_data);
        for simulation in simulations.iter_mut() {
            simulation.learn(flow, codes, data)?;
        }
        let (cpu, codes) = (piece.cpu, &*codes);
        let paired = control.paired.as_ref().filter(|_| *takes_data);
        let coherent = paired.filter(|_| simulations.iter().any(Simulation::is_coherent));
        let mut steps = steps.as_mut();
        let stretch = coherent
            .zip(steps.as_mut())
            .map(|(paired, steps)| steps.stretch(cpu, fragments, DataTurn { flow, paired }));
        let run = |simulation: &mut Simulation<'_>| {
            simulation.run(cpu, (fragments, &stays), codes, paired, stretch.as_ref())
        };
        simulations.par_iter_mut().for_each(run);
        let made = |simulations: &[Simulation<'_>], cpu| {
            simulations.iter().filter_map(|simulation| simulation.stretch(cpu)).min()
        };
        if let (Some(steps), Some(stretch)) = (steps, stretch)
            && made(simulations, 0).is_some()
            && steps.keep(stretch)
        {
            steps.advance(|window| simulations.par_iter_mut().for_each(|it| it.advance(window)));
            steps.forget(|cpu| made(simulations, cpu));
        }
        Ok(())
    }
}
