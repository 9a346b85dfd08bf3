//! Machine code as a list of instructions.
//!
//! Takes the bytes of a stretch of code and the relocations that fall into it; gives each
//! instruction's place, length and what it does to control. A branch whose field is relocated goes
//! where the relocation says and is `linked`; one without was resolved by the assembler and carries
//! its target. Never guesses: bytes that do not decode are `Invalid`, one byte long.

use super::elf::Relocation;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind};

/// No target.
pub const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain,
    /// A no-op of any length.
    Nop,
    /// `int3`: a trap, or what follows a return or an indirect jump against straight-line
    /// speculation.
    Int3,
    /// `ud2` and its like.
    Trap,
    /// `jmp` to a fixed place.
    Jump,
    /// `jcc` to a fixed place.
    Branch,
    /// `call` to a fixed place.
    Call,
    /// Control that leaves and does not come back: a return, an indirect jump.
    Stop,
    /// A branch that has only a short form (`loop`, `jrcxz`) or does more than branch (`xbegin`).
    OddBranch,
    Invalid,
}

/// An instruction of a section.
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    /// Offset in the section.
    pub at: u32,
    pub len: u8,
    pub kind: Kind,
    /// Where its relative field begins, counted from `at`; 0 for none. With a target and `linked`
    /// unset it was resolved by the assembler.
    pub field: u8,
    /// A relocation falls into this instruction.
    pub linked: bool,
    /// The offset in the same section that a branch goes to, or an operand relative to the
    /// instruction pointer names; `NOWHERE` when there is none, when a relocation decides, or when
    /// it lies outside the section.
    pub target: u32,
}

impl Instruction {
    pub fn end(&self) -> u32 {
        self.at + u32::from(self.len)
    }

    /// A `jmp` or `jcc` resolved by the assembler, without prefixes: it can be written again in
    /// either length.
    pub fn is_plain_branch(&self) -> bool {
        self.target != NOWHERE
            && match self.kind {
                Kind::Jump => matches!(self.len, 2 | 5),
                Kind::Branch => matches!(self.len, 2 | 6),
                _ => false,
            }
    }

    /// Bytes between one function and the next.
    pub fn is_padding(&self) -> bool {
        matches!(self.kind, Kind::Nop | Kind::Int3)
    }
}

/// Decodes `code`, which lies at `start` of its section, to the last byte.
///
/// `relocations` are those of the whole section, ascending by offset; `section_size` bounds
/// targets.
pub fn decode(
    code: &[u8],
    start: u32,
    section_size: u32,
    relocations: &[Relocation],
) -> Vec<Instruction> {
    let mut decoder = Decoder::with_ip(64, code, u64::from(start), DecoderOptions::NONE);
    let mut found = Vec::with_capacity(code.len() / 4);
    let mut next = relocations.partition_point(|r| r.offset < u64::from(start));
    let mut raw = iced_x86::Instruction::default();
    while decoder.can_decode() {
        let at = decoder.ip() as u32;
        decoder.decode_out(&mut raw);
        if raw.is_invalid() {
            // One byte at a time, so that what follows is still seen.
            let skip = (at - start) as usize + 1;
            decoder.set_position(skip).expect("inside the buffer");
            decoder.set_ip(u64::from(at) + 1);
            found.push(Instruction {
                at,
                len: 1,
                kind: Kind::Invalid,
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
        found.push(Instruction { at, len: raw.len() as u8, kind, field, linked, target });
    }
    found
}

fn kind_of(raw: &iced_x86::Instruction) -> Kind {
    match raw.flow_control() {
        FlowControl::UnconditionalBranch if raw.is_jmp_short_or_near() => Kind::Jump,
        FlowControl::ConditionalBranch if raw.is_jcc_short_or_near() => Kind::Branch,
        FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend
            if raw.op0_kind() == OpKind::NearBranch64 =>
        {
            Kind::OddBranch
        }
        FlowControl::Call if raw.is_call_near() => Kind::Call,
        FlowControl::Return | FlowControl::IndirectBranch | FlowControl::UnconditionalBranch => {
            match raw.mnemonic() {
                // `iretq` to the next instruction is the kernel's way to serialise; whoever stands
                // on this list decides by what follows.
                Mnemonic::Iretq => Kind::Plain,
                _ => Kind::Stop,
            }
        }
        FlowControl::Interrupt if raw.code() == Code::Int3 => Kind::Int3,
        FlowControl::Exception => Kind::Trap,
        _ if raw.mnemonic() == Mnemonic::Nop => Kind::Nop,
        _ => Kind::Plain,
    }
}

/// The relative field of an instruction, and the target inside the section when the assembler
/// resolved it.
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
