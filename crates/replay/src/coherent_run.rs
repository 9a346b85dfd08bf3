//! Simulates the coherent caches of a multiprocessor.
//!
//! Input: the steps of CPUs, in the order in which they are made, with what they fetch and access.
//! Output: counters by CPU, the cycles of each step, and the lines that CPUs took from each other.
//! [`crate::cpu_order`] decides the order.

use crate::cpu_order::CpuOrder;
use crate::cpu_order::clocks::{CpuClocks, CpuWaits};
use crate::cpu_order::window::{Step, Stretch, Window};
use anyhow::{Result, ensure};
use execution::data::DataAccess;
use execution::flow::FragmentId;
use sim::coherent::SharingCounts;
use sim::coherent::{CoherenceDescription, CoherentCaches, CoreCounters, CoreId, CoreStalls};
use sim::{LineId, MachineModel, MemoryDescription, PerMode, PhysAddr};
use trace::{CpuCount, CpuId};

/// What a fragment fetches.
#[derive(Clone, Copy)]
pub(crate) struct StepFetches<'a> {
    pub instructions: u64,
    pub lines: &'a [PhysAddr],
    pub pages: &'a [LineId],
}

/// What a machine with several cores counted.
#[derive(Clone, Debug, PartialEq)]
pub struct CoherenceCounts {
    /// By CPU of the recording.
    pub cpus: Vec<PerMode<CoreCounters>>,
    /// By CPU: when its last step ended, in cycles, and how long it did nothing. `None`: the order
    /// is that of the recording.
    pub times: Option<Vec<(f64, PerMode<CpuWaits>)>>,
    /// log2 of the bytes in a line.
    pub line_log2: u32,
    /// The lines that a write took from a CPU, the most coherence misses and upgrades first.
    pub lines: Vec<LineSharing>,
}

/// What CPUs did to one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineSharing {
    /// The physical address of the line.
    pub physical: PhysAddr,
    /// Coherence misses and upgrades, by the mode of the CPU that asked.
    pub counts: PerMode<SharingCounts>,
}

/// The coherent caches of one machine during a replay.
pub(crate) struct CoherentRun {
    caches: CoherentCaches,
    memory: MemoryDescription,
    cores: CoherenceDescription,
    cpus: Vec<RunningCpu>,
    /// The order is that of the CPUs' clocks; `None`: that of the recording.
    clocks: Option<CpuClocks>,
}

/// A CPU of the recording.
#[derive(Clone, Copy)]
struct RunningCpu {
    core: CoreId,
    /// The stalls so far, in cycles.
    stalls: PerMode<f64>,
}

impl CoherentRun {
    /// `None`: the machine has one core, or the recording one CPU.
    ///
    /// # Errors
    /// The machine has fewer cores than the recording has CPUs.
    pub(crate) fn new(
        machine: &MachineModel,
        cpus: CpuCount,
        order: CpuOrder,
    ) -> Result<Option<CoherentRun>> {
        let caches = CoherentCaches::new(machine).filter(|_| cpus != CpuCount::ONE);
        let (Some(caches), Some(memory), Some(cores)) =
            (caches, machine.memory.clone(), machine.coherence)
        else {
            return Ok(None);
        };
        let running = |core| RunningCpu { core, stalls: PerMode::default() };
        let found: Option<Vec<RunningCpu>> =
            cpus.cpus().map(|cpu| caches.core(cpu.0).map(running)).collect();
        ensure!(
            found.is_some(),
            "{} has {} cores, and the recording {} CPUs: choose another machine",
            machine.name,
            cores.cores(),
            cpus.get()
        );
        let clocks = (order == CpuOrder::SideBySide).then(|| CpuClocks::new(cpus));
        Ok(Some(CoherentRun { caches, memory, cores, cpus: found.unwrap_or_default(), clocks }))
    }

    /// Makes steps in the order of the recording, if that is this machine's order. `fetches` gives
    /// what a fragment fetches.
    pub(crate) fn run<'f>(
        &mut self,
        stretch: &Stretch,
        fetches: impl Fn(FragmentId) -> StepFetches<'f>,
    ) {
        if self.clocks.is_some() {
            return;
        }
        let mut accesses = &stretch.accesses[..];
        for step in &stretch.steps {
            let (of_step, rest) = accesses.split_at((step.accesses as usize).min(accesses.len()));
            self.step(stretch.cpu, step, of_step, &fetches);
            accesses = rest;
        }
    }

    /// Makes steps side by side, if that is this machine's order.
    pub(crate) fn advance<'f>(
        &mut self,
        window: &Window,
        fetches: impl Fn(FragmentId) -> StepFetches<'f>,
    ) {
        let Some(mut clocks) = self.clocks.take() else { return };
        clocks.advance(window, |cpu, step, accesses| self.step(cpu, step, accesses, &fetches));
        self.clocks = Some(clocks);
    }

    /// The number of the first stretch of a CPU that this machine has to make; `None`: its order is
    /// that of the recording.
    pub(crate) fn stretch(&self, cpu: usize) -> Option<u64> {
        self.clocks.as_ref()?.stretch(cpu)
    }

    /// Makes a step. Returns its cycles: instructions and stalls.
    #[inline]
    fn step<'f>(
        &mut self,
        cpu: CpuId,
        step: &Step,
        accesses: &[DataAccess],
        fetches: &impl Fn(FragmentId) -> StepFetches<'f>,
    ) -> f64 {
        let Some(&RunningCpu { core, .. }) = self.cpus.get(usize::from(cpu.0)) else { return 0.0 };
        let before = requests(self.caches.counters_of(core, step.mode));
        self.caches.runs(core, step.mode);
        let mut cycles = 0.0;
        if let Some(fragment) = step.fragment {
            let StepFetches { instructions, lines, pages } = fetches(fragment);
            cycles = instructions as f64;
            self.caches.executed(core, instructions, 0, 0);
            pages.iter().for_each(|&page| self.caches.fetch_page(core, page));
            for &physical in lines {
                self.caches.fetch(core, physical);
            }
        }
        self.caches.executed(core, 0, step.loads.into(), step.stores.into());
        accesses.iter().for_each(|access| self.access(core, access));
        let counters = self.caches.counters_of(core, step.mode);
        if requests(counters) != before {
            let stalls = CoreStalls::new(counters, &self.memory, &self.cores).total();
            let known = self.cpus[usize::from(cpu.0)].stalls.get_mut(step.mode);
            cycles += stalls - *known;
            *known = stalls;
        }
        cycles
    }

    #[inline]
    fn access(&mut self, core: CoreId, access: &DataAccess) {
        self.caches.data_page(core, access.page);
        let log2 = self.caches.data_line_log2();
        let (mut at, end) = (access.physical.0, access.physical.0 + u64::from(access.size));
        while at < end {
            let next = ((at >> log2) + 1) << log2;
            let size = (end.min(next) - at) as u32;
            self.caches.data(core, PhysAddr(at), size, access.is_store);
            at = next;
        }
    }

    /// What was counted so far.
    pub(crate) fn counts(&self) -> CoherenceCounts {
        let mut lines: Vec<LineSharing> = self
            .caches
            .shared_lines()
            .map(|(physical, shared)| LineSharing { physical, counts: shared.counts })
            .collect();
        lines.sort_by_key(|line| {
            let both = line.counts.kernel.total() + line.counts.user.total();
            (std::cmp::Reverse(both), line.physical)
        });
        CoherenceCounts {
            cpus: self.cpus.iter().map(|cpu| self.caches.counters(cpu.core)).collect(),
            times: self.clocks.as_ref().map(|clocks| clocks.times().collect()),
            line_log2: self.caches.line_log2(),
            lines,
        }
    }
}

/// The cycles for which these counters stop a core of the machine; `None` when it has one core.
pub(crate) fn stalls(machine: &MachineModel, counters: &CoreCounters) -> Option<CoreStalls> {
    Some(CoreStalls::new(counters, machine.memory.as_ref()?, machine.coherence.as_ref()?))
}

/// A number that grows with whatever can stall a core.
#[inline]
fn requests(counters: &CoreCounters) -> u64 {
    counters.l1i + counters.l1d + counters.upgrades + counters.itlb + counters.dtlb
}
