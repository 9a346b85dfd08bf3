//! What is known of each byte of code before it is cut: where instructions start, what aims there,
//! what the kernel patches.
//!
//! Takes the decoded code and what the side tables say; gives a byte of marks for every byte of the
//! section. Cuts nothing.

use super::functions::Function;
use super::instructions::{Instruction, NOWHERE};
use super::tables::{Alternative, Meaning, SideTables};
use std::collections::HashSet;

pub(super) const STARTS: u8 = 1;
pub(super) const LEADER: u8 = 2;
pub(super) const PINNED: u8 = 4;
pub(super) const IN_ALTERNATIVE: u8 = 8;
pub(super) const CONTINUES: u8 = 16;
pub(super) const STATIC_KEY: u8 = 32;
pub(super) const CUT: u8 = 64;

/// What must be known besides the code.
pub struct Facts<'a> {
    pub tables: &'a SideTables,
    /// Where the function tracer's sites are; the code in front of them is not cut.
    pub tracer_sites: &'a [u32],
    /// Calls (by offset) that never return.
    pub dead_calls: &'a HashSet<u32>,
    /// Offsets at which a layout wants to cut; followed behind calls and static keys, ignored
    /// elsewhere.
    pub cuts: &'a [u32],
}

/// The instructions of a stretch.
pub(super) fn within(code: &[Instruction], from: u32, to: u32) -> &[Instruction] {
    &code[code.partition_point(|i| i.at < from)..code.partition_point(|i| i.at < to)]
}

pub(super) fn containing(functions: &[Function], at: u32) -> Option<usize> {
    let index = functions.partition_point(|f| f.at <= at).checked_sub(1)?;
    (at < functions[index].end).then_some(index)
}

/// A byte of marks for every byte of the section (and one for its end).
pub(super) fn mark(size: u32, code: &[Instruction], facts: &Facts<'_>) -> Vec<u8> {
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
            Meaning::Control => marks[r.target as usize] |= LEADER,
            Meaning::Instruction => marks[r.target as usize] |= PINNED,
            Meaning::End => marks[r.target as usize] |= CONTINUES,
            Meaning::Middle | Meaning::Regenerated => {}
        }
    }
    for &at in facts.cuts.iter().filter(|&&at| at < size) {
        marks[at as usize] |= CUT;
    }
    marks
}

/// Whether a branch goes no farther than the end of the alternative that it is part of.
pub(super) fn stays_in_alternative(alternatives: &[Alternative], i: &Instruction) -> bool {
    let from = alternatives.partition_point(|a| a.at + u32::from(u8::MAX) < i.at);
    let near = alternatives[from..].iter().take_while(|a| a.at <= i.at);
    near.map(|a| (a.at, a.at + u32::from(a.len)))
        .any(|(at, end)| i.at < end && at <= i.target && i.target <= end)
}
