//! What a machine waits for by SimOS' 1994 model (Rosenblum 1995, section 3.2), where data is
//! simulated.
//!
//! Takes counters and the machine's latencies; gives cycles. Counts nothing.

use crate::hierarchy::Counters;
use crate::machine::Machine;

/// Cycles for which the machine stood still, by what it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stalls {
    /// For instructions and for data that the L1 lacked and the next level had: the L2, or memory
    /// where there is no L2.
    pub l1i: f64,
    pub l1d: f64,
    /// For what the L2 lacked, too; 0 where there is no L2.
    pub l2i: f64,
    pub l2d: f64,
    pub tlb: f64,
}

impl Stalls {
    pub fn total(&self) -> f64 {
        self.l1i + self.l1d + self.l2i + self.l2d + self.tlb
    }
}

impl Machine {
    /// What these counters make the machine wait for; `None` when it describes no data cache.
    pub fn stalls(&self, counters: &Counters) -> Option<Stalls> {
        let memory = self.memory.as_ref()?;
        let latencies = &memory.latencies;
        // By level: what it had, times what that costs. Without an L2 memory has what the L1
        // lacked.
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

    /// One cycle an instruction, and the stalls.
    pub fn cycles(&self, counters: &Counters) -> Option<f64> {
        Some(counters.instructions as f64 + self.stalls(counters)?.total())
    }
}
