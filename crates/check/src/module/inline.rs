//! Proves that inlined code does what the call did.
//!
//! Input: the claims of inlined calls, each with the blocks of the called function in a context of
//! its own. Output: nothing, or the first difference. These rules must hold:
//!
//! * The call is a plain one, to the entry of the function that the claim names. The kernel patches
//!   neither the call nor the ways out of the function.
//! * Where the function returns, control goes on behind the call. Where it jumps to another
//!   function, the copy calls that function, and goes on behind the call.
//! * The function never looks at its return address or beyond it: for each instruction the height
//!   of the stack above it is known, each instruction changes it as the next one expects, and no
//!   operand reaches the return address. So the stack may lie eight bytes lower.
//! * The unwinder finds the caller's frame from each instruction.
//!
//! Indirect calls have rules of their own ([`super::promote`]).

use super::{CopyClaim, Prover, Walked};
use crate::frames::{self, FrameForm, changed};
use anyhow::{Context, Result, bail, ensure};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
};
use image::address::LinkAddr;
use image::linked::forms::OrcForm;
use image::linked::tables::within;
use image::object::orc::OrcState;

/// The claim that the code of the called function, or a direct call of it, stands in place of a
/// call. In front of the code for an indirect call, the function's address is compared.
#[derive(Clone, Copy, Debug)]
pub struct InlineClaim {
    /// The context in which the call stands: 0 for the copies of functions, n for the code of the
    /// claim n - 1. A claim's context is smaller than its own number plus one.
    pub context: u32,
    /// The address of the call.
    pub site: LinkAddr,
    /// The address of the called function.
    pub callee: LinkAddr,
    /// Bytes at its entry that its code leaves out: ENDBR and the tracer's site. `None` where a
    /// direct call of it stands in place of an indirect one.
    pub skip: Option<u32>,
}

/// Bytes of a direct call.
const CALL: u64 = 5;

/// How inlined code is left.
enum WayOut {
    Return,
    /// A jump to the entry of a function, or a call of it that was indirect.
    Call(u64),
}

impl Prover<'_> {
    /// Checks each claim alone.
    pub(super) fn inline_claims(&self) -> Result<()> {
        let last = self.by_old.last().map_or(0, |block| block.context as usize);
        ensure!(last <= self.inlined.len(), "a block of code that no claim inlines");
        let different = self.contexts.len() + self.promoted.len();
        ensure!(different == self.inlined.len(), "a call is inlined twice");
        for (n, claim) in (1u32..).zip(&self.inlined) {
            self.inline_claim(n, claim)
                .with_context(|| format!("the call at {}, inlined", claim.site))?;
        }
        Ok(())
    }

    fn inline_claim(&self, own: u32, claim: &InlineClaim) -> Result<()> {
        ensure!(claim.context < own, "stands in code that is inlined later");
        if self.promoted.contains_key(&(claim.context, claim.site.0)) {
            self.promoted_claim(claim)?;
        } else {
            self.plain_call(claim)?;
        }
        match claim.skip {
            Some(skip) => self.inlined_code(own, claim.callee, skip),
            None => Ok(()),
        }
    }

    /// Checks that a call is a plain one of the function that the claim names.
    fn plain_call(&self, claim: &InlineClaim) -> Result<()> {
        ensure!(claim.skip.is_some(), "is a direct call already");
        let code = self.kernel.bytes(claim.site, CALL as usize).context("no bytes")?;
        let call = Decoder::with_ip(64, code, claim.site.0, DecoderOptions::NONE).decode();
        ensure!(
            call.code() == Code::Call_rel32_64 && call.near_branch64() == claim.callee.0,
            "{call} is no call of {}",
            claim.callee
        );
        ensure!(!self.is_written(&call), "the kernel patches {call}");
        Ok(())
    }

    /// Checks that the code of a context can be that of a function that was called.
    fn inlined_code(&self, own: u32, callee: LinkAddr, skip: u32) -> Result<()> {
        let entry =
            CopyClaim { context: 0, old: callee, old_size: skip, skip, new: 0, new_size: 0 };
        ensure!(skip > 0, "the function has no tracer's site");
        self.check_skipped(&entry)?;
        let first = callee.0 + u64::from(skip);
        ensure!(self.height(first)? == 0, "the function's frame is not empty at its entry");
        let mut factory = InstructionInfoFactory::new();
        let body = self.by_old.iter().filter(|block| block.context == own);
        for block in body {
            self.frames(own, block, &mut factory)
                .with_context(|| format!("the block at {}", block.old))?;
        }
        Ok(())
    }

    /// Compares the last instruction of a block where a call was inlined, or where inlined code is
    /// left. Returns false if the instruction is neither.
    pub(super) fn walk_joint(
        &self,
        claim: &CopyClaim,
        original: &Instruction,
        new: u32,
        new_end: u32,
        walked: &mut Walked,
    ) -> Result<bool> {
        if let Some(&inlined) = self.contexts.get(&(claim.context, original.ip())) {
            ensure!(original.next_ip() == claim.old_end(), "code follows the inlined call");
            self.check_follows(inlined, new, new_end, self.first_of(inlined))?;
            return Ok(true);
        }
        let Some(way) = self.way_out(claim.context, original)? else { return Ok(false) };
        let behind = claim.old_end() - original.next_ip();
        let behind = self.kernel.bytes(LinkAddr(original.next_ip()), behind as usize);
        ensure!(behind.is_some_and(|b| b.iter().all(|&b| b == 0xcc)), "code follows the way out");
        let mut new = new;
        if let WayOut::Call(to) = way {
            let copy = self.copied(new, new_end)?;
            let calls = copy.instruction.code() == Code::Call_rel32_64;
            ensure!(
                calls && self.agrees(0, copy.named, to),
                "{original} became {}",
                copy.instruction
            );
            walked.added.push((claim.context, original.ip(), new));
            new += copy.len;
        }
        let inlined = self.inlined[claim.context as usize - 1];
        let call = self.instruction(inlined.site.0)?;
        self.check_follows(inlined.context, new, new_end, call.next_ip())?;
        Ok(true)
    }

    /// The old address at which the code of a context begins.
    pub(super) fn first_of(&self, context: u32) -> u64 {
        let claim = self.inlined[context as usize - 1];
        claim.skip.map_or(claim.site.0, |skip| claim.callee.0 + u64::from(skip))
    }

    /// How an instruction leaves inlined code; `None` if it stays there, or in context 0.
    fn way_out(&self, context: u32, original: &Instruction) -> Result<Option<WayOut>> {
        if context == 0 {
            return Ok(None);
        }
        if let InlineClaim { skip: None, callee, .. } = self.inlined[context as usize - 1] {
            return Ok(Some(WayOut::Call(callee.0)));
        }
        let tables = &self.kernel.tables;
        let jumps = original.is_jmp_short_or_near();
        let way = match original.mnemonic() {
            Mnemonic::Ret => WayOut::Return,
            _ if jumps && tables.returns.binary_search(&original.ip()).is_ok() => WayOut::Return,
            _ if jumps && self.start_of(context, original.near_branch64()).is_none() => {
                WayOut::Call(original.near_branch64())
            }
            _ => return Ok(None),
        };
        ensure!(original.op_count() == 0 || jumps, "{original} takes more than its address");
        ensure!(!self.is_written(original), "the kernel patches {original}");
        if let WayOut::Call(to) = way {
            ensure!(self.is_entry(LinkAddr(to)), "{original} goes to no function's entry");
        }
        Ok(Some(way))
    }

    /// Whether a function begins at an address.
    pub(super) fn is_entry(&self, at: LinkAddr) -> bool {
        let function = self.kernel.function_at(at).map(|f| &self.kernel.functions[f]);
        function.is_some_and(|function| self.kernel.link_address(function.at) == at)
    }

    /// Whether the kernel may write an instruction, other than as a return.
    fn is_written(&self, instruction: &Instruction) -> bool {
        let (at, end) = (LinkAddr(instruction.ip()), LinkAddr(instruction.next_ip()));
        self.is_redirected(instruction)
            || !within(&self.kernel.tables.retpolines, |&s| s, at, end).is_empty()
    }

    /// Whether the kernel may write an instruction, other than as a return or a retpoline.
    pub(super) fn is_redirected(&self, instruction: &Instruction) -> bool {
        let tables = &self.kernel.tables;
        let (at, end) = (LinkAddr(instruction.ip()), LinkAddr(instruction.next_ip()));
        self.is_patched(instruction.ip())
            || !within(&tables.static_calls, |e| e.site, at, end).is_empty()
            || !within(&tables.paravirt, |e| e.site, at, end).is_empty()
    }

    /// The bytes on the stack above an instruction of a called function, up to its return address,
    /// as the unwinder's table says it.
    fn height(&self, old: u64) -> Result<i64> {
        let height = frames::height(self.kernel.tables.orc_at(old), self.frame_form());
        height.with_context(|| format!("at {old:x}"))
    }

    fn frame_form(&self) -> FrameForm {
        let OrcForm { call_frame, stack_pointer, frame_pointer, frame_end } =
            self.kernel.tables.forms.orc;
        FrameForm { call_frame, stack_pointer, frame_pointer, frame_end }
    }

    /// Checks that no instruction of a block reaches the return address, and that each leaves the
    /// stack as the next one expects it.
    fn frames(
        &self,
        context: u32,
        block: &CopyClaim,
        factory: &mut InstructionInfoFactory,
    ) -> Result<()> {
        ensure!(block.skip == 0, "inlined code leaves out more than an entry");
        let code = self.kernel.bytes(block.old, block.old_size as usize).context("no bytes")?;
        for original in Decoder::with_ip(64, code, block.old.0, DecoderOptions::NONE) {
            let height = self.height(original.ip())?;
            let after = changed(height, &original, factory)
                .with_context(|| format!("{original} at {:x}", original.ip()))?;
            self.replacements(&original, height, factory)?;
            match self.way_out(context, &original)? {
                Some(_) => {
                    ensure!(
                        height == 0,
                        "{original} at {:x}: the frame is not empty",
                        original.ip()
                    );
                    break;
                }
                None => self.successors(context, block, &original, height, after)?,
            }
        }
        Ok(())
    }

    /// Checks the heights wherever control may go from an instruction.
    fn successors(
        &self,
        context: u32,
        block: &CopyClaim,
        original: &Instruction,
        height: i64,
        after: i64,
    ) -> Result<()> {
        let tables = &self.kernel.tables;
        let (at, end) = (LinkAddr(original.ip()), LinkAddr(original.next_ip()));
        let goes = |to: u64, with: i64| -> Result<()> {
            ensure!(
                self.start_of(context, to).is_some(),
                "goes to {to:x}, out of the inlined code"
            );
            ensure!(self.height(to)? == with, "comes to {to:x} with another height of the stack");
            Ok(())
        };
        for fault in within(&tables.exceptions, |e| e.site, at, end) {
            goes(fault.fixup, height)?;
        }
        if let Some(target) = self.static_key(original.ip()) {
            goes(target, height)?;
        }
        let patched = self.is_patched(original.ip());
        let mut runs_on = true;
        match original.flow_control() {
            FlowControl::Next | FlowControl::Exception => {}
            // Behind a call that does not return, anything may stand.
            FlowControl::Call | FlowControl::IndirectCall => return Ok(()),
            FlowControl::Interrupt if original.code() == Code::Int3 => return Ok(()),
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                let to = original.near_branch64();
                // A short branch of an alternative stays within it.
                if !(patched && original.len() < CALL as usize) {
                    goes(to, after)?;
                }
                runs_on = patched || original.is_jcc_short_or_near();
            }
            _ => bail!("{original} leaves in a way that is not followed"),
        }
        // Behind a trap, another height may stand.
        let traps = original.flow_control() == FlowControl::Exception;
        let inside = end.0 < block.old_end() || self.start_of(context, end.0).is_some();
        if runs_on && !traps && inside {
            ensure!(self.height(end.0)? == after, "{original} leaves another height of the stack");
        }
        Ok(())
    }

    /// Checks the replacements of an alternative that begins at an instruction: they leave the
    /// stack as it was.
    fn replacements(
        &self,
        original: &Instruction,
        height: i64,
        factory: &mut InstructionInfoFactory,
    ) -> Result<()> {
        let at = LinkAddr(original.ip());
        for entry in within(&self.kernel.tables.alternatives, |e| e.site, at, LinkAddr(at.0 + 1)) {
            let from = LinkAddr(entry.replacement);
            let code = self.kernel.bytes(from, usize::from(entry.replacement_len));
            let mut after = height;
            for new in Decoder::with_ip(64, code.context("no bytes")?, from.0, DecoderOptions::NONE)
            {
                after = changed(after, &new, factory)
                    .with_context(|| format!("the replacement {new} of {at}"))?;
                let stays = matches!(
                    new.flow_control(),
                    FlowControl::Next
                        | FlowControl::Call
                        | FlowControl::IndirectCall
                        | FlowControl::UnconditionalBranch
                        | FlowControl::ConditionalBranch
                );
                ensure!(stays, "the replacement {new} of {at} leaves the inlined code");
            }
            let behind = self.height(entry.site + u64::from(entry.len))?;
            ensure!(after == behind, "a replacement of {at} leaves another height of the stack");
        }
        Ok(())
    }

    /// The unwinder's state that an instruction of a context must have.
    pub(super) fn expected_state(&self, context: u32, old: u64) -> Result<OrcState> {
        let state = self.kernel.tables.orc_at(old);
        if context == 0 {
            return Ok(state);
        }
        let call = self.inlined[context as usize - 1];
        if call.skip.is_none() {
            return self.expected_state(call.context, call.site.0);
        }
        let outer = self.expected_state(call.context, call.site.0)?;
        let together = frames::composed(outer, state, self.frame_form());
        together.with_context(|| format!("{old:x}, in the code of the call at {}", call.site))
    }
}

#[cfg(test)]
mod tests;
