//! The cache lines of the code of translation blocks.
//!
//! Input: translation blocks, in the order of their numbers; for a recording with data accesses,
//! also where they lie in physical memory. Output: the lines of a block, or of its first
//! instructions. This module simulates nothing.

use crate::code::TranslatedCode;
use crate::data::DataFlow;
use crate::numbering::{FetchUnit, NumberedUnit, Numbering};
use anyhow::Result;
use std::ops::Range;
use trace::{AccessPatterns, Translation, TranslationId};

/// The lines of all translation blocks that were defined.
pub struct CodeLines {
    numbering: Numbering,
    line_bytes: u64,
    /// Translation block t lies in `lines[firsts[t]..firsts[t + 1]]`.
    firsts: Vec<u32>,
    /// Each line, with the first address that is fetched from it.
    pub lines: Vec<NumberedUnit>,
}

impl CodeLines {
    /// Lines of `line_bytes` bytes for caches of up to `sets` sets.
    pub fn new(line_bytes: u32, sets: u32) -> CodeLines {
        CodeLines {
            numbering: Numbering::new(FetchUnit::Lines(line_bytes), sets),
            line_bytes: line_bytes.into(),
            firsts: vec![0],
            lines: Vec::new(),
        }
    }

    /// Adds the next translation block.
    ///
    /// # Errors
    /// There is more code than a simulation can number.
    pub fn define(&mut self, translation: &Translation) -> Result<()> {
        let (start, bytes) = (translation.addr, translation.code.len() as u32);
        self.numbering.units(start, bytes, &mut |_| None, &mut self.lines)?;
        self.firsts.push(self.lines.len() as u32);
        Ok(())
    }

    /// Gives the lines of a block their physical addresses, and the numbers that these have. Does
    /// nothing if the block has them.
    ///
    /// # Errors
    /// There is more code than a simulation can number.
    #[inline]
    pub fn locate(
        &mut self,
        id: TranslationId,
        code: &TranslatedCode,
        flow: &DataFlow,
        patterns: &AccessPatterns,
    ) -> Result<()> {
        for line in self.of(id) {
            let NumberedUnit { id: number, addr, physical } = &mut self.lines[line];
            if physical.is_some() {
                return Ok(());
            }
            *physical = Some(flow.code(*addr, code, id, patterns));
            *number = self.numbering.number(*addr, *physical)?;
        }
        Ok(())
    }

    /// The indices of a block's lines.
    pub fn of(&self, id: TranslationId) -> Range<usize> {
        self.firsts[id.0 as usize] as usize..self.firsts[id.0 as usize + 1] as usize
    }

    /// The indices of the lines from which a block's first instructions are fetched; of all its
    /// lines where `left` is 0. `code` is the block's code.
    #[inline]
    pub fn executed(&self, id: TranslationId, code: &TranslatedCode, left: u32) -> Range<usize> {
        let all = self.of(id);
        if left == 0 { all } else { of_first_instructions(all, code, left, self.line_bytes) }
    }
}

/// Those of a block's lines from which its first `instructions` are fetched.
#[inline]
pub fn of_first_instructions(
    lines: Range<usize>,
    code: &TranslatedCode,
    instructions: u32,
    line_bytes: u64,
) -> Range<usize> {
    let bytes = code.addr.0 % line_bytes + code.bytes_of(instructions);
    lines.start..lines.end.min(lines.start + bytes.div_ceil(line_bytes) as usize)
}
