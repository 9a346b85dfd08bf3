//! The input of ext-TSP's engine (`chains.rs`): nodes, and the jumps between them with their worth
//! by distance.
//!
//! This module has only data and the score of one jump. It knows nothing of blocks or functions.

use crate::ext_tsp_parameters::ExtTspParameters;

pub(crate) struct ChainNode {
    pub size: u64,
    pub count: u64,
}

/// A jump between two different nodes.
pub(crate) struct ScoredJump {
    pub from: u32,
    pub to: u32,
    /// The bytes from the start of `from` to the place of the jump.
    pub from_end: u64,
    /// The bytes from the start of `to` to the target of the jump.
    pub to_start: u64,
    pub count: u64,
    pub kind: JumpKind,
}

/// How the distance of a jump determines its worth.
#[derive(Clone, Copy)]
pub(crate) enum JumpKind {
    /// Control goes from one node to the other.
    Control { may_fall: bool, conditional: bool },
    /// Two nodes with together `bytes` bytes that miss one after the other; control need not go
    /// from one to the other. For each count, they are worth `worth` when they touch, in either
    /// order. Each byte between them reduces this, down to 0 at `reach` bytes.
    Together { bytes: u64, worth: f64, reach: u64 },
}

impl ScoredJump {
    /// The score of the jump over `distance` bytes.
    pub(crate) fn score(&self, distance: i64, parameters: &ExtTspParameters) -> f64 {
        let count = self.count as f64;
        match self.kind {
            JumpKind::Control { may_fall, conditional } => {
                parameters.jump_score(distance, count, may_fall, conditional)
            }
            JumpKind::Together { bytes, worth, reach } => {
                // A backward distance goes from the end of the later node to the start of the
                // earlier one.
                let back = distance.unsigned_abs().saturating_sub(bytes);
                let between = if distance >= 0 { distance.unsigned_abs() } else { back };
                worth * count * (1.0 - between as f64 / reach as f64).max(0.0)
            }
        }
    }

    /// The largest possible score of the jump.
    pub(crate) fn most(&self, parameters: &ExtTspParameters) -> f64 {
        self.score(0, parameters).max(self.score(1, parameters)).max(self.score(-1, parameters))
    }

    pub(crate) fn may_fall(&self) -> bool {
        matches!(self.kind, JumpKind::Control { may_fall: true, .. })
    }
}
