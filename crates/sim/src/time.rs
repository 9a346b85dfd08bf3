//! Time by Torrellas' "very simple model" (1998, section 5.2): a single-issue machine that executes an instruction a cycle and stops for
//! every miss; data references are a fixed share of instruction references and miss at a fixed rate. And, where data is simulated, by
//! SimOS' 1994 model, which waits for what really missed.

use crate::hierarchy::Counters;
use crate::machine::Machine;

/// The model's parameters. In the paper: penalties of 10, 30 and 50 cycles, 30 % data references, 5 % of which miss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimpleModel {
    /// Cycles for which a miss stops the machine.
    pub miss_penalty: f64,
    /// Data references per instruction.
    pub data_references: f64,
    /// Share of the data references that miss.
    pub data_miss_rate: f64,
}

impl SimpleModel {
    /// Cycles for `instructions` executed with `misses` of the instruction cache.
    pub fn cycles(&self, instructions: u64, misses: u64) -> f64 {
        let instructions = instructions as f64;
        let data_misses = instructions * self.data_references * self.data_miss_rate;
        instructions + (data_misses + misses as f64) * self.miss_penalty
    }
}

/// What a single-issue machine with blocking caches waits for: SimOS' 1994 model (Rosenblum 1995, section 3.2 and table 3.1). Cycles for
/// which a miss stops the machine, as the processor sees it, by the level that has the line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latencies {
    pub l2: f64,
    /// Where there is no L3: the same as `memory`.
    pub l3: f64,
    pub memory: f64,
    pub tlb_miss: f64,
}

/// Cycles for which the machine stood still, by what it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stalls {
    /// For instructions and for data that the L1 lacked and the L2 had.
    pub l1i: f64,
    pub l1d: f64,
    /// For what the L2 lacked, too.
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
        // By level: what it had, times what that costs. Without an L2 every miss goes to memory.
        let split = |l1: u64, l2: u64, l3: u64| match (&memory.l2, &memory.l3) {
            (None, _) => (0.0, l1 as f64 * latencies.memory),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000 instructions, 300 data references, 15 data misses, 20 instruction misses: 1000 + 35 × 30.
    #[test]
    fn thousand_instructions_by_hand() {
        let model = SimpleModel {
            miss_penalty: 30.0,
            data_references: 0.3,
            data_miss_rate: 0.05,
        };
        assert!((model.cycles(1000, 20) - 2050.0).abs() < 1e-9);
        assert_eq!(model.cycles(0, 0), 0.0);
    }
}
