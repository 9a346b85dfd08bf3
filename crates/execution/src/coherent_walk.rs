//! Runs a recording on the coherent caches of machines, as an observer of the walk.
//!
//! ```text
//! pieces → steps ─┬→ caches of a machine ─→ its watcher
//!                 └→ caches of another one ─→ its watcher
//! ```
//!
//! Code and data lie where they were recorded, unless a [`StepEditor`] moves data. Several runs
//! share the steps: other machines, or the same one in another order.
//!
//! Input: a recording with data accesses, and runs. Output: what the runs counted. `replay` runs
//! the same caches in the same order, over layouts.

use crate::code::TranslatedCode;
use crate::coherent_run::{CoherentRun, StepFetches, StepWatcher};
use crate::cpu_order::{CpuOrder, CpuSteps, DataTurn, Stretch, Window};
use crate::data::{DataAccess, DataFlow, DataWish, Execution};
use crate::executions::NoDataAccesses;
use crate::fetched::FetchedUnits;
use crate::flow::{ExecutionFlow, FragmentId};
use crate::moved;
use crate::numbering::FetchUnit;
use crate::walk::{Observer, Piece, PieceData, WalkedRecording, Wants};
use anyhow::{Result, ensure};
use image::place::Placement;
use rayon::prelude::*;
use sim::MachineModel;
use trace::{Accesses, CpuCount, RecordingHeader, Translation};

/// Sees the executions in the order of the recording, before they are made, and may move their
/// data.
pub trait StepEditor: Send {
    /// Another part of the stream follows.
    fn stream(&mut self, _accesses: &Accesses) {}
    /// The next execution with its accesses. `flow` knows their virtual addresses.
    fn executed(&mut self, execution: &Execution, accesses: &mut [DataAccess], flow: &DataFlow);
}

/// Moves nothing.
impl StepEditor for () {
    #[inline]
    fn executed(&mut self, _: &Execution, _: &mut [DataAccess], _: &DataFlow) {}
}

/// The caches of a machine, and the code that they fetch.
struct MachineRun<'m, W> {
    machine: &'m MachineModel,
    caches: CoherentRun<W>,
    lines: FetchedUnits,
    pages: Option<FetchedUnits>,
}

impl<W: StepWatcher> MachineRun<'_, W> {
    fn split<'f>(
        &'f mut self,
        instructions: &'f [u64],
    ) -> (&'f mut CoherentRun<W>, impl Fn(FragmentId) -> StepFetches<'f>) {
        let MachineRun { caches, lines, pages, .. } = self;
        let (lines, pages) = (&*lines, pages.as_ref());
        let fetches = move |fragment: FragmentId| StepFetches {
            instructions: instructions[fragment.0 as usize],
            lines: &lines.physical()[lines.span(fragment.0).all()],
            pages: pages.map_or(&[][..], |pages| &pages.ids()[pages.span(fragment.0).all()]),
        };
        (caches, fetches)
    }
}

/// Runs a recording on machines, with a watcher for each.
pub struct CoherentWalk<'m, W, E = ()> {
    runs: Vec<MachineRun<'m, W>>,
    editor: E,
    /// By fragment.
    instructions: Vec<u64>,
    steps: CpuSteps,
    placement: Placement,
}

impl<'m, W: StepWatcher, E: StepEditor> CoherentWalk<'m, W, E> {
    /// A walk over a recording of this number of CPUs. `editor`: sees all steps first.
    pub fn new(cpus: CpuCount, editor: E) -> CoherentWalk<'m, W, E> {
        CoherentWalk {
            runs: Vec::new(),
            editor,
            instructions: Vec::new(),
            steps: CpuSteps::new(cpus),
            placement: Placement::default(),
        }
    }

    /// Adds a run on empty caches, in this order. On one CPU, there is one order.
    ///
    /// # Errors
    /// As [`CoherentRun::new`].
    pub fn add(
        &mut self,
        machine: &'m MachineModel,
        cpus: CpuCount,
        order: CpuOrder,
        watcher: W,
    ) -> Result<()> {
        let order = if cpus == CpuCount::ONE { CpuOrder::Recorded } else { order };
        let pages = |itlb: sim::ItlbDescription| {
            FetchedUnits::new(FetchUnit::of_pages(&itlb), itlb.geometry().sets())
        };
        self.runs.push(MachineRun {
            machine,
            caches: CoherentRun::new(machine, cpus, order, watcher)?,
            lines: FetchedUnits::new(FetchUnit::Lines(machine.l1i_line), machine.l1i.sets()),
            pages: machine.itlb.map(pages),
        });
        Ok(())
    }

    /// The runs, in the order in which they were added, and the editor.
    pub fn finish(self) -> (Vec<CoherentRun<W>>, E) {
        (self.runs.into_iter().map(|run| run.caches).collect(), self.editor)
    }

    /// Adds the fragments that are new.
    fn learn(&mut self, flow: &ExecutionFlow, data: &PieceData<'_>) -> Result<()> {
        for fragment in &flow.fragments[self.instructions.len()..] {
            let id = fragment.translation;
            let code = &flow.codes[id.0 as usize];
            let moved = moved::run(code, fragment, &self.placement);
            let mut lies = |addr| Some(data.flow.code(addr, code, id, data.patterns));
            for run in &mut self.runs {
                run.lines.push(&moved.fetches, &mut lies)?;
                let mut pages = run.pages.iter_mut();
                pages.try_for_each(|pages| pages.push(&moved.fetches, &mut lies))?;
            }
            self.instructions.push(moved.instructions);
        }
        Ok(())
    }

    fn edit(editor: &mut E, stretch: &mut Stretch, executions: &[Execution], flow: &DataFlow) {
        let mut rest = &mut stretch.accesses[..];
        for execution in executions {
            let count = (execution.accesses as usize).min(rest.len());
            let (own, behind) = rest.split_at_mut(count);
            editor.executed(execution, own, flow);
            rest = behind;
        }
    }

    fn advance(runs: &mut [MachineRun<'m, W>], instructions: &[u64], window: &Window) {
        runs.par_iter_mut().for_each(|run| {
            let (caches, fetches) = run.split(instructions);
            caches.advance(window, fetches);
        });
    }

    /// The number of the first stretch of a CPU that a run has to make; `None`: no run makes steps
    /// side by side.
    fn stretch(runs: &[MachineRun<'m, W>], cpu: usize) -> Option<u64> {
        runs.iter().filter_map(|run| run.caches.stretch(cpu)).min()
    }
}

impl<W: StepWatcher, E: StepEditor> Observer for CoherentWalk<'_, W, E> {
    fn begin(&mut self, _: &RecordingHeader, has_data: bool) -> Result<Wants> {
        ensure!(has_data, NoDataAccesses);
        let wishes = self.runs.iter().map(|run| DataWish::of(std::slice::from_ref(run.machine)));
        let data = wishes.reduce(DataWish::and);
        Ok(Wants { control: true, data, ..Wants::default() })
    }

    fn define(&mut self, translations: &[Translation], _: &[TranslatedCode]) -> Result<()> {
        self.steps.define(translations);
        Ok(())
    }

    fn stream(&mut self, accesses: &Accesses) {
        self.editor.stream(accesses);
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        if piece.is_tail {
            self.steps.end();
        }
        let (Some(control), Some(data)) = (&piece.control, &piece.data) else { return Ok(()) };
        self.learn(control.flow, data)?;
        let Some(paired) = &control.paired else { return Ok(()) };
        let CoherentWalk { runs, editor, instructions, steps, .. } = self;
        let turn = DataTurn { flow: control.flow, paired };
        let mut stretch = steps.stretch(piece.cpu, control.fragments, turn);
        Self::edit(editor, &mut stretch, paired.executions, data.flow);
        runs.par_iter_mut().for_each(|run| {
            let (caches, fetches) = run.split(instructions);
            caches.run(&stretch, fetches);
        });
        if Self::stretch(runs, 0).is_some() && steps.keep(stretch) {
            steps.advance(|window| Self::advance(runs, instructions, window));
            steps.forget(|cpu| Self::stretch(runs, cpu));
        }
        Ok(())
    }

    fn end(&mut self, _: &WalkedRecording<'_>) -> Result<()> {
        let CoherentWalk { runs, instructions, steps, .. } = self;
        if Self::stretch(runs, 0).is_some() {
            steps.finish(|window| Self::advance(runs, instructions, window));
        }
        Ok(())
    }
}
