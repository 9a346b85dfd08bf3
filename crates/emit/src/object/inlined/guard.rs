//! Indirect calls that can be promoted, and the code of their guards.
//!
//! Input: an object. Output: its indirect calls that go through a register by a thunk; and, for one
//! of them and a function, the code that takes its place. The pointer is compared with the
//! function's address. Where they are equal the function is called directly, elsewhere the call is
//! as it was. This module decides what can be promoted, never what should be.
//!
//! A guard changes the flags, and nothing else. No function expects anything in them (System V
//! ABI), and the thunks of call-depth tracking change them too. Only assembly code hands flags to a
//! pointer's function: KVM's emulator, by a `popf` in front of the call. The calls of a function
//! with a `popf` are refused.

use super::body::{BodyFacts, CALL, Written};
use crate::branch::{write_branch, write_jump};
use anyhow::{Context, Result};
use image::object::elf::ElfRelocation;
use image::object::functions::TextFunction;
use image::object::instructions::{DecodedInstruction, InstructionKind};
use object::elf;
use std::collections::BTreeSet;

/// The thunks of registers, each with the number of its register in instructions. No call goes
/// through the stack pointer.
const THUNKS: [(&str, u8); 15] = [
    ("__x86_indirect_thunk_rax", 0),
    ("__x86_indirect_thunk_rcx", 1),
    ("__x86_indirect_thunk_rdx", 2),
    ("__x86_indirect_thunk_rbx", 3),
    ("__x86_indirect_thunk_rbp", 5),
    ("__x86_indirect_thunk_rsi", 6),
    ("__x86_indirect_thunk_rdi", 7),
    ("__x86_indirect_thunk_r8", 8),
    ("__x86_indirect_thunk_r9", 9),
    ("__x86_indirect_thunk_r10", 10),
    ("__x86_indirect_thunk_r11", 11),
    ("__x86_indirect_thunk_r12", 12),
    ("__x86_indirect_thunk_r13", 13),
    ("__x86_indirect_thunk_r14", 14),
    ("__x86_indirect_thunk_r15", 15),
];
/// `popf`.
const POPF: u8 = 0x9d;
/// The number of the condition "not equal".
const NOT_EQUAL: u8 = 5;
/// Bytes of a comparison with an address, and of the conditional jump behind it.
const COMPARISON: u32 = 7;
const BRANCH: u32 = 6;

/// An indirect call by a thunk.
#[derive(Clone, Copy)]
pub(super) struct IndirectCall {
    /// The offset of the call.
    pub at: u32,
    /// Its bytes: those of a direct call, and perhaps a prefix.
    pub len: u32,
    /// The number of the register with the pointer.
    register: u8,
}

/// A guard.
pub(super) struct Guard {
    /// The offset of its direct call.
    pub direct: u32,
    /// The indirect call, at its new place.
    pub indirect: Written,
}

impl BodyFacts<'_, '_> {
    /// The indirect calls that can be promoted.
    pub(super) fn indirect_calls(&self) -> impl Iterator<Item = IndirectCall> {
        let functions: BTreeSet<u32> =
            self.thunks.iter().filter_map(|&at| self.function_at(at)).collect();
        let functions = functions.into_iter().filter_map(|at| self.function(at));
        functions.flat_map(|function| self.indirect_calls_in(function))
    }

    /// The indirect call at an offset, if it can be promoted.
    pub(super) fn indirect_call_at(&self, at: u32) -> Option<IndirectCall> {
        self.indirect_calls_in(self.function(at)?).into_iter().find(|call| call.at == at)
    }

    fn indirect_calls_in(&self, function: &TextFunction) -> Vec<IndirectCall> {
        if function.whole.is_some() {
            return Vec::new();
        }
        let code = self.decode(&(function.at..function.end));
        let bytes = self.object.elf.bytes(self.object.text);
        if code.iter().any(|i| i.len == 1 && bytes[i.at as usize] == POPF) {
            return Vec::new();
        }
        let is_within = |i: &&DecodedInstruction| i.end() < function.end;
        code.iter().filter(is_within).filter_map(|i| self.indirect_call(i)).collect()
    }

    fn indirect_call(&self, i: &DecodedInstruction) -> Option<IndirectCall> {
        let is_by_thunk = i.kind == InstructionKind::Call
            && i.linked
            && (CALL..=CALL + 1).contains(&u32::from(i.len))
            && self.thunks.contains(&i.at)
            && !self.is_patched_otherwise(i);
        let field = self.fields(i).first().filter(|_| is_by_thunk)?;
        let elf = &self.object.elf;
        let thunk = elf.name(elf.symbol(field.symbol));
        let &(_, register) = THUNKS.iter().find(|&&(name, _)| name == thunk)?;
        Some(IndirectCall { at: i.at, len: u32::from(i.len), register })
    }
}

impl IndirectCall {
    /// Appends the guard to `text`, with its relocations. `callee`: the offset of the function;
    /// `at`: where the call is now.
    pub(super) fn write(
        self,
        facts: &BodyFacts<'_, '_>,
        callee: u32,
        at: u32,
        text: &mut Vec<u8>,
        relocations: &mut Vec<ElfRelocation>,
    ) -> Result<Guard> {
        let start = text.len() as u32;
        let direct = start + COMPARISON + BRANCH;
        let indirect = direct + 2 * CALL;
        let behind = at + self.len;
        let symbol = facts.object.elf.section_symbol(facts.object.text)?;
        // cmp $callee,%register
        text.extend_from_slice(&[0x48 | self.register >> 3, 0x81, 0xf8 | self.register & 7]);
        relocations.push(ElfRelocation {
            offset: text.len() as u64,
            symbol,
            kind: elf::R_X86_64_32S,
            addend: callee.into(),
        });
        text.extend_from_slice(&[0; 4]);
        write_branch(text, NOT_EQUAL, indirect, BRANCH as u8)?;
        text.push(0xe8);
        relocations.push(ElfRelocation {
            offset: text.len() as u64,
            symbol,
            kind: elf::R_X86_64_PLT32,
            addend: i64::from(callee) - 4,
        });
        text.extend_from_slice(&[0; 4]);
        write_jump(text, behind, CALL as u8)?;
        let bytes = facts.object.elf.bytes(facts.object.text);
        let old = bytes.get(self.at as usize..(self.at + self.len) as usize);
        text.extend_from_slice(old.context("the call has no bytes")?);
        let fields = facts.relocations().iter();
        let fields = fields.filter(|r| (self.at..self.at + self.len).contains(&(r.offset as u32)));
        relocations.extend(fields.map(|r| ElfRelocation {
            offset: r.offset - u64::from(self.at) + u64::from(indirect),
            ..*r
        }));
        write_jump(text, behind, CALL as u8)?;
        let indirect =
            Written { old: self.at, new: indirect, len: self.len, stays: true, calls: false };
        Ok(Guard { direct, indirect })
    }
}
