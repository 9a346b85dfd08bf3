//! Walks every block in both kernels, instruction by instruction.
//!
//! Input: the map's blocks, and the regions of code outside the map. Output: the pairs of
//! instructions, and every reference of an instruction as (old, new). `resolve` checks the
//! references later, because that requires all pairs. An instruction that is not the same in both
//! kernels is a difference.

use super::code_walk::{CodeWalk, DeadEnd, FallThrough, OldKernelFacts};
use super::compare::{DecodedCode, compare};
use super::correspond::{Correspondence, InstructionPair};
use super::kernel::KernelFile;
use super::padding::length_without_padding;
use super::verdict::Findings;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use image::place::{Ending, Placement};
use rayon::prelude::*;

/// A stretch of code to compare: a block of the map, or a region outside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodeUnit {
    /// The old address.
    pub old: u64,
    /// Bytes in the old kernel.
    pub old_size: u64,
    /// The new address.
    pub new: u64,
    /// Bytes in the new kernel, without the appended jump.
    pub new_size: u64,
    /// Bytes of the appended jump; 0 if there is none.
    pub appended: u8,
    /// What happened to the branch at the end.
    pub ending: Ending,
}

impl CodeUnit {
    fn old_end(&self) -> u64 {
        self.old.saturating_add(self.old_size)
    }

    fn new_end(&self) -> u64 {
        self.new.saturating_add(self.new_size)
    }
}

/// The units, ascending by old address: the blocks of the map, and the code outside it without
/// trailing padding.
pub(crate) fn units(
    map: &Placement,
    correspondence: &Correspondence,
    findings: &mut Findings,
) -> Vec<CodeUnit> {
    let mut units: Vec<CodeUnit> =
        Vec::with_capacity(map.blocks.len() + correspondence.regions.len());
    for block in &map.blocks {
        units.push(CodeUnit {
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
        let size = length_without_padding(bytes) as u64;
        if size > 0 {
            units.push(CodeUnit {
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
                "the map and the symbols give this code two new places",
            );
        }
    }
    units
}

/// Walks all units. The pairs are ascending by old address.
pub(crate) fn walk(
    units: &[CodeUnit],
    old: &KernelFile,
    new: &KernelFile,
    known: &OldKernelFacts,
) -> CodeWalk {
    let parts: Vec<CodeWalk> = units
        .par_chunks(1024)
        .map(|chunk| {
            let mut walk = CodeWalk::default();
            for unit in chunk {
                walk_unit(unit, old, new, known, &mut walk);
            }
            walk
        })
        .collect();
    let mut all = CodeWalk::default();
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

struct CodeCursor<'d> {
    decoder: Decoder<'d>,
    bytes: &'d [u8],
}

impl<'d> CodeCursor<'d> {
    fn new(kernel: &KernelFile<'d>, addr: u64, size: u64) -> Option<Self> {
        let bytes = kernel.bytes(addr, size)?;
        Some(CodeCursor { decoder: Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE), bytes })
    }

    fn at_end(&self) -> bool {
        !self.decoder.can_decode()
    }

    fn next(&mut self) -> DecodedCode<'d> {
        let from = self.decoder.position();
        let mut instruction = self.decoder.decode();
        if is_emulated(&self.bytes[from..]) {
            // The mark belongs to its `ud2`.
            let next = instruction.ip() + EMULATED as u64;
            instruction.set_len(EMULATED);
            instruction.set_next_ip(next);
            self.decoder.set_position(from + EMULATED).expect("inside the code");
            self.decoder.set_ip(next);
        }
        let constants = self.decoder.get_constant_offsets(&instruction);
        DecodedCode { instruction, bytes: &self.bytes[from..self.decoder.position()], constants }
    }
}

fn walk_unit(
    unit: &CodeUnit,
    old: &KernelFile,
    new: &KernelFile,
    known: &OldKernelFacts,
    walk: &mut CodeWalk,
) {
    let (Some(mut a), Some(mut b)) = (
        CodeCursor::new(old, unit.old, unit.old_size),
        CodeCursor::new(new, unit.new, unit.new_size),
    ) else {
        walk.differ(
            "blocks",
            unit.old,
            unit.new,
            "the map names bytes that are not in this kernel",
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
        walk.differ(
            "blocks",
            unit.old_end(),
            unit.new,
            "the new block has more code than the old one",
        );
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

/// Compares bytes that are not an instruction. They must be equal up to the end of the unit. They
/// cannot contain an address that moved.
fn undecodable(
    unit: &CodeUnit,
    at: &DecodedCode,
    old: &KernelFile,
    new: &KernelFile,
    walk: &mut CodeWalk,
) -> bool {
    let offset = at.instruction.ip() - unit.old;
    let rest = unit.old_size - offset;
    let equal = old.bytes(unit.old + offset, rest) == new.bytes(unit.new + offset, rest)
        && unit.old_size == unit.new_size;
    if !equal {
        let what = "bytes that are not an instruction differ";
        walk.differ("instructions", unit.old + offset, unit.new + offset, what);
        return false;
    }
    let bytes = (0..rest).map(|i| offset + i);
    walk.pairs.extend(bytes.map(|i| InstructionPair {
        old: unit.old + i,
        new: unit.new + i,
        old_len: 1,
        new_len: 1,
    }));
    walk.findings.prove("bytes of code that are no instruction", rest);
    true
}

fn dropped_jump(unit: &CodeUnit, left: &DecodedCode, new: &KernelFile, walk: &mut CodeWalk) {
    let jump = &left.instruction;
    if !(jump.is_jmp_short() || jump.is_jmp_near()) {
        walk.differ(
            "blocks",
            jump.ip(),
            unit.new_end(),
            "the map drops an instruction that is not a jump",
        );
        return;
    }
    walk.findings.prove("blocks", 1);
    walk.findings.prove("jumps dropped", 1);
    // Control that enters at the jump now enters at the end of the unit, which must be the jump's
    // target.
    walk.pairs.push(InstructionPair {
        old: jump.ip(),
        new: unit.new_end(),
        old_len: left.bytes.len() as u8,
        new_len: 0,
    });
    run_on(unit, (jump.ip(), unit.new_end()), jump.near_branch_target(), None, new, walk);
}

/// The unit is left at `at` (old, new). In the old kernel control continues at `target`.
fn run_on(
    unit: &CodeUnit,
    at: (u64, u64),
    target: u64,
    callee: Option<u64>,
    new: &KernelFile,
    walk: &mut CodeWalk,
) {
    if let Some(to) = behind(unit, target, new, walk) {
        let jumps = unit.appended > 0;
        let fall = FallThrough { at_old: at.0, at_new: at.1, old: target, new: to, jumps, callee };
        walk.falls.push(fall);
    }
}

/// Where the new kernel continues behind the unit: at the next address, or at the target of the
/// appended jump.
fn behind(unit: &CodeUnit, old_target: u64, new: &KernelFile, walk: &mut CodeWalk) -> Option<u64> {
    if unit.appended == 0 {
        return Some(unit.new_end());
    }
    let decoded = CodeCursor::new(new, unit.new_end(), unit.appended.into()).map(|mut c| c.next());
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

/// Checks the end of a unit: its successor, the appended jump, the int3 behind a return.
fn leave(
    unit: &CodeUnit,
    a: &Instruction,
    b: &Instruction,
    new: &KernelFile,
    known: &OldKernelFacts,
    walk: &mut CodeWalk,
) {
    // Control may continue behind these instructions (`iretq` to the next instruction serialises),
    // if the map says so.
    let may_go_on = matches!(a.mnemonic(), iced_x86::Mnemonic::Int3 | iced_x86::Mnemonic::Iretq)
        && unit.appended > 0;
    let goes_on = !stops(a, known) || may_go_on;
    if goes_on {
        let old_next =
            if unit.ending == Ending::Inverted { a.near_branch_target() } else { unit.old_end() };
        return run_on(unit, (a.ip(), b.ip()), old_next, callee_of(a), new, walk);
    }
    if unit.appended != 0 {
        walk.differ("blocks", a.ip(), b.ip(), "a jump is appended behind code that stops");
        return;
    }
    // A jump to a return thunk needs no int3: the kernel replaces it by a return with its own int3.
    if matches!(a.flow_control(), FlowControl::Return | FlowControl::IndirectBranch) {
        walk.stops.push((unit.old_end(), unit.new_end()));
    }
}

/// The bytes of a `ud2` with its mark.
pub(crate) const EMULATED: usize = 5;

/// Whether `code` begins with a `ud2` that asks a hypervisor to execute what follows: a mark of Xen
/// or KVM stands behind it (arch/x86/include/asm/emulate_prefix.h).
pub(crate) fn is_emulated(code: &[u8]) -> bool {
    code.starts_with(b"\x0f\x0bxen") || code.starts_with(b"\x0f\x0bkvm")
}

/// Whether control never continues behind `i`.
fn stops(i: &Instruction, known: &OldKernelFacts) -> bool {
    let ends = match i.flow_control() {
        FlowControl::Return | FlowControl::IndirectBranch | FlowControl::UnconditionalBranch => {
            true
        }
        FlowControl::Exception => !known.passed_traps.contains(&i.ip()),
        _ => i.mnemonic() == iced_x86::Mnemonic::Int3,
    };
    ends && !known.passable.contains(&i.next_ip()) && !known.static_keys.contains(&i.ip())
}

fn dead_end_behind(i: &Instruction, known: &OldKernelFacts) -> Option<DeadEnd> {
    let callee = callee_of(i);
    (callee.is_some() || stops(i, known)).then(|| DeadEnd { from: i.next_ip(), callee })
}

fn callee_of(i: &Instruction) -> Option<u64> {
    i.is_call_near().then(|| i.near_branch_target())
}

fn is_filling(i: &Instruction) -> bool {
    matches!(i.mnemonic(), iced_x86::Mnemonic::Nop | iced_x86::Mnemonic::Int3)
}
