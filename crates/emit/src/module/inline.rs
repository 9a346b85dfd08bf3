//! Calls whose callee's code stands in the caller's copy, without call and return, and promoted
//! indirect calls.
//!
//! Input: a group's functions, and these calls. Output: the group's pieces, cut at these calls, and
//! behind them the pieces of each callee once more for each call, or the promoted call. This module
//! decides what can be inlined, never what should be.
//!
//! Code that was called finds its return address on the stack. Inlined code does not: everything
//! from the caller's frame on lies eight bytes lower. So code is refused that looks at its return
//! address or beyond it, that keeps its frame elsewhere than below the stack pointer, or that
//! leaves in another way than by a return or a jump to a function.

use super::contexts::{CALL, Guard, InPlace, IndirectCall, InlinedCall, Joint};
use super::inlinable::{composed, jump_target};
use super::lift::Original;
use anyhow::{Context, Result, ensure};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use image::address::LinkAddr;
use image::object::orc::OrcState;
use image::object::pieces::{Piece, PieceExit};

/// How a piece of inlined code leaves it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InlinedExit {
    /// The offset of the return or of the jump.
    pub at: u32,
    /// The function that is called instead of jumped to; `None` for a return.
    pub calls: Option<LinkAddr>,
}

impl Original<'_, '_> {
    /// The piece of a context that begins at an offset of `.text`.
    pub(crate) fn piece_in(&self, context: u32, at: u32) -> Option<u32> {
        let range = self.inlining.pieces(context, self.pieces.len());
        let first = range.start;
        let found = self.pieces[range].binary_search_by_key(&at, |piece| piece.at).ok()?;
        Some((first + found) as u32)
    }

    /// The function in whose copy a piece lies: its own, or the one that it was inlined into.
    pub fn copy_of(&self, mut piece: usize) -> u32 {
        while let Some(call) = self.inlining.context(piece).checked_sub(1) {
            piece = self.inlining.joint(call).0 as usize;
        }
        self.pieces[piece].function
    }

    /// The unwinder's state at an instruction of a context.
    ///
    /// # Errors
    /// The unwinder's states of caller and callee cannot be put together.
    pub(crate) fn state_in(&self, context: u32, at: LinkAddr) -> Result<OrcState> {
        let tables = &self.kernel.tables;
        let state = tables.orc_at(at.0);
        let Some(call) = context.checked_sub(1) else { return Ok(state) };
        let call = self.inlining.calls()[call as usize];
        let base = self.state_in(call.context, self.kernel.link_address(call.at))?;
        if call.inlined().is_none() {
            return Ok(base);
        }
        let together = composed(base, state, tables.forms.orc);
        together
            .with_context(|| format!("{at}: the unwinder's state cannot be that of inlined code"))
    }

    /// The offset behind the last instruction of a piece that its copy keeps: without a call that
    /// was inlined, and without a return of inlined code.
    pub(crate) fn kept_end(&self, piece: usize) -> u32 {
        let end = self.pieces[piece].end();
        match self.inlining.joint_at(piece) {
            Some(Joint { guard: None, .. }) => end - CALL,
            Some(Joint { guard: Some(_), .. }) => end,
            None => self.inlined_exit(piece).map_or(end, |exit| exit.at),
        }
    }

    /// How a piece of inlined code leaves it; `None` if it does not.
    pub(crate) fn inlined_exit(&self, piece: usize) -> Option<InlinedExit> {
        let context = self.inlining.context(piece);
        let owned = &self.pieces[piece];
        match self.inlining.calls()[context.checked_sub(1)? as usize].code {
            InPlace::Code(_) => self.exit_of(owned, &|at| self.piece_in(context, at).is_some()),
            InPlace::Call(target) => Some(InlinedExit { at: owned.at, calls: Some(target) }),
        }
    }

    /// How a piece leaves a body. `holds`: whether a piece of the body begins at an offset.
    pub(super) fn exit_of(
        &self,
        piece: &Piece,
        holds: &dyn Fn(u32) -> bool,
    ) -> Option<InlinedExit> {
        let last = self.instructions_of(piece).filter(|i| i.mnemonic() != Mnemonic::Int3).last()?;
        let at = (last.ip() - self.kernel.text.start) as u32;
        if self.is_return(&last) {
            return Some(InlinedExit { at, calls: None });
        }
        let target = jump_target(&last).filter(|_| last.is_jmp_short_or_near())?;
        let offset = u32::try_from(target.checked_sub(self.kernel.text.start)?).ok()?;
        (!holds(offset)).then_some(InlinedExit { at, calls: Some(LinkAddr(target)) })
    }

    fn is_return(&self, instruction: &Instruction) -> bool {
        let returns = &self.kernel.tables.returns;
        matches!(instruction.mnemonic(), Mnemonic::Ret)
            || instruction.is_jmp_short_or_near()
                && returns.binary_search(&instruction.ip()).is_ok()
    }

    /// The instructions of a piece, behind what its copy leaves out at an entry.
    pub(super) fn instructions_of(&self, piece: &Piece) -> impl Iterator<Item = Instruction> + '_ {
        let skip = if piece.entry { self.skip[piece.function as usize] } else { 0 };
        let from = piece.at + skip;
        let code = self.bytes(piece.function, from, piece.end().max(from));
        let at = self.kernel.link_address(from).0;
        Decoder::with_ip(64, code, at, DecoderOptions::NONE).into_iter()
    }

    /// Whether a piece leaves inlined code: control goes on behind the call.
    pub fn leaves_inlined(&self, piece: usize) -> bool {
        self.inlined_exit(piece).is_some()
    }

    /// Inlines and promotes calls. A call that stands in inlined code follows the call that this
    /// code belongs to.
    ///
    /// # Errors
    /// Neither [`plain_calls`](Original::plain_calls) nor
    /// [`indirect_calls`](Original::indirect_calls) names a call, or its callee cannot be inlined
    /// there.
    pub fn inline(mut self, calls: &[InlinedCall]) -> Result<Self> {
        let indirect: Vec<Option<IndirectCall>> =
            calls.iter().map(|call| self.indirect_call_at(call.at)).collect();
        let cuts = calls.iter().zip(&indirect).flat_map(|(call, indirect)| match indirect {
            Some(indirect) => vec![indirect.at, indirect.at + indirect.len],
            None => vec![call.at + CALL],
        });
        let mut cuts: Vec<u32> = cuts.collect();
        cuts.sort_unstable();
        cuts.dedup();
        self.cut_at(&cuts);
        let own = self.pieces.len();
        for (call, indirect) in calls.iter().zip(indirect) {
            let at = self.kernel.link_address(call.at);
            self.take(*call, indirect, own).with_context(|| format!("the call at {at}"))?;
        }
        Ok(self)
    }

    /// The indirect call at an offset, if it can be promoted. Nothing is inlined yet.
    fn indirect_call_at(&self, at: u32) -> Option<IndirectCall> {
        let piece = self.pieces.partition_point(|piece| piece.at <= at).checked_sub(1)?;
        self.indirect_calls(piece).into_iter().find(|call| call.at == at)
    }

    /// Puts code in place of a call. `own`: the number of pieces of the functions' own copies.
    fn take(
        &mut self,
        call: InlinedCall,
        indirect: Option<IndirectCall>,
        own: usize,
    ) -> Result<()> {
        let target = match call.code {
            InPlace::Code(n) => self.kernel.link_address(self.functions[n as usize].at),
            InPlace::Call(target) => self.entry_at(target)?,
        };
        let guard = indirect.map(|call| Guard { call, target });
        let (caller_end, end) = match indirect {
            Some(indirect) => (call.at, call.at + indirect.len),
            None => (call.at + CALL, call.at + CALL),
        };
        let caller = self.piece_that_ends(call.context, caller_end);
        let caller = caller.with_context(|| format!("is not in context {}", call.context))?;
        let behind = self.piece_in(call.context, end).context("no code is behind it")?;
        let first = self.pieces.len() as u32;
        let (copies, entry) = match call.code {
            InPlace::Code(callee) => {
                let is_plain = || self.plain_calls(caller as usize).contains(&(call.at, callee));
                let is_call = guard.is_some() && self.skip[callee as usize] > 0 || is_plain();
                ensure!(is_call, "is no call of that function");
                let body =
                    self.inlinable(callee).map_err(|obstacle| anyhow::anyhow!("{obstacle}"))?;
                ensure!(body.pieces.iter().all(|&piece| (piece as usize) < own), "no own code");
                let copies: Vec<Piece> =
                    body.pieces.iter().filter_map(|&n| self.inlined(n)).collect();
                let begin = self.functions[callee as usize].at + self.skip[callee as usize];
                let entry = copies.iter().position(|piece| piece.at == begin);
                (copies, entry.context("the callee has no first block")?)
            }
            InPlace::Call(_) => {
                ensure!(guard.is_some(), "is no indirect call");
                let indirect = self.piece_in(call.context, call.at).context("is no block")?;
                (vec![self.pieces[indirect as usize].clone()], 0)
            }
        };
        let joint = Joint { caller, behind, entry: first + entry as u32, guard };
        ensure!(self.inlining.push(call, joint, first), "two calls end the same block");
        self.pieces.extend(copies);
        Ok(())
    }

    /// A piece as it stands in inlined code: without what a copy leaves out at an entry. `None` if
    /// nothing is left.
    fn inlined(&self, piece: u32) -> Option<Piece> {
        let mut piece = self.pieces[piece as usize].clone();
        let skip = if piece.entry { self.skip[piece.function as usize] } else { 0 };
        (piece.at, piece.size, piece.entry) = (piece.at + skip, piece.size - skip, false);
        (piece.size > 0).then_some(piece)
    }

    /// The piece of a context that ends at an offset.
    fn piece_that_ends(&self, context: u32, end: u32) -> Option<u32> {
        let range = self.inlining.pieces(context, self.pieces.len());
        let first = range.start;
        let pieces = &self.pieces[range];
        let found = pieces.partition_point(|piece| piece.at < end).checked_sub(1)?;
        (pieces[found].end() == end).then_some((first + found) as u32)
    }

    /// Cuts the pieces of functions at offsets, ascending. Nothing is inlined yet.
    fn cut_at(&mut self, cuts: &[u32]) {
        let mut pieces = Vec::with_capacity(self.pieces.len() + cuts.len());
        for mut piece in std::mem::take(&mut self.pieces) {
            let first = cuts.partition_point(|&cut| cut <= piece.at);
            let last = cuts.partition_point(|&cut| cut < piece.end());
            for &cut in &cuts[first..last.max(first)] {
                let behind = Piece {
                    at: cut,
                    size: piece.end() - cut,
                    lead: 0,
                    spare: 0,
                    entry: false,
                    align: 1,
                    residue: 0,
                    ..piece.clone()
                };
                let front = Piece {
                    size: cut - piece.at,
                    gap: 0,
                    exit: PieceExit::Runs,
                    tail: 0,
                    pinned: false,
                    ..piece
                };
                pieces.push(front);
                piece = behind;
            }
            pieces.push(piece);
        }
        self.pieces = pieces;
    }
}
