//! A guard in the place of an indirect call.
//!
//! Input: the old kernel, and the address of a call. Output: the code of a guard that does the
//! same: it compares the pointer with a function's address, calls the function directly where they
//! are equal, and makes the old call where they are not. The module shares nothing with the
//! emitter. A call is refused unless these rules hold:
//!
//! * It goes through a register by a thunk, which the kernel patches as such and in no other way.
//! * No flags are handed to the called function: no instruction of the caller's loads them all. A
//!   guard changes them, and nothing else.

use super::facts::Facts;
use super::written::{CALL, Written};
use anyhow::{Context, Result, ensure};
use iced_x86::{Code, Encoder, Instruction, Mnemonic, Register};

/// The table that names the calls by thunks.
const RETPOLINES: &str = ".retpoline_sites";
/// The name of a register's thunk in front of the register's.
const THUNK: &str = "__x86_indirect_thunk_";

/// An indirect call by a thunk.
pub(super) struct IndirectCall<'d> {
    instruction: Instruction,
    bytes: &'d [u8],
    /// That of the pointer.
    register: Register,
}

/// A guard that was written.
pub(super) struct Guard {
    /// The indirect call, and the new direct one.
    pub written: Vec<Written>,
    /// Where its direct call is.
    pub direct: u64,
    /// Where it holds the function's address.
    pub address: u64,
    /// The address behind it.
    pub end: u64,
}

impl<'d> Facts<'_, 'd> {
    /// The indirect call at an address of the old kernel.
    ///
    /// # Errors
    /// There is none, or it breaks a rule.
    pub(super) fn indirect_call(&self, at: u64) -> Result<IndirectCall<'d>> {
        ensure!(self.retpolines.contains(&at), "no call by a thunk is there");
        let instruction = self.call(at, RETPOLINES)?;
        let bytes = self.kernel.bytes(at, instruction.len() as u64).context("no bytes")?;
        ensure!(
            bytes.len() == CALL as usize || matches!(bytes, [0x2e, 0xe8, ..]),
            "{instruction} has an unusual form"
        );
        let mut function = self.instructions_around(at)?;
        ensure!(
            !function.any(|i| i.mnemonic() == Mnemonic::Popfq),
            "its function hands flags to what it calls"
        );
        let named = self.kernel.symbols_at(instruction.near_branch64()).iter();
        let register =
            named.filter_map(|symbol| symbol.name.strip_prefix(THUNK)).find_map(|name| {
                let mut general = Register::values().filter(|register| register.is_gpr64());
                general.find(|register| format!("{register:?}").eq_ignore_ascii_case(name))
            });
        let register = register.with_context(|| format!("{instruction} goes to no thunk"))?;
        Ok(IndirectCall { instruction, bytes, register })
    }
}

impl IndirectCall<'_> {
    /// The bytes of the call.
    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Appends the guard, which begins at `at`. `behind`: the address behind the call.
    pub(super) fn write(
        &self,
        target: u64,
        behind: u64,
        at: u64,
        out: &mut Vec<u8>,
    ) -> Result<Guard> {
        let number = i32::try_from(target as i64).context("the function lies too low")?;
        let mut compare = Encoder::new(64);
        let comparison = Instruction::with2(Code::Cmp_rm64_imm32, self.register, number)?;
        let size = compare.encode(&comparison, at)? as u64;
        let address = at + compare.get_constant_offsets().immediate_offset() as u64;
        out.extend(compare.take_buffer());
        let direct = at + size + 6;
        let indirect = direct + 2 * CALL;
        let end = indirect + self.len() + CALL;
        let mut branch = |opcode: &[u8], from: u64, to: u64| -> Result<()> {
            let distance = to.wrapping_sub(from + opcode.len() as u64 + 4) as i64;
            out.extend_from_slice(opcode);
            let distance = i32::try_from(distance).context("too far away")?;
            out.extend_from_slice(&distance.to_le_bytes());
            Ok(())
        };
        branch(&[0x0f, 0x85], at + size, indirect)?;
        branch(&[0xe8], direct, target)?;
        branch(&[0xe9], direct + CALL, behind)?;
        let opcode = &self.bytes[..self.bytes.len() - 4];
        branch(opcode, indirect, self.instruction.near_branch64())?;
        branch(&[0xe9], indirect + self.len(), behind)?;
        let old = Written {
            old: self.instruction.ip(),
            old_len: self.len(),
            new: indirect,
            len: self.len(),
            stays: true,
            is_call: false,
            calls: false,
        };
        // It has no old code.
        let new = Written { old: u64::MAX, old_len: 0, new: direct, len: CALL, calls: true, ..old };
        Ok(Guard { written: vec![old, Written { stays: false, ..new }], direct, address, end })
    }
}
