//! Code cut into pieces that can be moved.
//!
//! Takes the decoded code, its functions and what the side tables say; gives pieces (blocks, or
//! whole stretches where something is not understood) and, inside them, the sites whose bytes
//! depend on where things are. Cutting is conservative: a cut that is not needed costs a jump, one
//! that is missed would cost the kernel. Never places anything.

use super::functions::Function;
use super::instructions::{Instruction, Kind, NOWHERE};
pub use super::marks::Facts;
use super::marks::{
    CONTINUES, CUT, IN_ALTERNATIVE, LEADER, PINNED, STARTS, STATIC_KEY, containing, mark, within,
};
use super::whole;

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
    /// Bytes in front of the lead that are its function's padding, but need not move: part of the
    /// gap of the piece before.
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
    /// A no-op or a jump that a static key patches. The kernel patches by the site's length, so a
    /// short one grows when its target is far.
    StaticKey { jumps: bool },
}

/// The pieces and sites of a section, both ascending.
#[derive(Debug, Default)]
pub struct Cut {
    pub functions: Vec<Function>,
    pub pieces: Vec<Piece>,
    pub sites: Vec<Site>,
}

/// Cuts a section of `size` bytes into pieces.
pub fn cut(
    size: u32,
    code: &[Instruction],
    mut functions: Vec<Function>,
    facts: &Facts<'_>,
) -> Cut {
    let mut marks = mark(size, code, facts);
    whole::find(code, &mut functions, facts, &marks);
    functions = whole::join(code, functions, facts, &marks);
    refuse_cuts_before_tracers(&functions, facts, &mut marks);
    let mut result = Cut { functions, ..Cut::default() };
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

/// The code from a function's entry to its tracer site stays in one piece, so that its symbol
/// contains the site.
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
fn cut_function(
    code: &[Instruction],
    index: usize,
    marks: &[u8],
    facts: &Facts<'_>,
    result: &mut Cut,
) {
    let function = result.functions[index].clone();
    let cutter = Cutter {
        body: within(code, function.at, function.end),
        function,
        index: index as u32,
        marks,
        facts,
    };
    let mut from = cutter.function.at;
    let mut k = 0;
    while let Some(i) = cutter.body.get(k) {
        cutter.push_site(i, &mut result.sites);
        let last = k + 1 == cutter.body.len();
        k += 1;
        let end = match leaves(i, cutter.mark(i.at), cutter.mark(i.end()), last, facts) {
            None if last || !cutter.may_cut_behind(i) => continue,
            None => {
                result.pieces.push(cutter.piece(from, i.end(), Exit::Runs, 0, false));
                i.end()
            }
            Some((exit, tail)) => {
                // The int3 against straight-line speculation belongs to what it guards.
                let guard = cutter.guard(k).filter(|_| exit == Exit::Stop);
                k += usize::from(guard.is_some());
                let to = guard.unwrap_or(i).end();
                let pinned = cutter.mark(i.at) & PINNED != 0;
                result.pieces.push(cutter.piece(from, to, exit, tail, pinned));
                if !matches!(exit, Exit::Branch(_)) {
                    k += cutter.padding(k);
                }
                cutter.body.get(k).map_or(cutter.function.end, |next| next.at)
            }
        };
        from = end;
    }
    if from < cutter.function.end {
        result.pieces.push(cutter.piece(from, cutter.function.end, Exit::Stop, 0, false));
    }
}

/// A function that is being cut.
struct Cutter<'a> {
    function: Function,
    index: u32,
    body: &'a [Instruction],
    marks: &'a [u8],
    facts: &'a Facts<'a>,
}

impl Cutter<'_> {
    fn mark(&self, at: u32) -> u8 {
        self.marks[at as usize]
    }

    fn piece(&self, from: u32, to: u32, exit: Exit, tail: u8, pinned: bool) -> Piece {
        let entry = from == self.function.at;
        Piece {
            at: from,
            size: to - from,
            lead: if entry { self.function.lead } else { 0 },
            spare: if entry { self.function.spare } else { 0 },
            gap: 0,
            function: self.index,
            entry,
            align: if entry { 1 << from.trailing_zeros().min(4) } else { 1 },
            residue: 0,
            exit,
            tail,
            pinned,
        }
    }

    /// The site of an instruction that has one.
    fn push_site(&self, i: &Instruction, sites: &mut Vec<Site>) {
        let mark = self.mark(i.at);
        if mark & STATIC_KEY != 0 {
            sites.push(Site {
                at: i.at,
                len: i.len,
                target: static_key_target(self.facts, i.at),
                kind: SiteKind::StaticKey { jumps: i.kind == Kind::Jump },
            });
        } else if !i.is_plain_branch() || mark & IN_ALTERNATIVE != 0 {
            push_displacement(i, sites);
        }
    }

    /// Whether a piece may end behind an instruction that runs on: something aims there, or the
    /// layout asks for it.
    fn may_cut_behind(&self, i: &Instruction) -> bool {
        let (mark, next) = (self.mark(i.at), self.mark(i.end()));
        let opaque = mark & IN_ALTERNATIVE != 0;
        let asked = next & CUT != 0 && (i.kind == Kind::Call || mark & STATIC_KEY != 0) && !opaque;
        let inside_alternative =
            opaque && next & IN_ALTERNATIVE != 0 && !starts_alternative(self.facts, i.end());
        (next & LEADER != 0 || asked) && !inside_alternative
    }

    /// The int3 at `k` that nothing else refers to.
    fn guard(&self, k: usize) -> Option<&Instruction> {
        let is_guard =
            |i: &&Instruction| i.kind == Kind::Int3 && self.mark(i.at) & (LEADER | PINNED) == 0;
        self.body.get(k).filter(is_guard)
    }

    /// How many instructions from `k` on are padding that nothing reaches, which is no code.
    fn padding(&self, k: usize) -> usize {
        let is_padding =
            |i: &&Instruction| i.is_padding() && self.mark(i.at) & !(STARTS | CUT) == 0;
        self.body[k..].iter().take_while(is_padding).count()
    }
}

fn starts_alternative(facts: &Facts<'_>, at: u32) -> bool {
    facts.tables.alternatives.binary_search_by_key(&at, |a| a.at).is_ok()
}

fn static_key_target(facts: &Facts<'_>, at: u32) -> u32 {
    let keys = &facts.tables.static_keys;
    keys[keys.partition_point(|k| k.at < at)].target
}

/// Whether an instruction ends its piece, how, and the bytes of its branch that can be written
/// anew.
fn leaves(
    i: &Instruction,
    mark: u8,
    next_mark: u8,
    last: bool,
    facts: &Facts<'_>,
) -> Option<(Exit, u8)> {
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
