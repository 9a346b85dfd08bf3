//! The last instruction of an execution, which waits until its successor is known.
//!
//! Input: the instruction, and where control arrived. Output: how it is written, and the address of
//! its successor in the trace.

use super::code::{CodedInstruction, TracedAccess};
use super::contexts::{ExecutionEnd, same_place};
use super::record::kind;
use crate::walk::InstructionPlace;
use execution::code::LastInstruction;
use sim::BranchKind;
use trace::RunAddr;

/// The last instruction of an execution.
pub(super) struct OpenInstruction {
    /// The end of the execution, as recorded.
    pub end: ExecutionEnd,
    /// Its address in the trace.
    pub at: u64,
    pub instruction: CodedInstruction,
    /// Whether it is `iret`, if it returns from an interruption.
    pub is_iret: bool,
    pub place: InstructionPlace,
    pub accesses: Vec<TracedAccess>,
}

/// The effect of the last instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BranchEnd {
    /// Whether a conditional branch was taken.
    pub taken: bool,
    /// The address, in the trace, at which control goes on, now or after an interruption.
    pub to: u64,
    /// Whether the instruction does not lead there.
    pub elsewhere: bool,
}

impl OpenInstruction {
    /// An address that was recorded near the instruction, in the trace.
    fn shifted(&self, addr: RunAddr) -> u64 {
        addr.0.wrapping_sub(self.end.last.0).wrapping_add(self.at)
    }

    /// How the instruction led to `next` without an interruption.
    pub(super) fn leads_to(&self, next: RunAddr) -> BranchEnd {
        self.towards(next).unwrap_or(BranchEnd { taken: false, to: next.0, elsewhere: true })
    }

    /// How the instruction ended when it was interrupted, and control goes on at `back` later.
    /// `None`: control does not go on.
    pub(super) fn interrupted(&self, back: Option<RunAddr>) -> BranchEnd {
        let again = BranchEnd { taken: false, to: self.at.max(1), elsewhere: false };
        let Some(back) = back else {
            return match self.end.does {
                LastInstruction::Conditional { .. } => {
                    BranchEnd { to: self.shifted(self.end.behind).max(1), ..again }
                }
                _ => again,
            };
        };
        // An instruction that raised an exception is begun again.
        let is_again = same_place(self.end.last, back);
        let anywhere = matches!(self.end.does, LastInstruction::Taken(_));
        let led = self.towards(back).filter(|_| !(is_again && anywhere));
        led.unwrap_or(match is_again {
            true => again,
            false => BranchEnd { taken: false, to: back.0.max(1), elsewhere: true },
        })
    }

    /// How the instruction leads to `next`. `None`: it does not.
    fn towards(&self, next: RunAddr) -> Option<BranchEnd> {
        let near = |addr: RunAddr, taken: bool| {
            let to = self.shifted(addr).max(1);
            same_place(addr, next).then_some(BranchEnd { taken, to, elsewhere: false })
        };
        match self.end.does {
            LastInstruction::Plain => near(self.end.behind, false),
            LastInstruction::Conditional { target } => {
                near(self.end.behind, false).or_else(|| near(target, true))
            }
            LastInstruction::Jump { target } | LastInstruction::Call { target } => {
                near(target, true)
            }
            LastInstruction::Taken(_) | LastInstruction::InterruptReturn => {
                Some(BranchEnd { taken: true, to: next.0.max(1), elsewhere: false })
            }
        }
    }

    /// The kind of its record, and the target that an indirect branch has.
    pub(super) fn branch(&self, end: &BranchEnd) -> (u16, Option<u64>) {
        let indirect = |kind| (kind, Some(end.to));
        match self.end.does {
            LastInstruction::Plain => (kind::INSTRUCTION, None),
            LastInstruction::Conditional { .. } if end.taken => (kind::TAKEN, None),
            LastInstruction::Conditional { .. } => (kind::UNTAKEN, None),
            LastInstruction::Jump { .. } => (kind::JUMP, None),
            LastInstruction::Call { .. } => (kind::CALL, None),
            LastInstruction::Taken(BranchKind::Return) => indirect(kind::RETURN),
            LastInstruction::Taken(BranchKind::IndirectCall) => indirect(kind::INDIRECT_CALL),
            LastInstruction::Taken(_) => indirect(kind::INDIRECT_JUMP),
            LastInstruction::InterruptReturn if self.is_iret => indirect(kind::RETURN),
            LastInstruction::InterruptReturn => indirect(kind::INDIRECT_JUMP),
        }
    }
}
