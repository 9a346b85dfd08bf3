//! The parameters of ext-TSP, and the score of one jump under them.
//!
//! This module has only data and arithmetic. It orders nothing.

use crate::c3::C3Parameters;
use crate::validate::{InputError, at_least};

/// The parameters of ext-TSP (Newell and Pupyrev 2020, section 3 and table 1). The limits on chains
/// are those of LLVM's implementation.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtTspParameters {
    /// The worth of a fall-through whose block has another successor, for each execution. The next
    /// two values have the same unit.
    pub fall_through_conditional: f64,
    /// The worth of a fall-through that is the only way out of its block. At 1 or less, rotated
    /// loops are broken.
    pub fall_through_unconditional: f64,
    /// The worth of a jump over a distance of 0.
    pub jump: f64,
    /// The distance in bytes at which a forward jump is worth nothing.
    pub forward_distance: u64,
    /// The distance in bytes at which a backward jump is worth nothing.
    pub backward_distance: u64,
    /// Chains with at most this number of pieces are cut at every place to take in another chain.
    pub split_threshold: usize,
    /// The largest number of pieces in a chain.
    pub max_chain: usize,
    /// The largest factor between the densities (executions per byte) of two chains that are
    /// merged.
    pub max_density_ratio: f64,
    /// The largest number of hot pieces in functions whose short segments are moved after the
    /// merging; 0: never. This step is ours.
    pub improve_up_to: usize,
    /// The parameters of C3 for the order of functions.
    pub functions: C3Parameters,
}

impl Default for ExtTspParameters {
    fn default() -> Self {
        ExtTspParameters {
            fall_through_conditional: 1.0,
            fall_through_unconditional: 1.05,
            jump: 0.1,
            forward_distance: 1024,
            backward_distance: 640,
            split_threshold: 128,
            max_chain: 512,
            max_density_ratio: 100.0,
            improve_up_to: 100,
            functions: C3Parameters::default(),
        }
    }
}

impl ExtTspParameters {
    /// The score of a jump over `distance` bytes (section 3, equation 1).
    pub(crate) fn jump_score(
        &self,
        distance: i64,
        count: f64,
        may_fall: bool,
        conditional: bool,
    ) -> f64 {
        if distance == 0 && may_fall {
            return count
                * if conditional {
                    self.fall_through_conditional
                } else {
                    self.fall_through_unconditional
                };
        }
        let reach = if distance >= 0 { self.forward_distance } else { self.backward_distance };
        if distance.unsigned_abs() >= reach {
            return 0.0;
        }
        self.jump * count * (1.0 - distance.unsigned_abs() as f64 / reach as f64)
    }

    pub(crate) fn validate(&self) -> Result<(), InputError> {
        at_least("fall_through_conditional", self.fall_through_conditional, 0.0)?;
        at_least("fall_through_unconditional", self.fall_through_unconditional, 0.0)?;
        at_least("jump", self.jump, 0.0)?;
        at_least("max_density_ratio", self.max_density_ratio, 1.0)?;
        self.functions.validate()
    }
}
