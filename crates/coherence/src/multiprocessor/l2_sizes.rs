//! Misses of the kernel in L2s of many sizes, by class: SimOS' figure 5.3 (Rosenblum 1995,
//! section 5.2).
//!
//! Input: a recording, a machine, and a size. Output: the misses of all CPUs in kernel mode. This
//! module compares nothing.

use anyhow::{Context, Result};
use execution::coherent_step;
use execution::executions::{EachExecution, Executed, ExecutionVisitor};
use serde::Serialize;
use sim::coherent::{ClassCounts, CoherentCaches, CoreCounters, CoreId};
use sim::{CacheGeometry, MachineModel, Replacement};
use trace::{Accesses, Translation};

/// The sizes in bytes, ascending.
pub(crate) const SIZES: [u64; 6] = [256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20];

/// Misses of L2s for each 100 instructions, in kernel mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct L2Misses {
    /// The CPU never had the line.
    pub cold: f64,
    /// The CPU evicted the line.
    pub capacity: f64,
    /// Another CPU's write took the line.
    pub coherence: f64,
    /// Stores to a line that the CPU had but could only read. They are requests, but no misses.
    pub upgrades: f64,
}

impl L2Misses {
    /// Misses and upgrades.
    pub fn total(&self) -> f64 {
        self.cold + self.capacity + self.coherence + self.upgrades
    }

    fn new(counters: &CoreCounters) -> L2Misses {
        let mut classes: ClassCounts = counters.l2_instructions;
        classes += counters.l2_data;
        let rate = |count: u64| 100.0 * count as f64 / counters.instructions.max(1) as f64;
        L2Misses {
            cold: rate(classes.cold),
            capacity: rate(classes.capacity),
            coherence: rate(classes.coherence()),
            upgrades: rate(counters.upgrades),
        }
    }
}

/// The machine with L2s of another size, in bytes.
///
/// # Errors
/// The machine has no L2, or the size is not possible with its ways and lines.
pub(crate) fn with_l2(machine: &MachineModel, size: u64) -> Result<MachineModel> {
    let mut other = machine.clone();
    let l2 = other.memory.as_mut().and_then(|memory| memory.l2.as_mut());
    let l2 = l2.with_context(|| format!("the machine {} has no L2", machine.name))?;
    let (ways, line) = (l2.geometry.ways().into(), l2.line.into());
    l2.geometry = CacheGeometry::cache(size, ways, line, Replacement::Lru)?;
    Ok(other)
}

/// Counts the misses of a recording on empty caches, as an observer of it. The CPUs are the first
/// cores of the machine.
///
/// # Errors
/// The machine has no coherent caches.
pub(crate) fn counting(machine: &MachineModel) -> Result<EachExecution<'_, L2Walk>> {
    let caches = CoherentCaches::new(machine)
        .with_context(|| format!("the machine {} has no coherent caches", machine.name))?;
    let cores: Vec<CoreId> = caches.cores().collect();
    Ok(EachExecution::new(std::slice::from_ref(machine), L2Walk { caches, cores }))
}

/// The caches of all cores.
pub(crate) struct L2Walk {
    caches: CoherentCaches,
    cores: Vec<CoreId>,
}

impl L2Walk {
    /// The misses in kernel mode so far.
    pub(crate) fn misses(&self) -> L2Misses {
        let mut kernel = CoreCounters::default();
        self.cores.iter().for_each(|&core| kernel += self.caches.counters(core).kernel);
        L2Misses::new(&kernel)
    }
}

impl ExecutionVisitor for L2Walk {
    fn define(&mut self, _: &Translation) {}

    fn stream(&mut self, _: &Accesses) {}

    fn executed(&mut self, executed: &Executed<'_>) {
        if let Some(&core) = self.cores.get(usize::from(executed.execution.cpu.0)) {
            coherent_step::run(&mut self.caches, core, executed, |_, _| {});
        }
    }
}
