//! A machine's branch prediction: direction, target buffer and return stack together.
//!
//! Takes the branches that are executed, in order, with what they did; says what was wrong about
//! each. Everything is brought up to date before the next branch is asked for: nothing is executed
//! on a wrong path.
//!
//! | branch | direction | target |
//! |---|---|---|
//! | conditional | static, bimodal, gshare | when taken: as a jump's |
//! | jump, call | taken | from the target buffer; not there: a misfetch, as the decoder soon knows better |
//! | indirect jump, indirect call | taken | from the target buffer; not there or another: wrong |
//! | return | taken | from the return stack; where there is none, as an indirect jump's |

use crate::branch_counters::Wrong;
use crate::branches::{Branch, BranchKind, CodeAddr};
use crate::direction::DirectionPredictor;
use crate::prediction::{BranchPrediction, Held};
use crate::return_stack::ReturnStack;
use crate::target_buffer::TargetBuffer;

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
            returns: (prediction.return_stack > 0)
                .then(|| ReturnStack::new(prediction.return_stack)),
        }
    }

    /// Executes a branch. Of one that is taken to where nobody saw, nothing is wrong, and no target
    /// is learnt.
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
        if predicted == branch.taken { misfetched } else { Some(Wrong::Direction) }
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
