//! What code can be inlined.
//!
//! Input: a function of a group. Output: its pieces, or why it cannot be inlined; and the
//! unwinder's states of caller and callee put together.

use super::contexts::CALL;
use super::lift::Original;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};
use image::address::LinkAddr;
use image::linked::forms::OrcForm;
use image::linked::tables::within;
use image::object::orc::OrcState;
use image::object::pieces::{PieceExit, SiteKind};
use std::collections::BTreeSet;
use std::fmt;

/// `ORC_REG_UNDEFINED`, arch/x86/include/asm/orc_types.h: the caller's frame pointer is where it
/// was.
const KEPT: u8 = 0;

/// Why a function cannot be inlined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// The unwinder does not find its frame by the stack pointer.
    Frame,
    /// It looks at its return address, or at what lies beyond it.
    BeyondFrame,
    /// It changes the stack pointer in a way that is not followed.
    StackPointer,
    /// It leaves by something else than a return or a jump to a function.
    Leaves,
    /// The kernel patches how it leaves.
    PatchedExit,
    /// It jumps to its own entry.
    Entered,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Obstacle::Frame => "its frame is not found by the stack pointer",
            Obstacle::BeyondFrame => "it looks at its return address or beyond it",
            Obstacle::StackPointer => "it changes the stack pointer in an unusual way",
            Obstacle::Leaves => "it leaves in an unusual way",
            Obstacle::PatchedExit => "the kernel patches how it leaves",
            Obstacle::Entered => "it jumps to its own entry",
        })
    }
}

/// A function that can be inlined.
#[derive(Clone, Debug)]
pub struct InlinableBody {
    /// Its pieces and those of its parts that the compiler put elsewhere, ascending.
    pub pieces: Vec<u32>,
    /// It changes the frame pointer.
    changes_frame_pointer: bool,
}

impl InlinableBody {
    /// Whether it can be inlined into such a function.
    pub fn fits(&self, caller: CallerFrame) -> bool {
        caller == CallerFrame::ByStackPointer || !self.changes_frame_pointer
    }
}

/// How the unwinder finds a function's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerFrame {
    /// By the stack pointer.
    ByStackPointer,
    /// By the frame pointer.
    ByFramePointer,
}

impl Original<'_, '_> {
    /// The calls of a piece that can be inlined as far as the call itself goes: offset and called
    /// function. The kernel patches none of them.
    pub fn plain_calls(&self, piece: usize) -> Vec<(u32, u32)> {
        let owned = &self.pieces[piece];
        let is_last = |end: u32| end == self.functions[owned.function as usize].end;
        let callee = |instruction: &Instruction| {
            let target = call_target(instruction).filter(|_| instruction.len() == CALL as usize)?;
            let offset = u32::try_from(target.checked_sub(self.kernel.text.start)?).ok()?;
            let callee = &self.pieces[self.piece_in(0, offset)? as usize];
            let is_whole = callee.entry && self.skip[callee.function as usize] > 0;
            let at = (instruction.ip() - self.kernel.text.start) as u32;
            let plain = is_whole && !self.is_patched(instruction) && !is_last(at + CALL);
            plain.then_some((at, callee.function))
        };
        self.instructions_of(owned).filter_map(|instruction| callee(&instruction)).collect()
    }

    /// Whether the kernel may write an instruction.
    pub(super) fn is_patched(&self, instruction: &Instruction) -> bool {
        let tables = &self.kernel.tables;
        let (at, end) = (LinkAddr(instruction.ip()), LinkAddr(instruction.next_ip()));
        self.is_in_alternative(at)
            || !within(&tables.static_calls, |e| e.site, at, end).is_empty()
            || !within(&tables.jumps, |e| e.site, at, end).is_empty()
            || !within(&tables.paravirt, |e| e.site, at, end).is_empty()
    }

    /// The code of a function, if it can be inlined where the unwinder finds the caller's frame by
    /// the stack pointer.
    ///
    /// # Errors
    /// It cannot be inlined.
    pub fn inlinable(&self, callee: u32) -> Result<InlinableBody, Obstacle> {
        let pieces = self.body(callee);
        let starts: BTreeSet<u32> = pieces.iter().map(|&n| self.pieces[n as usize].at).collect();
        let mut body = InlinableBody { pieces, changes_frame_pointer: false };
        let mut factory = InstructionInfoFactory::new();
        for &number in &body.pieces {
            let piece = &self.pieces[number as usize];
            let exit = self.exit_of(piece, &|at| starts.contains(&at));
            for instruction in self.instructions_of(piece) {
                let state = self.kernel.tables.orc_at(instruction.ip());
                let frame =
                    Frame::of(state, self.kernel.tables.forms.orc).ok_or(Obstacle::Frame)?;
                body.changes_frame_pointer |= frame.changes_frame_pointer;
                frame.allows(&instruction, &mut factory)?;
                self.allows_alternatives(&instruction, frame, &starts, &mut factory)?;
                let offset = (instruction.ip() - self.kernel.text.start) as u32;
                if exit.is_some_and(|exit| exit.at == offset) {
                    self.allows_exit(&instruction, exit.and_then(|exit| exit.calls), frame)?;
                } else {
                    self.allows_flow(&instruction, callee, &starts)?;
                }
            }
            let falls_out = matches!(piece.exit, PieceExit::Runs | PieceExit::Branch(_))
                && !starts.contains(&piece.end());
            if falls_out && exit.is_none() {
                return Err(Obstacle::Leaves);
            }
        }
        Ok(body)
    }

    /// How the unwinder finds the frame of the function that holds a call. `at`: the call's offset.
    ///
    /// # Errors
    /// Neither by the stack pointer nor by the frame pointer.
    pub fn caller_frame(&self, at: u32) -> Result<CallerFrame, Obstacle> {
        let tables = &self.kernel.tables;
        let (state, form) = (tables.orc_at(self.kernel.link_address(at).0), tables.forms.orc);
        match state[4] & 0xf {
            by if by == form.frame_pointer && state[5] == form.call_frame => {
                Ok(CallerFrame::ByFramePointer)
            }
            _ => Frame::of(state, form).map(|_| CallerFrame::ByStackPointer).ok_or(Obstacle::Frame),
        }
    }

    /// The pieces of a function and of its parts that the compiler put elsewhere: parts that no
    /// call enters, and that it jumps to.
    fn body(&self, callee: u32) -> Vec<u32> {
        let own = self.inlining.pieces(0, self.pieces.len());
        let mut functions = BTreeSet::from([callee]);
        let mut waiting = vec![callee];
        let mut found = Vec::new();
        while let Some(function) = waiting.pop() {
            let pieces = &self.pieces[own.clone()];
            let first = pieces.partition_point(|piece| piece.function < function);
            let last = pieces.partition_point(|piece| piece.function <= function);
            found.extend(first as u32..last as u32);
            for piece in &pieces[first..last] {
                let jumps = self.instructions_of(piece).filter_map(|i| jump_target(&i));
                let keys = self.sites_in(piece.at, piece.end()).iter().filter_map(|site| {
                    matches!(site.kind, SiteKind::StaticKey { .. }).then_some(site.target)
                });
                let start = self.kernel.text.start;
                let jumps = jumps.filter_map(|to| u32::try_from(to.checked_sub(start)?).ok());
                for part in jumps.chain(keys).filter_map(|to| self.piece_in(0, to)) {
                    let part = self.pieces[part as usize].function;
                    if self.skip[part as usize] == 0 && functions.insert(part) {
                        waiting.push(part);
                    }
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// Checks a return, or a jump to a function that becomes a call.
    fn allows_exit(
        &self,
        instruction: &Instruction,
        calls: Option<LinkAddr>,
        frame: Frame,
    ) -> Result<(), Obstacle> {
        let is_retpoline = self.kernel.tables.retpolines.binary_search(&instruction.ip()).is_ok();
        if self.is_patched(instruction) || is_retpoline {
            return Err(Obstacle::PatchedExit);
        }
        let pops_more = instruction.mnemonic() == Mnemonic::Ret && instruction.op_count() > 0;
        let is_entry = |at| self.entry_at(at).is_ok();
        match frame.size == 0 && !pops_more && calls.is_none_or(is_entry) {
            true => Ok(()),
            false => Err(Obstacle::Leaves),
        }
    }

    /// Checks that an instruction stays in the body, or calls.
    fn allows_flow(
        &self,
        instruction: &Instruction,
        callee: u32,
        starts: &BTreeSet<u32>,
    ) -> Result<(), Obstacle> {
        match instruction.flow_control() {
            FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => {}
            FlowControl::Exception => {}
            FlowControl::Interrupt if instruction.mnemonic() == Mnemonic::Int3 => {}
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                let target = jump_target(instruction).ok_or(Obstacle::Leaves)?;
                let offset = target.wrapping_sub(self.kernel.text.start) as u32;
                if offset == self.functions[callee as usize].at {
                    return Err(Obstacle::Entered);
                }
                let within_alternative = self.is_in_alternative(LinkAddr(instruction.ip()))
                    && instruction.len() < CALL as usize;
                if !starts.contains(&offset) && !within_alternative {
                    return Err(Obstacle::Leaves);
                }
            }
            _ => return Err(Obstacle::Leaves),
        }
        let key = |site: u64| {
            let (at, end) = (LinkAddr(site), LinkAddr(site + 1));
            within(&self.kernel.tables.jumps, |e| e.site, at, end).first()
        };
        let leaves = key(instruction.ip()).is_some_and(|key| {
            !starts.contains(&(key.target.wrapping_sub(self.kernel.text.start) as u32))
        });
        let faults = within(
            &self.kernel.tables.exceptions,
            |e| e.site,
            LinkAddr(instruction.ip()),
            LinkAddr(instruction.next_ip()),
        );
        let lost = faults.iter().any(|fault| {
            !starts.contains(&(fault.fixup.wrapping_sub(self.kernel.text.start) as u32))
        });
        let calls_patched_tail = instruction.is_jmp_short_or_near()
            && !within(
                &self.kernel.tables.static_calls,
                |e| e.site,
                LinkAddr(instruction.ip()),
                LinkAddr(instruction.next_ip()),
            )
            .is_empty();
        match leaves || lost || calls_patched_tail {
            true => Err(Obstacle::PatchedExit),
            false => Ok(()),
        }
    }

    /// Checks the replacements of the alternative that begins at an instruction.
    fn allows_alternatives(
        &self,
        instruction: &Instruction,
        frame: Frame,
        starts: &BTreeSet<u32>,
        factory: &mut InstructionInfoFactory,
    ) -> Result<(), Obstacle> {
        let at = LinkAddr(instruction.ip());
        let alternatives =
            within(&self.kernel.tables.alternatives, |e| e.site, at, LinkAddr(at.0 + 1));
        for alternative in alternatives {
            let (from, len) = (alternative.replacement, u64::from(alternative.replacement_len));
            let code = self.kernel.bytes(LinkAddr(from), len as usize).ok_or(Obstacle::Leaves)?;
            for replaced in Decoder::with_ip(64, code, from, DecoderOptions::NONE) {
                frame.allows(&replaced, factory)?;
                let stays = match replaced.flow_control() {
                    FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => true,
                    FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                        jump_target(&replaced).is_some_and(|to| {
                            (from..=from + len).contains(&to)
                                || starts
                                    .contains(&(to.wrapping_sub(self.kernel.text.start) as u32))
                        })
                    }
                    _ => false,
                };
                if !stays {
                    return Err(Obstacle::PatchedExit);
                }
            }
        }
        Ok(())
    }
}

/// What a function has on the stack, below its return address.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Bytes.
    size: i64,
    changes_frame_pointer: bool,
}

impl Frame {
    /// By the unwinder's state; `None` if the frame is not found by the stack pointer.
    fn of(state: OrcState, form: OrcForm) -> Option<Frame> {
        let [low, high, _, _, registers, kind] = state;
        let saved = registers >> 4;
        let is_plain = kind == form.call_frame
            && registers & 0xf == form.stack_pointer
            && (saved == KEPT || saved == form.frame_end);
        let size = i64::from(i16::from_le_bytes([low, high])) - 8;
        (is_plain && size >= 0).then_some(Frame { size, changes_frame_pointer: saved != KEPT })
    }

    /// Checks that an instruction looks at nothing beyond the frame, and changes the stack pointer
    /// only as compilers do.
    fn allows(
        self,
        instruction: &Instruction,
        factory: &mut InstructionInfoFactory,
    ) -> Result<(), Obstacle> {
        let is_branch =
            instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64;
        let displacement = instruction.memory_displacement64() as i64;
        let by_stack = instruction.memory_base() == Register::RSP && !is_branch;
        if by_stack {
            let size = match instruction.mnemonic() {
                Mnemonic::Lea => 1,
                _ => i64::try_from(instruction.memory_size().size()).unwrap_or(i64::MAX).max(1),
            };
            // Releasing the whole frame names its end.
            let releases = instruction.mnemonic() == Mnemonic::Lea
                && instruction.op0_register() == Register::RSP
                && displacement <= self.size;
            if !releases && (displacement < 0 || displacement + size > self.size) {
                return Err(Obstacle::BeyondFrame);
            }
        }
        let named = (0..instruction.op_count()).any(|op| {
            instruction.op_kind(op) == OpKind::Register
                && instruction.op_register(op).full_register() == Register::RSP
        });
        match instruction.mnemonic() {
            Mnemonic::Push | Mnemonic::Pop | Mnemonic::Pushfq | Mnemonic::Popfq => {
                return if named || by_stack { Err(Obstacle::StackPointer) } else { Ok(()) };
            }
            Mnemonic::Call | Mnemonic::Ret => return Ok(()),
            Mnemonic::Sub | Mnemonic::Add
                if instruction.op0_register() == Register::RSP
                    && instruction.op0_kind() == OpKind::Register =>
            {
                let by_number = matches!(
                    instruction.op1_kind(),
                    OpKind::Immediate8to64 | OpKind::Immediate32to64
                );
                return if by_number { Ok(()) } else { Err(Obstacle::StackPointer) };
            }
            Mnemonic::Lea if by_stack && instruction.memory_index() == Register::None => {
                return Ok(());
            }
            // The address of what lies lowest in the frame. In the frame pointer it may find all of
            // the frame, and more.
            Mnemonic::Mov
                if instruction.op1_kind() == OpKind::Register
                    && instruction.op1_register() == Register::RSP
                    && !matches!(instruction.op0_register(), Register::RSP | Register::RBP)
                    && self.size > 0 =>
            {
                return Ok(());
            }
            _ => {}
        }
        let info = factory.info(instruction);
        let touches = info.used_registers().iter().any(|used| {
            used.register().full_register() == Register::RSP
                && (!by_stack || !matches!(used.access(), OpAccess::Read | OpAccess::CondRead))
        });
        match touches || named {
            true => Err(Obstacle::StackPointer),
            false => Ok(()),
        }
    }
}

fn call_target(instruction: &Instruction) -> Option<u64> {
    instruction.is_call_near().then(|| instruction.near_branch64())
}

pub(super) fn jump_target(instruction: &Instruction) -> Option<u64> {
    let jumps = instruction.op_count() > 0
        && instruction.op0_kind() == OpKind::NearBranch64
        && !instruction.is_call_near();
    jumps.then(|| instruction.near_branch64())
}

/// The unwinder's state in inlined code: `base` at the call, `state` in the called function. `None`
/// where they cannot be put together.
pub(crate) fn composed(base: OrcState, state: OrcState, form: OrcForm) -> Option<OrcState> {
    let number = |low, high| i16::from_le_bytes([low, high]);
    Frame::of(state, form)?;
    let [base_low, base_high, base_bp_low, base_bp_high, base_registers, kind] = base;
    let [low, high, bp_low, bp_high, registers, _] = state;
    let (base_saved, saved) = (base_registers >> 4, registers >> 4);
    if kind != form.call_frame {
        return None;
    }
    if base_registers & 0xf == form.frame_pointer {
        // The frame pointer is still the caller's.
        return (saved == KEPT).then_some(base);
    }
    let is_known = base_saved == KEPT || base_saved == form.frame_end;
    if base_registers & 0xf != form.stack_pointer || !is_known {
        return None;
    }
    let outer = number(base_low, base_high).checked_sub(8)?;
    let [low, high] = number(low, high).checked_add(outer)?.to_le_bytes();
    if base_saved == form.frame_end || saved == KEPT {
        return Some([low, high, base_bp_low, base_bp_high, base_registers, kind]);
    }
    let [bp_low, bp_high] = number(bp_low, bp_high).checked_sub(outer)?.to_le_bytes();
    Some([low, high, bp_low, bp_high, registers, kind])
}

#[cfg(test)]
mod tests;
