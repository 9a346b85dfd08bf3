//! Time by Torrellas' "very simple model" (1998, section 5.2): a single-issue machine that executes
//! an instruction a cycle and stops for every miss; data references are a fixed share of
//! instruction references and miss at a fixed rate. The latencies of SimOS' 1994 model, which
//! `stalls.rs` multiplies by what really missed.

/// The model's parameters. In the paper: penalties of 10, 30 and 50 cycles, 30 % data references, 5
/// % of which miss.
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

/// What a single-issue machine with blocking caches waits for: SimOS' 1994 model (Rosenblum 1995,
/// section 3.2 and table 3.1). Cycles for which a miss stops the machine, as the processor sees it,
/// by the level that has the line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latencies {
    pub l2: f64,
    /// Where there is no L3: the same as `memory`.
    pub l3: f64,
    pub memory: f64,
    pub tlb_miss: f64,
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
        assert_eq!(model.cycles(0, 0), 0.0);
    }
}
