//! Simulates the coherent caches of a multiprocessor.
//!
//! Input: the steps of CPUs, in the order in which they are made, with what they fetch and access.
//! Output: counters by CPU, the cycles of each step, and the lines that CPUs took from each other.
//! A watcher sees each request that leaves an L1. [`crate::cpu_order`] decides the order.

use crate::coherent_step::Asked;
use crate::cpu_order::clocks::CpuClocks;
use crate::cpu_order::{CpuOrder, CpuWaits, Step, Stretch, Window};
use crate::data::DataAccess;
use crate::flow::FragmentId;
use anyhow::{Context, Result, ensure};
use sim::coherent::SharingCounts;
use sim::coherent::{
    CoherenceDescription, CoherentAccess, CoherentCaches, CoreCounters, CoreId, CoreStalls, Served,
};
use sim::{LineId, MachineModel, MemoryDescription, Mode, PerMode, PhysAddr};
use trace::{CpuCount, CpuId};

/// What a fragment fetches.
#[derive(Clone, Copy)]
pub struct StepFetches<'a> {
    /// Its instructions.
    pub instructions: u64,
    /// The physical addresses of the L1I's lines.
    pub lines: &'a [PhysAddr],
    /// The pages of the instruction TLB.
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

/// Who asked for what, in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRequest {
    /// The CPU.
    pub cpu: CpuId,
    /// The mode of the step.
    pub mode: Mode,
    /// Code or data.
    pub asked: Asked,
    /// The physical address.
    pub physical: PhysAddr,
    /// The number of the access in the step; 0 for a fetch.
    pub access: u32,
    /// An access across lines of the L1D has a part in each. The number of the part.
    pub part: u32,
}

/// Sees what the steps of a machine ask for.
pub trait StepWatcher: Send {
    /// A CPU begins a step. `waited`: the cycles until another CPU had stored what the step loads.
    fn begins(&mut self, _cpu: CpuId, _step: &Step, _waited: f64) {}
    /// A TLB lacks the page.
    fn walks(&mut self, _cpu: CpuId, _mode: Mode, _asked: Asked) {}
    /// A request changed something. Requests that an L1 serves do so only when an earlier miss
    /// turns out to be true sharing.
    fn served(&mut self, request: StepRequest, by: CoherentAccess);
}

/// Watches nothing.
impl StepWatcher for () {
    #[inline]
    fn served(&mut self, _: StepRequest, _: CoherentAccess) {}
}

/// The coherent caches of one machine while a recording runs.
pub struct CoherentRun<W = ()> {
    caches: CoherentCaches,
    memory: MemoryDescription,
    cores: CoherenceDescription,
    cpus: Vec<RunningCpu>,
    /// The order is that of the CPUs' clocks; `None`: that of the recording.
    clocks: Option<CpuClocks>,
    /// Sees the requests.
    pub watcher: W,
}

/// A CPU of the recording.
#[derive(Clone, Copy)]
struct RunningCpu {
    core: CoreId,
    /// The stalls so far, in cycles.
    stalls: PerMode<f64>,
}

impl<W: StepWatcher> CoherentRun<W> {
    /// # Errors
    /// The machine has one core, or fewer than the recording has CPUs.
    pub fn new(
        machine: &MachineModel,
        cpus: CpuCount,
        order: CpuOrder,
        watcher: W,
    ) -> Result<CoherentRun<W>> {
        let parts = CoherentCaches::new(machine).zip(machine.memory.clone());
        let ((caches, memory), cores) = parts.zip(machine.coherence).with_context(|| {
            format!(
                "the machine {} has no coherent caches: take one with [coherence], such as \
                 server-8 or simos-1994-8",
                machine.name
            )
        })?;
        let running = |core| RunningCpu { core, stalls: PerMode::default() };
        let found: Vec<RunningCpu> =
            cpus.cpus().filter_map(|cpu| caches.core(cpu.0).map(running)).collect();
        ensure!(
            found.len() == usize::from(cpus.get()),
            "{} has {} cores, and the recording has {cpus} CPUs: choose another machine",
            machine.name,
            caches.cores().count()
        );
        let clocks = (order == CpuOrder::SideBySide).then(|| CpuClocks::new(cpus));
        Ok(CoherentRun { caches, memory, cores, cpus: found, clocks, watcher })
    }

    /// Makes steps in the order of the recording, if that is this machine's order. `fetches` gives
    /// what a fragment fetches.
    pub fn run<'f>(&mut self, stretch: &Stretch, fetches: impl Fn(FragmentId) -> StepFetches<'f>) {
        if self.clocks.is_some() {
            return;
        }
        let mut accesses = &stretch.accesses[..];
        for step in &stretch.steps {
            let (of_step, rest) = accesses.split_at((step.accesses as usize).min(accesses.len()));
            self.step(stretch.cpu, step, of_step, 0.0, &fetches);
            accesses = rest;
        }
    }

    /// Makes steps side by side, if that is this machine's order.
    pub fn advance<'f>(
        &mut self,
        window: &Window,
        fetches: impl Fn(FragmentId) -> StepFetches<'f>,
    ) {
        let Some(mut clocks) = self.clocks.take() else { return };
        clocks.advance(window, |cpu, step, accesses, waited| {
            self.step(cpu, step, accesses, waited, &fetches)
        });
        self.clocks = Some(clocks);
    }

    /// The number of the first stretch of a CPU that this machine has to make; `None`: its order is
    /// that of the recording.
    pub fn stretch(&self, cpu: usize) -> Option<u64> {
        self.clocks.as_ref()?.stretch(cpu)
    }

    /// Makes a step. Returns its cycles: instructions and stalls.
    #[inline]
    fn step<'f>(
        &mut self,
        cpu: CpuId,
        step: &Step,
        accesses: &[DataAccess],
        waited: f64,
        fetches: &impl Fn(FragmentId) -> StepFetches<'f>,
    ) -> f64 {
        let Some(&RunningCpu { core, .. }) = self.cpus.get(usize::from(cpu.0)) else { return 0.0 };
        let mode = step.mode;
        self.watcher.begins(cpu, step, waited);
        self.caches.runs(core, mode);
        let (mut instructions, mut may_stall) = (0, false);
        if let Some(fragment) = step.fragment {
            let of_fragment = fetches(fragment);
            instructions = of_fragment.instructions;
            for &page in of_fragment.pages {
                if self.caches.fetch_page(core, page) {
                    may_stall = true;
                    self.watcher.walks(cpu, mode, Asked::Code);
                }
            }
            for &physical in of_fragment.lines {
                let by = self.caches.fetch(core, physical);
                if changed(by) {
                    may_stall = true;
                    let asked = Asked::Code;
                    let request = StepRequest { cpu, mode, asked, physical, access: 0, part: 0 };
                    self.watcher.served(request, by);
                }
            }
        }
        self.caches.executed(core, instructions, step.loads.into(), step.stores.into());
        for (number, access) in (0..).zip(accesses) {
            may_stall |= self.access((cpu, core, mode), number, access);
        }
        let mut cycles = instructions as f64;
        if may_stall {
            let counters = self.caches.counters_of(core, mode);
            let stalls = CoreStalls::new(counters, &self.memory, &self.cores).total();
            let known = self.cpus[usize::from(cpu.0)].stalls.get_mut(mode);
            cycles += stalls - *known;
            *known = stalls;
        }
        cycles
    }

    /// Makes an access of a step. Returns whether it may stop the core.
    #[inline]
    fn access(
        &mut self,
        (cpu, core, mode): (CpuId, CoreId, Mode),
        number: u32,
        access: &DataAccess,
    ) -> bool {
        let mut may_stall = self.caches.data_page(core, access.page);
        if may_stall {
            self.watcher.walks(cpu, mode, Asked::Data);
        }
        let mut parts = 0..;
        for (physical, size) in line_parts(access, self.caches.data_line_log2()) {
            let by = self.caches.data(core, physical, size, access.is_store);
            let part = parts.next().unwrap_or_default();
            if changed(by) {
                may_stall = true;
                let asked = Asked::Data;
                let request = StepRequest { cpu, mode, asked, physical, access: number, part };
                self.watcher.served(request, by);
            }
        }
        may_stall
    }

    /// The counters of each CPU so far.
    pub fn counters(&self) -> Vec<PerMode<CoreCounters>> {
        self.cpus.iter().map(|cpu| self.caches.counters(cpu.core)).collect()
    }

    /// What was counted so far.
    pub fn counts(&self) -> CoherenceCounts {
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
            cpus: self.counters(),
            times: self.clocks.as_ref().map(|clocks| clocks.times().collect()),
            line_log2: self.caches.line_log2(),
            lines,
        }
    }
}

/// The parts of an access in each line of `1 << log2` bytes: address and bytes.
#[inline]
pub fn line_parts(access: &DataAccess, log2: u32) -> impl Iterator<Item = (PhysAddr, u32)> {
    let (mut at, end) = (access.physical.0, access.physical.0 + u64::from(access.size));
    std::iter::from_fn(move || {
        let next = end.min(((at >> log2) + 1) << log2);
        let part = (at < end).then(|| (PhysAddr(at), (next - at) as u32));
        at = next;
        part
    })
}

/// Whether an access changed anything.
#[inline]
fn changed(by: CoherentAccess) -> bool {
    by.served != Served::L1 || by.was_true
}

/// The cycles for which these counters stop a core of the machine; `None` when it has one core.
pub fn stalls(machine: &MachineModel, counters: &CoreCounters) -> Option<CoreStalls> {
    Some(CoreStalls::new(counters, machine.memory.as_ref()?, machine.coherence.as_ref()?))
}
