//! Simulates the coherent caches of a multiprocessor, in the order of the recording.
//!
//! Input: for each turn of a CPU, the fragments that ran, and the executions with their accesses.
//! Output: counters by CPU, and the lines that CPUs took from each other.
//!
//! The last execution of a turn shows only at the CPU's next turn which fragment it was. Its data
//! accesses come at the end of the turn all the same: other CPUs may use what it wrote. Only its
//! fetches come later. There is no simulated time: QEMU's turns decide who accesses a line first.

use crate::amounts::FragmentAmounts;
use anyhow::{Result, ensure};
use execution::data::{DataAccess, DataFlow, Execution};
use execution::flow::{ExecutionFlow, FragmentId};
use sim::coherent::{CoherentCaches, CoreCounters, CoreId, CoreStalls, SharingCounts};
use sim::{LineId, MachineModel, PerMode, PhysAddr};
use trace::{CpuCount, CpuId};

/// The turn of a CPU, and the accesses that belong to it.
#[derive(Clone, Copy)]
pub(crate) struct DataTurn<'a> {
    pub data: &'a DataFlow,
    pub flow: &'a ExecutionFlow,
    /// Of the first fragments that are executions, this number already made their accesses.
    pub ahead: usize,
    /// The number of executions behind those of the fragments whose accesses come now.
    pub rest: usize,
}

/// What a machine with several cores counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoherenceCounts {
    /// By CPU of the recording.
    pub cpus: Vec<PerMode<CoreCounters>>,
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
    cpus: Vec<CoreId>,
}

impl CoherentRun {
    /// `None`: the machine has one core, or the recording one CPU.
    ///
    /// # Errors
    /// The machine has fewer cores than the recording has CPUs.
    pub(crate) fn new(machine: &MachineModel, cpus: CpuCount) -> Result<Option<CoherentRun>> {
        let Some(caches) = CoherentCaches::new(machine).filter(|_| cpus != CpuCount::ONE) else {
            return Ok(None);
        };
        let found: Option<Vec<CoreId>> = cpus.cpus().map(|cpu| caches.core(cpu.0)).collect();
        let cores = caches.cores().count();
        ensure!(
            found.is_some(),
            "{} has {cores} cores, and the recording {} CPUs: choose another machine",
            machine.name,
            cpus.get()
        );
        Ok(Some(CoherentRun { caches, cpus: found.unwrap_or_default() }))
    }

    /// Simulates a turn. `lines` and `pages` give what a fragment fetches.
    pub(crate) fn run<'f>(
        &mut self,
        cpu: CpuId,
        fragments_run: &[FragmentId],
        fragments: &[FragmentAmounts],
        turn: DataTurn<'_>,
        lines: impl Fn(FragmentId) -> &'f [PhysAddr],
        pages: impl Fn(FragmentId) -> &'f [LineId],
    ) {
        let Some(&core) = self.cpus.get(usize::from(cpu.0)) else { return };
        let (mut executions, mut accesses) = (turn.data.executions.iter(), turn.data.accesses());
        let mut ahead = turn.ahead;
        for &fragment in fragments_run {
            let FragmentAmounts { mode, instructions, late, .. } = fragments[fragment.0 as usize];
            self.caches.runs(core, mode);
            self.caches.executed(core, instructions, 0, 0);
            pages(fragment).iter().for_each(|&page| self.caches.fetch_page(core, page));
            for &physical in lines(fragment) {
                self.caches.fetch(core, physical);
            }
            if late {
                continue;
            }
            if ahead > 0 {
                ahead -= 1;
                continue;
            }
            if let Some(execution) = executions.next() {
                accesses = self.accesses(core, execution, accesses);
            }
        }
        for execution in executions.take(turn.rest) {
            let code = turn.flow.codes.get(execution.translation.0 as usize);
            code.into_iter().for_each(|code| self.caches.runs(core, code.mode()));
            accesses = self.accesses(core, execution, accesses);
        }
    }

    /// The accesses of an execution. Returns those behind them.
    #[inline]
    fn accesses<'d>(
        &mut self,
        core: CoreId,
        execution: &Execution,
        accesses: &'d [DataAccess],
    ) -> &'d [DataAccess] {
        let of_execution = (execution.accesses as usize).min(accesses.len());
        let (own, rest) = accesses.split_at(of_execution);
        self.caches.executed(core, 0, execution.loads.into(), execution.stores.into());
        for access in own {
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
        rest
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
            cpus: self.cpus.iter().map(|&core| self.caches.counters(core)).collect(),
            line_log2: self.caches.line_log2(),
            lines,
        }
    }
}

/// The cycles for which these counters stop a core of the machine; `None` when it has one core.
pub fn stalls(machine: &MachineModel, counters: &CoreCounters) -> Option<CoreStalls> {
    Some(CoreStalls::new(counters, machine.memory.as_ref()?, machine.coherence.as_ref()?))
}
