//! What replay must know of a translation: where its instructions lie, and how its last one hands
//! control on.

use anyhow::{Result, bail};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use sim::{BranchKind, Mode};
use trace::{RunAddr, Translation};

/// How control leaves the last instruction of a translation. Only the last can be a branch: a
/// branch ends a translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// Goes on to the instruction behind it.
    Plain,
    /// Goes on behind it, or to `target`.
    Conditional { target: RunAddr },
    /// An unconditional direct jump.
    Jump { target: RunAddr },
    /// A direct call.
    Call { target: RunAddr },
    /// A branch of another kind, always taken.
    Taken(BranchKind),
    /// `iret`, `sysret` and the like: goes on wherever something was interrupted.
    InterruptReturn,
}

/// A translation, as far as replay needs it.
#[derive(Clone, Debug)]
pub struct Code {
    pub addr: RunAddr,
    pub lengths: Box<[u8]>,
    pub last: Last,
}

impl Code {
    pub fn new(translation: &Translation) -> Result<Code> {
        let Some((addr, bytes)) = translation.code_by_instruction().last() else {
            bail!("translation {} has no instruction", translation.id.0);
        };
        Ok(Code {
            addr: translation.addr,
            lengths: translation.lengths.clone(),
            last: decode(addr, bytes),
        })
    }

    /// The same code, so many bytes further on.
    pub fn shifted(self, bytes: u64) -> Code {
        let by = |addr: RunAddr| RunAddr(addr.0.wrapping_add(bytes));
        let last = match self.last {
            Last::Conditional { target } => Last::Conditional { target: by(target) },
            Last::Jump { target } => Last::Jump { target: by(target) },
            Last::Call { target } => Last::Call { target: by(target) },
            Last::Plain | Last::Taken(_) | Last::InterruptReturn => self.last,
        };
        Code { addr: by(self.addr), last, ..self }
    }

    pub fn mode(&self) -> Mode {
        if self.addr.is_kernel() { Mode::Kernel } else { Mode::User }
    }

    /// Bytes of the first instructions.
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
    pub fn last_addr(&self) -> RunAddr {
        let length = self.lengths.last().copied().unwrap_or(0);
        RunAddr(self.end().0.wrapping_sub(u64::from(length)))
    }

    /// Where control goes when the last instruction branches, if that is known from the code alone.
    pub fn target(&self) -> Option<RunAddr> {
        match self.last {
            Last::Conditional { target } | Last::Jump { target } | Last::Call { target } => {
                Some(target)
            }
            Last::Plain | Last::Taken(_) | Last::InterruptReturn => None,
        }
    }
}

/// Bytes that the decoder does not know were executed nevertheless, and raised an exception or went
/// on: not a branch.
fn decode(addr: RunAddr, bytes: &[u8]) -> Last {
    let instruction = Decoder::with_ip(64, bytes, addr.0, DecoderOptions::NONE).decode();
    match instruction.flow_control() {
        FlowControl::ConditionalBranch => {
            Last::Conditional { target: RunAddr(instruction.near_branch_target()) }
        }
        FlowControl::UnconditionalBranch if is_far(&instruction) => {
            Last::Taken(BranchKind::IndirectJump)
        }
        FlowControl::UnconditionalBranch => {
            Last::Jump { target: RunAddr(instruction.near_branch_target()) }
        }
        FlowControl::IndirectBranch => Last::Taken(BranchKind::IndirectJump),
        FlowControl::Call if instruction.is_call_near() => {
            Last::Call { target: RunAddr(instruction.near_branch_target()) }
        }
        FlowControl::IndirectCall => Last::Taken(BranchKind::IndirectCall),
        FlowControl::Return if instruction.mnemonic() == Mnemonic::Ret => {
            Last::Taken(BranchKind::Return)
        }
        FlowControl::Return => Last::InterruptReturn,
        // System calls are entries of the kernel, not branches; control comes back behind them.
        FlowControl::Call
        | FlowControl::Next
        | FlowControl::Interrupt
        | FlowControl::XbeginXabortXend
        | FlowControl::Exception => Last::Plain,
    }
}

fn is_far(instruction: &Instruction) -> bool {
    instruction.is_jmp_far() || instruction.is_jmp_far_indirect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_last_instruction() {
        let at = RunAddr(0xffff_ffff_8100_0000);
        let target = |offset: u64| RunAddr(at.0 + offset);
        let cases: [(&[u8], Last); 17] = [
            (&[0x90], Last::Plain),
            (&[0x74, 0x10], Last::Conditional { target: target(0x12) }),
            (&[0x0f, 0x85, 0xfa, 0, 0, 0], Last::Conditional { target: target(0x100) }),
            (&[0xe3, 0x02], Last::Conditional { target: target(4) }), // jrcxz
            (&[0xe2, 0xfe], Last::Conditional { target: target(0) }), // loop
            (&[0xeb, 0x00], Last::Jump { target: target(2) }),
            (&[0xe9, 0xfb, 0xff, 0xff, 0xff], Last::Jump { target: target(0) }),
            (&[0xe8, 0, 1, 0, 0], Last::Call { target: target(0x105) }),
            (&[0xff, 0xd0], Last::Taken(BranchKind::IndirectCall)), // call rax
            (&[0xff, 0xe0], Last::Taken(BranchKind::IndirectJump)), // jmp rax
            (&[0xc3], Last::Taken(BranchKind::Return)),
            (&[0x48, 0xcf], Last::InterruptReturn), // iretq
            (&[0x48, 0x0f, 0x07], Last::InterruptReturn), // sysretq
            (&[0x0f, 0x05], Last::Plain),           // syscall
            (&[0x0f, 0x0b], Last::Plain),           // ud2
            (&[0xcc], Last::Plain),                 // int3
            (&[0x06], Last::Plain),                 // no instruction at all
        ];
        for (bytes, expected) in cases {
            assert_eq!(decode(at, bytes), expected, "{bytes:02x?}");
        }
    }
}
