//! What coherence costs on a machine, in its order and in that of the recording.
//!
//! Input: a recording and a machine. Output: the cycles of all lines and of each, and the log of
//! all requests. This module names nothing.

use super::caches::{SharedMachine, Simulated};
use super::counts::RequestCosts;
use anyhow::Result;
use execution::coherent_run::{CoherentRun, StepRequest, StepWatcher};
use execution::coherent_step::Asked;
use execution::coherent_walk::StepEditor;
use execution::cpu_order::{CpuOrder, Step};
use execution::served_log::ServedLog;
use serde::Serialize;
use sim::coherent::{ClassCounts, CoherentAccess, CoreCounters};
use sim::{Mode, PerMode};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::Read;
use trace::{CpuId, RecordingReader};

/// What all CPUs asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SharingTotal {
    /// Instructions.
    pub instructions: PerMode<u64>,
    /// Misses of the L2 on instructions and on data.
    pub misses: PerMode<ClassCounts>,
    /// Upgrades.
    pub upgrades: PerMode<u64>,
    /// The cycles of coherence misses and upgrades.
    pub cycles: f64,
    /// The cycles for which caches and TLBs stop the CPUs: `cycles`, and those of all other misses.
    pub stalls: f64,
}

impl SharingTotal {
    /// Adds up the counters of all CPUs. `cycles`: those of coherence.
    fn new(
        machine: &SharedMachine<'_>,
        cpus: &[PerMode<CoreCounters>],
        cycles: f64,
    ) -> SharingTotal {
        let mut total = SharingTotal { cycles, ..SharingTotal::default() };
        let all = cpus.iter().flat_map(|cpu| Mode::BOTH.map(|mode| (cpu.get(mode), mode)));
        for (counters, mode) in all {
            total.stalls += machine.stalls(counters);
            *total.instructions.get_mut(mode) += counters.instructions;
            *total.misses.get_mut(mode) += counters.l2_instructions;
            *total.misses.get_mut(mode) += counters.l2_data;
            *total.upgrades.get_mut(mode) += counters.upgrades;
        }
        total
    }

    /// Misses of kernel and user code together.
    pub fn all_misses(&self) -> ClassCounts {
        let mut all = self.misses.kernel;
        all += self.misses.user;
        all
    }
}

/// What coherence costs in the order in which a machine's CPUs make their steps, and how far this
/// is from the order of the recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OrderedTotals {
    /// The order.
    pub order: CpuOrder,
    /// Instructions of all CPUs, and what they asked for outside of their caches.
    pub total: SharingTotal,
    /// The same in the order of the recording, if `order` is another one and the recording has
    /// several CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<SharingTotal>,
}

/// What a run keeps, beside its counters.
pub(crate) struct LineCosts {
    costs: RequestCosts,
    line_log2: u32,
    /// The cycles of coherence misses and upgrades, by line.
    pub lines: HashMap<u64, f64>,
    /// The number of lines that are kept.
    most: usize,
    cycles: f64,
    /// The cycles of lines that are not kept.
    pub unkept: f64,
    /// The last physical address of the last line.
    pub end: u64,
    /// `None`: the requests are not kept.
    pub log: Option<ServedLog>,
}

impl LineCosts {
    /// Keeps the costs of at most `most` lines.
    pub(crate) fn new(machine: &SharedMachine<'_>, most: usize) -> LineCosts {
        LineCosts {
            costs: machine.costs,
            line_log2: machine.line_log2(),
            lines: HashMap::new(),
            most,
            cycles: 0.0,
            unkept: 0.0,
            end: 0,
            log: None,
        }
    }

    /// Keeps the requests of all executions.
    pub(crate) fn logging(self, machine: &SharedMachine<'_>) -> LineCosts {
        LineCosts { log: Some(ServedLog::new(machine.cpu_count())), ..self }
    }
}

impl StepWatcher for LineCosts {
    #[inline]
    fn begins(&mut self, cpu: CpuId, step: &Step, waited: f64) {
        if let Some(log) = &mut self.log {
            log.begins(cpu, step, waited);
        }
    }

    fn walks(&mut self, cpu: CpuId, mode: Mode, asked: Asked) {
        self.log.iter_mut().for_each(|log| log.walks(cpu, mode, asked));
    }

    fn served(&mut self, request: StepRequest, by: CoherentAccess) {
        self.log.iter_mut().for_each(|log| log.served(request, by));
        self.end = self.end.max(request.physical.0 | ((1 << self.line_log2) - 1));
        let Some((_, cycles)) = self.costs.of_sharing(by.served) else { return };
        self.cycles += cycles;
        let has_room = self.lines.len() < self.most;
        match self.lines.entry(request.physical.0 >> self.line_log2) {
            Entry::Occupied(mut cost) => *cost.get_mut() += cycles,
            Entry::Vacant(place) if has_room => {
                place.insert(cycles);
            }
            Entry::Vacant(_) => self.unkept += cycles,
        }
    }
}

impl OrderedTotals {
    /// The totals of runs on this machine.
    pub(crate) fn new<'r>(
        machine: &SharedMachine<'_>,
        run: &CoherentRun<LineCosts>,
        recorded: impl Into<Option<&'r CoherentRun<LineCosts>>>,
    ) -> OrderedTotals {
        let total = |run: &CoherentRun<LineCosts>| {
            SharingTotal::new(machine, &run.counters(), run.watcher.cycles)
        };
        let recorded = recorded.into().map(total);
        OrderedTotals { order: machine.order(), total: total(run), recorded }
    }
}

/// Runs a recording, keeps the costs of at most `most` lines, and keeps the requests if `logs` is
/// true. `editor`: sees all executions, and may move data.
///
/// # Errors
/// As [`SharedMachine::simulate`].
pub(crate) fn run<R: Read, E: StepEditor>(
    reader: RecordingReader<R>,
    machine: &SharedMachine<'_>,
    editor: E,
    most: usize,
    logs: bool,
) -> Result<(OrderedTotals, LineCosts, E)> {
    let costs = |order: CpuOrder| match order == machine.order() {
        true if logs => LineCosts::new(machine, most).logging(machine),
        true => LineCosts::new(machine, most),
        false => LineCosts::new(machine, 0),
    };
    let Simulated { run, recorded, editor } = machine.simulate(reader, editor, costs)?;
    let totals = OrderedTotals::new(machine, &run, recorded.as_ref());
    Ok((totals, run.watcher, editor))
}
