//! The code of a callee, and how it stands in the place of a call.
//!
//! Input: the claimed stretches of the callee's code. Output: its instructions, each proved to stay
//! within this code and to reach nothing beyond the function's frame; and the code with branches in
//! their long form. This module shares nothing with the emitter.

use super::facts::Facts;
use super::written::{CALL, Written};
use crate::frames::{self, changed};
use anyhow::{Context, Result, bail, ensure};
use iced_x86::{
    Code, ConstantOffsets, Decoder, DecoderOptions, FlowControl, Instruction,
    InstructionInfoFactory, Mnemonic, OpKind,
};
use image::address::LinkAddr;
use std::collections::HashMap;

/// Bytes of a conditional jump in its long form.
const BRANCH: u64 = 6;
/// The no-op of five bytes that a static key's site holds.
const NO_OP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Same,
    Jump(u64),
    Branch(u64),
    Key {
        jumps: bool,
        to: u64,
    },
    Return,
    TailCall(u64),
    /// `int3` behind a way out.
    Gone,
}

struct BodyInstruction<'d> {
    instruction: Instruction,
    bytes: &'d [u8],
    constants: ConstantOffsets,
    form: Form,
}

/// The code of a callee.
pub(super) struct Body<'d> {
    code: Vec<BodyInstruction<'d>>,
    /// The addresses behind its functions.
    function_ends: Vec<u64>,
}

impl<'d> Body<'d> {
    /// # Errors
    /// The stretches are not the code of the function at `entry`, or it cannot stand in the place
    /// of a call.
    pub(super) fn of(
        facts: &Facts<'_, 'd>,
        entry: u64,
        stretches: &[(LinkAddr, u32)],
    ) -> Result<Body<'d>> {
        let begin = facts.behind_tracer(entry)?;
        let is_first = stretches.first().is_some_and(|&(start, _)| start.0 == begin);
        ensure!(is_first, "the code does not begin behind the callee's tracer's site");
        let mut raw: Vec<(Instruction, &'d [u8], ConstantOffsets)> = Vec::new();
        let mut function_ends = Vec::new();
        for &(start, size) in stretches {
            let section = facts.kernel.section_at(start.0);
            let is_code = section.is_some_and(|section| section.executable);
            ensure!(is_code && !facts.is_kept_apart(start.0), "{start} is no ordinary code");
            let bytes = facts.kernel.bytes(start.0, size.into()).context("no bytes")?;
            let mut decoder = Decoder::with_ip(64, bytes, start.0, DecoderOptions::NONE);
            while decoder.can_decode() {
                let from = decoder.position();
                let instruction = decoder.decode();
                ensure!(!instruction.is_invalid(), "{:x} is no instruction", instruction.ip());
                let constants = decoder.get_constant_offsets(&instruction);
                raw.push((instruction, &bytes[from..decoder.position()], constants));
            }
            function_ends.push(start.0 + u64::from(size));
        }
        let starts: HashMap<u64, usize> =
            raw.iter().enumerate().map(|(n, (i, ..))| (i.ip(), n)).collect();
        ensure!(starts.len() == raw.len(), "an instruction is in two stretches");
        let mut code: Vec<BodyInstruction<'d>> = Vec::with_capacity(raw.len());
        for (instruction, bytes, constants) in raw {
            let before = code.last().map(|last| last.form);
            let form = form(facts, &starts, &instruction, before);
            let form = form.with_context(|| format!("{instruction} at {:x}", instruction.ip()))?;
            code.push(BodyInstruction { instruction, bytes, constants, form });
        }
        let body = Body { code, function_ends };
        body.frames(facts, &starts)?;
        Ok(body)
    }

    /// Checks the height of the stack at each instruction, and wherever control goes from it.
    fn frames(&self, facts: &Facts<'_, '_>, starts: &HashMap<u64, usize>) -> Result<()> {
        let height = |at: u64| frames::height(facts.state(at)?, facts.form);
        let mut factory = InstructionInfoFactory::new();
        let first = self.code.first().context("no code")?.instruction.ip();
        ensure!(height(first)? == 0, "the frame is not empty at the callee's entry");
        for (number, BodyInstruction { instruction, form, .. }) in self.code.iter().enumerate() {
            let named = || format!("{instruction} at {:x}", instruction.ip());
            if *form == Form::Gone {
                continue;
            }
            let here = height(instruction.ip()).with_context(named)?;
            let after = changed(here, instruction, &mut factory).with_context(named)?;
            replacements(facts, instruction.ip(), here, &mut factory).with_context(named)?;
            let goes = |to: u64, with: i64| -> Result<()> {
                ensure!(starts.contains_key(&to), "goes to {to:x}, out of the code");
                ensure!(height(to)? == with, "comes to {to:x} with another height of the stack");
                Ok(())
            };
            let faults = facts.fixups.get(&instruction.ip()).into_iter().flatten();
            for &fixup in faults {
                goes(fixup, here).with_context(named)?;
            }
            let next = self.code.get(number + 1).map(|next| next.instruction.ip());
            let follows = next.filter(|&next| next == instruction.next_ip());
            match *form {
                Form::Return | Form::TailCall(_) => {
                    ensure!(here == 0, "{}: the frame is not empty", named());
                    continue;
                }
                Form::Jump(to) => {
                    goes(to, after).with_context(named)?;
                    continue;
                }
                Form::Branch(to) | Form::Key { to, .. } => goes(to, after).with_context(named)?,
                Form::Same | Form::Gone => {}
            }
            let flow = instruction.flow_control();
            let calls = matches!(flow, FlowControl::Call | FlowControl::IndirectCall);
            let stops = flow == FlowControl::Exception || instruction.code() == Code::Int3;
            if calls || stops {
                // Behind a call that does not return, and behind a trap, anything may stand.
                continue;
            }
            let next =
                follows.with_context(|| format!("{}: code runs out of the claim", named()))?;
            ensure!(height(next)? == after, "{}: leaves another height of the stack", named());
        }
        Ok(())
    }

    /// Appends the code, which begins at `at`. `behind`: the address behind the call.
    pub(super) fn write(&self, behind: u64, at: u64, out: &mut Vec<u8>) -> Result<Vec<Written>> {
        let mut written = Vec::with_capacity(self.code.len());
        let mut new = at;
        for BodyInstruction { instruction, bytes, form, .. } in &self.code {
            let len = match form {
                Form::Same => bytes.len() as u64,
                Form::Jump(_) | Form::Key { .. } | Form::Return => CALL,
                Form::Branch(_) => BRANCH,
                Form::TailCall(_) => 2 * CALL,
                Form::Gone => 0,
            };
            let stays =
                matches!(form, Form::Same | Form::Jump(_) | Form::Branch(_) | Form::Key { .. });
            written.push(Written {
                old: instruction.ip(),
                old_len: bytes.len() as u64,
                new,
                len,
                stays,
                is_call: *form == Form::Same && instruction.code() == Code::Call_rel32_64,
                calls: matches!(form, Form::TailCall(_)),
            });
            new += len;
        }
        let places: HashMap<u64, u64> = written.iter().map(|w| (w.old, w.new)).collect();
        let place = |to: u64| places.get(&to).copied().context("no instruction begins there");
        let jump = |out: &mut Vec<u8>, opcode: &[u8], from: u64, to: u64| -> Result<()> {
            let end = from + opcode.len() as u64 + 4;
            let distance = i32::try_from(to.wrapping_sub(end) as i64).context("too far away")?;
            out.extend_from_slice(opcode);
            out.extend_from_slice(&distance.to_le_bytes());
            Ok(())
        };
        for (code, w) in self.code.iter().zip(&written) {
            match code.form {
                Form::Gone => {}
                Form::Jump(to) | Form::Key { jumps: true, to } => {
                    jump(out, &[0xe9], w.new, place(to)?)?;
                }
                Form::Key { .. } => out.extend_from_slice(&NO_OP),
                Form::Branch(to) => {
                    let opcode = [0x0f, 0x80 | condition(code.bytes)];
                    jump(out, &opcode, w.new, place(to)?)?;
                }
                Form::Return => jump(out, &[0xe9], w.new, behind)?,
                Form::TailCall(to) => {
                    jump(out, &[0xe8], w.new, to)?;
                    jump(out, &[0xe9], w.new + CALL, behind)?;
                }
                Form::Same => {
                    let start = out.len();
                    out.extend_from_slice(code.bytes);
                    if let Some((field, target)) = relative(&code.instruction, &code.constants) {
                        let end = w.new + w.len;
                        let distance = i32::try_from(target.wrapping_sub(end) as i64);
                        let distance = distance.context("too far away")?.to_le_bytes();
                        out[start + field..start + field + 4].copy_from_slice(&distance);
                    }
                }
            }
        }
        Ok(written)
    }

    /// The addresses behind the code of each function, in the place of the call.
    pub(super) fn ends(&self, written: &[Written]) -> impl Iterator<Item = u64> {
        let ends = |w: &&Written| self.function_ends.contains(&(w.old + w.old_len));
        written.iter().filter(ends).map(|w| w.new + w.len)
    }
}

/// The field of 32 bits, and the target, of an operand or branch relative to the instruction.
fn relative(instruction: &Instruction, constants: &ConstantOffsets) -> Option<(usize, u64)> {
    if instruction.is_ip_rel_memory_operand() {
        return Some((constants.displacement_offset(), instruction.ip_rel_memory_address()));
    }
    let is_branch = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64;
    (is_branch && constants.immediate_size() == 4)
        .then(|| (constants.immediate_offset(), instruction.near_branch64()))
}

/// The number of the condition in a conditional jump of two or six bytes.
fn condition(bytes: &[u8]) -> u8 {
    bytes[usize::from(bytes.len() > 2)] & 0xf
}

fn form(
    facts: &Facts<'_, '_>,
    starts: &HashMap<u64, usize>,
    i: &Instruction,
    before: Option<Form>,
) -> Result<Form> {
    let at = i.ip();
    let is_branch = i.op_count() > 0 && i.op0_kind() == OpKind::NearBranch64;
    let is_jump = is_branch && !i.is_call_near();
    if facts.is_opaque(at) {
        let stays = is_jump && i.len() == 2 && facts.is_opaque(i.near_branch64());
        let leaves = is_jump || i.flow_control() == FlowControl::Return;
        ensure!(stays || !leaves, "an alternative leaves the code");
        ensure!(!facts.returns.contains(&at), "an alternative returns");
        return same(starts, i, stays);
    }
    if let Some(&to) = facts.keys.get(&at) {
        let jumps = i.is_jmp_short_or_near();
        ensure!(jumps || i.mnemonic() == Mnemonic::Nop, "is no site of a static key");
        ensure!(!jumps || i.near_branch64() == to, "a static key's jump goes elsewhere");
        return Ok(Form::Key { jumps, to });
    }
    if i.is_jmp_short_or_near() {
        let to = i.near_branch64();
        if facts.returns.contains(&at) {
            return Ok(Form::Return);
        }
        ensure!([2, 5].contains(&i.len()), "jumps in an unusual way");
        if starts.contains_key(&to) {
            return Ok(Form::Jump(to));
        }
        ensure!(!facts.patched.contains(&at), "the kernel writes a jump out of the code");
        ensure!(facts.is_entry(to), "jumps to no function's entry");
        return Ok(Form::TailCall(to));
    }
    if i.is_jcc_short_or_near() {
        ensure!([2, 6].contains(&i.len()), "branches in an unusual way");
        ensure!(starts.contains_key(&i.near_branch64()), "branches out of the code");
        return Ok(Form::Branch(i.near_branch64()));
    }
    match i.flow_control() {
        FlowControl::Return => {
            ensure!(i.code() == Code::Retnq && i.len() == 1, "returns in an unusual way");
            Ok(Form::Return)
        }
        FlowControl::Next
        | FlowControl::Call
        | FlowControl::IndirectCall
        | FlowControl::Exception => same(starts, i, false),
        FlowControl::Interrupt if i.code() == Code::Int3 => match before {
            Some(Form::Return | Form::TailCall(_)) => Ok(Form::Gone),
            _ => Ok(Form::Same),
        },
        _ => bail!("leaves in a way that is not followed"),
    }
}

/// An instruction that stays: it names no place in the code.
fn same(starts: &HashMap<u64, usize>, i: &Instruction, is_within: bool) -> Result<Form> {
    let is_branch = i.op_count() > 0 && i.op0_kind() == OpKind::NearBranch64;
    let named = match i.is_ip_rel_memory_operand() {
        true => Some(i.ip_rel_memory_address()),
        false => is_branch.then(|| i.near_branch64()),
    };
    let names_code = named.is_some_and(|at| starts.contains_key(&at));
    ensure!(is_within || !names_code, "takes the address of the code");
    Ok(Form::Same)
}

/// Checks the replacements of an alternative that begins at an instruction: control stays in them,
/// and they leave the stack as the code behind the alternative has it.
fn replacements(
    facts: &Facts<'_, '_>,
    at: u64,
    height: i64,
    factory: &mut InstructionInfoFactory,
) -> Result<()> {
    for (from, len, replaced) in facts.replacements(at) {
        let code = facts.kernel.bytes(from, len).context("a replacement has no bytes")?;
        let mut after = height;
        for new in Decoder::with_ip(64, code, from, DecoderOptions::NONE) {
            after =
                changed(after, &new, factory).with_context(|| format!("its replacement {new}"))?;
            let is_jump = matches!(
                new.flow_control(),
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
            );
            let inside = || (from..=from + len).contains(&new.near_branch64());
            let stays = matches!(
                new.flow_control(),
                FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall
            ) || is_jump && inside();
            ensure!(stays, "its replacement {new} leaves the code");
        }
        let behind = frames::height(facts.state(at + replaced)?, facts.form)?;
        ensure!(after == behind, "a replacement leaves another height of the stack");
    }
    Ok(())
}
