//! Runs a recording of several CPUs on the coherent caches of one machine, and reports who served
//! each access.
//!
//! ```text
//! first pass: steps in the machine's order → caches → counters, costs of lines, log
//! later pass: executions as recorded ← log ─→ a SharingObserver
//! ```
//!
//! The caches are those of `replay`, in the same order, so the counters are equal. Who runs and
//! what a page holds is known in the order of the recording. So a later pass keeps that order, and
//! takes what each access asked for from the log of the first pass.
//!
//! Input: a recording and a machine. Output: every access, with who served it. This module counts
//! nothing.

use super::counts::RequestCosts;
use anyhow::{Context, Result, ensure};
use execution::coherent_run::{CoherentRun, StepWatcher, line_parts};
use execution::coherent_step::Asked;
use execution::coherent_walk::{CoherentWalk, StepEditor};
use execution::cpu_order::CpuOrder;
use execution::data::DataAccess;
use execution::executions::{self, Executed, ExecutionVisitor};
use execution::served_log::{ServedEvent, ServedLog, ServedReader};
use execution::walk::walk;
use sim::coherent::{
    CoherenceDescription, CoherentAccess, CoherentCaches, CoreCounters, CoreStalls,
};
use sim::{MachineModel, MemoryDescription, Mode, PhysAddr};
use std::io::Read;
use trace::{Accesses, CpuCount, RecordingReader, Task, Translation};

/// A load or store, or the part of it in one line.
#[derive(Clone, Copy)]
pub(crate) struct DataUse<'a> {
    pub executed: &'a Executed<'a>,
    pub access: &'a DataAccess,
    /// The bytes of the access in front of this part.
    before: u64,
    pub physical: PhysAddr,
    pub size: u32,
}

impl DataUse<'_> {
    /// The virtual address.
    pub(crate) fn addr(&self) -> u64 {
        self.executed.flow.virtual_address(self.access).wrapping_add(self.before)
    }
}

/// Who asked for a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The number of the CPU.
    pub cpu: usize,
    pub mode: Mode,
    pub physical: PhysAddr,
    pub is_fetch: bool,
}

/// Receives every access, in the order of the recording.
pub(crate) trait SharingObserver {
    fn define(&mut self, _: &Translation) {}
    /// Tasks, before they run.
    fn tasks(&mut self, _: &[Task]) {}
    /// A stream begins.
    fn stream(&mut self, _: &Accesses) {}
    /// The next execution begins.
    fn executed(&mut self, _: &Executed<'_>) {}
    /// Before the execution, the CPU waited these cycles until another CPU had stored what it
    /// loads.
    fn waited(&mut self, _cycles: f64) {}
    /// A TLB lacked a page.
    fn walks(&mut self) {}
    /// A load or store begins. The requests that follow belong to it.
    fn uses(&mut self, _: &DataUse<'_>) {}
    /// A request that an L1 did not serve, or that changed an earlier miss.
    fn served(&mut self, request: Request, by: CoherentAccess);
}

/// A machine whose cores can stand for the CPUs of a recording.
pub(crate) struct SharedMachine<'a> {
    machine: &'a MachineModel,
    cpus: CpuCount,
    order: CpuOrder,
    /// log2 of the bytes in the lines that cores share, and in those of the L1D.
    line_log2: u32,
    l1_log2: u32,
    pub(super) costs: RequestCosts,
}

/// What a machine did in its order.
pub(crate) struct Simulated<W, E> {
    pub run: CoherentRun<W>,
    /// The same in the order of the recording, if the machine's order is another one.
    pub recorded: Option<CoherentRun<W>>,
    pub editor: E,
}

impl SharedMachine<'_> {
    /// # Errors
    /// The recording has one CPU; the machine has one core, or fewer than the recording has CPUs.
    pub(super) fn new(
        machine: &MachineModel,
        cpus: CpuCount,
        order: CpuOrder,
    ) -> Result<SharedMachine<'_>> {
        ensure!(
            cpus != CpuCount::ONE,
            "the recording has one CPU, so nothing is shared: record on 2 CPUs or more, with data \
             accesses"
        );
        SharedMachine::for_any(machine, cpus, order)
    }

    /// As `new`, also for recordings of one CPU.
    ///
    /// # Errors
    /// The machine has one core, or fewer than the recording has CPUs.
    pub(crate) fn for_any(
        machine: &MachineModel,
        cpus: CpuCount,
        order: CpuOrder,
    ) -> Result<SharedMachine<'_>> {
        CoherentRun::new(machine, cpus, order, ())?;
        let described = CoherentCaches::new(machine).zip(RequestCosts::of(machine));
        let (caches, costs) = described.context("a machine with coherent caches has memory")?;
        let (line_log2, l1_log2) = (caches.line_log2(), caches.data_line_log2());
        Ok(SharedMachine { machine, cpus, order, line_log2, l1_log2, costs })
    }

    /// The machine's name.
    pub(crate) fn name(&self) -> &str {
        &self.machine.name
    }

    /// The order in which the CPUs make their steps.
    pub(crate) fn order(&self) -> CpuOrder {
        self.order
    }

    /// What an access costs.
    pub(crate) fn latencies(&self) -> Option<(&MemoryDescription, CoherenceDescription)> {
        self.machine.memory.as_ref().zip(self.machine.coherence)
    }

    /// The number of CPUs.
    pub(crate) fn cpus(&self) -> usize {
        self.cpus.get().into()
    }

    /// The number of CPUs.
    pub(crate) fn cpu_count(&self) -> CpuCount {
        self.cpus
    }

    /// The cycles for which caches and TLBs stop a CPU with these counters.
    pub(super) fn stalls(&self, counters: &CoreCounters) -> f64 {
        let described = self.latencies();
        described.map_or(0.0, |(memory, cores)| CoreStalls::new(counters, memory, &cores).total())
    }

    /// log2 of the bytes in the lines that cores share.
    pub(crate) fn line_log2(&self) -> u32 {
        self.line_log2
    }

    /// Runs a recording on empty caches. `watcher`: makes one for this order, or for that of the
    /// recording.
    ///
    /// # Errors
    /// The recording is damaged or has no data accesses.
    pub(crate) fn simulate<R: Read, W: StepWatcher, E: StepEditor>(
        &self,
        reader: RecordingReader<R>,
        editor: E,
        watcher: impl Fn(CpuOrder) -> W,
    ) -> Result<Simulated<W, E>> {
        let mut all = CoherentWalk::new(self.cpus, editor);
        let orders = match (self.order, self.cpus) {
            (CpuOrder::SideBySide, cpus) if cpus != CpuCount::ONE => {
                &[CpuOrder::SideBySide, CpuOrder::Recorded][..]
            }
            _ => &[self.order],
        };
        for &order in orders {
            all.add(self.machine, self.cpus, order, watcher(order))?;
        }
        walk(reader, &mut all)?;
        let (runs, editor) = all.finish();
        let mut runs = runs.into_iter();
        let run = runs.next().context("the machine ran")?;
        Ok(Simulated { run, recorded: runs.next(), editor })
    }

    /// Shows a recording to an observer. `log`: of a run over the same recording on this machine.
    ///
    /// # Errors
    /// As `simulate`.
    pub(crate) fn observe<R: Read>(
        &self,
        reader: RecordingReader<R>,
        log: &ServedLog,
        observer: &mut impl SharingObserver,
    ) -> Result<()> {
        let walk = ServedWalk {
            line_log2: self.line_log2,
            l1_log2: self.l1_log2,
            log: log.reader(),
            events: Vec::new(),
            observer,
        };
        executions::walk(reader, std::slice::from_ref(self.machine), walk)?;
        Ok(())
    }
}

/// A recording beside the log of its requests.
struct ServedWalk<'a, O> {
    line_log2: u32,
    l1_log2: u32,
    log: ServedReader<'a>,
    /// The events of the current execution.
    events: Vec<ServedEvent>,
    observer: &'a mut O,
}

impl<O: SharingObserver> ExecutionVisitor for ServedWalk<'_, O> {
    fn define(&mut self, translation: &Translation) {
        self.observer.define(translation);
    }

    fn stream(&mut self, accesses: &Accesses) {
        self.observer.stream(accesses);
    }

    fn tasks(&mut self, tasks: &[Task]) {
        self.observer.tasks(tasks);
    }

    fn executed(&mut self, executed: &Executed<'_>) {
        let ServedWalk { log, events, observer, .. } = self;
        observer.executed(executed);
        let cpu = executed.execution.cpu;
        events.clear();
        log.execution(cpu, |event| events.push(event));
        if events.is_empty() {
            return self.uses(executed);
        }
        let (cpu, mode) = (usize::from(cpu.0), executed.code.mode());
        for event in &*events {
            match *event {
                ServedEvent::Waited(cycles) => observer.waited(cycles),
                ServedEvent::Walked(Asked::Code | Asked::Data) => observer.walks(),
                ServedEvent::Code(physical, by) => {
                    observer.served(Request { cpu, mode, physical, is_fetch: true }, by);
                }
                ServedEvent::Data(..) => {}
            }
        }
        self.data(executed, cpu, mode);
    }
}

impl<O: SharingObserver> ServedWalk<'_, O> {
    /// The loads and stores of an execution that asked for nothing outside of the L1s.
    fn uses(&mut self, executed: &Executed<'_>) {
        for access in executed.accesses {
            for (physical, size) in line_parts(access, self.line_log2) {
                let before = physical.0 - access.physical.0;
                self.observer.uses(&DataUse { executed, access, before, physical, size });
            }
        }
    }

    #[inline]
    fn data(&mut self, executed: &Executed<'_>, cpu: usize, mode: Mode) {
        let ServedWalk { line_log2, l1_log2, events, observer, .. } = self;
        let mut events = events
            .iter()
            .filter_map(|event| match *event {
                ServedEvent::Data(access, part, by) => Some((access, part, by)),
                _ => None,
            })
            .peekable();
        for (number, access) in (0..).zip(executed.accesses) {
            let start = access.physical.0;
            let place = |part: u32| match part {
                0 => start,
                _ => ((start >> *l1_log2) + u64::from(part)) << *l1_log2,
            };
            for (physical, size) in line_parts(access, *line_log2) {
                let before = physical.0 - start;
                observer.uses(&DataUse { executed, access, before, physical, size });
                let of_line = |(of, part, _): &(u32, u32, CoherentAccess)| {
                    *of == number && place(*part) < physical.0 + u64::from(size)
                };
                while let Some((_, part, by)) = events.next_if(of_line) {
                    let physical = PhysAddr(place(part));
                    observer.served(Request { cpu, mode, physical, is_fetch: false }, by);
                }
            }
        }
    }
}
