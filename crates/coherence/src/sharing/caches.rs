//! Runs a recording of several CPUs on the coherent caches of one machine, and reports who served
//! each access.
//!
//! Runs one execution after the other, in the order of the recording, its fetches before its loads
//! and stores. `replay` does the same, with one difference: in `replay`, the fetches of a turn's
//! last execution come with the CPU's next turn.
//!
//! Input: a recording and a machine. Output: every access, with who served it. This module counts
//! nothing.

use super::counts::RequestCosts;
use super::moved::MovedPlaces;
use anyhow::{Context, Result, ensure};
use execution::data::DataAccess;
use execution::executions::{self, Executed, ExecutionVisitor};
use sim::coherent::{
    CoherenceDescription, CoherentAccess, CoherentCaches, CoreCounters, CoreId, CoreStalls,
};
use sim::{MachineModel, MemoryDescription, Mode, PerMode, PhysAddr};
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

/// Receives every access.
pub(crate) trait SharingObserver {
    fn define(&mut self, _: &Translation) {}
    /// Tasks, before they run.
    fn tasks(&mut self, _: &[Task]) {}
    /// A stream begins.
    fn stream(&mut self, _: &Accesses) {}
    /// The next execution begins.
    fn executed(&mut self, _: &Executed<'_>) {}
    /// A load or store begins. The requests that follow belong to it.
    fn uses(&mut self, _: &DataUse<'_>) {}
    fn served(&mut self, request: Request, by: CoherentAccess);
}

/// A machine whose cores can stand for the CPUs of a recording.
pub(crate) struct SharedMachine<'a> {
    machine: &'a MachineModel,
    /// Empty caches.
    caches: CoherentCaches,
    /// By CPU of the recording.
    cores: Vec<CoreId>,
    pub(super) costs: RequestCosts,
}

impl SharedMachine<'_> {
    /// # Errors
    /// The recording has one CPU; the machine has one core, or fewer than the recording has CPUs.
    pub(super) fn new(machine: &MachineModel, cpus: CpuCount) -> Result<SharedMachine<'_>> {
        ensure!(
            cpus != CpuCount::ONE,
            "the recording has one CPU, so nothing is shared: record on 2 CPUs or more, with data \
             accesses"
        );
        SharedMachine::for_any(machine, cpus)
    }

    /// As `new`, also for recordings of one CPU.
    ///
    /// # Errors
    /// The machine has one core, or fewer than the recording has CPUs.
    pub(crate) fn for_any(machine: &MachineModel, cpus: CpuCount) -> Result<SharedMachine<'_>> {
        let described = CoherentCaches::new(machine).zip(RequestCosts::of(machine));
        let (caches, costs) = described.with_context(|| {
            format!(
                "the machine {} has no coherent caches: take one with [coherence], such as \
                 server-8 or simos-1994-8",
                machine.name
            )
        })?;
        let cores: Vec<CoreId> = cpus.cpus().filter_map(|cpu| caches.core(cpu.0)).collect();
        ensure!(
            cores.len() == usize::from(cpus.get()),
            "{} has {} cores, and the recording has {cpus} CPUs: choose another machine",
            machine.name,
            caches.cores().count()
        );
        Ok(SharedMachine { machine, caches, cores, costs })
    }

    /// The machine's name.
    pub(crate) fn name(&self) -> &str {
        &self.machine.name
    }

    /// What an access costs.
    pub(crate) fn latencies(&self) -> Option<(&MemoryDescription, CoherenceDescription)> {
        self.machine.memory.as_ref().zip(self.machine.coherence)
    }

    /// The number of CPUs.
    pub(crate) fn cpus(&self) -> usize {
        self.cores.len()
    }

    /// The cycles for which caches stop a CPU with these counters.
    pub(super) fn stalls(&self, counters: &CoreCounters) -> f64 {
        let (memory, cores) = (self.machine.memory.as_ref(), self.machine.coherence.as_ref());
        let described = memory.zip(cores);
        described.map_or(0.0, |(memory, cores)| CoreStalls::new(counters, memory, cores).total())
    }

    /// log2 of the bytes in the lines that cores share.
    pub(crate) fn line_log2(&self) -> u32 {
        self.caches.line_log2()
    }

    /// Runs a recording on empty caches. Returns the counters of each CPU; TLBs are not simulated.
    ///
    /// # Errors
    /// The recording is damaged or has no data accesses.
    pub(crate) fn run<R: Read>(
        &self,
        reader: RecordingReader<R>,
        observer: &mut impl SharingObserver,
    ) -> Result<Vec<PerMode<CoreCounters>>> {
        self.run_with(reader, &mut MovedPlaces::default(), observer)
    }

    /// As `run`, with data at other places.
    ///
    /// # Errors
    /// As `run`.
    pub(super) fn run_with<R: Read>(
        &self,
        reader: RecordingReader<R>,
        moved: &mut MovedPlaces,
        observer: &mut impl SharingObserver,
    ) -> Result<Vec<PerMode<CoreCounters>>> {
        let walk =
            CoherentWalk { caches: self.caches.clone(), cores: &self.cores, moved, observer };
        let walk = executions::walk(reader, std::slice::from_ref(self.machine), walk)?;
        Ok(self.cores.iter().map(|&core| walk.caches.counters(core)).collect())
    }
}

/// The caches of a machine while a recording runs.
struct CoherentWalk<'a, O> {
    caches: CoherentCaches,
    cores: &'a [CoreId],
    moved: &'a mut MovedPlaces,
    observer: &'a mut O,
}

impl<O: SharingObserver> ExecutionVisitor for CoherentWalk<'_, O> {
    fn define(&mut self, translation: &Translation) {
        self.observer.define(translation);
    }

    fn stream(&mut self, accesses: &Accesses) {
        self.moved.stream(accesses);
        self.observer.stream(accesses);
    }

    fn tasks(&mut self, tasks: &[Task]) {
        self.observer.tasks(tasks);
    }

    fn executed(&mut self, executed: &Executed<'_>) {
        self.moved.executed();
        self.observer.executed(executed);
        let execution = executed.execution;
        let cpu = usize::from(execution.cpu.0);
        let Some(&core) = self.cores.get(cpu) else { return };
        let mode = executed.code.mode();
        self.caches.runs(core, mode);
        let (loads, stores) = (execution.loads.into(), execution.stores.into());
        self.caches.executed(core, executed.instructions(), loads, stores);
        for (_, _, physical) in executed.fetches(0) {
            let by = self.caches.fetch(core, physical);
            self.observer.served(Request { cpu, mode, physical, is_fetch: true }, by);
        }
        for access in executed.accesses {
            self.data(core, executed, access);
        }
    }
}

impl<O: SharingObserver> CoherentWalk<'_, O> {
    #[inline]
    fn data(&mut self, core: CoreId, executed: &Executed<'_>, access: &DataAccess) {
        let (line_log2, l1_log2) = (self.caches.line_log2(), self.caches.data_line_log2());
        let (cpu, mode) = (usize::from(core.number()), executed.code.mode());
        let start = self.place(executed, access);
        let (mut at, end) = (start, start + u64::from(access.size));
        while at < end {
            let of_line = end.min(((at >> line_log2) + 1) << line_log2);
            let (physical, size) = (PhysAddr(at), (of_line - at) as u32);
            let before = at - start;
            self.observer.uses(&DataUse { executed, access, before, physical, size });
            while at < of_line {
                let next = of_line.min(((at >> l1_log2) + 1) << l1_log2);
                let physical = PhysAddr(at);
                let by = self.caches.data(core, physical, (next - at) as u32, access.is_store);
                self.observer.served(Request { cpu, mode, physical, is_fetch: false }, by);
                at = next;
            }
        }
    }

    /// The physical address at which an access is simulated.
    #[inline]
    fn place(&mut self, executed: &Executed<'_>, access: &DataAccess) -> u64 {
        match self.moved.is_empty() {
            true => access.physical.0,
            false => self.moved.place(executed.flow.virtual_address(access), access.physical.0),
        }
    }
}
