//! The stalls of a machine in SimOS' 1994 model (Rosenblum 1995, section 3.2), for machines with
//! data caches.
//!
//! Input: counters and the machine's latencies. Output: cycles. This module counts nothing.

use crate::hierarchy::MachineCounters;
use crate::machine::MachineModel;

/// The cycles for which the machine stopped, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stalls {
    /// Instruction lines that missed in the L1I and hit in the next level: the L2, or memory when
    /// there is no L2.
    pub l1i: f64,
    /// Data lines that missed in the L1D and hit in the next level.
    pub l1d: f64,
    /// Instruction lines that also missed in the L2; 0 without an L2.
    pub l2i: f64,
    /// Data lines that also missed in the L2; 0 without an L2.
    pub l2d: f64,
    /// TLB misses.
    pub tlb: f64,
}

impl Stalls {
    /// All stalls.
    pub(crate) fn total(&self) -> f64 {
        self.l1i + self.l1d + self.l2i + self.l2d + self.tlb
    }
}

impl MachineModel {
    /// The stalls that these counters cause; `None` when the machine describes no data cache.
    pub fn stalls(&self, counters: &MachineCounters) -> Option<Stalls> {
        let memory = self.memory.as_ref()?;
        let latencies = &memory.latencies;
        // Hits of each level times their latency. Without an L2, memory serves the misses of the
        // L1.
        let split = |l1: u64, l2: u64, l3: u64| match (&memory.l2, &memory.l3) {
            (None, _) => (l1 as f64 * latencies.memory, 0.0),
            (Some(_), None) => ((l1 - l2) as f64 * latencies.l2, l2 as f64 * latencies.memory),
            (Some(_), Some(_)) => (
                (l1 - l2) as f64 * latencies.l2,
                (l2 - l3) as f64 * latencies.l3 + l3 as f64 * latencies.memory,
            ),
        };
        let (l1i, l2i) = split(counters.l1i.total(), counters.l2i.total(), counters.l3i.total());
        let (l1d, l2d) = split(counters.l1d.total(), counters.l2d.total(), counters.l3d.total());
        Some(Stalls {
            l1i,
            l1d,
            l2i,
            l2d,
            tlb: (counters.itlb + counters.dtlb) as f64 * latencies.tlb_miss,
        })
    }

    /// One cycle for each instruction, and the stalls; `None` when the machine describes no data
    /// cache.
    pub fn cycles(&self, counters: &MachineCounters) -> Option<f64> {
        Some(counters.instructions as f64 + self.stalls(counters)?.total())
    }
}
