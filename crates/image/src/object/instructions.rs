//! Decodes machine code into a list of instructions.
//!
//! Input: the bytes of a stretch of code, and the relocations in it. Output: the place and length
//! of each instruction, and what it does to control. A branch whose field has a relocation is
//! `linked`, and the relocation decides its target. The assembler resolved all other branches; they
//! carry their target. This module never guesses: bytes that do not decode become `Invalid`
//! instructions of one byte.

use super::elf::ElfRelocation;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind};

/// The value of a target that does not exist.
pub const NOWHERE: u32 = u32::MAX;

/// What an instruction does to control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionKind {
    /// Control continues in the next instruction.
    Plain,
    /// A no-op of any length.
    Nop,
    /// `int3`: a trap, or a guard against straight-line speculation behind a return or an indirect
    /// jump.
    Int3,
    /// `ud2` and similar instructions.
    Trap,
    /// A `ud2` with the mark by which a hypervisor knows that it shall execute what follows
    /// (`XEN_EMULATE_PREFIX`). Control continues behind the mark.
    Emulated,
    /// `jmp` to a fixed target.
    Jump,
    /// `jcc` to a fixed target.
    Branch,
    /// `call` of a fixed target.
    Call,
    /// Control leaves and does not come back: a return, an indirect jump.
    Stop,
    /// A branch that has only a short form (`loop`, `jrcxz`), or that does more than branch
    /// (`xbegin`).
    OddBranch,
    /// Bytes that do not decode.
    Invalid,
}

/// An instruction of a section.
#[derive(Clone, Copy, Debug)]
pub struct DecodedInstruction {
    /// The offset in the section.
    pub at: u32,
    /// Bytes.
    pub len: u8,
    /// What it does to control.
    pub kind: InstructionKind,
    /// The offset, from `at`, of its relative field; 0 if it has none. If there is a target and
    /// `linked` is false, the assembler resolved the field.
    pub field: u8,
    /// Whether the instruction has a relocation.
    pub linked: bool,
    /// The offset, in the same section, of a branch's target or of an operand relative to the
    /// instruction pointer. `NOWHERE` if there is none, if a relocation decides, or if the target
    /// lies outside the section.
    pub target: u32,
}

impl DecodedInstruction {
    /// The offset behind its last byte.
    pub fn end(&self) -> u32 {
        self.at + u32::from(self.len)
    }

    /// Whether it is a `jmp` or `jcc` that the assembler resolved and that has no prefixes. Such a
    /// branch can be written again in both lengths.
    pub(crate) fn is_plain_branch(&self) -> bool {
        self.target != NOWHERE
            && match self.kind {
                InstructionKind::Jump => matches!(self.len, 2 | 5),
                InstructionKind::Branch => matches!(self.len, 2 | 6),
                _ => false,
            }
    }

    /// Whether compilers put such an instruction between functions.
    pub fn is_padding(&self) -> bool {
        matches!(self.kind, InstructionKind::Nop | InstructionKind::Int3)
    }
}

/// Decodes all of `code`, which lies at `start` of its section.
///
/// `relocations` are those of the whole section, ascending by offset. `section_size` limits
/// targets.
pub fn decode(
    code: &[u8],
    start: u32,
    section_size: u32,
    relocations: &[ElfRelocation],
) -> Vec<DecodedInstruction> {
    let mut decoder = Decoder::with_ip(64, code, u64::from(start), DecoderOptions::NONE);
    let mut found = Vec::with_capacity(code.len() / 4);
    let mut next = relocations.partition_point(|r| r.offset < u64::from(start));
    let mut raw = iced_x86::Instruction::default();
    while decoder.can_decode() {
        let at = decoder.ip() as u32;
        decoder.decode_out(&mut raw);
        if raw.is_invalid() {
            // Skip one byte, so that the code behind is decoded.
            let skip = (at - start) as usize + 1;
            decoder.set_position(skip).expect("inside the buffer");
            decoder.set_ip(u64::from(at) + 1);
            found.push(DecodedInstruction {
                at,
                len: 1,
                kind: InstructionKind::Invalid,
                field: 0,
                linked: false,
                target: NOWHERE,
            });
            continue;
        }
        if is_emulated(&raw, &code[(at - start) as usize..]) {
            let len = raw.len() + EMULATION_MARKS[0].len();
            decoder.set_position((at - start) as usize + len).expect("inside the buffer");
            decoder.set_ip(u64::from(at) + len as u64);
            let (len, kind) = (len as u8, InstructionKind::Emulated);
            found.push(DecodedInstruction {
                at,
                len,
                kind,
                field: 0,
                linked: false,
                target: NOWHERE,
            });
            continue;
        }
        let end = at as u64 + raw.len() as u64;
        let mut linked = false;
        while next < relocations.len() && relocations[next].offset < end {
            linked |= !relocations[next].is_none();
            next += 1;
        }
        let kind = kind_of(&raw);
        let (field, target) = relative_field(&decoder, &raw, linked, section_size);
        found.push(DecodedInstruction { at, len: raw.len() as u8, kind, field, linked, target });
    }
    found
}

/// What Xen and KVM expect behind `ud2` (arch/x86/include/asm/emulate_prefix.h).
const EMULATION_MARKS: [&[u8; 3]; 2] = [b"xen", b"kvm"];

/// Whether a `ud2`, the first instruction of `code`, asks a hypervisor to execute what follows.
fn is_emulated(raw: &iced_x86::Instruction, code: &[u8]) -> bool {
    raw.code() == Code::Ud2
        && EMULATION_MARKS.iter().any(|mark| code[raw.len()..].starts_with(&mark[..]))
}

fn kind_of(raw: &iced_x86::Instruction) -> InstructionKind {
    match raw.flow_control() {
        FlowControl::UnconditionalBranch if raw.is_jmp_short_or_near() => InstructionKind::Jump,
        FlowControl::ConditionalBranch if raw.is_jcc_short_or_near() => InstructionKind::Branch,
        FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend
            if raw.op0_kind() == OpKind::NearBranch64 =>
        {
            InstructionKind::OddBranch
        }
        FlowControl::Call if raw.is_call_near() => InstructionKind::Call,
        FlowControl::Return | FlowControl::IndirectBranch | FlowControl::UnconditionalBranch => {
            match raw.mnemonic() {
                // The kernel uses `iretq` to the next instruction to serialise. For instructions on
                // this list the code that follows decides whether control continues.
                Mnemonic::Iretq => InstructionKind::Plain,
                _ => InstructionKind::Stop,
            }
        }
        FlowControl::Interrupt if raw.code() == Code::Int3 => InstructionKind::Int3,
        FlowControl::Exception => InstructionKind::Trap,
        _ if raw.mnemonic() == Mnemonic::Nop => InstructionKind::Nop,
        _ => InstructionKind::Plain,
    }
}

/// The offset of an instruction's relative field, and the target inside the section if the
/// assembler resolved it.
fn relative_field(
    decoder: &Decoder<'_>,
    raw: &iced_x86::Instruction,
    linked: bool,
    section_size: u32,
) -> (u8, u32) {
    let offsets = decoder.get_constant_offsets(raw);
    let inside = |address: u64| {
        u32::try_from(address).ok().filter(|&a| a <= section_size).unwrap_or(NOWHERE)
    };
    if raw.op_count() > 0 && raw.op0_kind() == OpKind::NearBranch64 {
        let target = if linked { NOWHERE } else { inside(raw.near_branch64()) };
        (offsets.immediate_offset() as u8, target)
    } else if raw.is_ip_rel_memory_operand() {
        let target = if linked { NOWHERE } else { inside(raw.ip_rel_memory_address()) };
        (offsets.displacement_offset() as u8, target)
    } else {
        (0, NOWHERE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_for_a_hypervisor_is_no_code() {
        // ud2; "xen"; cpuid; ud2; "kvm"; ret; ud2; js
        let code = b"\x0f\x0bxen\x0f\xa2\x0f\x0bkvm\xc3\x0f\x0b\x78\x00";
        let found = decode(code, 0x100, 0x200, &[]);
        let kinds: Vec<_> = found.iter().map(|i| (i.at, i.len, i.kind)).collect();
        assert_eq!(
            kinds,
            [
                (0x100, 5, InstructionKind::Emulated),
                (0x105, 2, InstructionKind::Plain),
                (0x107, 5, InstructionKind::Emulated),
                (0x10c, 1, InstructionKind::Stop),
                (0x10d, 2, InstructionKind::Trap),
                (0x10f, 2, InstructionKind::Branch),
            ]
        );
    }
}
