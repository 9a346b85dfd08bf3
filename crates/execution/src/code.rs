//! What replay needs to know of a translation block: the addresses of its instructions, and how the
//! last one passes control on.
//!
//! Input: the bytes of a translation block, as recorded. Output: a [`TranslatedCode`]. This module
//! follows no control.

use anyhow::{Result, bail};
use image::sites::{self, BranchForm, BranchTarget};
use sim::{BranchKind, Mode};
use trace::{RunAddr, Translation};

/// How control leaves the last instruction of a translation. A branch ends a translation, so only
/// the last instruction can be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastInstruction {
    /// Control goes to the next instruction.
    Plain,
    /// Control goes to the next instruction or to `target`.
    Conditional {
        /// The target of the branch.
        target: RunAddr,
    },
    /// An unconditional direct jump.
    Jump {
        /// The target of the branch.
        target: RunAddr,
    },
    /// A direct call.
    Call {
        /// The target of the branch.
        target: RunAddr,
    },
    /// Another branch that is always taken.
    Taken(BranchKind),
    /// `iret`, `sysret` and similar: control goes to where something was interrupted.
    InterruptReturn,
}

/// The code of a translation.
#[derive(Clone, Debug)]
pub struct TranslatedCode {
    /// The address of the first instruction.
    pub addr: RunAddr,
    /// The length of each instruction in bytes.
    pub lengths: Box<[u8]>,
    /// How control leaves the last instruction.
    pub last: LastInstruction,
    /// Whether it lies in a large page outside of the kernel's image.
    pub large_page: bool,
}

impl TranslatedCode {
    /// Decodes the last instruction of a translation, which lies in a small page.
    ///
    /// # Errors
    /// The translation has no instruction.
    pub fn new(translation: &Translation) -> Result<TranslatedCode> {
        let Some((addr, bytes)) = translation.code_by_instruction().last() else {
            bail!("translation {} has no instruction", translation.id.0);
        };
        Ok(TranslatedCode {
            addr: translation.addr,
            lengths: translation.lengths.clone(),
            last: decode(addr, bytes),
            large_page: false,
        })
    }

    /// The same code, `bytes` further on.
    pub fn shifted(self, bytes: u64) -> TranslatedCode {
        let by = |addr: RunAddr| RunAddr(addr.0.wrapping_add(bytes));
        let last = match self.last {
            LastInstruction::Conditional { target } => {
                LastInstruction::Conditional { target: by(target) }
            }
            LastInstruction::Jump { target } => LastInstruction::Jump { target: by(target) },
            LastInstruction::Call { target } => LastInstruction::Call { target: by(target) },
            LastInstruction::Plain
            | LastInstruction::Taken(_)
            | LastInstruction::InterruptReturn => self.last,
        };
        TranslatedCode { addr: by(self.addr), last, ..self }
    }

    /// Whether the code belongs to the kernel or to a user.
    pub fn mode(&self) -> Mode {
        if self.addr.is_kernel() { Mode::Kernel } else { Mode::User }
    }

    /// The bytes of the first `instructions`.
    pub fn bytes_of(&self, instructions: u32) -> u64 {
        let reached = self.lengths.iter().take(instructions as usize);
        reached.map(|&length| u64::from(length)).sum()
    }

    /// The address behind the last instruction.
    pub fn end(&self) -> RunAddr {
        let bytes: u64 = self.lengths.iter().map(|&length| u64::from(length)).sum();
        RunAddr(self.addr.0.wrapping_add(bytes))
    }

    /// The address of the instruction with this index.
    pub fn addr_of(&self, instruction: u16) -> RunAddr {
        let before = self.lengths.iter().take(instruction.into());
        RunAddr(self.addr.0.wrapping_add(before.map(|&length| u64::from(length)).sum()))
    }

    /// The address of the last instruction.
    pub(crate) fn last_addr(&self) -> RunAddr {
        let length = self.lengths.last().copied().unwrap_or(0);
        RunAddr(self.end().0.wrapping_sub(u64::from(length)))
    }

    /// The target of the last instruction when it branches, if the code alone shows the target.
    pub fn target(&self) -> Option<RunAddr> {
        match self.last {
            LastInstruction::Conditional { target }
            | LastInstruction::Jump { target }
            | LastInstruction::Call { target } => Some(target),
            LastInstruction::Plain
            | LastInstruction::Taken(_)
            | LastInstruction::InterruptReturn => None,
        }
    }
}

/// Bytes that the decoder does not know were executed nevertheless. They raised an exception or
/// went on, so they are not branches.
fn decode(addr: RunAddr, bytes: &[u8]) -> LastInstruction {
    let form = sites::decode(addr.0, bytes).map_or(BranchForm::Next, |(form, _)| form);
    let direct = |target| match target {
        BranchTarget::At(target) => RunAddr(target),
        BranchTarget::AnyFunction => addr, // code that ran has its target
    };
    match form {
        // Exceptions and system calls are not branches. Control comes back behind them.
        BranchForm::Next => LastInstruction::Plain,
        BranchForm::Conditional(to) => LastInstruction::Conditional { target: direct(to) },
        BranchForm::Jump(to) => LastInstruction::Jump { target: direct(to) },
        BranchForm::Call(to) => LastInstruction::Call { target: direct(to) },
        BranchForm::IndirectJump => LastInstruction::Taken(BranchKind::IndirectJump),
        BranchForm::IndirectCall => LastInstruction::Taken(BranchKind::IndirectCall),
        BranchForm::Return => LastInstruction::Taken(BranchKind::Return),
        BranchForm::InterruptReturn => LastInstruction::InterruptReturn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_last_instruction() {
        let at = RunAddr(0xffff_ffff_8100_0000);
        let target = |offset: u64| RunAddr(at.0 + offset);
        let cases: [(&[u8], LastInstruction); 17] = [
            (&[0x90], LastInstruction::Plain),
            (&[0x74, 0x10], LastInstruction::Conditional { target: target(0x12) }),
            (&[0x0f, 0x85, 0xfa, 0, 0, 0], LastInstruction::Conditional { target: target(0x100) }),
            (&[0xe3, 0x02], LastInstruction::Conditional { target: target(4) }), // jrcxz
            (&[0xe2, 0xfe], LastInstruction::Conditional { target: target(0) }), // loop
            (&[0xeb, 0x00], LastInstruction::Jump { target: target(2) }),
            (&[0xe9, 0xfb, 0xff, 0xff, 0xff], LastInstruction::Jump { target: target(0) }),
            (&[0xe8, 0, 1, 0, 0], LastInstruction::Call { target: target(0x105) }),
            (&[0xff, 0xd0], LastInstruction::Taken(BranchKind::IndirectCall)), // call rax
            (&[0xff, 0xe0], LastInstruction::Taken(BranchKind::IndirectJump)), // jmp rax
            (&[0xc3], LastInstruction::Taken(BranchKind::Return)),
            (&[0x48, 0xcf], LastInstruction::InterruptReturn), // iretq
            (&[0x48, 0x0f, 0x07], LastInstruction::InterruptReturn), // sysretq
            (&[0x0f, 0x05], LastInstruction::Plain),           // syscall
            (&[0x0f, 0x0b], LastInstruction::Plain),           // ud2
            (&[0xcc], LastInstruction::Plain),                 // int3
            (&[0x06], LastInstruction::Plain),                 // no instruction at all
        ];
        for (bytes, expected) in cases {
            assert_eq!(decode(at, bytes), expected, "{bytes:02x?}");
        }
    }
}
