//! A machine's branch predictor: direction, target buffer and return stack.
//!
//! Input: the executed branches, in order, with their outcomes. Output: how the prediction of each
//! failed. The predictor learns each outcome before it predicts the next branch. No instruction of
//! a wrong path is executed.
//!
//! | branch | direction | target |
//! |---|---|---|
//! | conditional | static, bimodal, gshare | when taken: as a jump's |
//! | jump, call | taken | from the target buffer; not there: a misfetch |
//! | indirect jump, indirect call | taken | from the target buffer; not there or another: wrong |
//! | return | taken | from the return stack; where there is none, as an indirect jump's |

use crate::branch_counters::PredictionFailure;
use crate::branches::{Branch, BranchKind, CodeAddr};
use crate::direction::DirectionPredictor;
use crate::prediction::{BranchPrediction, HeldBranches};
use crate::return_stack::ReturnStack;
use crate::target_buffer::TargetBuffer;

/// The state of a branch predictor.
#[derive(Clone, Debug)]
pub struct BranchPredictor {
    direction: DirectionPredictor,
    targets: Option<TargetBuffer>,
    /// Whether `targets` holds direct branches.
    holds_direct: bool,
    returns: Option<ReturnStack>,
}

impl BranchPredictor {
    /// A predictor that has seen no branch.
    pub fn new(prediction: &BranchPrediction) -> BranchPredictor {
        let targets = prediction.targets;
        BranchPredictor {
            direction: DirectionPredictor::new(prediction.direction),
            targets: targets.map(|targets| TargetBuffer::new(targets.geometry)),
            holds_direct: targets.is_some_and(|targets| targets.holds == HeldBranches::Taken),
            returns: (prediction.return_stack > 0)
                .then(|| ReturnStack::new(prediction.return_stack)),
        }
    }

    /// Predicts a branch and learns its outcome. A taken branch with an unknown target counts as
    /// predicted, and its target is not learnt.
    #[inline]
    pub fn branch(&mut self, branch: &Branch) -> Option<PredictionFailure> {
        match branch.kind {
            BranchKind::Conditional => self.conditional(branch),
            BranchKind::Jump => self.direct(branch),
            BranchKind::Call => {
                self.call(branch);
                self.direct(branch)
            }
            BranchKind::IndirectJump => self.indirect(branch).then_some(PredictionFailure::Target),
            BranchKind::IndirectCall => {
                self.call(branch);
                self.indirect(branch).then_some(PredictionFailure::Target)
            }
            BranchKind::Return => {
                let wrong = match self.returns.as_mut().map(ReturnStack::pop) {
                    Some(predicted) => branch.target.is_some() && predicted != branch.target,
                    None => self.indirect(branch),
                };
                wrong.then_some(PredictionFailure::Return)
            }
        }
    }

    fn conditional(&mut self, branch: &Branch) -> Option<PredictionFailure> {
        let predicted = self.direction.predicts(branch.at, branch.target?, branch.taken);
        let misfetched = if branch.taken { self.direct(branch) } else { None };
        if predicted == branch.taken { misfetched } else { Some(PredictionFailure::Direction) }
    }

    /// Predicts the target of a taken direct branch.
    fn direct(&mut self, branch: &Branch) -> Option<PredictionFailure> {
        let target = branch.target?;
        let missed = self.holds_direct && self.target(branch.at, target) != Some(target);
        missed.then_some(PredictionFailure::Misfetch)
    }

    /// Whether the target of an indirect branch was predicted wrongly.
    fn indirect(&mut self, branch: &Branch) -> bool {
        branch.target.is_some_and(|target| self.target(branch.at, target) != Some(target))
    }

    /// The predicted target of a branch that goes to `target`.
    fn target(&mut self, at: CodeAddr, target: CodeAddr) -> Option<CodeAddr> {
        self.targets.as_mut()?.taken(at, target)
    }

    fn call(&mut self, branch: &Branch) {
        if let Some(returns) = &mut self.returns {
            returns.push(branch.end);
        }
    }
}
