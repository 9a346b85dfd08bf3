//! The cache lines of the code of translation blocks.
//!
//! Input: translation blocks, in the order of their numbers. Output: the lines of a block, or of
//! its first instructions. This module simulates nothing.

use anyhow::Result;
use execution::code::TranslatedCode;
use execution::numbering::{FetchUnit, Numbering};
use sim::LineId;
use std::ops::Range;
use trace::{RunAddr, Translation, TranslationId};

/// The lines of all translation blocks that were defined.
pub(crate) struct CodeLines {
    numbering: Numbering,
    line_bytes: u64,
    /// Translation block t lies in `lines[firsts[t]..firsts[t + 1]]`.
    firsts: Vec<u32>,
    /// Each line, and the first address that is fetched from it.
    pub(crate) lines: Vec<(LineId, RunAddr)>,
}

impl CodeLines {
    /// Lines of `line_bytes` bytes for caches of up to `sets` sets.
    pub(crate) fn new(line_bytes: u32, sets: u32) -> CodeLines {
        CodeLines {
            numbering: Numbering::new(FetchUnit::Lines(line_bytes), sets),
            line_bytes: line_bytes.into(),
            firsts: vec![0],
            lines: Vec::new(),
        }
    }

    /// Adds the next translation block.
    pub(crate) fn define(&mut self, translation: &Translation) -> Result<()> {
        self.numbering.units(translation.addr, translation.code.len() as u32, &mut self.lines)?;
        self.firsts.push(self.lines.len() as u32);
        Ok(())
    }

    /// The indices of a block's lines.
    pub(crate) fn of(&self, id: TranslationId) -> Range<usize> {
        self.firsts[id.0 as usize] as usize..self.firsts[id.0 as usize + 1] as usize
    }

    /// The indices of the lines from which a block's first instructions are fetched; of all its
    /// lines where `left` is 0. `code` is the block's code.
    #[inline]
    pub(crate) fn executed(
        &self,
        id: TranslationId,
        code: &TranslatedCode,
        left: u32,
    ) -> Range<usize> {
        let all = self.of(id);
        if left == 0 { all } else { of_first_instructions(all, code, left, self.line_bytes) }
    }
}

/// Those of a block's lines from which its first `instructions` are fetched.
#[inline]
pub(crate) fn of_first_instructions(
    lines: Range<usize>,
    code: &TranslatedCode,
    instructions: u32,
    line_bytes: u64,
) -> Range<usize> {
    let bytes = code.addr.0 % line_bytes + code.bytes_of(instructions);
    lines.start..lines.end.min(lines.start + bytes.div_ceil(line_bytes) as usize)
}
