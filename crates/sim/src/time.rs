//! Time by Torrellas' "very simple model" (1998, section 5.2): a single-issue machine that executes an instruction a cycle and stops for
//! every miss; data references are a fixed share of instruction references and miss at a fixed rate.

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
