//! Pieces of functions as code that can stand at any address.
//!
//! Input: a function's bytes before the kernel patches them. Output: per piece, its bytes, and
//! fixups for the fields that depend on the address. Code that the kernel patches later (static
//! keys, alternatives, static calls) keeps the form that the kernel expects.

use super::contexts::{GUARD_BRANCH, Inlining};
use super::counter;
use crate::branch;
use anyhow::{Context, Result, bail, ensure};
use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind, Register};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::object::functions::TextFunction;
use image::object::pieces::{CodeSite, Piece, PieceExit, SiteKind};

/// The functions of a group, cut into pieces. Offsets count bytes from the start of the kernel's
/// `.text`.
pub struct Original<'k, 'd> {
    /// The kernel.
    pub kernel: &'k LinkedKernel<'d>,
    /// The functions, ascending by offset.
    pub functions: Vec<TextFunction>,
    /// Their pieces, ascending by offset. Each names its function by number. Behind them the pieces
    /// of inlined code, for each inlined call again ascending.
    pub pieces: Vec<Piece>,
    /// The sites in their code that the kernel patches or that need their form, ascending.
    pub sites: Vec<CodeSite>,
    /// Per function: its bytes as in the file, with the addresses and constants that the running
    /// kernel has filled in.
    pub code: Vec<Vec<u8>>,
    /// Per function: bytes at its entry that the copy leaves out, which are ENDBR and the tracer's
    /// site. 0 for a part that no call enters.
    pub skip: Vec<u32>,
    /// The distance in bytes by which KASLR moved the kernel.
    pub slide: u64,
    /// Which calls are inlined or promoted.
    pub inlining: Inlining,
}

/// What a field of an instruction or a table refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReferenceTarget {
    /// A place in the kernel's image.
    Kernel(LinkAddr),
    /// The start of a piece of the group.
    Piece(u32),
    /// A number that KASLR does not move: an offset in per-CPU data.
    Absolute(u64),
}

/// A 32-bit displacement to fill in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fixup {
    /// Offset of the field in the piece's bytes.
    pub at: u32,
    /// Bytes from the field to the end of its instruction.
    pub behind: u32,
    /// What the field refers to.
    pub target: ReferenceTarget,
}

/// A piece as movable code. The branch at its end is taken off: the placer decides about it.
pub(crate) struct Lifted {
    /// The code.
    pub bytes: Vec<u8>,
    /// The fields of the code that depend on addresses.
    pub fixups: Vec<Fixup>,
    /// Old address and offset in `bytes` of every instruction, the branch at the end included.
    pub instructions: Vec<(LinkAddr, u32)>,
    /// How control leaves the piece.
    pub exit: LiftedExit,
    /// The size in bytes of the branch that was taken off.
    pub tail: u8,
    /// That branch may be neither dropped nor inverted.
    pub pinned: bool,
    /// The condition code of that branch, 0 to 15, if it is conditional.
    pub condition: u8,
    /// Offset in `bytes` of the counter's code.
    pub counter: Option<u32>,
}

/// How control leaves a lifted piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LiftedExit {
    /// It never leaves, or an instruction in the piece's bytes leaves.
    Stop,
    /// It runs on into the next piece.
    Runs,
    /// It jumps to this piece.
    Jump(u32),
    /// It branches to this piece, or runs on into the next one.
    Branch(u32),
}

/// Bytes of the jump in place of an inlined call, or of a return from inlined code. The placer
/// makes it shorter, or drops it.
const JOINING_JUMP: u8 = 5;

/// The condition code of the branch behind a guard's comparison: `je`.
const EQUAL: u8 = 4;

/// `x86_nops[5]`, arch/x86/kernel/alternative.c: what the kernel expects at a static key.
const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

impl Lifted {
    fn add_counter(&mut self) {
        self.counter = Some(self.bytes.len() as u32);
        self.bytes.extend(counter::CODE);
    }
}

impl Original<'_, '_> {
    /// The target of a jump in a context to an address of the file: the copy, where that piece is
    /// copied. Calls go to the copies of functions, which are context 0.
    pub(crate) fn branch_target(&self, context: u32, at: u64) -> ReferenceTarget {
        match self.kernel.text_offset(at).and_then(|offset| self.piece_in(context, offset)) {
            Some(piece) => ReferenceTarget::Piece(piece),
            None => self.data_target(at),
        }
    }

    /// The target of an operand that names an address of the file. It is never a copy, so that the
    /// kernel never stores a pointer into a copy.
    fn data_target(&self, at: u64) -> ReferenceTarget {
        match self.kernel.moves(at) {
            true => ReferenceTarget::Kernel(LinkAddr(at)),
            false => ReferenceTarget::Absolute(at),
        }
    }

    fn is_inside(&self, function: u32, at: u64) -> bool {
        let f = &self.functions[function as usize];
        let offset = at.wrapping_sub(self.kernel.text.start);
        offset >= u64::from(f.at) && offset < u64::from(f.end)
    }

    /// The bytes of a function's code between two offsets, which must lie in the function.
    pub fn bytes(&self, function: u32, from: u32, to: u32) -> &[u8] {
        let base = self.functions[function as usize].at;
        &self.code[function as usize][(from - base) as usize..(to - base) as usize]
    }

    pub(super) fn sites_in(&self, from: u32, to: u32) -> &[CodeSite] {
        &self.sites
            [self.sites.partition_point(|s| s.at < from)..self.sites.partition_point(|s| s.at < to)]
    }

    pub(super) fn is_in_alternative(&self, at: LinkAddr) -> bool {
        let all = &self.kernel.tables.alternatives;
        let behind = all.partition_point(|a| a.site <= at.0);
        all[..behind]
            .iter()
            .rev()
            .take_while(|a| a.site + 255 > at.0)
            .any(|a| at.0 < a.site + u64::from(a.len))
    }

    /// Lifts one piece. `count_before` is the old address of the instruction in front of which its
    /// counter stands.
    ///
    /// # Errors
    /// An instruction cannot be moved, or the piece runs on beyond its function.
    pub(crate) fn lift(&self, index: usize, count_before: Option<LinkAddr>) -> Result<Lifted> {
        let piece = &self.pieces[index];
        let skip = if piece.entry { self.skip[piece.function as usize] } else { 0 };
        let from = piece.at + skip;
        ensure!(
            from <= piece.end(),
            "the entry block at {} is shorter than what it leaves out",
            self.at(piece.at)
        );
        let mut lifted = self.open(index, piece)?;
        let context = self.inlining.context(index);
        let end = self.kept_end(index).min(piece.end() - u32::from(self.old_tail(index, &lifted)));
        let mut decoder = Decoder::with_ip(
            64,
            self.bytes(piece.function, from, end),
            self.at(from).0,
            DecoderOptions::NONE,
        );
        let sites = self.sites_in(from, end);
        while decoder.can_decode() {
            let at = decoder.ip();
            let instruction = decoder.decode();
            ensure!(!instruction.is_invalid(), "bytes that do not decode at {at:x}");
            if count_before == Some(LinkAddr(at)) {
                lifted.add_counter();
            }
            lifted.instructions.push((LinkAddr(at), lifted.bytes.len() as u32));
            let offset = (at - self.kernel.text.start) as u32;
            let key = sites
                .iter()
                .find(|s| s.at == offset && matches!(s.kind, SiteKind::StaticKey { .. }));
            match key {
                Some(key) => self.lift_static_key(context, key, &mut lifted),
                None => self.lift_instruction(index, &decoder, &instruction, &mut lifted)?,
            }
        }
        if let Some(guard) = self.inlining.joint_at(index).and_then(|joint| joint.guard) {
            lifted.instructions.push((self.at(end), lifted.bytes.len() as u32));
            lifted.bytes.extend(self.guard_code(guard)?);
        }
        if lifted.tail > 0 {
            if count_before == Some(self.at(end)) {
                lifted.add_counter();
            }
            lifted.instructions.push((self.at(end), lifted.bytes.len() as u32));
        }
        if let Some(function) = self.inlined_exit(index).and_then(|exit| exit.calls) {
            // What the callee jumped to, or a promoted call, returns to the code behind the call.
            lifted.bytes.push(0xe8);
            self.push_field(&mut lifted, self.branch_target(0, function.0), 4);
        }
        Ok(lifted)
    }

    /// The bytes of the branch at a piece's end that its lifted form has taken off.
    fn old_tail(&self, index: usize, lifted: &Lifted) -> u8 {
        match self.joined(index) {
            Some(_) => 0,
            None => lifted.tail,
        }
    }

    /// How control leaves a piece whose call was inlined or promoted, or where inlined code
    /// returned, and the size in bytes of the branch.
    fn joined(&self, index: usize) -> Option<(LiftedExit, u8)> {
        if let Some(joint) = self.inlining.joint_at(index) {
            return Some(match joint.guard {
                Some(_) => (LiftedExit::Branch(joint.entry), GUARD_BRANCH),
                None => (LiftedExit::Jump(joint.entry), JOINING_JUMP),
            });
        }
        self.inlined_exit(index)?;
        let call = self.inlining.context(index).checked_sub(1)?;
        Some((LiftedExit::Jump(self.inlining.joint(call).1), JOINING_JUMP))
    }

    fn at(&self, offset: u32) -> LinkAddr {
        self.kernel.link_address(offset)
    }

    /// An empty piece with its exit. A branch to code outside of the group is not an exit, but an
    /// instruction of the piece.
    fn open(&self, index: usize, piece: &Piece) -> Result<Lifted> {
        let tail = |exit| (exit, piece.tail);
        let context = self.inlining.context(index);
        let target = |to| self.piece_in(context, to);
        let joined = self.joined(index);
        let (exit, tail) = match (joined, piece.exit) {
            (Some(joined), _) => joined,
            (None, PieceExit::Stop) => (LiftedExit::Stop, 0),
            (None, PieceExit::Runs) => (LiftedExit::Runs, 0),
            (None, PieceExit::Jump(to)) => {
                target(to).map_or((LiftedExit::Stop, 0), |to| tail(LiftedExit::Jump(to)))
            }
            (None, PieceExit::Branch(to)) => {
                target(to).map_or((LiftedExit::Runs, 0), |to| tail(LiftedExit::Branch(to)))
            }
        };
        let condition = match exit {
            LiftedExit::Branch(_) if joined.is_some() => EQUAL,
            LiftedExit::Branch(_) => branch::condition_of(self.bytes(
                piece.function,
                piece.end() - u32::from(tail),
                piece.end(),
            )),
            _ => 0,
        };
        let runs = matches!(exit, LiftedExit::Runs | LiftedExit::Branch(_));
        let next = self.pieces.get(index + 1).is_some_and(|next| {
            next.function == piece.function && self.inlining.context(index + 1) == context
        });
        ensure!(!runs || next, "{}: runs on over the end of its function", self.at(piece.at));
        Ok(Lifted {
            bytes: Vec::with_capacity(piece.size as usize + 16),
            fixups: Vec::new(),
            instructions: Vec::new(),
            exit,
            tail,
            pinned: piece.pinned && joined.is_none(),
            condition,
            counter: None,
        })
    }

    fn lift_static_key(&self, context: u32, key: &CodeSite, lifted: &mut Lifted) {
        let SiteKind::StaticKey { jumps } = key.kind else { return };
        match jumps {
            false => lifted.bytes.extend(NOP5),
            true => {
                lifted.bytes.push(0xe9);
                let target = self.branch_target(context, self.at(key.target).0);
                self.push_field(lifted, target, 4);
            }
        }
    }

    /// Appends a field of four zeros and its fixup. `behind` is the number of bytes from the field
    /// to the instruction's end.
    fn push_field(&self, lifted: &mut Lifted, target: ReferenceTarget, behind: u32) {
        lifted.fixups.push(Fixup { at: lifted.bytes.len() as u32, behind, target });
        lifted.bytes.extend([0; 4]);
    }

    fn lift_instruction(
        &self,
        index: usize,
        decoder: &Decoder<'_>,
        instruction: &Instruction,
        lifted: &mut Lifted,
    ) -> Result<()> {
        let at = (instruction.ip() - self.kernel.text.start) as u32;
        let bytes = self.bytes(self.pieces[index].function, at, at + instruction.len() as u32);
        if instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64 {
            return self.lift_branch(index, instruction, bytes, lifted);
        }
        if instruction.is_ip_rel_memory_operand() {
            let field = decoder.get_constant_offsets(instruction).displacement_offset();
            let target = self.data_target(instruction.ip_rel_memory_address());
            ensure!(
                instruction.memory_base() == Register::RIP,
                "{:x}: an address relative to EIP",
                instruction.ip()
            );
            lifted.bytes.extend_from_slice(&bytes[..field]);
            self.push_field(lifted, target, (bytes.len() - field) as u32);
            lifted.bytes.extend_from_slice(&bytes[field + 4..]);
            return Ok(());
        }
        lifted.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn lift_branch(
        &self,
        index: usize,
        instruction: &Instruction,
        bytes: &[u8],
        lifted: &mut Lifted,
    ) -> Result<()> {
        let (at, to) = (instruction.ip(), instruction.near_branch64());
        let fixed = self.is_in_alternative(LinkAddr(at));
        if fixed && bytes.len() < 5 {
            // Within the alternative; the cutter refuses others.
            lifted.bytes.extend_from_slice(bytes);
            return Ok(());
        }
        let context = match instruction.is_call_near() {
            true => 0,
            false => self.inlining.context(index),
        };
        let target = self.branch_target(context, to);
        let function = self.pieces[index].function;
        let lost = matches!(target, ReferenceTarget::Kernel(_))
            && (self.is_inside(function, to) || context > 0);
        ensure!(!lost, "{at:x}: a branch into the middle of a block, or out of inlined code");
        let opcode: &[u8] = match bytes {
            [0xe8, ..] | [0xeb | 0xe9, ..] => &[if bytes[0] == 0xe8 { 0xe8 } else { 0xe9 }],
            [short @ 0x70..=0x7f, _] => &[0x0f, 0x80 | (short & 0xf)],
            [0x0f, near @ 0x80..=0x8f, ..] if bytes.len() == 6 => &[0x0f, *near],
            // A prefix before the branch (`cs jmp` to a retpoline, `bnd`) stays.
            [.., _, _, _, _] if instruction.len() >= 6 && bytes.len() <= 8 => {
                &bytes[..bytes.len() - 4]
            }
            _ => bail!("{at:x}: a branch in a form that is not known"),
        };
        lifted.bytes.extend_from_slice(opcode);
        self.push_field(lifted, target, 4);
        Ok(())
    }

    /// Lifts the replacement of an alternative, which has `len` bytes: its bytes and fixups.
    ///
    /// # Errors
    /// The replacement is not in the file, does not decode, or leaves by a short branch.
    pub(crate) fn lift_replacement(
        &self,
        context: u32,
        at: LinkAddr,
        len: u8,
    ) -> Result<(Vec<u8>, Vec<Fixup>)> {
        let code = self.kernel.bytes(at, usize::from(len));
        let code = code.with_context(|| format!("the replacement at {at} is not in the file"))?;
        let mut bytes = code.to_vec();
        let mut fixups = Vec::new();
        let mut decoder = Decoder::with_ip(64, code, at.0, DecoderOptions::NONE);
        while decoder.can_decode() {
            let start = decoder.position();
            let instruction = decoder.decode();
            ensure!(!instruction.is_invalid(), "a replacement that does not decode at {at}");
            let offsets = decoder.get_constant_offsets(&instruction);
            let (field, target) =
                if instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64 {
                    let to = instruction.near_branch64();
                    if (at.0..=at.0 + u64::from(len)).contains(&to) {
                        continue;
                    }
                    ensure!(
                        offsets.immediate_size() == 4,
                        "a short branch out of the replacement at {at}"
                    );
                    let context = if instruction.is_call_near() { 0 } else { context };
                    (offsets.immediate_offset(), self.branch_target(context, to))
                } else if instruction.is_ip_rel_memory_operand() {
                    (
                        offsets.displacement_offset(),
                        self.data_target(instruction.ip_rel_memory_address()),
                    )
                } else {
                    continue;
                };
            fixups.push(Fixup {
                at: (start + field) as u32,
                behind: (instruction.len() - field) as u32,
                target,
            });
            bytes[start + field..start + field + 4].fill(0);
        }
        self.slide_addresses(at, &mut bytes)?;
        Ok((bytes, fixups))
    }

    /// Adds the slide to the absolute addresses in code that was read only from the file.
    fn slide_addresses(&self, at: LinkAddr, bytes: &mut [u8]) -> Result<()> {
        for (field, width) in image::linked::fields::absolute(bytes, at) {
            let place = &mut bytes[field..field + width];
            let mut value = [0u8; 8];
            value[..width].copy_from_slice(place);
            let old = match width {
                4 => i64::from(i32::from_le_bytes([value[0], value[1], value[2], value[3]])) as u64,
                _ => u64::from_le_bytes(value),
            };
            if self.kernel.moves(old) {
                place.copy_from_slice(&old.wrapping_add(self.slide).to_le_bytes()[..width]);
            }
        }
        Ok(())
    }
}
