//! The parameters of ext-TSP, and what one jump adds to the score under them.
//!
//! Only data and arithmetic. Orders nothing.

use crate::c3::C3Parameters;
use crate::validate::{InputError, at_least};

/// Newell and Pupyrev 2020, section 3 and table 1; the limits on chains are those of LLVM's
/// implementation.
#[derive(Clone, Debug, PartialEq)]
pub struct ExtTspParameters {
    /// Worth of a fall-through whose block has another successor. In executions, like the two that
    /// follow.
    pub fall_through_conditional: f64,
    /// Worth of a fall-through that is its block's only way out. More than 1, or rotated loops come
    /// apart.
    pub fall_through_unconditional: f64,
    /// Worth of a jump over no distance.
    pub jump: f64,
    /// Bytes over which a jump forward still counts.
    pub forward_distance: u64,
    /// Bytes over which a jump backward still counts.
    pub backward_distance: u64,
    /// Chains of at most so many pieces are cut everywhere to take in another.
    pub split_threshold: usize,
    /// Chains never grow beyond so many pieces.
    pub max_chain: usize,
    /// Chains whose densities (executions per byte) differ by more than this factor are not joined.
    pub max_density_ratio: f64,
    /// In functions of at most so many pieces that ran, short segments are moved after the merging;
    /// 0 for never. Ours.
    pub improve_up_to: usize,
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
    /// What a jump over `distance` bytes adds to the score (section 3, equation 1).
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
