//! Every block in both kernels, instruction by instruction.
//!
//! Takes the map's blocks and the regions of code outside it; gives the pairs of instructions, and
//! everything that an instruction refers to as (old, new) still to be resolved, because a reference
//! can only be judged when all pairs are known. Says a difference where an instruction is not the
//! same: other bytes than those of an address, a condition inverted that the map does not invert.

use super::correspond::{Correspondence, Pair, no_op_length};
use super::kernel::Kernel;
use super::relocs::Relocs;
use super::verdict::Findings;
use iced_x86::{ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, OpKind};
use image::place::{Ending, Placement};
use rayon::prelude::*;
use std::collections::{HashMap, HashSet};

/// A stretch of code to compare: a block of the map, or a region outside it.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    pub old: u64,
    pub old_size: u64,
    pub new: u64,
    pub new_size: u64,
    pub appended: u8,
    pub ending: Ending,
}

impl Unit {
    fn old_end(&self) -> u64 {
        self.old.saturating_add(self.old_size)
    }

    fn new_end(&self) -> u64 {
        self.new.saturating_add(self.new_size)
    }
}

/// What refers to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refers {
    /// A direct jump or call.
    Branch,
    /// A RIP-relative operand.
    RipRelative,
    /// An absolute displacement or immediate.
    Absolute,
}

/// A reference of one instruction: from where, and to where, in each kernel.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    pub refers: Refers,
    pub at_old: u64,
    pub at_new: u64,
    pub old: u64,
    pub new: u64,
}

/// Where control goes behind a unit.
#[derive(Clone, Copy, Debug)]
pub struct FallThrough {
    /// The last instruction.
    pub at_old: u64,
    pub at_new: u64,
    pub old: u64,
    pub new: u64,
    /// The callee, if the last instruction is a direct call: it may never return.
    pub callee: Option<u64>,
}

/// No-ops that nothing leads to.
#[derive(Clone, Copy, Debug)]
pub struct DeadEnd {
    /// Where they begin.
    pub from: u64,
    /// They stand behind a call of this, and are dead if it never returns.
    pub callee: Option<u64>,
}

/// What the walk found of one unit, or of all.
#[derive(Default)]
pub struct Walk {
    pub pairs: Vec<Pair>,
    pub references: Vec<Reference>,
    pub falls: Vec<FallThrough>,
    /// Appended jumps: (new address, old target).
    pub appended: Vec<(u64, u64)>,
    /// Units that close with no-ops behind code that does not go on, by their old end: padding that
    /// the map took along, unless something jumps there.
    pub dead_ends: HashMap<u64, DeadEnd>,
    /// The addresses (old, new) behind units that end in a return or an indirect jump.
    pub stops: Vec<(u64, u64)>,
    pub findings: Findings,
}

/// What the walk must know of the side tables of the old kernel.
pub struct Known<'a> {
    pub relocs: Option<&'a Relocs>,
    /// Static-key sites.
    pub static_keys: HashSet<u64>,
    /// `ud2` of a WARN, after which execution goes on.
    pub warnings: HashSet<u64>,
    /// Ends of alternatives that may come to let execution through.
    pub passable: HashSet<u64>,
    /// Functions to which a `jmp` is a return or an indirect jump: their call sites are rewritten
    /// at boot, with an int3 behind.
    pub thunks: HashSet<u64>,
    pub image: std::ops::Range<u64>,
}

impl Walk {
    fn differ(&mut self, kind: &'static str, old: u64, new: u64, what: impl Into<String>) {
        self.findings.differ(kind, Some(old), Some(new), what);
    }
}

/// The units, ascending by old address: blocks of the map, and code outside it without the int3
/// behind it.
pub fn units(
    map: &Placement,
    correspondence: &Correspondence,
    findings: &mut Findings,
) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::with_capacity(map.blocks.len() + correspondence.regions.len());
    for block in &map.blocks {
        units.push(Unit {
            old: block.old.0,
            old_size: block.old_size.into(),
            new: block.new.0,
            new_size: block.new_size.into(),
            appended: block.appended,
            ending: block.ending,
        });
    }
    for region in correspondence.regions.iter().filter(|r| r.executable) {
        let bytes = correspondence.old.tail(region.old).unwrap_or(&[]);
        let bytes = &bytes[..bytes.len().min((region.old_end - region.old) as usize)];
        let size = bytes.iter().rposition(|&b| b != 0xcc).map_or(0, |last| last as u64 + 1);
        if size > 0 {
            units.push(Unit {
                old: region.old,
                old_size: size,
                new: region.new,
                new_size: size,
                appended: 0,
                ending: Ending::Same,
            });
        }
    }
    units.sort_by_key(|u| u.old);
    for pair in units.windows(2) {
        if pair[0].old_end() > pair[1].old {
            findings.differ(
                "coverage",
                Some(pair[1].old),
                Some(pair[1].new),
                "this code has two new places",
            );
        }
    }
    units
}

/// Walks all units; the pairs come out ascending by old address.
pub fn walk(units: &[Unit], old: &Kernel, new: &Kernel, known: &Known) -> Walk {
    let parts: Vec<Walk> = units
        .par_chunks(1024)
        .map(|chunk| {
            let mut walk = Walk::default();
            for unit in chunk {
                walk_unit(unit, old, new, known, &mut walk);
            }
            walk
        })
        .collect();
    let mut all = Walk::default();
    for part in parts {
        all.pairs.extend(part.pairs);
        all.references.extend(part.references);
        all.falls.extend(part.falls);
        all.appended.extend(part.appended);
        all.dead_ends.extend(part.dead_ends);
        all.stops.extend(part.stops);
        all.findings.absorb(part.findings);
    }
    all
}

/// One instruction with its bytes and the offsets of its constants.
struct Decoded<'d> {
    instruction: Instruction,
    bytes: &'d [u8],
    constants: iced_x86::ConstantOffsets,
}

struct Cursor<'d> {
    decoder: Decoder<'d>,
    bytes: &'d [u8],
}

impl<'d> Cursor<'d> {
    fn new(kernel: &Kernel<'d>, addr: u64, size: u64) -> Option<Self> {
        let bytes = kernel.bytes(addr, size)?;
        Some(Cursor { decoder: Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE), bytes })
    }

    fn at_end(&self) -> bool {
        !self.decoder.can_decode()
    }

    fn next(&mut self) -> Decoded<'d> {
        let from = self.decoder.position();
        let instruction = self.decoder.decode();
        let constants = self.decoder.get_constant_offsets(&instruction);
        Decoded { instruction, bytes: &self.bytes[from..self.decoder.position()], constants }
    }
}

fn walk_unit(unit: &Unit, old: &Kernel, new: &Kernel, known: &Known, walk: &mut Walk) {
    let (Some(mut a), Some(mut b)) =
        (Cursor::new(old, unit.old, unit.old_size), Cursor::new(new, unit.new, unit.new_size))
    else {
        walk.differ(
            "blocks",
            unit.old,
            unit.new,
            "the map names bytes that are not code of this kernel",
        );
        return;
    };
    let mut last = None;
    let mut dead_end: Option<DeadEnd> = None;
    while !a.at_end() {
        let left = a.next();
        let is_last = a.at_end();
        if is_last && unit.ending == Ending::JumpDropped && b.at_end() {
            return dropped_jump(unit, &left, new, walk);
        }
        if b.at_end() {
            walk.differ(
                "blocks",
                left.instruction.ip(),
                unit.new_end(),
                "the new block ends before the old one",
            );
            return;
        }
        let right = b.next();
        if left.instruction.is_invalid() {
            if !undecodable(unit, &left, old, new, walk) {
                return;
            }
            walk.findings.prove("blocks", 1);
            return;
        }
        let inverted = is_last && unit.ending == Ending::Inverted;
        if !compare(&left, &right, inverted, known, walk) {
            return;
        }
        let i = &left.instruction;
        dead_end = match dead_end {
            Some(dead) if is_filling(i) => Some(dead),
            _ => dead_end_behind(i, known),
        };
        last = Some((left, right));
    }
    if let Some(dead) = dead_end.filter(|dead| dead.from < unit.old_end()) {
        walk.dead_ends.insert(unit.old_end(), dead);
    }
    if !b.at_end() {
        walk.differ("blocks", unit.old_end(), unit.new, "the new block goes on behind the old one");
        return;
    }
    if unit.ending == Ending::JumpDropped {
        walk.differ("blocks", unit.old, unit.new, "the map drops a jump that is still there");
        return;
    }
    walk.findings.prove("blocks", 1);
    if let Some((left, right)) = last {
        leave(unit, &left.instruction, &right.instruction, new, known, walk);
    }
}

/// Bytes that are no instruction must be the same to the end of the unit. Nothing in them can be an
/// address that moved.
fn undecodable(unit: &Unit, at: &Decoded, old: &Kernel, new: &Kernel, walk: &mut Walk) -> bool {
    let offset = at.instruction.ip() - unit.old;
    let rest = unit.old_size - offset;
    let equal = old.bytes(unit.old + offset, rest) == new.bytes(unit.new + offset, rest)
        && unit.old_size == unit.new_size;
    if !equal {
        let what = "bytes that are no instruction differ";
        walk.differ("instructions", unit.old + offset, unit.new + offset, what);
        return false;
    }
    let bytes = (0..rest).map(|i| offset + i);
    walk.pairs.extend(bytes.map(|i| Pair {
        old: unit.old + i,
        new: unit.new + i,
        old_len: 1,
        new_len: 1,
    }));
    walk.findings.prove("bytes of code that are no instruction", rest);
    true
}

fn dropped_jump(unit: &Unit, left: &Decoded, new: &Kernel, walk: &mut Walk) {
    let jump = &left.instruction;
    if !(jump.is_jmp_short() || jump.is_jmp_near()) {
        walk.differ(
            "blocks",
            jump.ip(),
            unit.new_end(),
            "the map drops an instruction that is no jump",
        );
        return;
    }
    walk.findings.prove("blocks", 1);
    walk.findings.prove("jumps dropped", 1);
    // Control that comes to the jump comes to what is now there instead, which must be its target.
    walk.pairs.push(Pair {
        old: jump.ip(),
        new: unit.new_end(),
        old_len: left.bytes.len() as u8,
        new_len: 0,
    });
    run_on(unit, (jump.ip(), unit.new_end()), jump.near_branch_target(), None, new, walk);
}

/// The unit, left at `at` in the old and the new kernel, runs on to `target` in the old one.
fn run_on(
    unit: &Unit,
    at: (u64, u64),
    target: u64,
    callee: Option<u64>,
    new: &Kernel,
    walk: &mut Walk,
) {
    if let Some(to) = behind(unit, target, new, walk) {
        walk.falls.push(FallThrough { at_old: at.0, at_new: at.1, old: target, new: to, callee });
    }
}

/// Where the new kernel goes behind the unit: the next address, or the target of the appended jump.
fn behind(unit: &Unit, old_target: u64, new: &Kernel, walk: &mut Walk) -> Option<u64> {
    if unit.appended == 0 {
        return Some(unit.new_end());
    }
    let decoded = Cursor::new(new, unit.new_end(), unit.appended.into()).map(|mut c| c.next());
    match decoded {
        Some(d)
            if d.bytes.len() == usize::from(unit.appended)
                && (d.instruction.is_jmp_short() || d.instruction.is_jmp_near()) =>
        {
            walk.appended.push((unit.new_end(), old_target));
            Some(d.instruction.near_branch_target())
        }
        _ => {
            walk.differ(
                "blocks",
                unit.old_end(),
                unit.new_end(),
                "the map appends a jump that is not there",
            );
            None
        }
    }
}

/// What the end of a unit asks for: the successor, the jump appended, the int3 behind a return.
fn leave(
    unit: &Unit,
    a: &Instruction,
    b: &Instruction,
    new: &Kernel,
    known: &Known,
    walk: &mut Walk,
) {
    // Behind these, execution may go on (`iretq` to the next instruction serialises), and the map
    // may say so.
    let may_go_on = matches!(a.mnemonic(), iced_x86::Mnemonic::Int3 | iced_x86::Mnemonic::Iretq)
        && unit.appended > 0;
    let goes_on = !stops(a, known) || may_go_on;
    if goes_on {
        let old_next =
            if unit.ending == Ending::Inverted { a.near_branch_target() } else { unit.old_end() };
        return run_on(unit, (a.ip(), b.ip()), old_next, callee_of(a), new, walk);
    }
    if unit.appended != 0 {
        walk.differ("blocks", a.ip(), b.ip(), "a jump is appended behind code that does not go on");
        return;
    }
    // A jump to a return thunk needs none: the kernel patches it into a return and int3s of its
    // own.
    if matches!(a.flow_control(), FlowControl::Return | FlowControl::IndirectBranch) {
        walk.stops.push((unit.old_end(), unit.new_end()));
    }
}

/// Whether execution never goes on behind `i`.
fn stops(i: &Instruction, known: &Known) -> bool {
    let ends = match i.flow_control() {
        FlowControl::Return | FlowControl::IndirectBranch | FlowControl::UnconditionalBranch => {
            true
        }
        FlowControl::Exception => !known.warnings.contains(&i.ip()),
        _ => i.mnemonic() == iced_x86::Mnemonic::Int3,
    };
    ends && !known.passable.contains(&i.next_ip()) && !known.static_keys.contains(&i.ip())
}

fn dead_end_behind(i: &Instruction, known: &Known) -> Option<DeadEnd> {
    let callee = callee_of(i);
    (callee.is_some() || stops(i, known)).then(|| DeadEnd { from: i.next_ip(), callee })
}

fn callee_of(i: &Instruction) -> Option<u64> {
    i.is_call_near().then(|| i.near_branch_target())
}

fn is_filling(i: &Instruction) -> bool {
    matches!(i.mnemonic(), iced_x86::Mnemonic::Nop | iced_x86::Mnemonic::Int3)
}

/// Compares one instruction; pushes the pair and the references. `false` when the rest of the unit
/// cannot be paired.
fn compare(
    left: &Decoded,
    right: &Decoded,
    inverted: bool,
    known: &Known,
    walk: &mut Walk,
) -> bool {
    let (a, b) = (&left.instruction, &right.instruction);
    let pair = Pair {
        old: a.ip(),
        new: b.ip(),
        old_len: left.bytes.len() as u8,
        new_len: right.bytes.len() as u8,
    };
    let same = if is_relative_branch(a) {
        compare_branch(left, right, inverted, known, walk)
    } else if left.bytes != right.bytes && known.static_keys.contains(&a.ip()) {
        grown_no_op(left, right)
    } else {
        compare_bytes(left, right, known, walk)
    };
    if let Err(what) = same {
        walk.differ(
            "instructions",
            a.ip(),
            b.ip(),
            format!("{what}: {:02x?} became {:02x?}", left.bytes, right.bytes),
        );
        if pair.old_len != pair.new_len {
            return false;
        }
    } else {
        walk.findings.prove("instructions", 1);
    }
    walk.pairs.push(pair);
    true
}

fn is_relative_branch(i: &Instruction) -> bool {
    matches!(i.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
}

fn compare_branch(
    left: &Decoded,
    right: &Decoded,
    inverted: bool,
    known: &Known,
    walk: &mut Walk,
) -> Result<(), &'static str> {
    let (a, b) = (&left.instruction, &right.instruction);
    if !is_relative_branch(b) {
        return Err("a branch became something else");
    }
    if prefixes(left) != prefixes(right) {
        return Err("a branch has other prefixes");
    }
    let condition = |i: &Instruction| i.condition_code();
    let same = if inverted {
        let mut negated = *a;
        negated.negate_condition_code();
        condition(a) != ConditionCode::None && condition(&negated) == condition(b) && is_jcc(b)
    } else {
        a.mnemonic() == b.mnemonic()
    };
    if !same {
        return Err(if inverted {
            "a branch is not the inverse"
        } else {
            "a branch has another condition"
        });
    }
    if left.bytes.len() != right.bytes.len() && !is_jcc(a) && !a.is_jmp_short_or_near() {
        return Err("a branch that has one encoding only has another length");
    }
    if left.bytes.len() != right.bytes.len()
        && known.static_keys.contains(&a.ip())
        && right.bytes.len() != 5
    {
        return Err("a static-key site is neither as it was nor five bytes long");
    }
    // An inverted one now jumps to where it used to fall through.
    walk.references.push(Reference {
        refers: Refers::Branch,
        at_old: a.ip(),
        at_new: b.ip(),
        old: if inverted { a.next_ip() } else { a.near_branch_target() },
        new: b.near_branch_target(),
    });
    if inverted {
        walk.findings.prove("conditions inverted", 1);
    }
    if left.bytes.len() != right.bytes.len() {
        walk.findings.prove("branches re-encoded", 1);
    }
    Ok(())
}

fn is_jcc(i: &Instruction) -> bool {
    i.is_jcc_short_or_near()
}

/// The legacy and REX prefixes in front of the opcode.
fn prefixes<'d>(decoded: &Decoded<'d>) -> &'d [u8] {
    let is_prefix = |b: &u8| {
        matches!(
            b,
            0x66 | 0x67 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0xf0 | 0xf2 | 0xf3 | 0x40
                ..=0x4f
        )
    };
    let count = decoded.bytes.iter().take_while(|b| is_prefix(b)).count();
    &decoded.bytes[..count]
}

/// A static-key site may grow from two to five bytes, which is how the kernel then patches it.
fn grown_no_op(left: &Decoded, right: &Decoded) -> Result<(), &'static str> {
    let no_op = |d: &Decoded| no_op_length(d.bytes) == d.bytes.len();
    if !no_op(left) || !no_op(right) {
        return Err("a static-key site holds another instruction");
    }
    if left.bytes.len() == 2 && right.bytes.len() == 5 {
        return Ok(());
    }
    Err("a static-key site is neither as it was nor five bytes long")
}

/// Equal but for the bytes that hold an address, which become references.
fn compare_bytes(
    left: &Decoded,
    right: &Decoded,
    known: &Known,
    walk: &mut Walk,
) -> Result<(), &'static str> {
    if left.bytes.len() != right.bytes.len() {
        return Err("another instruction");
    }
    let (a, b) = (&left.instruction, &right.instruction);
    let mut address = [None, None];
    if a.is_ip_rel_memory_operand() {
        if !b.is_ip_rel_memory_operand()
            || left.constants.displacement_offset() != right.constants.displacement_offset()
        {
            return Err("another operand");
        }
        let (old, new) = (a.ip_rel_memory_address(), b.ip_rel_memory_address());
        walk.references.push(Reference {
            refers: Refers::RipRelative,
            at_old: a.ip(),
            at_new: b.ip(),
            old,
            new,
        });
        address[0] = Some((left.constants.displacement_offset(), 4));
    } else if left.constants.has_displacement() {
        let (at, size) = (left.constants.displacement_offset(), left.constants.displacement_size());
        address[0] = absolute(left, right, at, size, known, walk);
    }
    if left.constants.has_immediate() {
        let (at, size) = (left.constants.immediate_offset(), left.constants.immediate_size());
        address[1] = absolute(left, right, at, size, known, walk);
    }
    let is_address =
        |i: usize| address.iter().flatten().any(|&(at, size)| (at..at + size).contains(&i));
    let differs = (0..left.bytes.len()).any(|i| left.bytes[i] != right.bytes[i] && !is_address(i));
    if differs { Err("another instruction") } else { Ok(()) }
}

/// The constant at `at`, if it is an address: its place and size, and a reference pushed.
fn absolute(
    left: &Decoded,
    right: &Decoded,
    at: usize,
    size: usize,
    known: &Known,
    walk: &mut Walk,
) -> Option<(usize, usize)> {
    let old = constant(left.bytes, at, size)?;
    let new = constant(right.bytes, at, size)?;
    let place = left.instruction.ip().wrapping_add(at as u64);
    let is_address = match known.relocs {
        Some(relocs) => relocs.width_at(place) == Some(size as u8),
        None => known.image.contains(&old),
    };
    if !is_address {
        return None;
    }
    let (at_old, at_new) = (left.instruction.ip(), right.instruction.ip());
    walk.references.push(Reference { refers: Refers::Absolute, at_old, at_new, old, new });
    Some((at, size))
}

/// A 4-byte constant sign-extended, or an 8-byte one.
fn constant(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(size)?)?;
    match size {
        4 => Some(i64::from(i32::from_le_bytes(field.try_into().ok()?)) as u64),
        8 => Some(u64::from_le_bytes(field.try_into().ok()?)),
        _ => None,
    }
}
