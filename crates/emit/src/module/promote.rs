//! Indirect calls that can be promoted: the pointer is compared with the address of one function,
//! and where they are equal this function is called directly, or its code stands there.
//!
//! Input: pieces of functions. Output: their indirect calls, and the code of a guard. This module
//! decides what can be promoted, never what should be.
//!
//! A guard changes the flags, and nothing else. No function expects anything in them (System V
//! ABI), and the thunks of call-depth tracking change them too. Only assembly code hands flags to a
//! pointer's function: KVM's emulator, by a `popf` in front of the call. Such calls are refused.

use super::contexts::{Guard, IndirectCall};
use super::lift::Original;
use anyhow::{Context, Result, ensure};
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind};
use image::address::LinkAddr;
use image::linked::tables::within;

/// The registers by their numbers, as the names of the kernel's thunks end. No call goes through
/// the stack pointer.
const REGISTERS: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];
const STACK_POINTER: u8 = 4;

impl Original<'_, '_> {
    /// The indirect calls of a piece that can be promoted as far as the call itself goes. Control
    /// comes to each of them only from the instruction in front of it.
    pub fn indirect_calls(&self, piece: usize) -> Vec<IndirectCall> {
        let owned = &self.pieces[piece];
        let end = self.functions[owned.function as usize].end;
        let mut found = Vec::new();
        let mut before: Option<Instruction> = None;
        let mut hands_flags_on = false;
        let mut since = owned.at;
        for instruction in self.instructions_of(owned) {
            let call = self.indirect_call(&instruction, since);
            // Behind a call, the guard would be entered from inlined code.
            let follows = before.is_some_and(|i| i.flow_control() == FlowControl::Next);
            found.extend(call.filter(|c| follows && !hands_flags_on && c.at + c.len != end));
            hands_flags_on |= instruction.mnemonic() == Mnemonic::Popfq;
            if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
                hands_flags_on = false;
                since = (instruction.next_ip() - self.kernel.text.start) as u32;
            }
            before = Some(instruction);
        }
        found
    }

    /// The call if an instruction is an indirect one that goes through a register, and that the
    /// kernel patches only as such.
    fn indirect_call(&self, instruction: &Instruction, since: u32) -> Option<IndirectCall> {
        let tables = &self.kernel.tables;
        let register = match instruction.code() {
            Code::Call_rm64 if instruction.op0_kind() == OpKind::Register => {
                instruction.op0_register().number() as u8
            }
            Code::Call_rel32_64 if tables.retpolines.binary_search(&instruction.ip()).is_ok() => {
                let to = LinkAddr(instruction.near_branch64());
                let is_thunk = |name: &&str| {
                    self.kernel.address_of(&format!("__x86_indirect_thunk_{name}")) == Some(to)
                };
                REGISTERS.iter().position(is_thunk)? as u8
            }
            _ => return None,
        };
        let (at, end) = (LinkAddr(instruction.ip()), LinkAddr(instruction.next_ip()));
        let faults = !within(&tables.exceptions, |e| e.site, at, end).is_empty();
        let plain = !self.is_patched(instruction) && !faults && register != STACK_POINTER;
        plain.then_some(IndirectCall {
            at: (at.0 - self.kernel.text.start) as u32,
            len: instruction.len() as u32,
            register,
            since,
        })
    }

    /// The address itself, if a function begins there.
    ///
    /// # Errors
    /// None begins there.
    pub(super) fn entry_at(&self, at: LinkAddr) -> Result<LinkAddr> {
        let function = self.kernel.function_at(at).map(|f| &self.kernel.functions[f]);
        let entry = function.map(|function| self.kernel.link_address(function.at));
        ensure!(entry == Some(at), "no function begins at {at}");
        Ok(at)
    }

    /// `cmp $target,%register`. The kernel's image lies where a number of 32 bits names it.
    pub(super) fn guard_code(&self, guard: Guard) -> Result<[u8; 7]> {
        let target = guard.target.0.wrapping_add(self.slide);
        let number = i32::try_from(target as i64);
        let [a, b, c, d] = number.context("the kernel lies too low")?.to_le_bytes();
        let register = guard.call.register;
        Ok([0x48 | register >> 3, 0x81, 0xf8 | register & 7, a, b, c, d])
    }
}
