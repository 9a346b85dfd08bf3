//! What the engine of ext-TSP (`chains.rs`) is given: nodes, and the jumps between them with their
//! worth by distance.
//!
//! Only data and the score of one jump. Knows nothing of blocks or functions.

use crate::ext_tsp_parameters::ExtTspParameters;

pub(crate) struct Node {
    pub size: u64,
    pub count: u64,
}

/// A jump between two different nodes.
pub(crate) struct Jump {
    pub from: u32,
    pub to: u32,
    /// Bytes from the start of `from` to where the jump leaves it.
    pub from_end: u64,
    /// Bytes from the start of `to` to where it is reached.
    pub to_start: u64,
    pub count: u64,
    pub kind: JumpKind,
}

/// What a jump is worth, by its distance.
#[derive(Clone, Copy)]
pub(crate) enum JumpKind {
    /// Control that goes from one node to the other.
    Control { may_fall: bool, conditional: bool },
    /// No jump at all: two nodes of so many bytes together that miss one after the other. They are
    /// worth `worth` for each count when they touch, in either order, and less with each byte
    /// between them, down to nothing at `reach` bytes.
    Together { bytes: u64, worth: f64, reach: u64 },
}

impl Jump {
    /// What it adds to the score when it goes over `distance` bytes.
    pub fn score(&self, distance: i64, parameters: &ExtTspParameters) -> f64 {
        let count = self.count as f64;
        match self.kind {
            JumpKind::Control { may_fall, conditional } => {
                parameters.jump_score(distance, count, may_fall, conditional)
            }
            JumpKind::Together { bytes, worth, reach } => {
                // A distance backward reaches from the end of the later node to the start of the
                // earlier one.
                let back = distance.unsigned_abs().saturating_sub(bytes);
                let between = if distance >= 0 { distance.unsigned_abs() } else { back };
                worth * count * (1.0 - between as f64 / reach as f64).max(0.0)
            }
        }
    }

    /// The most that it can add to the score.
    pub fn most(&self, parameters: &ExtTspParameters) -> f64 {
        self.score(0, parameters).max(self.score(1, parameters)).max(self.score(-1, parameters))
    }

    pub fn may_fall(&self) -> bool {
        matches!(self.kind, JumpKind::Control { may_fall: true, .. })
    }
}
