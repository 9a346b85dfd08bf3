//! Cuts code into pieces that can be moved.
//!
//! Input: the decoded code, its functions, and what the side tables say. Output: pieces, and the
//! sites inside them whose bytes depend on where things lie. A piece is a block, or a whole stretch
//! if something in it is not understood. A needless piece boundary costs a jump; a boundary in the
//! wrong place would break the kernel. In doubt this module does not cut. It never places anything.

use super::functions::TextFunction;
use super::instructions::{DecodedInstruction, InstructionKind, NOWHERE};
pub use super::marks::CuttingFacts;
use super::marks::{
    CONTINUES, CUT, IN_ALTERNATIVE, LEADER, PINNED, STARTS, STATIC_KEY, containing, mark, within,
};
use super::whole;

/// How control leaves a piece at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceExit {
    /// Control does not leave at the end, or leaves by an instruction whose target a relocation
    /// decides.
    Stop,
    /// Control falls through into the next piece.
    Runs,
    /// A direct jump to this offset.
    Jump(u32),
    /// A conditional jump to this offset, or else into the next piece.
    Branch(u32),
}

/// Code that moves as one.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The offset of the first byte.
    pub at: u32,
    /// Bytes of code including the branch at the end, without `lead` and `gap`.
    pub size: u32,
    /// Bytes in front of `at` that move with it.
    pub lead: u32,
    /// Bytes in front of the lead that are padding of the function but need not move. They belong
    /// to the gap of the piece before.
    pub spare: u32,
    /// Bytes of padding between this piece and the next one's lead.
    pub gap: u32,
    /// The number of its function.
    pub function: u32,
    /// Whether it is the first piece of its function.
    pub entry: bool,
    /// The address must equal `residue` modulo this power of two.
    pub align: u32,
    /// See `align`.
    pub residue: u32,
    /// How control leaves it at its end.
    pub exit: PieceExit,
    /// Bytes of the branch at the end that `exit` describes; 0 if there is none.
    pub tail: u8,
    /// Whether a side table names that branch. The branch may get another target, but may be
    /// neither dropped nor inverted.
    pub pinned: bool,
}

impl Piece {
    /// The offset behind the last byte of code.
    pub fn end(&self) -> u32 {
        self.at + self.size
    }
}

/// A place inside a piece whose bytes depend on where its target lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeSite {
    /// The offset of the instruction.
    pub at: u32,
    /// Its bytes.
    pub len: u8,
    /// The offset of its target.
    pub target: u32,
    /// Which bytes depend on the target.
    pub kind: SiteKind,
}

/// Which bytes of a site depend on the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteKind {
    /// A 32-bit displacement, relative to the instruction's end, at this offset in the instruction.
    Displacement(u8),
    /// A no-op or a jump that a static key patches. The kernel patches as many bytes as the site
    /// has, so a short site grows if its target is far.
    StaticKey {
        /// Whether it is a jump now.
        jumps: bool,
    },
}

/// The functions, pieces and sites of a section, all ascending.
#[derive(Debug, Default)]
pub struct CutCode {
    /// The functions; each that stays whole has a reason.
    pub functions: Vec<TextFunction>,
    /// The pieces.
    pub pieces: Vec<Piece>,
    /// The sites.
    pub sites: Vec<CodeSite>,
}

/// Cuts a code section of `size` bytes into pieces.
pub(crate) fn cut(
    size: u32,
    code: &[DecodedInstruction],
    mut functions: Vec<TextFunction>,
    facts: &CuttingFacts<'_>,
) -> CutCode {
    let mut marks = mark(size, code, facts);
    whole::find(code, &mut functions, facts, &marks);
    functions = whole::join(code, functions, facts, &marks);
    refuse_cuts_before_tracers(&functions, facts, &mut marks);
    let mut result = CutCode { functions, ..CutCode::default() };
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

/// Keeps the code from a function's entry to its tracer site in one piece, so that the function's
/// symbol contains the site.
fn refuse_cuts_before_tracers(
    functions: &[TextFunction],
    facts: &CuttingFacts<'_>,
    marks: &mut [u8],
) {
    for &site in facts.tracer_sites {
        if let Some(index) = containing(functions, site) {
            let f = &functions[index];
            let to = (site + 6).min(f.end);
            marks[f.at as usize..to as usize].iter_mut().for_each(|m| *m &= !CUT);
        }
    }
}

/// Makes the whole function one piece. Its displacements become sites.
fn keep_whole(code: &[DecodedInstruction], index: usize, result: &mut CutCode) {
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
        exit: PieceExit::Stop,
        tail: 0,
        pinned: true,
    });
}

/// Adds a site for an instruction whose displacement the assembler resolved, unless the
/// displacement is short.
fn push_displacement(i: &DecodedInstruction, sites: &mut Vec<CodeSite>) {
    if i.target == NOWHERE || i.linked || i.field == 0 {
        return;
    }
    let is_branch = matches!(
        i.kind,
        InstructionKind::Jump
            | InstructionKind::Branch
            | InstructionKind::Call
            | InstructionKind::OddBranch
    );
    if is_branch && i.end() - i.at - u32::from(i.field) != 4 {
        return;
    }
    sites.push(CodeSite {
        at: i.at,
        len: i.len,
        target: i.target,
        kind: SiteKind::Displacement(i.field),
    });
}

/// Cuts a function into blocks.
fn cut_function(
    code: &[DecodedInstruction],
    index: usize,
    marks: &[u8],
    facts: &CuttingFacts<'_>,
    result: &mut CutCode,
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
                result.pieces.push(cutter.piece(from, i.end(), PieceExit::Runs, 0, false));
                i.end()
            }
            Some((exit, tail)) => {
                // The int3 against straight-line speculation belongs to the instruction in front of
                // it.
                let guard = cutter.guard(k).filter(|_| exit == PieceExit::Stop);
                k += usize::from(guard.is_some());
                let to = guard.unwrap_or(i).end();
                let pinned = cutter.mark(i.at) & PINNED != 0;
                result.pieces.push(cutter.piece(from, to, exit, tail, pinned));
                if !matches!(exit, PieceExit::Branch(_)) {
                    k += cutter.padding(k);
                }
                cutter.body.get(k).map_or(cutter.function.end, |next| next.at)
            }
        };
        from = end;
    }
    if from < cutter.function.end {
        result.pieces.push(cutter.piece(from, cutter.function.end, PieceExit::Stop, 0, false));
    }
}

/// A function while it is cut.
struct Cutter<'a> {
    function: TextFunction,
    index: u32,
    body: &'a [DecodedInstruction],
    marks: &'a [u8],
    facts: &'a CuttingFacts<'a>,
}

impl Cutter<'_> {
    fn mark(&self, at: u32) -> u8 {
        self.marks[at as usize]
    }

    fn piece(&self, from: u32, to: u32, exit: PieceExit, tail: u8, pinned: bool) -> Piece {
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

    /// Adds the site of an instruction, if it has one.
    fn push_site(&self, i: &DecodedInstruction, sites: &mut Vec<CodeSite>) {
        let mark = self.mark(i.at);
        if mark & STATIC_KEY != 0 {
            sites.push(CodeSite {
                at: i.at,
                len: i.len,
                target: static_key_target(self.facts, i.at),
                kind: SiteKind::StaticKey { jumps: i.kind == InstructionKind::Jump },
            });
        } else if !i.is_plain_branch() || mark & IN_ALTERNATIVE != 0 {
            push_displacement(i, sites);
        }
    }

    /// Whether a piece may end behind an instruction that falls through: a branch goes there, or
    /// the layout wants to cut there.
    fn may_cut_behind(&self, i: &DecodedInstruction) -> bool {
        let (mark, next) = (self.mark(i.at), self.mark(i.end()));
        let opaque = mark & IN_ALTERNATIVE != 0;
        let layout_cuts = next & CUT != 0
            && (i.kind == InstructionKind::Call || mark & STATIC_KEY != 0)
            && !opaque;
        let inside_alternative =
            opaque && next & IN_ALTERNATIVE != 0 && !starts_alternative(self.facts, i.end());
        (next & LEADER != 0 || layout_cuts) && !inside_alternative
    }

    /// The int3 at `k`, if nothing else refers to it.
    fn guard(&self, k: usize) -> Option<&DecodedInstruction> {
        let is_guard = |i: &&DecodedInstruction| {
            i.kind == InstructionKind::Int3 && self.mark(i.at) & (LEADER | PINNED) == 0
        };
        self.body.get(k).filter(is_guard)
    }

    /// The number of instructions from `k` on that are unreachable padding.
    fn padding(&self, k: usize) -> usize {
        let is_padding =
            |i: &&DecodedInstruction| i.is_padding() && self.mark(i.at) & !(STARTS | CUT) == 0;
        self.body[k..].iter().take_while(is_padding).count()
    }
}

fn starts_alternative(facts: &CuttingFacts<'_>, at: u32) -> bool {
    facts.tables.alternatives.binary_search_by_key(&at, |a| a.at).is_ok()
}

fn static_key_target(facts: &CuttingFacts<'_>, at: u32) -> u32 {
    let keys = &facts.tables.static_keys;
    keys[keys.partition_point(|k| k.at < at)].target
}

/// Whether an instruction ends its piece, how control leaves, and the bytes of its branch that can
/// be rewritten.
fn leaves(
    i: &DecodedInstruction,
    mark: u8,
    next_mark: u8,
    last: bool,
    facts: &CuttingFacts<'_>,
) -> Option<(PieceExit, u8)> {
    if mark & (IN_ALTERNATIVE | STATIC_KEY) != 0 {
        // The kernel patches this instruction at run time. Its present bytes do not decide, and
        // control may always fall through.
        return last.then_some((PieceExit::Stop, 0));
    }
    match i.kind {
        InstructionKind::Jump if i.is_plain_branch() => Some((PieceExit::Jump(i.target), i.len)),
        InstructionKind::Branch if i.is_plain_branch() => {
            Some((PieceExit::Branch(i.target), i.len))
        }
        InstructionKind::Jump | InstructionKind::Stop => Some((PieceExit::Stop, 0)),
        InstructionKind::Call if last || facts.dead_calls.contains(&i.at) => {
            Some((PieceExit::Stop, 0))
        }
        InstructionKind::Trap if last => Some((PieceExit::Stop, 0)),
        InstructionKind::Trap
            if facts.tables.warnings.contains(&i.at) || next_mark & CONTINUES != 0 =>
        {
            None
        }
        // A trap that no table names is where a compiler proved that the program is wrong.
        InstructionKind::Trap => Some((PieceExit::Stop, 0)),
        _ if last => Some((PieceExit::Stop, 0)),
        _ => None,
    }
}
