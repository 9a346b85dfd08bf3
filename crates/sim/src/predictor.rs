//! A machine's branch prediction: direction, target buffer and return stack together.
//!
//! Takes the branches that are executed, in order, with what they did; says what was wrong about each. Everything is brought up to date
//! before the next branch is asked for: nothing is executed on a wrong path.
//!
//! | branch | direction | target |
//! |---|---|---|
//! | conditional | static, bimodal, gshare | when taken: as a jump's |
//! | jump, call | taken | from the target buffer; not there: a misfetch, as the decoder soon knows better |
//! | indirect jump, indirect call | taken | from the target buffer; not there or another: wrong |
//! | return | taken | from the return stack; where there is none, as an indirect jump's |

use crate::branches::{Branch, BranchKind, CodeAddr};
use crate::direction::DirectionPredictor;
use crate::prediction::{BranchPrediction, Held};
use crate::return_stack::ReturnStack;
use crate::target_buffer::TargetBuffer;
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
            BranchKind::IndirectJump | BranchKind::IndirectCall => self.indirect += u64::from(branch.target.is_some()),
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

#[derive(Clone, Debug)]
pub struct Predictor {
    direction: DirectionPredictor,
    targets: Option<TargetBuffer>,
    /// Whether direct branches are looked for in `targets`.
    holds_direct: bool,
    returns: Option<ReturnStack>,
}

impl Predictor {
    pub fn new(prediction: &BranchPrediction) -> Predictor {
        let targets = prediction.targets;
        Predictor {
            direction: DirectionPredictor::new(prediction.direction),
            targets: targets.map(|targets| TargetBuffer::new(targets.geometry)),
            holds_direct: targets.is_some_and(|targets| targets.holds == Held::Taken),
            returns: (prediction.return_stack > 0).then(|| ReturnStack::new(prediction.return_stack)),
        }
    }

    /// Executes a branch. Of one that is taken to where nobody saw, nothing is wrong, and no target is learnt.
    #[inline]
    pub fn branch(&mut self, branch: &Branch) -> Option<Wrong> {
        match branch.kind {
            BranchKind::Conditional => self.conditional(branch),
            BranchKind::Jump => self.direct(branch),
            BranchKind::Call => {
                self.call(branch);
                self.direct(branch)
            }
            BranchKind::IndirectJump => self.indirect(branch).then_some(Wrong::Target),
            BranchKind::IndirectCall => {
                self.call(branch);
                self.indirect(branch).then_some(Wrong::Target)
            }
            BranchKind::Return => {
                let wrong = match self.returns.as_mut().map(ReturnStack::pop) {
                    Some(predicted) => branch.target.is_some() && predicted != branch.target,
                    None => self.indirect(branch),
                };
                wrong.then_some(Wrong::Return)
            }
        }
    }

    fn conditional(&mut self, branch: &Branch) -> Option<Wrong> {
        let predicted = self.direction.predicts(branch.at, branch.target?, branch.taken);
        let misfetched = if branch.taken { self.direct(branch) } else { None };
        if predicted == branch.taken {
            misfetched
        } else {
            Some(Wrong::Direction)
        }
    }

    /// A direct branch is taken.
    fn direct(&mut self, branch: &Branch) -> Option<Wrong> {
        let target = branch.target?;
        let missed = self.holds_direct && self.target(branch.at, target) != Some(target);
        missed.then_some(Wrong::Misfetch)
    }

    /// Whether the target of an indirect branch was predicted wrongly.
    fn indirect(&mut self, branch: &Branch) -> bool {
        branch.target.is_some_and(|target| self.target(branch.at, target) != Some(target))
    }

    /// The target that is predicted of a branch that goes to `target`.
    fn target(&mut self, at: CodeAddr, target: CodeAddr) -> Option<CodeAddr> {
        self.targets.as_mut()?.taken(at, target)
    }

    fn call(&mut self, branch: &Branch) {
        if let Some(returns) = &mut self.returns {
            returns.push(branch.end);
        }
    }
}
