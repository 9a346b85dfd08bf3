//! Compares one instruction of the old kernel with one of the new kernel.
//!
//! Input: both instructions, decoded. Output: the pair and its references, added to the walk, or a
//! difference: other bytes than those of an address, or an inverted condition that the map does not
//! announce.

use super::code_walk::{CodeWalk, InstructionReference, OldKernelFacts, ReferenceKind};
use super::correspond::InstructionPair;
use super::padding::no_op_length;
use iced_x86::{ConditionCode, Instruction, OpKind};

/// One instruction with its bytes and the offsets of its constants.
pub(crate) struct DecodedCode<'d> {
    pub instruction: Instruction,
    pub bytes: &'d [u8],
    pub constants: iced_x86::ConstantOffsets,
}

/// Compares one instruction, and adds the pair and the references. Returns false if the rest of the
/// unit cannot be paired.
pub(crate) fn compare(
    left: &DecodedCode,
    right: &DecodedCode,
    inverted: bool,
    known: &OldKernelFacts,
    walk: &mut CodeWalk,
) -> bool {
    let (a, b) = (&left.instruction, &right.instruction);
    let pair = InstructionPair {
        old: a.ip(),
        new: b.ip(),
        old_len: left.bytes.len() as u8,
        new_len: right.bytes.len() as u8,
    };
    let same = if is_relative_branch(a) {
        compare_branch(left, right, inverted, known, walk)
    } else if left.bytes != right.bytes && known.static_keys.contains(&a.ip()) {
        grown_no_op(left, right)
    } else {
        compare_bytes(left, right, known, walk)
    };
    if let Err(what) = same {
        walk.differ(
            "instructions",
            a.ip(),
            b.ip(),
            format!("{what}: {:02x?} became {:02x?}", left.bytes, right.bytes),
        );
        if pair.old_len != pair.new_len {
            return false;
        }
    } else {
        walk.findings.prove("instructions", 1);
    }
    walk.pairs.push(pair);
    true
}

fn is_relative_branch(i: &Instruction) -> bool {
    matches!(i.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
}

fn compare_branch(
    left: &DecodedCode,
    right: &DecodedCode,
    inverted: bool,
    known: &OldKernelFacts,
    walk: &mut CodeWalk,
) -> Result<(), &'static str> {
    let (a, b) = (&left.instruction, &right.instruction);
    if !is_relative_branch(b) {
        return Err("a branch became something else");
    }
    if prefixes(left) != prefixes(right) {
        return Err("a branch has other prefixes");
    }
    let condition = |i: &Instruction| i.condition_code();
    let same = if inverted {
        let mut negated = *a;
        negated.negate_condition_code();
        condition(a) != ConditionCode::None && condition(&negated) == condition(b) && is_jcc(b)
    } else {
        a.mnemonic() == b.mnemonic()
    };
    if !same {
        return Err(if inverted {
            "a branch is not the inverse"
        } else {
            "a branch has another condition"
        });
    }
    if left.bytes.len() != right.bytes.len() && !is_jcc(a) && !a.is_jmp_short_or_near() {
        return Err("a branch with only one encoding has another length");
    }
    if left.bytes.len() != right.bytes.len()
        && known.static_keys.contains(&a.ip())
        && right.bytes.len() != 5
    {
        return Err("a static-key site is neither unchanged nor five bytes long");
    }
    // An inverted branch jumps to the block that it used to fall through to.
    walk.references.push(InstructionReference {
        refers: ReferenceKind::Branch,
        at_old: a.ip(),
        at_new: b.ip(),
        old: if inverted { a.next_ip() } else { a.near_branch_target() },
        new: b.near_branch_target(),
    });
    if inverted {
        walk.findings.prove("conditions inverted", 1);
    }
    if left.bytes.len() != right.bytes.len() {
        walk.findings.prove("branches re-encoded", 1);
    }
    Ok(())
}

fn is_jcc(i: &Instruction) -> bool {
    i.is_jcc_short_or_near()
}

/// The legacy and REX prefixes in front of the opcode.
fn prefixes<'d>(decoded: &DecodedCode<'d>) -> &'d [u8] {
    let is_prefix = |b: &u8| {
        matches!(
            b,
            0x66 | 0x67 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0xf0 | 0xf2 | 0xf3 | 0x40
                ..=0x4f
        )
    };
    let count = decoded.bytes.iter().take_while(|b| is_prefix(b)).count();
    &decoded.bytes[..count]
}

/// A static-key site may grow from two to five bytes. The kernel then patches five bytes.
fn grown_no_op(left: &DecodedCode, right: &DecodedCode) -> Result<(), &'static str> {
    // x86_nops[5], arch/x86/kernel/alternative.c. The kernel expects exactly these bytes.
    const GROWN: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
    if no_op_length(left.bytes) != left.bytes.len() || no_op_length(right.bytes) == 0 {
        return Err("a static-key site holds another instruction");
    }
    if left.bytes.len() == 2 && right.bytes == GROWN {
        return Ok(());
    }
    Err("a static-key site is neither unchanged nor five bytes long")
}

/// Compares the bytes except those that hold an address. Addresses become references.
fn compare_bytes(
    left: &DecodedCode,
    right: &DecodedCode,
    known: &OldKernelFacts,
    walk: &mut CodeWalk,
) -> Result<(), &'static str> {
    if left.bytes.len() != right.bytes.len() {
        return Err("another instruction");
    }
    let (a, b) = (&left.instruction, &right.instruction);
    let mut address = [None, None];
    if a.is_ip_rel_memory_operand() {
        if !b.is_ip_rel_memory_operand()
            || left.constants.displacement_offset() != right.constants.displacement_offset()
        {
            return Err("another operand");
        }
        let (old, new) = (a.ip_rel_memory_address(), b.ip_rel_memory_address());
        walk.references.push(InstructionReference {
            refers: ReferenceKind::RipRelative,
            at_old: a.ip(),
            at_new: b.ip(),
            old,
            new,
        });
        address[0] = Some((left.constants.displacement_offset(), 4));
    } else if left.constants.has_displacement() {
        let (at, size) = (left.constants.displacement_offset(), left.constants.displacement_size());
        address[0] = absolute(left, right, at, size, known, walk);
    }
    if left.constants.has_immediate() {
        let (at, size) = (left.constants.immediate_offset(), left.constants.immediate_size());
        address[1] = absolute(left, right, at, size, known, walk);
    }
    let is_address =
        |i: usize| address.iter().flatten().any(|&(at, size)| (at..at + size).contains(&i));
    let differs = (0..left.bytes.len()).any(|i| left.bytes[i] != right.bytes[i] && !is_address(i));
    if differs { Err("another instruction") } else { Ok(()) }
}

/// Adds a reference if the constant at `at` is an address. Returns the constant's place and size.
fn absolute(
    left: &DecodedCode,
    right: &DecodedCode,
    at: usize,
    size: usize,
    known: &OldKernelFacts,
    walk: &mut CodeWalk,
) -> Option<(usize, usize)> {
    let old = constant(left.bytes, at, size)?;
    let new = constant(right.bytes, at, size)?;
    let place = left.instruction.ip().wrapping_add(at as u64);
    let is_address = match known.relocs {
        Some(relocs) => relocs.width_at(place) == Some(size as u8),
        None => known.image.contains(&old),
    };
    if !is_address {
        return None;
    }
    let (at_old, at_new) = (left.instruction.ip(), right.instruction.ip());
    walk.references.push(InstructionReference {
        refers: ReferenceKind::Absolute,
        at_old,
        at_new,
        old,
        new,
    });
    Some((at, size))
}

/// A 4-byte constant with its sign extended, or an 8-byte constant.
fn constant(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(size)?)?;
    match size {
        4 => Some(i64::from(i32::from_le_bytes(field.try_into().ok()?)) as u64),
        8 => Some(u64::from_le_bytes(field.try_into().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    #[test]
    fn a_grown_static_key_has_the_bytes_that_the_kernel_expects() {
        let decoded = |bytes: &'static [u8]| {
            let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
            let instruction = decoder.decode();
            let constants = decoder.get_constant_offsets(&instruction);
            DecodedCode { instruction, bytes, constants }
        };
        let old = decoded(&[0x66, 0x90]);
        assert!(grown_no_op(&old, &decoded(&[0x0f, 0x1f, 0x44, 0x00, 0x00])).is_ok());
        // Another no-op of five bytes: the kernel would not patch it.
        assert!(grown_no_op(&old, &decoded(&[0x0f, 0x1f, 0x44, 0x00, 0x01])).is_err());
        assert!(grown_no_op(&old, &decoded(&[0x66, 0x66, 0x66, 0x66, 0x90])).is_err());
        assert!(grown_no_op(&old, &decoded(&[0x66, 0x66, 0x90])).is_err());
    }
}
