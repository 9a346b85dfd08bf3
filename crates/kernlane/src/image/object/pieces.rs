//! Code cut into pieces that can be moved.
//!
//! Takes the decoded code, its functions and what the side tables say; gives pieces (blocks, or whole stretches where something is not
//! understood) and, inside them, the sites whose bytes depend on where things are. Cutting is conservative: a cut that is not needed
//! costs a jump, one that is missed would cost the kernel. Never places anything.

use super::functions::{Function, Whole};
use super::instructions::{Instruction, Kind, NOWHERE};
use super::tables::{Alternative, Meaning, SideTables};
use std::collections::HashSet;

/// How control leaves a piece at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It does not, or by an instruction that a relocation aims.
    Stop,
    /// Runs on into the next piece.
    Runs,
    /// A direct jump to this offset.
    Jump(u32),
    /// A conditional jump to this offset, else into the next piece.
    Branch(u32),
}

/// Code that is moved in one go.
#[derive(Clone, Debug)]
pub struct Piece {
    pub at: u32,
    /// Bytes of code, its last branch included; without `lead` and `gap`.
    pub size: u32,
    /// Bytes in front of `at` that move with it.
    pub lead: u32,
    /// Bytes in front of the lead that are its function's padding, but need not move: part of the gap of the piece before.
    pub spare: u32,
    /// Padding between this piece and the next one's lead.
    pub gap: u32,
    /// Index into the functions.
    pub function: u32,
    /// The first piece of its function.
    pub entry: bool,
    /// Its address modulo this power of two must be `residue`.
    pub align: u32,
    pub residue: u32,
    pub exit: Exit,
    /// Bytes of the branch at the end that belongs to `exit`; 0 for none.
    pub tail: u8,
    /// A side table names that branch: it may be aimed anew, not dropped or inverted.
    pub pinned: bool,
}

impl Piece {
    pub fn end(&self) -> u32 {
        self.at + self.size
    }
}

/// A place inside a piece whose bytes depend on where its target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    pub at: u32,
    pub len: u8,
    pub target: u32,
    pub kind: SiteKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteKind {
    /// A 32-bit displacement from the instruction's end, this far into the instruction.
    Displacement(u8),
    /// A no-op or a jump that a static key patches. The kernel patches by the site's length, so a short one grows when its target is far.
    StaticKey { jumps: bool },
}

/// The pieces and sites of a section, both ascending.
#[derive(Debug, Default)]
pub struct Cut {
    pub functions: Vec<Function>,
    pub pieces: Vec<Piece>,
    pub sites: Vec<Site>,
}

const STARTS: u8 = 1;
const LEADER: u8 = 2;
const PINNED: u8 = 4;
const IN_ALTERNATIVE: u8 = 8;
const CONTINUES: u8 = 16;
const STATIC_KEY: u8 = 32;
const CUT: u8 = 64;

/// What must be known besides the code.
pub struct Facts<'a> {
    pub tables: &'a SideTables,
    /// Where the function tracer's sites are; the code in front of them is not cut.
    pub tracer_sites: &'a [u32],
    /// Calls (by offset) that never return.
    pub dead_calls: &'a HashSet<u32>,
    /// Offsets at which a layout wants to cut; followed behind calls and static keys, ignored elsewhere.
    pub cuts: &'a [u32],
}

/// Cuts a section of `size` bytes into pieces.
pub fn cut(size: u32, code: &[Instruction], mut functions: Vec<Function>, facts: &Facts<'_>) -> Cut {
    let mut marks = mark(size, code, facts);
    find_whole(code, &mut functions, facts, &marks);
    functions = join(code, functions, facts, &marks);
    refuse_cuts_before_tracers(&functions, facts, &mut marks);
    let mut result = Cut {
        functions,
        ..Cut::default()
    };
    for index in 0..result.functions.len() {
        if result.functions[index].whole.is_some() {
            keep_whole(code, index, &mut result);
        } else {
            cut_function(code, index, &marks, facts, &mut result);
        }
    }
    for i in 0..result.pieces.len() {
        let next = result.pieces.get(i + 1).map_or(size, |n| n.at - n.lead);
        let piece = &mut result.pieces[i];
        piece.gap = next - piece.end();
    }
    result
}

/// The instructions of a stretch.
fn within(code: &[Instruction], from: u32, to: u32) -> &[Instruction] {
    &code[code.partition_point(|i| i.at < from)..code.partition_point(|i| i.at < to)]
}

fn containing(functions: &[Function], at: u32) -> Option<usize> {
    let index = functions.partition_point(|f| f.at <= at).checked_sub(1)?;
    (at < functions[index].end).then_some(index)
}

/// A byte of marks for every byte of the section (and one for its end).
fn mark(size: u32, code: &[Instruction], facts: &Facts<'_>) -> Vec<u8> {
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

/// Finds the functions that must stay whole.
fn find_whole(code: &[Instruction], functions: &mut [Function], facts: &Facts<'_>, marks: &[u8]) {
    let starts = |at: u32| marks[at as usize] & STARTS != 0;
    let mut found: Vec<(u32, Whole)> = Vec::new();
    for i in code {
        match i.kind {
            Kind::Invalid => found.push((i.at, Whole::Undecodable)),
            Kind::OddBranch => found.push((i.at, Whole::OddBranch)),
            Kind::Jump | Kind::Branch if i.target != NOWHERE && !i.is_plain_branch() => found.push((i.at, Whole::OddBranch)),
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
        let whole_instructions = starts(a.at) && (starts(end) || functions.iter().any(|f| f.end == end));
        if !whole_instructions {
            found.push((a.at, Whole::OddTableEntry));
        }
    }
    for key in &facts.tables.static_keys {
        let site = within(code, key.at, key.at + 1).first();
        let sound = site.is_some_and(|i| matches!(i.kind, Kind::Nop | Kind::Jump) && matches!(i.len, 2 | 5) && !i.linked);
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
            Meaning::Instruction if !starts(r.target) => found.push((r.target, Whole::OddTableEntry)),
            _ => {}
        }
    }
    for (at, reason) in found {
        if let Some(index) = containing(functions, at) {
            functions[index].whole.get_or_insert(reason);
        }
    }
}

/// Whether a branch goes no farther than the end of the alternative that it is part of.
fn stays_in_alternative(alternatives: &[Alternative], i: &Instruction) -> bool {
    let from = alternatives.partition_point(|a| a.at + u32::from(u8::MAX) < i.at);
    let near = alternatives[from..].iter().take_while(|a| a.at <= i.at);
    near.map(|a| (a.at, a.at + u32::from(a.len)))
        .any(|(at, end)| i.at < end && at <= i.target && i.target <= end)
}

/// Whether `at` lies inside an alternative, behind its first byte, that does not also contain `from`.
fn enters_alternative(alternatives: &[Alternative], at: u32, from: Option<u32>) -> bool {
    let behind = alternatives.partition_point(|a| a.at < at);
    let inside = |a: &Alternative, at: u32| a.at <= at && at < a.at + u32::from(a.len);
    alternatives[..behind]
        .iter()
        .rev()
        .take_while(|a| a.at + 255 > at)
        .any(|a| inside(a, at) && !from.is_some_and(|f| inside(a, f)))
}

/// Joins functions that cannot be parted: a whole one with a short branch to another; one that runs on into the next.
fn join(code: &[Instruction], mut functions: Vec<Function>, facts: &Facts<'_>, marks: &[u8]) -> Vec<Function> {
    loop {
        let mut spans: Vec<(usize, usize, Whole)> = Vec::new();
        for (index, f) in functions.iter().enumerate() {
            let body = within(code, f.at, f.end);
            if let Some(reason) = f.whole {
                for i in body
                    .iter()
                    .filter(|i| i.target != NOWHERE && i.end() - i.at - u32::from(i.field) == 1)
                {
                    if (i.target < f.at || i.target >= f.end)
                        && let Some(other) = containing(&functions, i.target)
                    {
                        spans.push((index.min(other), index.max(other), reason));
                    }
                }
            }
            for key in facts
                .tables
                .static_keys
                .iter()
                .filter(|k| f.whole.is_some() && f.at <= k.at && k.at < f.end)
            {
                if let Some(other) = containing(&functions, key.target).filter(|&other| other != index) {
                    spans.push((index.min(other), index.max(other), Whole::OddTableEntry));
                }
            }
            if runs_on(body, code, f.end, marks) && index + 1 < functions.len() {
                spans.push((index, index + 1, Whole::RunsOn));
            }
        }
        if spans.is_empty() {
            return functions;
        }
        spans.sort_unstable();
        let mut joined: Vec<Function> = Vec::with_capacity(functions.len());
        let mut spans = spans.into_iter().peekable();
        let mut index = 0;
        while index < functions.len() {
            let mut whole = functions[index].clone();
            let mut last = index;
            while let Some(&(_, to, reason)) = spans.peek().filter(|&&(from, _, _)| from <= last) {
                last = last.max(to);
                whole.whole.get_or_insert(reason);
                spans.next();
            }
            whole.end = functions[last].end;
            joined.push(whole);
            index = last + 1;
        }
        functions = joined;
    }
}

/// Whether control can leave a function over its end. A call there does not return: no compiler puts one there otherwise.
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
    passes && marks[last.at as usize] & IN_ALTERNATIVE == 0 && next.is_none_or(|i| i.kind != Kind::Int3)
}

/// The code from a function's entry to its tracer site stays in one piece, so that its symbol contains the site.
fn refuse_cuts_before_tracers(functions: &[Function], facts: &Facts<'_>, marks: &mut [u8]) {
    for &site in facts.tracer_sites {
        if let Some(index) = containing(functions, site) {
            let f = &functions[index];
            let to = (site + 6).min(f.end);
            marks[f.at as usize..to as usize].iter_mut().for_each(|m| *m &= !CUT);
        }
    }
}

/// One piece for the whole function, its displacements as sites.
fn keep_whole(code: &[Instruction], index: usize, result: &mut Cut) {
    let f = &result.functions[index];
    let body = within(code, f.at, f.end);
    for i in body {
        push_displacement(i, &mut result.sites);
    }
    let align = if f.at.is_multiple_of(4096) { 4096 } else { 64 };
    result.pieces.push(Piece {
        at: f.at,
        size: f.end - f.at,
        lead: f.lead,
        spare: f.spare,
        gap: 0,
        function: index as u32,
        entry: true,
        align,
        residue: f.at % align,
        exit: Exit::Stop,
        tail: 0,
        pinned: true,
    });
}

/// A site for an instruction whose displacement the assembler resolved, unless it is short.
fn push_displacement(i: &Instruction, sites: &mut Vec<Site>) {
    if i.target == NOWHERE || i.linked || i.field == 0 {
        return;
    }
    let is_branch = matches!(i.kind, Kind::Jump | Kind::Branch | Kind::Call | Kind::OddBranch);
    if is_branch && i.end() - i.at - u32::from(i.field) != 4 {
        return;
    }
    sites.push(Site {
        at: i.at,
        len: i.len,
        target: i.target,
        kind: SiteKind::Displacement(i.field),
    });
}

/// Blocks of a function that is understood.
fn cut_function(code: &[Instruction], index: usize, marks: &[u8], facts: &Facts<'_>, result: &mut Cut) {
    let f = &result.functions[index];
    let (at, end, lead, spare) = (f.at, f.end, f.lead, f.spare);
    let body = within(code, at, end);
    let align = 1u32 << at.trailing_zeros().min(4);
    let mut from = at;
    let push = |result: &mut Cut, from: u32, to: u32, exit: Exit, tail: u8, pinned: bool| {
        let entry = from == at;
        result.pieces.push(Piece {
            at: from,
            size: to - from,
            lead: if entry { lead } else { 0 },
            spare: if entry { spare } else { 0 },
            gap: 0,
            function: index as u32,
            entry,
            align: if entry { align } else { 1 },
            residue: 0,
            exit,
            tail,
            pinned,
        });
    };
    let mut k = 0;
    while k < body.len() {
        let i = &body[k];
        let mark = marks[i.at as usize];
        let opaque = mark & IN_ALTERNATIVE != 0;
        if mark & STATIC_KEY != 0 {
            let target = static_key_target(facts, i.at);
            result.sites.push(Site {
                at: i.at,
                len: i.len,
                target,
                kind: SiteKind::StaticKey {
                    jumps: i.kind == Kind::Jump,
                },
            });
        } else if !i.is_plain_branch() || opaque {
            push_displacement(i, &mut result.sites);
        }
        let next_mark = marks[i.end() as usize];
        let last = k + 1 == body.len();
        let ends = leaves(i, mark, next_mark, last, facts);
        k += 1;
        let Some((exit, tail)) = ends else {
            let may_cut = next_mark & LEADER != 0 || (next_mark & CUT != 0 && (i.kind == Kind::Call || mark & STATIC_KEY != 0) && !opaque);
            let inside_alternative = opaque && next_mark & IN_ALTERNATIVE != 0 && !starts_alternative(facts, i.end());
            if may_cut && !last && !inside_alternative {
                push(result, from, i.end(), Exit::Runs, 0, false);
                from = i.end();
            }
            continue;
        };
        let mut to = i.end();
        if exit == Exit::Stop {
            // The int3 against straight-line speculation belongs to what it guards.
            if let Some(guard) = body
                .get(k)
                .filter(|g| g.kind == Kind::Int3 && marks[g.at as usize] & (LEADER | PINNED) == 0)
            {
                to = guard.end();
                k += 1;
            }
        }
        push(result, from, to, exit, tail, mark & PINNED != 0);
        if !matches!(exit, Exit::Branch(_)) {
            // Padding that nothing reaches is no code.
            while body
                .get(k)
                .is_some_and(|p| p.is_padding() && marks[p.at as usize] & !(STARTS | CUT) == 0)
            {
                k += 1;
            }
        }
        from = body.get(k).map_or(end, |n| n.at);
    }
    if from < end {
        push(result, from, end, Exit::Stop, 0, false);
    }
}

fn starts_alternative(facts: &Facts<'_>, at: u32) -> bool {
    facts.tables.alternatives.binary_search_by_key(&at, |a| a.at).is_ok()
}

fn static_key_target(facts: &Facts<'_>, at: u32) -> u32 {
    let keys = &facts.tables.static_keys;
    keys[keys.partition_point(|k| k.at < at)].target
}

/// Whether an instruction ends its piece, how, and the bytes of its branch that can be written anew.
fn leaves(i: &Instruction, mark: u8, next_mark: u8, last: bool, facts: &Facts<'_>) -> Option<(Exit, u8)> {
    if mark & (IN_ALTERNATIVE | STATIC_KEY) != 0 {
        // Patched at run time: what it does now says little, and it may always run on.
        return last.then_some((Exit::Stop, 0));
    }
    match i.kind {
        Kind::Jump if i.is_plain_branch() => Some((Exit::Jump(i.target), i.len)),
        Kind::Branch if i.is_plain_branch() => Some((Exit::Branch(i.target), i.len)),
        Kind::Jump | Kind::Stop => Some((Exit::Stop, 0)),
        Kind::Call if last || facts.dead_calls.contains(&i.at) => Some((Exit::Stop, 0)),
        Kind::Trap if last => Some((Exit::Stop, 0)),
        Kind::Trap if facts.tables.warnings.contains(&i.at) || next_mark & CONTINUES != 0 => None,
        Kind::Trap if mark & PINNED != 0 => Some((Exit::Stop, 0)),
        _ if last => Some((Exit::Stop, 0)),
        _ => None,
    }
}
