//! Which functions stay whole, and which are joined because they cannot be parted.
//!
//! Takes code, functions, side tables and their `marks`; gives the functions with the reason for
//! each that is not cut. Cuts nothing.

use super::functions::{Function, Whole};
use super::instructions::{Instruction, Kind, NOWHERE};
use super::marks::{Facts, IN_ALTERNATIVE, STARTS, containing, stays_in_alternative, within};
use super::tables::{Alternative, Meaning};

/// Finds the functions that must stay whole.
pub(super) fn find(
    code: &[Instruction],
    functions: &mut [Function],
    facts: &Facts<'_>,
    marks: &[u8],
) {
    let starts = |at: u32| marks.get(at as usize).is_some_and(|mark| mark & STARTS != 0);
    let mut found: Vec<(u32, Whole)> = Vec::new();
    for i in code {
        match i.kind {
            Kind::Invalid => found.push((i.at, Whole::Undecodable)),
            Kind::OddBranch => found.push((i.at, Whole::OddBranch)),
            Kind::Jump | Kind::Branch if i.target != NOWHERE && !i.is_plain_branch() => {
                found.push((i.at, Whole::OddBranch))
            }
            _ => {}
        }
        if i.target != NOWHERE && !starts(i.target) {
            found.push((i.target, Whole::MiddleTarget));
        }
        if i.target != NOWHERE
            && marks[i.target as usize] & IN_ALTERNATIVE != 0
            && enters_alternative(&facts.tables.alternatives, i.target, Some(i.at))
        {
            found.push((i.target, Whole::AlternativeTarget));
        }
        if marks[i.at as usize] & IN_ALTERNATIVE != 0
            && i.target != NOWHERE
            && i.end() - i.at - u32::from(i.field) == 1
            && !stays_in_alternative(&facts.tables.alternatives, i)
        {
            found.push((i.at, Whole::ShortBranchInAlternative));
        }
    }
    for a in &facts.tables.alternatives {
        let end = a.at + u32::from(a.len);
        let whole_instructions =
            starts(a.at) && (starts(end) || functions.iter().any(|f| f.end == end));
        if !whole_instructions {
            found.push((a.at, Whole::OddTableEntry));
        }
    }
    for key in &facts.tables.static_keys {
        let site = within(code, key.at, key.at + 1).first();
        let sound = site.is_some_and(|i| {
            matches!(i.kind, Kind::Nop | Kind::Jump) && matches!(i.len, 2 | 5) && !i.linked
        });
        if !sound {
            found.push((key.at, Whole::OddTableEntry));
        }
    }
    for r in &facts.tables.references {
        match r.meaning {
            Meaning::Control if !starts(r.target) => found.push((r.target, Whole::MiddleTarget)),
            Meaning::Control if enters_alternative(&facts.tables.alternatives, r.target, None) => {
                found.push((r.target, Whole::AlternativeTarget));
            }
            Meaning::Instruction if !starts(r.target) => {
                found.push((r.target, Whole::OddTableEntry))
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

/// Whether `at` lies inside an alternative, behind its first byte, that does not also contain
/// `from`.
fn enters_alternative(alternatives: &[Alternative], at: u32, from: Option<u32>) -> bool {
    let behind = alternatives.partition_point(|a| a.at < at);
    let inside = |a: &Alternative, at: u32| a.at <= at && at < a.at + u32::from(a.len);
    alternatives[..behind]
        .iter()
        .rev()
        .take_while(|a| a.at + 255 > at)
        .any(|a| inside(a, at) && !from.is_some_and(|f| inside(a, f)))
}

/// Joins functions that cannot be parted, and those that come to be so by it.
pub(super) fn join(
    code: &[Instruction],
    mut functions: Vec<Function>,
    facts: &Facts<'_>,
    marks: &[u8],
) -> Vec<Function> {
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

/// The first and the last of the functions that become one, and why.
type Joint = (usize, usize, Whole);

/// What a function cannot be parted from: a whole one from the other end of its short branches and
/// static keys; one that runs on from the next.
fn joints_of(
    index: usize,
    code: &[Instruction],
    functions: &[Function],
    facts: &Facts<'_>,
    marks: &[u8],
) -> Vec<Joint> {
    let f = &functions[index];
    let body = within(code, f.at, f.end);
    let mut joints = Vec::new();
    let mut join = |target: u32, reason: Whole| {
        if let Some(other) = containing(functions, target).filter(|&other| other != index) {
            joints.push((index.min(other), index.max(other), reason));
        }
    };
    if let Some(reason) = f.whole {
        let is_short =
            |i: &&Instruction| i.target != NOWHERE && i.end() - i.at - u32::from(i.field) == 1;
        body.iter().filter(is_short).for_each(|i| join(i.target, reason));
        let keys = facts.tables.static_keys.iter().filter(|k| f.at <= k.at && k.at < f.end);
        keys.for_each(|key| join(key.target, Whole::OddTableEntry));
    }
    if runs_on(body, code, f.end, marks) && index + 1 < functions.len() {
        joints.push((index, index + 1, Whole::RunsOn));
    }
    joints
}

/// The functions with those of each of the ascending `joints` made one.
fn joined(functions: &[Function], joints: &[Joint]) -> Vec<Function> {
    let mut all: Vec<Function> = Vec::with_capacity(functions.len());
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

/// Whether control can leave a function over its end. A call there does not return: no compiler
/// puts one there otherwise.
fn runs_on(body: &[Instruction], code: &[Instruction], end: u32, marks: &[u8]) -> bool {
    let Some(last) = body.last() else { return false };
    let passes = match last.kind {
        Kind::Plain | Kind::Branch | Kind::OddBranch => true,
        Kind::Nop => body
            .iter()
            .rev()
            .find(|i| i.kind != Kind::Nop)
            .is_none_or(|i| matches!(i.kind, Kind::Plain | Kind::Branch)),
        _ => false,
    };
    let next = within(code, end, end + 1).first();
    passes
        && marks[last.at as usize] & IN_ALTERNATIVE == 0
        && next.is_none_or(|i| i.kind != Kind::Int3)
}
