//! Finds the functions that stay whole, and joins functions that cannot be separated.
//!
//! Input: code, functions, side tables and their `marks`. Output: the functions, with the reason
//! for each that is not cut. This module cuts nothing.

use super::functions::{TextFunction, WholeReason};
use super::instructions::{DecodedInstruction, InstructionKind, NOWHERE};
use super::marks::{
    CuttingFacts, IN_ALTERNATIVE, STARTS, containing, stays_in_alternative, within,
};
use super::tables::{AlternativeSite, ReferenceMeaning};

/// Finds the functions that must stay whole.
pub(super) fn find(
    code: &[DecodedInstruction],
    functions: &mut [TextFunction],
    facts: &CuttingFacts<'_>,
    marks: &[u8],
) {
    let starts = |at: u32| marks.get(at as usize).is_some_and(|mark| mark & STARTS != 0);
    let mut found: Vec<(u32, WholeReason)> = Vec::new();
    for i in code {
        match i.kind {
            InstructionKind::Invalid => found.push((i.at, WholeReason::Undecodable)),
            InstructionKind::Emulated => found.push((i.at, WholeReason::Emulated)),
            InstructionKind::OddBranch => found.push((i.at, WholeReason::OddBranch)),
            InstructionKind::Jump | InstructionKind::Branch
                if i.target != NOWHERE && !i.is_plain_branch() =>
            {
                found.push((i.at, WholeReason::OddBranch))
            }
            _ => {}
        }
        if i.target != NOWHERE && !starts(i.target) {
            found.push((i.target, WholeReason::MiddleTarget));
        }
        if i.target != NOWHERE
            && marks[i.target as usize] & IN_ALTERNATIVE != 0
            && enters_alternative(&facts.tables.alternatives, i.target, Some(i.at))
        {
            found.push((i.target, WholeReason::AlternativeTarget));
        }
        if marks[i.at as usize] & IN_ALTERNATIVE != 0
            && i.target != NOWHERE
            && i.end() - i.at - u32::from(i.field) == 1
            && !stays_in_alternative(&facts.tables.alternatives, i)
        {
            found.push((i.at, WholeReason::ShortBranchInAlternative));
        }
    }
    for a in &facts.tables.alternatives {
        let end = a.at + u32::from(a.len);
        let whole_instructions =
            starts(a.at) && (starts(end) || functions.iter().any(|f| f.end == end));
        if !whole_instructions {
            found.push((a.at, WholeReason::OddTableEntry));
        }
    }
    for key in &facts.tables.static_keys {
        let site = within(code, key.at, key.at + 1).first();
        let sound = site.is_some_and(|i| {
            matches!(i.kind, InstructionKind::Nop | InstructionKind::Jump)
                && matches!(i.len, 2 | 5)
                && !i.linked
        });
        if !sound {
            found.push((key.at, WholeReason::OddTableEntry));
        }
    }
    for &at in &facts.tables.far_keys {
        // A jump into another section has five bytes. Behind a no-op control goes on.
        let site = within(code, at, at + 1).first();
        if !site.is_some_and(|i| i.kind == InstructionKind::Nop && i.len == 5) {
            found.push((at, WholeReason::OddTableEntry));
        }
    }
    for r in &facts.tables.references {
        match r.meaning {
            ReferenceMeaning::Control if !starts(r.target) => {
                found.push((r.target, WholeReason::MiddleTarget))
            }
            ReferenceMeaning::Control
                if enters_alternative(&facts.tables.alternatives, r.target, None) =>
            {
                found.push((r.target, WholeReason::AlternativeTarget));
            }
            ReferenceMeaning::Instruction if !starts(r.target) => {
                found.push((r.target, WholeReason::OddTableEntry))
            }
            _ => {}
        }
    }
    for (at, reason) in found {
        if let Some(index) = containing(functions, at) {
            functions[index].whole.get_or_insert(reason);
        }
    }
}

/// Whether `at` lies inside an alternative, behind its first byte, that does not contain `from`.
fn enters_alternative(alternatives: &[AlternativeSite], at: u32, from: Option<u32>) -> bool {
    let behind = alternatives.partition_point(|a| a.at < at);
    let inside = |a: &AlternativeSite, at: u32| a.at <= at && at < a.at + u32::from(a.len);
    alternatives[..behind]
        .iter()
        .rev()
        .take_while(|a| a.at + 255 > at)
        .any(|a| inside(a, at) && !from.is_some_and(|f| inside(a, f)))
}

/// Joins functions that cannot be separated, until no more need joining.
pub(super) fn join(
    code: &[DecodedInstruction],
    mut functions: Vec<TextFunction>,
    facts: &CuttingFacts<'_>,
    marks: &[u8],
) -> Vec<TextFunction> {
    loop {
        let mut joints: Vec<Joint> = (0..functions.len())
            .flat_map(|index| joints_of(index, code, &functions, facts, marks))
            .collect();
        if joints.is_empty() {
            return functions;
        }
        joints.sort_unstable();
        functions = joined(&functions, &joints);
    }
}

/// The first and the last of the functions that become one, and the reason.
type Joint = (usize, usize, WholeReason);

/// The functions from which a function cannot be separated. A whole function stays with the targets
/// of its short branches and static keys. A function that falls through stays with the next one.
fn joints_of(
    index: usize,
    code: &[DecodedInstruction],
    functions: &[TextFunction],
    facts: &CuttingFacts<'_>,
    marks: &[u8],
) -> Vec<Joint> {
    let f = &functions[index];
    let body = within(code, f.at, f.end);
    let mut joints = Vec::new();
    let mut join = |target: u32, reason: WholeReason| {
        if let Some(other) = containing(functions, target).filter(|&other| other != index) {
            joints.push((index.min(other), index.max(other), reason));
        }
    };
    if let Some(reason) = f.whole {
        let is_short = |i: &&DecodedInstruction| {
            i.target != NOWHERE && i.end() - i.at - u32::from(i.field) == 1
        };
        body.iter().filter(is_short).for_each(|i| join(i.target, reason));
        let keys = facts.tables.static_keys.iter().filter(|k| f.at <= k.at && k.at < f.end);
        keys.for_each(|key| join(key.target, WholeReason::OddTableEntry));
    }
    if runs_on(body, code, f.end, marks) && index + 1 < functions.len() {
        joints.push((index, index + 1, WholeReason::RunsOn));
    }
    joints
}

/// The functions after each of the ascending `joints` made one function of several.
fn joined(functions: &[TextFunction], joints: &[Joint]) -> Vec<TextFunction> {
    let mut all: Vec<TextFunction> = Vec::with_capacity(functions.len());
    let mut joints = joints.iter().peekable();
    let mut index = 0;
    while index < functions.len() {
        let mut whole = functions[index].clone();
        let mut last = index;
        while let Some(&&(_, to, reason)) = joints.peek().filter(|&&&(from, _, _)| from <= last) {
            last = last.max(to);
            whole.whole.get_or_insert(reason);
            joints.next();
        }
        whole.end = functions[last].end;
        all.push(whole);
        index = last + 1;
    }
    all
}

/// Whether control can leave a function over its end. A call at the end counts as one that does not
/// return: compilers put no other call there.
fn runs_on(
    body: &[DecodedInstruction],
    code: &[DecodedInstruction],
    end: u32,
    marks: &[u8],
) -> bool {
    let Some(last) = body.last() else { return false };
    let passes = match last.kind {
        InstructionKind::Plain | InstructionKind::Branch | InstructionKind::OddBranch => true,
        InstructionKind::Nop => body
            .iter()
            .rev()
            .find(|i| i.kind != InstructionKind::Nop)
            .is_none_or(|i| matches!(i.kind, InstructionKind::Plain | InstructionKind::Branch)),
        _ => false,
    };
    let next = within(code, end, end + 1).first();
    passes
        && marks[last.at as usize] & IN_ALTERNATIVE == 0
        && next.is_none_or(|i| i.kind != InstructionKind::Int3)
}
