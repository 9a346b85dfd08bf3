//! The ways in which control leaves an instruction.
//!
//! Input: the bytes of an instruction. Output: its [`BranchForm`]. This module follows nothing.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};

/// Where a direct branch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchTarget {
    /// To this address.
    At(u64),
    /// To the entry of a function that the kernel chooses at run time.
    AnyFunction,
}

/// How control leaves an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchForm {
    /// To the next instruction.
    Next,
    /// To the target, or to the next instruction.
    Conditional(BranchTarget),
    /// A direct jump.
    Jump(BranchTarget),
    /// A direct call.
    Call(BranchTarget),
    /// A jump to an address in a register or in memory.
    IndirectJump,
    /// A call of an address in a register or in memory.
    IndirectCall,
    /// A return from a call.
    Return,
    /// `iret`, `sysret` and similar: control goes to where something was interrupted.
    InterruptReturn,
}

impl BranchForm {
    /// Whether control may go to the next instruction without a branch.
    pub fn may_run_on(self) -> bool {
        matches!(self, BranchForm::Next | BranchForm::Conditional(_))
    }

    /// Whether control comes back behind the instruction.
    pub fn is_call(self) -> bool {
        matches!(self, BranchForm::Call(_) | BranchForm::IndirectCall)
    }
}

/// The first instruction in `bytes`, which lie at `at`: its form and its length. `None`: the bytes
/// do not decode. An instruction that raises an exception or enters a system call counts as
/// [`BranchForm::Next`], because control comes back behind it.
pub fn decode(at: u64, bytes: &[u8]) -> Option<(BranchForm, u8)> {
    let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then(|| (form_of(&instruction), instruction.len() as u8))
}

fn form_of(instruction: &Instruction) -> BranchForm {
    let target = BranchTarget::At(instruction.near_branch_target());
    match instruction.flow_control() {
        FlowControl::ConditionalBranch => BranchForm::Conditional(target),
        FlowControl::UnconditionalBranch if instruction.is_jmp_far() => BranchForm::IndirectJump,
        FlowControl::UnconditionalBranch => BranchForm::Jump(target),
        FlowControl::IndirectBranch => BranchForm::IndirectJump,
        FlowControl::Call if instruction.is_call_near() => BranchForm::Call(target),
        FlowControl::IndirectCall => BranchForm::IndirectCall,
        FlowControl::Return if instruction.mnemonic() == Mnemonic::Ret => BranchForm::Return,
        FlowControl::Return => BranchForm::InterruptReturn,
        FlowControl::Call
        | FlowControl::Next
        | FlowControl::Interrupt
        | FlowControl::XbeginXabortXend
        | FlowControl::Exception => BranchForm::Next,
    }
}
