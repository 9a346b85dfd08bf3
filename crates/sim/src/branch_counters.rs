//! The counters of predicted branches.
//!
//! Input: branches, and how the prediction of each failed. Output: counters. This module predicts
//! nothing.

use crate::branches::{Branch, BranchKind};

/// How a prediction failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictionFailure {
    /// The direction of a conditional branch.
    Direction,
    /// The target of an indirect jump or call.
    Target,
    /// The target of a return.
    Return,
    /// The target of a direct branch that was rightly taken: the target buffer did not have it.
    Misfetch,
}

counters! {
    /// Branches that were executed, and failed predictions.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    pub struct BranchCounters {
        /// Conditional branches.
        pub conditional: u64,
        /// Indirect jumps and calls whose target is known.
        pub indirect: u64,
        /// Returns whose target is known.
        pub returns: u64,
        /// Conditional branches with a wrong direction.
        pub wrong_directions: u64,
        /// Indirect jumps and calls with a wrong target.
        pub wrong_targets: u64,
        /// Returns with a wrong target.
        pub wrong_returns: u64,
        /// Direct branches that were rightly taken, and whose target the target buffer did not
        /// have.
        pub misfetches: u64,
    }
}

impl BranchCounters {
    /// Counts a branch and the failure of its prediction.
    #[inline]
    pub fn count(&mut self, branch: &Branch, wrong: Option<PredictionFailure>) {
        match branch.kind {
            BranchKind::Conditional => self.conditional += 1,
            BranchKind::IndirectJump | BranchKind::IndirectCall => {
                self.indirect += u64::from(branch.target.is_some())
            }
            BranchKind::Return => self.returns += u64::from(branch.target.is_some()),
            BranchKind::Jump | BranchKind::Call => {}
        }
        match wrong {
            None => {}
            Some(PredictionFailure::Direction) => self.wrong_directions += 1,
            Some(PredictionFailure::Target) => self.wrong_targets += 1,
            Some(PredictionFailure::Return) => self.wrong_returns += 1,
            Some(PredictionFailure::Misfetch) => self.misfetches += 1,
        }
    }

    /// Mispredictions: all failures but misfetches. Only the execution of the branch shows them.
    pub fn mispredictions(&self) -> u64 {
        self.wrong_directions + self.wrong_targets + self.wrong_returns
    }
}
