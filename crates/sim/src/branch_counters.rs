//! What is counted of predicted branches.
//!
//! Takes branches and what was wrong about their prediction; gives counters. Predicts nothing.

use crate::branches::{Branch, BranchKind};
use std::ops::{AddAssign, Sub};

/// What was wrong about a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Of a conditional branch.
    Direction,
    /// Of an indirect jump or call.
    Target,
    Return,
    /// A direct branch was rightly taken, but the target buffer lacked its target.
    Misfetch,
}

/// Branches that were executed, and how many of them were predicted wrongly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BranchCounters {
    pub conditional: u64,
    /// Indirect jumps and calls of which was seen where they went.
    pub indirect: u64,
    /// Returns of which was seen where they went.
    pub returns: u64,
    pub wrong_directions: u64,
    pub wrong_targets: u64,
    pub wrong_returns: u64,
    pub misfetches: u64,
}

impl BranchCounters {
    /// Counts a branch and what was wrong about its prediction.
    #[inline]
    pub fn count(&mut self, branch: &Branch, wrong: Option<Wrong>) {
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
            Some(Wrong::Direction) => self.wrong_directions += 1,
            Some(Wrong::Target) => self.wrong_targets += 1,
            Some(Wrong::Return) => self.wrong_returns += 1,
            Some(Wrong::Misfetch) => self.misfetches += 1,
        }
    }

    /// Wrong predictions that only the branch's execution showed: all but misfetches.
    pub fn mispredictions(&self) -> u64 {
        self.wrong_directions + self.wrong_targets + self.wrong_returns
    }

    fn with(self, other: BranchCounters, join: fn(u64, u64) -> u64) -> BranchCounters {
        BranchCounters {
            conditional: join(self.conditional, other.conditional),
            indirect: join(self.indirect, other.indirect),
            returns: join(self.returns, other.returns),
            wrong_directions: join(self.wrong_directions, other.wrong_directions),
            wrong_targets: join(self.wrong_targets, other.wrong_targets),
            wrong_returns: join(self.wrong_returns, other.wrong_returns),
            misfetches: join(self.misfetches, other.misfetches),
        }
    }
}

impl AddAssign for BranchCounters {
    fn add_assign(&mut self, other: BranchCounters) {
        *self = self.with(other, |a, b| a + b);
    }
}

/// What happened between an earlier state of the counters and a later one.
impl Sub for BranchCounters {
    type Output = BranchCounters;

    fn sub(self, earlier: BranchCounters) -> BranchCounters {
        self.with(earlier, |a, b| a - b)
    }
}
