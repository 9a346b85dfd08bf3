//! What called code has on the stack, instruction by instruction.
//!
//! Input: an instruction, and the unwinder's states. Output: the height of the stack above it, up
//! to its return address; the height behind it; and the unwinder's state of code that stands in the
//! place of a call. What is not followed is an error: such code may see its return address.

use anyhow::{Context, Result, bail, ensure};
use iced_x86::{Code, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

/// A `struct orc_entry`: two offsets, two registers, type and signal.
pub(crate) type UnwindState = [u8; 6];

/// Bytes of a return address.
const RETURN_ADDRESS: i64 = 8;
/// `ORC_REG_UNDEFINED`, arch/x86/include/asm/orc_types.h.
const UNSAVED: u8 = 0;

/// What the numbers in an unwinder's state mean (arch/x86/include/asm/orc_types.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameForm {
    /// The type of an ordinary frame.
    pub call_frame: u8,
    /// The register of a frame that is found by the stack pointer.
    pub stack_pointer: u8,
    /// The register of a frame that is found by the frame pointer.
    pub frame_pointer: u8,
    /// Where the caller's frame pointer lies at a distance from the frame's end.
    pub frame_end: u8,
}

/// The bytes on the stack above an instruction of a called function, up to its return address.
pub(crate) fn height(state: UnwindState, form: FrameForm) -> Result<i64> {
    let plain = state[5] == form.call_frame
        && state[4] & 0xf == form.stack_pointer
        && [UNSAVED, form.frame_end].contains(&(state[4] >> 4));
    ensure!(plain, "the frame is not found by the stack pointer alone");
    let height = number(state[0], state[1]) - RETURN_ADDRESS;
    ensure!(height >= 0, "the frame has a negative size");
    Ok(height)
}

/// The unwinder's state of an instruction that stands in the place of a call. `outer`: the state at
/// the call; `state`: that of the instruction in the called function.
pub(crate) fn composed(
    outer: UnwindState,
    state: UnwindState,
    form: FrameForm,
) -> Result<UnwindState> {
    let [low, high, bp_low, bp_high, registers, kind] = outer;
    ensure!(kind == form.call_frame, "the call has no frame");
    let saved = state[4] >> 4 == form.frame_end;
    if registers & 0xf == form.frame_pointer {
        ensure!(!saved, "the frame pointer that finds the caller's frame is lost");
        return Ok(outer);
    }
    ensure!(registers & 0xf == form.stack_pointer, "the frame of the call is not found");
    let bytes = |value: i64| Ok::<_, anyhow::Error>(i16::try_from(value)?.to_le_bytes());
    let (outer, height) = (number(low, high), height(state, form)?);
    let [new_low, new_high] = bytes(outer + height)?;
    if registers >> 4 == UNSAVED && saved {
        // The slot's distance from the stack pointer is the same as before.
        let slot = height + RETURN_ADDRESS + number(state[2], state[3]);
        let [slot_low, slot_high] = bytes(slot - (outer + height))?;
        let registers = form.frame_end << 4 | form.stack_pointer;
        return Ok([new_low, new_high, slot_low, slot_high, registers, kind]);
    }
    let is_found = [UNSAVED, form.frame_end].contains(&(registers >> 4));
    ensure!(is_found, "the call's frame pointer is not found");
    Ok([new_low, new_high, bp_low, bp_high, registers, kind])
}

fn number(low: u8, high: u8) -> i64 {
    i64::from(i16::from_le_bytes([low, high]))
}

/// The height of the stack behind an instruction, if it reaches nothing from the return address on.
pub(crate) fn changed(
    height: i64,
    instruction: &Instruction,
    factory: &mut InstructionInfoFactory,
) -> Result<i64> {
    let is_branch = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::NearBranch64;
    let by_stack = !is_branch && instruction.memory_base() == Register::RSP;
    ensure!(
        is_branch || instruction.memory_index() != Register::RSP,
        "the stack pointer is an index"
    );
    let displacement = instruction.memory_displacement64() as i64;
    let to_stack_pointer = instruction.op_count() > 0
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register() == Register::RSP;
    let is_lea = instruction.mnemonic() == Mnemonic::Lea;
    if is_lea && to_stack_pointer {
        let plain = by_stack && instruction.memory_index() == Register::None;
        ensure!(plain, "the stack pointer is computed");
        return lowered(height, -displacement);
    }
    if by_stack {
        let size = if is_lea { 1 } else { instruction.memory_size().size().max(1) as i64 };
        ensure!(
            displacement >= 0 && displacement + size <= height,
            "reaches the return address or lies below the stack"
        );
    }
    let immediate = || match instruction.op1_kind() {
        OpKind::Immediate8to64 => Ok(instruction.immediate8to64()),
        OpKind::Immediate32to64 => Ok(instruction.immediate32to64()),
        _ => bail!("the stack pointer is computed"),
    };
    let named = (0..instruction.op_count()).any(|op| {
        instruction.op_kind(op) == OpKind::Register
            && instruction.op_register(op).full_register() == Register::RSP
    });
    match instruction.code() {
        Code::Push_r64 | Code::Pushq_imm8 | Code::Pushq_imm32 | Code::Push_rm64 | Code::Pushfq
            if !named && !by_stack =>
        {
            return lowered(height, 8);
        }
        Code::Pop_r64 | Code::Pop_rm64 | Code::Popfq if !named && !by_stack => {
            return lowered(height, -8);
        }
        Code::Call_rel32_64 | Code::Call_rm64 | Code::Retnq => return Ok(height),
        Code::Mov_r64_rm64 | Code::Mov_rm64_r64 if named => {
            // The address of what lies lowest on the stack, but for no frame pointer.
            let copies = !to_stack_pointer
                && instruction.op1_register() == Register::RSP
                && instruction.op0_register() != Register::RBP
                && height > 0;
            ensure!(copies, "the stack pointer is copied");
            return Ok(height);
        }
        _ if to_stack_pointer && instruction.mnemonic() == Mnemonic::Sub => {
            return lowered(height, immediate()?);
        }
        _ if to_stack_pointer && instruction.mnemonic() == Mnemonic::Add => {
            return lowered(height, -immediate()?);
        }
        _ => {}
    }
    let uses = factory.info(instruction).used_registers();
    let plain = uses.iter().all(|used| {
        used.register().full_register() != Register::RSP
            || by_stack && used.access() == iced_x86::OpAccess::Read
    });
    ensure!(plain && !named, "uses the stack pointer in a way that is not followed");
    Ok(height)
}

fn lowered(height: i64, by: i64) -> Result<i64> {
    let after = height.checked_add(by).filter(|&after| after >= 0);
    after.context("releases the return address")
}
