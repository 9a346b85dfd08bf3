//! Proves that an indirect call may go straight to one of its targets.
//!
//! Input: the claims of calls whose instruction is an indirect call. Output: nothing, or the first
//! difference. These rules must hold:
//!
//! * The call goes through a register, directly or by a retpoline's thunk, which the kernel patches
//!   to such a call.
//! * Where control runs on to the call, the copy compares this register with the address of the
//!   claim's function. Where they are equal, control goes to the code for this function: its body,
//!   by the rules of inlined calls, or a direct call of it. Otherwise it goes to the copy of the
//!   indirect call.
//! * Nobody sees that the comparison has changed the flags. A function expects nothing in them
//!   (System V ABI). Assembly code may hand flags to a function that it calls through a pointer: it
//!   puts them there by `popf`, which must not stand in front of the call.
//! * Behind the direct call, control goes on where it went on behind the indirect one.
//! * At each added instruction the unwinder's state is that at the indirect call.

use super::inline::InlineClaim;
use super::{CopyClaim, NamedPlace, Prover, Walked};
use anyhow::{Context, Result, ensure};
use iced_x86::{Code, ConditionCode, Decoder, DecoderOptions, Mnemonic, OpKind, Register};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::linked::tables::within;

/// `RETPOLINE_THUNK_SIZE`, arch/x86/include/asm/nospec-branch.h: bytes of a register's thunk. The
/// thunks stand in the order of the registers' numbers, and the kernel finds a register so
/// (`patch_retpoline`, arch/x86/kernel/alternative.c).
const THUNK: u64 = 32;
/// The number of registers.
const REGISTERS: u64 = 16;
/// Bytes of the comparison.
const COMPARISON: u32 = 7;

/// The number of the register through which an instruction calls; `None` if it calls through none.
pub(super) fn indirect_call(kernel: &LinkedKernel<'_>, at: u64) -> Option<u8> {
    let bytes = (1..=15).rev().find_map(|len| kernel.bytes(LinkAddr(at), len))?;
    let call = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
    let number = match call.code() {
        Code::Call_rm64 if call.op0_kind() == OpKind::Register => call.op0_register().number(),
        Code::Call_rel32_64 if kernel.tables.retpolines.binary_search(&at).is_ok() => {
            let thunks = kernel.address_of("__x86_indirect_thunk_array")?;
            let distance = call.near_branch64().checked_sub(thunks.0)?;
            let known = distance.is_multiple_of(THUNK) && distance / THUNK < REGISTERS;
            known.then_some((distance / THUNK) as usize)?
        }
        _ => return None,
    };
    (number != Register::RSP.number()).then_some(number as u8)
}

impl Prover<'_> {
    /// Checks the claim of an indirect call alone.
    pub(super) fn promoted_claim(&self, claim: &InlineClaim) -> Result<()> {
        let call = self.instruction(claim.site.0)?;
        ensure!(!self.is_redirected(&call), "the kernel patches {call} in another way");
        let end = LinkAddr(call.next_ip());
        let faults = within(&self.kernel.tables.exceptions, |e| e.site, claim.site, end);
        ensure!(faults.is_empty(), "{call} may fault");
        ensure!(self.is_entry(claim.callee), "no function begins at {}", claim.callee);
        Ok(())
    }

    /// Compares the end of a block that runs on to a promoted call: a comparison, and a branch.
    pub(super) fn walk_guard(
        &self,
        block: &CopyClaim,
        new: u32,
        walked: &mut Walked,
    ) -> Result<()> {
        let (context, call) = (block.context, block.old_end());
        let new_end = block.new + block.new_size;
        self.no_flags_from(block)?;
        let promoted = self.promoted[&(context, call)];
        let register = indirect_call(self.kernel, call).context("no indirect call")?;
        let target = self.inlined[promoted as usize - 1].callee.0.wrapping_add(self.slide);
        let number = i32::try_from(target as i64).context("an address that no `cmp` can name")?;
        let [a, b, c, d] = number.to_le_bytes();
        let expected = [0x48 | register >> 3, 0x81, 0xf8 | register & 7, a, b, c, d];
        let compared = self.copied(new, new_end)?;
        let behind = new + compared.len;
        ensure!(
            compared.len == COMPARISON
                && self.reading.text[new as usize..behind as usize] == expected,
            "{} does not compare the pointer of the call at {call:x} with {target:x}",
            compared.instruction
        );
        let branch = self.copied(behind, new_end)?;
        walked.added.extend([(context, call, new), (context, call, behind)]);
        let entry = self.first_of(promoted);
        let goes = |to_context: u32, old: u64| {
            let claim = self.start_of(to_context, old);
            claim.is_some_and(|claim| branch.named == Some(NamedPlace::Copy(claim.new)))
        };
        let behind = behind + branch.len;
        let condition = branch.instruction.condition_code();
        match branch.instruction.is_jcc_short_or_near() {
            true if condition == ConditionCode::e && goes(promoted, entry) => {
                self.check_follows(context, behind, new_end, call)
            }
            true if condition == ConditionCode::ne && goes(context, call) => {
                self.check_follows(promoted, behind, new_end, entry)
            }
            _ => anyhow::bail!("{} behind the comparison", branch.instruction),
        }
    }

    /// Checks that no code at the end of a block hands flags on to the call behind it.
    fn no_flags_from(&self, block: &CopyClaim) -> Result<()> {
        let code = self.kernel.bytes(block.old, block.old_size as usize).context("no bytes")?;
        let mut takes_flags = false;
        for before in Decoder::with_ip(64, code, block.old.0, DecoderOptions::NONE) {
            let calls = before.is_call_near() || before.is_call_near_indirect();
            takes_flags = before.mnemonic() == Mnemonic::Popfq || takes_flags && !calls;
        }
        ensure!(!takes_flags, "the call at {:x} may take flags", block.old_end());
        Ok(())
    }
}
