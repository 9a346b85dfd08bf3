//! Time in Torrellas' "very simple model" (1998, section 5.2): a single-issue machine that executes
//! one instruction in a cycle and stops for every miss. Data references are a fixed share of
//! instruction references, and miss at a fixed rate. Also the latencies of SimOS' 1994 model, which
//! `stalls.rs` multiplies by the simulated misses.
//!
//! Input: counts of instructions and misses. Output: cycles. This module counts nothing.

/// The parameters of the model. The paper uses penalties of 10, 30 and 50 cycles, and 30 % data
/// references, of which 5 % miss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimpleModel {
    /// The cycles for which a miss stops the machine.
    pub(crate) miss_penalty: f64,
    /// Data references per instruction.
    pub(crate) data_references: f64,
    /// Share of the data references that miss.
    pub(crate) data_miss_rate: f64,
}

impl SimpleModel {
    /// Cycles for `instructions` executed with `misses` of the instruction cache.
    pub fn cycles(&self, instructions: u64, misses: u64) -> f64 {
        let instructions = instructions as f64;
        let data_misses = instructions * self.data_references * self.data_miss_rate;
        instructions + (data_misses + misses as f64) * self.miss_penalty
    }

    /// The cycles for which a miss stops the machine.
    pub fn miss_penalty(&self) -> f64 {
        self.miss_penalty
    }

    /// The cycles for which `instructions` stop the machine for their data.
    pub fn data_stall(&self, instructions: u64) -> f64 {
        instructions as f64 * self.data_references * self.data_miss_rate * self.miss_penalty
    }
}

/// The latencies of a single-issue machine with blocking caches: SimOS' 1994 model (Rosenblum 1995,
/// section 3.2 and table 3.1). Each is the number of cycles for which a miss stops the machine, as
/// the processor sees it, by the level that has the line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latencies {
    /// The L2 has the line.
    pub(crate) l2: f64,
    /// The L3 has the line. Without an L3: the same as `memory`.
    pub(crate) l3: f64,
    /// Memory has the line.
    pub(crate) memory: f64,
    /// A TLB misses.
    pub(crate) tlb_miss: f64,
}

impl Latencies {
    /// The L2 has the line.
    pub fn l2(&self) -> f64 {
        self.l2
    }

    /// The L3 has the line. Without an L3: as from memory.
    pub fn l3(&self) -> f64 {
        self.l3
    }

    /// Memory has the line.
    pub fn memory(&self) -> f64 {
        self.memory
    }

    /// A TLB misses.
    pub fn tlb_miss(&self) -> f64 {
        self.tlb_miss
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1000 instructions, 300 data references, 15 data misses, 20 instruction misses: 1000 + 35 ×
    /// 30.
    #[test]
    fn thousand_instructions_by_hand() {
        let model = SimpleModel { miss_penalty: 30.0, data_references: 0.3, data_miss_rate: 0.05 };
        assert!((model.cycles(1000, 20) - 2050.0).abs() < 1e-9);
        assert!((model.data_stall(1000) - 450.0).abs() < 1e-9);
        assert_eq!(model.cycles(0, 0), 0.0);
    }
}
