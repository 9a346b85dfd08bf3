//! Replays a recorded execution over any number of layouts and machines.
//!
//! Takes a recording, placements and machines; gives counters: L1I misses by cause, iTLB misses,
//! taken branches, bytes fetched, lines and pages touched, and time by Torrellas' simple model. On
//! request it also counts mispredictions. For a recording with data accesses it also counts the
//! misses of all caches and TLBs, and time by SimOS' 1994 model. Reads the recording once. Never
//! changes a layout, never looks at ELF.
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
//! let machines = [execution::machine::find("server-32k")?];
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
mod coherent_run;
pub mod comparison;
mod cpu_order;
pub mod evaluation;
#[cfg(any(test, feature = "examples"))]
pub mod examples;
pub mod per_operation;
pub mod results;
pub mod rows;
pub mod search;
mod simulation;
#[cfg(test)]
mod tests;

use crate::application::Spaces;
use anyhow::{Context, Result, ensure};
pub(crate) use coherent_run::stalls;
pub use coherent_run::{CoherenceCounts, LineSharing};
pub use cpu_order::CpuOrder;
use cpu_order::CpuSteps;
pub use cpu_order::clocks::CpuWaits;
use cpu_order::turns::DataTurn;
pub use execution::core_run::CoreCounts;
use execution::core_run::UopCodes;
use execution::data::{AccessStream, DataFlow, PIECE_WORDS};
use execution::division::SetDivision;
use execution::flow::{ExecutionFlow, FragmentId, Interruptions};
use execution::part::PartFilter;
use image::BuildId;
use image::place::Placement;
use rayon::prelude::*;
pub use results::guard;
use sim::MachineModel;
pub use simulation::SimulationScope;
use simulation::{LayoutAmounts, ReplayMachineCounts, Simulation};
use std::io::Read;
use trace::{
    AccessPatterns, Accesses, Chunk, CpuId, RecordingHeader, RecordingReader, RecordingTotals,
    RunAddr,
};

/// A layout to replay over.
#[derive(Clone, Debug)]
pub struct ReplayLayout {
    /// The layout's name in result rows.
    pub name: String,
    /// The kernel whose blocks it places; `None` for the original layout, which places none.
    pub kernel: Option<BuildId>,
    /// Where each block of the old kernel lies.
    pub placement: Placement,
}

impl ReplayLayout {
    /// The original layout: nothing moves.
    pub fn original() -> ReplayLayout {
        ReplayLayout {
            name: crate::results::ORIGINAL.to_owned(),
            kernel: None,
            placement: Placement::default(),
        }
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
    replay_part(reader, layouts, machines, SimulationScope::Caches, &mut PartFilter::whole())
}

/// Replays the part of a recording that `cut` keeps over `layouts` on `machines`. Caches are empty
/// where the part begins. For a part of a recording, pass a reader without data accesses.
///
/// # Errors
/// As [`replay`].
pub(crate) fn replay_part<R: Read>(
    reader: RecordingReader<R>,
    layouts: &[ReplayLayout],
    machines: &[MachineModel],
    scope: SimulationScope,
    cut: &mut PartFilter,
) -> Result<Replayed> {
    let trials: Vec<ReplayTrial<'_>> =
        layouts.iter().map(|layout| ReplayTrial::new(layout, machines, scope)).collect();
    replay_trials(reader, &trials, cut)
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
        }
    }

    fn check(&self) -> Result<()> {
        let sets = || self.machines.iter().map(|machine| machine.l1i.sets());
        let same = sets().min() == sets().max();
        ensure!(
            *self.division == SetDivision::Whole
                || same && sets().all(|sets| self.division.fits(sets)),
            "the caches for the layout {} cannot be divided so",
            self.layout.name
        );
        Ok(())
    }
}

/// As [`replay_part`], with machines for each layout. Data accesses are followed only when all
/// trials have the same machines and no user code moves.
///
/// # Errors
/// As [`replay`]. A cache cannot be divided as a trial wants, or the placement of user code lacks a
/// translation block of the recording.
pub fn replay_trials<R: Read>(
    mut reader: RecordingReader<R>,
    trials: &[ReplayTrial<'_>],
    cut: &mut PartFilter,
) -> Result<Replayed> {
    trials.iter().try_for_each(ReplayTrial::check)?;
    let cpus = reader.header().cpus;
    let mut flow = ExecutionFlow::default();
    let mut ahead = vec![0; usize::from(cpus.get())];
    let mut codes = UopCodes::new(trials.iter().flat_map(|trial| trial.machines))?;
    let mut simulations: Vec<Simulation<'_>> =
        trials.iter().map(|trial| Simulation::new(trial, cpus)).collect::<Result<_>>()?;
    let machines = trials.first().map_or(&[][..], |trial| trial.machines);
    if trials.iter().any(|trial| trial.machines != machines || trial.application.is_some()) {
        reader = reader.without_data();
    }
    let mut data = DataFlow::new(machines);
    let mut steps = CpuSteps::new(cpus);
    let mut totals = None;
    while let Some(chunk) = reader.next_chunk().context("the recording is damaged")? {
        let mut run = ReplayRun {
            cut: &mut *cut,
            flow: &mut flow,
            data: &mut data,
            codes: &mut codes,
            simulations: &mut simulations,
            ahead: &mut ahead,
            steps: steps.as_mut(),
            patterns: reader.accesses().map(|(_, patterns)| patterns),
        };
        match chunk {
            Chunk::Translations(defined) => {
                run.cut.define(&defined);
                run.codes.define(&defined);
                run.steps.iter_mut().for_each(|steps| steps.define(&defined));
                defined.iter().try_for_each(|translation| run.flow.define(translation))?;
                run.simulations
                    .iter_mut()
                    .try_for_each(|simulation| simulation.define(&defined))?;
            }
            Chunk::Tasks(tasks) => run.data.define_tasks(&tasks),
            Chunk::Stream(words) => match reader.accesses() {
                None => run.words(&words, None)?,
                Some((accesses, patterns)) => run.words_with_data(&words, accesses, patterns)?,
            },
            Chunk::End(end) => {
                run.end()?;
                totals = Some(end);
            }
        }
    }
    let layouts = simulations.iter().map(|simulation| LayoutCounts {
        amounts: simulation.amounts(&flow.counts),
        machines: simulation.machine_counts(&flow),
    });
    Ok(Replayed {
        header: reader.header().clone(),
        totals: totals.context("the recording has no clean end")?,
        interruptions: flow.interruptions,
        kernel_code: flow.kernel_code(),
        layouts: layouts.collect(),
    })
}

/// Replays the recorded execution on all layouts and machines.
struct ReplayRun<'a, 'p> {
    cut: &'a mut PartFilter,
    flow: &'a mut ExecutionFlow,
    data: &'a mut DataFlow,
    codes: &'a mut UopCodes,
    simulations: &'a mut [Simulation<'p>],
    /// By CPU: the executions of its next fragments whose accesses are behind.
    ahead: &'a mut [usize],
    /// `None`: the recording has one CPU.
    steps: Option<&'a mut CpuSteps>,
    /// The access patterns of a recording with data accesses.
    patterns: Option<&'a AccessPatterns>,
}

impl ReplayRun<'_, '_> {
    fn words_with_data(
        &mut self,
        words: &[u32],
        accesses: &Accesses,
        patterns: &AccessPatterns,
    ) -> Result<()> {
        let mut stream = AccessStream::new(accesses, patterns);
        for piece in trace::pieces(words, PIECE_WORDS) {
            self.words(piece, Some(&mut stream))?;
        }
        self.data.finish(stream);
        Ok(())
    }

    fn words(&mut self, words: &[u32], stream: Option<&mut AccessStream<'_>>) -> Result<()> {
        let mut fragments_run = Vec::new();
        if let Some(stream) = stream {
            self.data.follow(words, stream);
        }
        let mut events = trace::events(words);
        loop {
            let (cpu, cut) = (self.flow.cpu(), &mut *self.cut);
            let mut kept = events.by_ref().filter(|event| cut.keeps(event));
            let others_turn = self.flow.follow_cpu(&mut kept, &mut fragments_run)?;
            self.simulate(cpu, &fragments_run, others_turn)?;
            if !others_turn {
                return Ok(());
            }
            fragments_run.clear();
        }
    }

    fn end(&mut self) -> Result<()> {
        let mut fragments_run = Vec::new();
        self.steps.iter_mut().for_each(|steps| steps.end());
        for cpu in self.flow.cpus() {
            self.flow.finish_cpu(cpu, &mut fragments_run);
            self.simulate(cpu, &fragments_run, false)?;
            fragments_run.clear();
        }
        self.flow.finish(&mut fragments_run);
        let simulations = &mut *self.simulations;
        if let Some(steps) = &mut self.steps {
            steps.finish(|window| simulations.par_iter_mut().for_each(|it| it.advance(window)));
        }
        simulations.iter_mut().for_each(Simulation::finish);
        Ok(())
    }

    /// `ends_turn`: another CPU executes next.
    fn simulate(
        &mut self,
        cpu: CpuId,
        fragments_run: &[FragmentId],
        ends_turn: bool,
    ) -> Result<()> {
        let ReplayRun { flow, data, codes, simulations, ahead, patterns, steps, .. } = self;
        for simulation in simulations.iter_mut() {
            simulation.learn(flow, codes, patterns.map(|patterns| (&mut **data, patterns)))?;
        }
        let codes = &**codes;
        let executions = simulations.first().map_or(0, |first| first.executions(fragments_run));
        let before = ahead.get(usize::from(cpu.0)).copied().unwrap_or(0);
        let of_fragments = executions.saturating_sub(before);
        let rest = match ends_turn {
            false => 0,
            true => {
                let open = data.executions.iter().skip(of_fragments);
                open.take_while(|execution| execution.cpu == cpu).count()
            }
        };
        let turn = DataTurn { data, flow, ahead: before, rest };
        let coherent = patterns.is_some() && simulations.iter().any(Simulation::is_coherent);
        let mut steps = steps.as_mut().filter(|_| coherent);
        let stretch = steps.as_mut().map(|steps| steps.stretch(cpu, fragments_run, turn));
        let with_data = patterns.map(|_| &**data);
        let run = |simulation: &mut Simulation<'_>| {
            simulation.run(cpu, fragments_run, codes, with_data, stretch.as_ref())
        };
        simulations.par_iter_mut().for_each(run);
        if let Some(ahead) = ahead.get_mut(usize::from(cpu.0)) {
            *ahead = before.saturating_sub(executions) + rest;
        }
        if patterns.is_some() {
            data.forget((of_fragments + rest).min(data.executions.len()));
        }
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
