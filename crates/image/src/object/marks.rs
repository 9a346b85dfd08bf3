//! Marks each byte of code before it is cut: where instructions start, where branches go, what the
//! kernel patches.
//!
//! Input: the decoded code, and what the side tables say. Output: one byte of marks for every byte
//! of the section. This module cuts nothing.

use super::functions::TextFunction;
use super::instructions::{DecodedInstruction, NOWHERE};
use super::tables::{AlternativeSite, ReferenceMeaning, SideTables};
use std::collections::HashSet;

pub(super) const STARTS: u8 = 1;
pub(super) const LEADER: u8 = 2;
pub(super) const PINNED: u8 = 4;
pub(super) const IN_ALTERNATIVE: u8 = 8;
pub(super) const CONTINUES: u8 = 16;
pub(super) const STATIC_KEY: u8 = 32;
pub(super) const CUT: u8 = 64;

/// What the cutter must know in addition to the code.
pub struct CuttingFacts<'a> {
    /// The side tables.
    pub tables: &'a SideTables,
    /// The sites of the function tracer. The code in front of them is not cut.
    pub tracer_sites: &'a [u32],
    /// The offsets of calls that never return.
    pub dead_calls: &'a HashSet<u32>,
    /// The offsets at which a layout wants to cut. They take effect behind calls and static keys
    /// only.
    pub cuts: &'a [u32],
}

/// The instructions in `[from, to)`.
pub(super) fn within(code: &[DecodedInstruction], from: u32, to: u32) -> &[DecodedInstruction] {
    &code[code.partition_point(|i| i.at < from)..code.partition_point(|i| i.at < to)]
}

/// The number of the function that contains `at`.
pub(super) fn containing(functions: &[TextFunction], at: u32) -> Option<usize> {
    let index = functions.partition_point(|f| f.at <= at).checked_sub(1)?;
    (at < functions[index].end).then_some(index)
}

/// One byte of marks for every byte of the section and for its end.
pub(super) fn mark(size: u32, code: &[DecodedInstruction], facts: &CuttingFacts<'_>) -> Vec<u8> {
    let mut marks = vec![0u8; size as usize + 1];
    for i in code {
        marks[i.at as usize] |= STARTS;
        if i.target != NOWHERE && !stays_in_alternative(&facts.tables.alternatives, i) {
            marks[i.target as usize] |= LEADER;
        }
    }
    for a in &facts.tables.alternatives {
        let from = (a.at as usize).min(size as usize);
        let to = (from + usize::from(a.len)).min(size as usize);
        marks[from..to].iter_mut().for_each(|m| *m |= IN_ALTERNATIVE);
    }
    for key in &facts.tables.static_keys {
        marks[key.at as usize] |= STATIC_KEY;
    }
    for r in &facts.tables.references {
        match r.meaning {
            ReferenceMeaning::Control => marks[r.target as usize] |= LEADER,
            ReferenceMeaning::Instruction => marks[r.target as usize] |= PINNED,
            ReferenceMeaning::End => marks[r.target as usize] |= CONTINUES,
            ReferenceMeaning::Middle | ReferenceMeaning::Regenerated => {}
        }
    }
    for &at in facts.cuts.iter().filter(|&&at| at < size) {
        marks[at as usize] |= CUT;
    }
    marks
}

/// Whether a branch inside an alternative stays inside it or goes to its end.
pub(super) fn stays_in_alternative(
    alternatives: &[AlternativeSite],
    i: &DecodedInstruction,
) -> bool {
    let from = alternatives.partition_point(|a| a.at + u32::from(u8::MAX) < i.at);
    let near = alternatives[from..].iter().take_while(|a| a.at <= i.at);
    near.map(|a| (a.at, a.at + u32::from(a.len)))
        .any(|(at, end)| i.at < end && at <= i.target && i.target <= end)
}
