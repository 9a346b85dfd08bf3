//! Writes direct jumps and conditional branches in their two lengths.
//!
//! Input: offsets in one stretch of code. The caller chooses the length.

use anyhow::{Context, Result};

/// Appends a `jmp` of `len` bytes (2 or 5) to `target`, an offset in the same stretch.
pub(crate) fn write_jump(out: &mut Vec<u8>, target: u32, len: u8) -> Result<()> {
    let displacement = target.wrapping_sub(out.len() as u32 + u32::from(len)) as i32;
    if len == 2 {
        let short = i8::try_from(displacement).context("a short jump does not reach its target")?;
        out.extend_from_slice(&[0xeb, short as u8]);
    } else {
        out.push(0xe9);
        out.extend_from_slice(&displacement.to_le_bytes());
    }
    Ok(())
}

/// Appends a `jcc` of `len` bytes (2 or 6) with the condition code `condition`.
pub(crate) fn write_branch(out: &mut Vec<u8>, condition: u8, target: u32, len: u8) -> Result<()> {
    let displacement = target.wrapping_sub(out.len() as u32 + u32::from(len)) as i32;
    if len == 2 {
        let short =
            i8::try_from(displacement).context("a short branch does not reach its target")?;
        out.extend_from_slice(&[0x70 | condition, short as u8]);
    } else {
        out.extend_from_slice(&[0x0f, 0x80 | condition]);
        out.extend_from_slice(&displacement.to_le_bytes());
    }
    Ok(())
}

/// The condition code of a `jcc` of 2 or 6 bytes.
pub(crate) fn condition_of(branch: &[u8]) -> u8 {
    branch[if branch.len() == 2 { 0 } else { 1 }] & 0xf
}
