//! Runs a recording with data accesses on simulated machines, and reports every miss to an
//! observer.
//!
//! Input: a recording and machines. Output: misses, one by one. This module counts nothing.

use anyhow::{Context, Result, ensure};
use execution::code::TranslatedCode;
use execution::data::{DataWish, Execution};
use execution::executions::NoDataAccesses;
use execution::fetched::FetchedUnits;
use execution::hierarchy_run::{HierarchyRun, MissedUnit, RunStep};
use execution::numbering::FetchUnit;
use execution::walk::{Observer, Piece, Wants};
use sim::{MachineCounters, MachineModel, MissedLevels, Mode, PerMode, PhysAddr, Requester};
use trace::{Accesses, RecordingHeader, RunAddr, Translation, TranslationId};

/// A load or store that missed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataMiss {
    /// The index of the instruction in its translation block.
    pub instruction: u16,
    /// The address of the access. For an access across a line's end: the address of the part in the
    /// missed line.
    pub addr: u64,
    pub physical: PhysAddr,
    /// The address of the first byte of the access.
    pub start: u64,
    /// The bytes of the access.
    pub size: u8,
    pub is_store: bool,
}

/// Receives every execution and every miss. `machine`: an index into the list of machines.
pub(crate) trait MissObserver {
    fn define(&mut self, translation: &Translation);
    /// A stream begins.
    fn stream(&mut self, accesses: &Accesses);
    /// The next execution. `instructions`: the number that ran, when it was left midway.
    fn executed(&mut self, translation: TranslationId, instructions: Option<u32>);
    /// A fetch of the current execution missed.
    fn fetch_missed(&mut self, machine: usize, addr: RunAddr, missed: MissedLevels);
    fn data_missed(&mut self, machine: usize, miss: &DataMiss, missed: MissedLevels);
}

/// The caches of all machines while a recording runs, as an observer of it.
pub(crate) struct HierarchyWalk<O> {
    running: Vec<RunningMachine>,
    wish: DataWish,
    steps: Vec<RunStep>,
    /// Receives the misses.
    pub observer: O,
}

struct RunningMachine {
    lines: FetchedUnits,
    hierarchy: HierarchyRun,
}

impl<O> HierarchyWalk<O> {
    /// Empty caches.
    ///
    /// # Errors
    /// A machine describes no data cache.
    pub(crate) fn new(machines: &[MachineModel], observer: O) -> Result<HierarchyWalk<O>> {
        let running = |machine: &MachineModel| {
            let hierarchy = HierarchyRun::new(machine);
            let lines = FetchUnit::Lines(machine.l1i_line);
            anyhow::Ok(RunningMachine {
                lines: FetchedUnits::new(lines, machine.l1i.sets()),
                hierarchy: hierarchy.with_context(|| {
                    format!("the machine {} describes no data cache", machine.name)
                })?,
            })
        };
        Ok(HierarchyWalk {
            running: machines.iter().map(running).collect::<Result<_>>()?,
            wish: DataWish::of(machines),
            steps: Vec::new(),
            observer,
        })
    }

    /// The counters of each machine.
    pub(crate) fn counters(&self) -> Vec<PerMode<MachineCounters>> {
        self.running.iter().map(|running| running.hierarchy.counters()).collect()
    }
}

impl<O: MissObserver> Observer for HierarchyWalk<O> {
    fn begin(&mut self, _: &RecordingHeader, has_data: bool) -> Result<Wants> {
        ensure!(has_data, NoDataAccesses);
        Ok(Wants { data: Some(self.wish), ..Wants::default() })
    }

    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()> {
        for (translation, code) in translations.iter().zip(codes) {
            for running in &mut self.running {
                running.lines.push_recorded(translation, code)?;
            }
            self.observer.define(translation);
        }
        Ok(())
    }

    fn stream(&mut self, accesses: &Accesses) {
        self.observer.stream(accesses);
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        let Some(data) = &piece.data else { return Ok(()) };
        let code = |execution: &Execution| &piece.codes[execution.translation.0 as usize];
        self.steps.clear();
        for execution in data.executions {
            let (id, code) = (execution.translation, code(execution));
            let lies = |addr| data.flow.code(addr, code, id, data.patterns);
            self.running.iter_mut().try_for_each(|running| running.lines.locate(id.0, lies))?;
            self.steps.push(RunStep {
                code: id.0,
                bytes: (execution.left != 0).then(|| code.bytes_of(execution.left.into()) as u16),
                requester: match code.mode() {
                    Mode::Kernel => Requester::KERNEL,
                    Mode::User => execution.process,
                },
                accesses: execution.accesses,
            });
        }
        for RunningMachine { lines, hierarchy } in &mut self.running {
            hierarchy.look_ahead(&self.steps, lines, None, data.accesses);
        }
        for (number, execution) in (1..).zip(data.executions) {
            let left = (execution.left != 0).then_some(u32::from(execution.left));
            self.observer.executed(execution.translation, left);
            let code = code(execution);
            let ran = left.map_or(code.lengths.len() as u64, u64::from);
            let amounts = [ran, execution.loads.into(), execution.stores.into()];
            for (machine, running) in self.running.iter_mut().enumerate() {
                let RunningMachine { lines, hierarchy } = running;
                hierarchy.executed(code.mode(), amounts);
                let observer = &mut self.observer;
                hierarchy.catch_up(number, |missed| match missed.what {
                    MissedUnit::Code(at) => {
                        observer.fetch_missed(machine, lines.addrs()[at as usize], missed.levels);
                    }
                    MissedUnit::Data { access, line } => {
                        let access = &data.accesses[access as usize];
                        let physical = access.physical.max(line);
                        let start = data.flow.virtual_address(access);
                        let addr = start.wrapping_add(physical.0 - access.physical.0);
                        let miss = DataMiss {
                            instruction: access.instruction,
                            addr,
                            physical,
                            start,
                            size: access.size,
                            is_store: access.is_store,
                        };
                        observer.data_missed(machine, &miss, missed.levels);
                    }
                });
            }
        }
        Ok(())
    }
}
