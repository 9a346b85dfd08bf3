//! The fields of instructions that can hold an absolute address.
//!
//! Input: code and its address. Output: offsets and widths of the immediates and displacements of
//! 32 and 64 bits. Displacements relative to the instruction pointer are left out.

use crate::address::LinkAddr;
use iced_x86::{Decoder, DecoderOptions, Instruction};

/// The offset in `code` and the width, in bytes, of every such field. The search ends at bytes that
/// do not decode.
pub fn absolute(code: &[u8], at: LinkAddr) -> Vec<(usize, usize)> {
    let mut decoder = Decoder::with_ip(64, code, at.0, DecoderOptions::NONE);
    let mut found = Vec::new();
    while decoder.can_decode() {
        let start = decoder.position();
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            break;
        }
        found.extend(
            of(&decoder, &instruction).into_iter().map(|(field, width)| (start + field, width)),
        );
    }
    found
}

/// The offset in the instruction and the width of each field of the instruction that was just
/// decoded.
pub fn of(decoder: &Decoder<'_>, instruction: &Instruction) -> Vec<(usize, usize)> {
    let offsets = decoder.get_constant_offsets(instruction);
    let mut fields = Vec::new();
    let is_branch =
        instruction.op_count() > 0 && instruction.op0_kind() == iced_x86::OpKind::NearBranch64;
    if offsets.has_displacement()
        && !instruction.is_ip_rel_memory_operand()
        && matches!(offsets.displacement_size(), 4 | 8)
    {
        fields.push((offsets.displacement_offset(), offsets.displacement_size()));
    }
    if offsets.has_immediate() && !is_branch && matches!(offsets.immediate_size(), 4 | 8) {
        fields.push((offsets.immediate_offset(), offsets.immediate_size()));
    }
    fields
}
