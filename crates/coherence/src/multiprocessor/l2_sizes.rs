//! Misses of the kernel in L2s of many sizes, by class: SimOS' figure 5.3 (Rosenblum 1995,
//! section 5.2).
//!
//! Input: a machine, a size, and counters. Output: the machine with an L2 of the size; the misses
//! of all CPUs in kernel mode. This module simulates nothing.

use anyhow::{Context, Result};
use serde::Serialize;
use sim::coherent::{ClassCounts, CoreCounters};
use sim::{CacheGeometry, MachineModel, PerMode, Replacement};

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

    /// Those of all CPUs.
    pub(crate) fn new(cpus: &[PerMode<CoreCounters>]) -> L2Misses {
        let mut counters = CoreCounters::default();
        cpus.iter().for_each(|cpu| counters += cpu.kernel);
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
