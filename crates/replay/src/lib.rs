//! A recorded execution runs again over any number of layouts and machines.
//!
//! Takes a recording, placements and machines; gives counters: L1I misses by cause, iTLB misses,
//! taken branches, where it is asked for which of them are predicted wrongly, what was fetched and
//! touched, and time by Torrellas' simple model; of a recording with data accesses also what the
//! whole hierarchy of caches and TLBs missed, and time by SimOS' 1994 model. Reads the recording
//! once. Never changes a layout, never looks at ELF.
//!
//! ```text
//! trace → flow: fragments ─┬→ moved: fetches of layout A → numbering → simulation on machines 1, 2, …
//!                          └→ moved: fetches of layout B → …
//! ```

#![forbid(unsafe_code)]

pub mod application;
pub mod bound;
pub mod comparison;
pub mod evaluation;
#[cfg(any(test, feature = "examples"))]
pub mod examples;
pub mod guard;
pub mod results;
pub mod rows;
mod simulation;
#[cfg(test)]
mod tests;

use crate::application::Spaces;
use anyhow::{Context, Result, ensure};
use execution::data::{AccessStream, DataFlow, PIECE_WORDS};
use execution::division::SetDivision;
use execution::flow::{ExecutionFlow, FragmentId, Interruptions};
use execution::part::PartFilter;
use image::BuildId;
use image::place::Placement;
use rayon::prelude::*;
use sim::MachineModel;
pub use simulation::Asked;
use simulation::{Amounts, MachineCounts, Simulation};
use std::io::Read;
use trace::{
    AccessPatterns, Accesses, Chunk, RecordingHeader, RecordingReader, RecordingTotals, RunAddr,
};

/// A layout to run over.
#[derive(Clone, Debug)]
pub struct Layout {
    pub name: String,
    /// The kernel whose blocks it places; `None` for the original, which places none.
    pub kernel: Option<BuildId>,
    pub placement: Placement,
}

impl Layout {
    pub fn original() -> Layout {
        Layout {
            name: crate::results::ORIGINAL.to_owned(),
            kernel: None,
            placement: Placement::default(),
        }
    }
}

/// What one layout came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutCounts {
    pub amounts: Amounts,
    /// One for each machine, in their order.
    pub machines: Vec<MachineCounts>,
}

/// What the whole recording came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    pub header: RecordingHeader,
    pub totals: RecordingTotals,
    pub interruptions: Interruptions,
    /// Kernel code that ran, as (start, end), ascending and apart.
    pub kernel_code: Vec<(RunAddr, RunAddr)>,
    /// One for each layout, in their order.
    pub layouts: Vec<LayoutCounts>,
}

/// Runs a recording over `layouts` on the caches of `machines`.
pub fn replay<R: Read>(
    reader: RecordingReader<R>,
    layouts: &[Layout],
    machines: &[MachineModel],
) -> Result<Replayed> {
    replay_part(reader, layouts, machines, Asked::Caches, &mut PartFilter::whole())
}

/// Runs the part of a recording that `cut` keeps over `layouts` on `machines`; caches are empty
/// where it begins. A reader of less than the whole leaves data accesses aside.
pub fn replay_part<R: Read>(
    reader: RecordingReader<R>,
    layouts: &[Layout],
    machines: &[MachineModel],
    asked: Asked,
    cut: &mut PartFilter,
) -> Result<Replayed> {
    let trials: Vec<Trials<'_>> =
        layouts.iter().map(|layout| Trials::new(layout, machines, asked)).collect();
    replay_trials(reader, &trials, cut)
}

/// A layout with the machines that it is to run on, and what is asked of them.
#[derive(Clone, Copy)]
pub struct Trials<'a> {
    pub layout: &'a Layout,
    pub machines: &'a [MachineModel],
    pub asked: Asked,
    /// How the sets of the L1I of all machines are divided. What is not whole is for machines of
    /// one number of sets, without data accesses.
    pub division: &'a SetDivision,
    /// Where the layout's placement has user code, if that moves, too. Such a layout is for
    /// recordings without data accesses.
    pub application: Option<&'a Spaces>,
}

impl<'a> Trials<'a> {
    /// On caches that are not divided.
    pub fn new(layout: &'a Layout, machines: &'a [MachineModel], asked: Asked) -> Trials<'a> {
        Trials { layout, machines, asked, division: &SetDivision::Whole, application: None }
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

/// As [`replay_part`], each layout on machines of its own. Only where all have the same, and no
/// user code moves, are data accesses followed.
pub fn replay_trials<R: Read>(
    mut reader: RecordingReader<R>,
    trials: &[Trials<'_>],
    cut: &mut PartFilter,
) -> Result<Replayed> {
    trials.iter().try_for_each(Trials::check)?;
    let mut flow = ExecutionFlow::default();
    let mut simulations: Vec<Simulation<'_>> = trials.iter().map(Simulation::new).collect();
    let machines = trials.first().map_or(&[][..], |trial| trial.machines);
    if trials.iter().any(|trial| trial.machines != machines || trial.application.is_some()) {
        reader = reader.without_data();
    }
    let mut data = DataFlow::new(machines);
    let mut totals = None;
    while let Some(chunk) = reader.next_chunk().context("the recording is damaged")? {
        let mut run = Run {
            cut: &mut *cut,
            flow: &mut flow,
            data: &mut data,
            simulations: &mut simulations,
            patterns: reader.accesses().map(|(_, patterns)| patterns),
        };
        match chunk {
            Chunk::Translations(defined) => {
                run.cut.define(&defined);
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

/// The recorded execution runs on all layouts and machines.
struct Run<'a, 'p> {
    cut: &'a mut PartFilter,
    flow: &'a mut ExecutionFlow,
    data: &'a mut DataFlow,
    simulations: &'a mut [Simulation<'p>],
    /// Of a recording with data accesses.
    patterns: Option<&'a AccessPatterns>,
}

impl Run<'_, '_> {
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
        let mut ran = Vec::new();
        let cut = &mut *self.cut;
        self.flow.follow(trace::events(words).filter(|event| cut.keeps(event)), &mut ran)?;
        if let Some(stream) = stream {
            self.data.follow(words, stream);
        }
        self.simulate(&ran)
    }

    fn end(&mut self) -> Result<()> {
        let mut ran = Vec::new();
        self.flow.finish(&mut ran);
        self.simulate(&ran)
    }

    fn simulate(&mut self, ran: &[FragmentId]) -> Result<()> {
        let Run { flow, data, simulations, patterns, .. } = self;
        for simulation in simulations.iter_mut() {
            simulation.learn(flow, patterns.map(|patterns| (&mut **data, patterns)))?;
        }
        let accesses = patterns.map(|_| &**data);
        simulations.par_iter_mut().for_each(|simulation| simulation.run(ran, accesses));
        if patterns.is_some() {
            data.forget(simulations.first().map_or(0, |first| first.executions(ran)));
        }
        Ok(())
    }
}
