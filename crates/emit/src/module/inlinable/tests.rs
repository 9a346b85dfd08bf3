//! Unwinder states put together, and instructions that see beyond their frame.

use super::*;

/// Of Linux 6.12.
const FORM: OrcForm = OrcForm { call_frame: 2, stack_pointer: 5, frame_pointer: 4, frame_end: 1 };

/// The state of a frame of this size, its frame pointer saved at a distance from its end.
fn state(size: i16, saved: Option<i16>) -> OrcState {
    let [low, high] = (size + 8).to_le_bytes();
    let [bp_low, bp_high] = saved.unwrap_or(0).to_le_bytes();
    [low, high, bp_low, bp_high, if saved.is_some() { 0x15 } else { 0x05 }, 2]
}

#[test]
fn the_frame_of_inlined_code_is_the_callers_and_its_own_without_a_return_address() {
    // The caller has 24 bytes on the stack, the callee 16.
    let base = state(24, None);
    assert_eq!(composed(base, state(16, None), FORM), Some(state(40, None)));
    assert_eq!(composed(base, state(0, None), FORM), Some(base), "at the entry and at a return");
    // The callee's push of the frame pointer lies at its stack pointer + 8, 16 below the end of its
    // frame; from there it is 40 to the end of the caller's frame.
    assert_eq!(composed(base, state(16, Some(-16)), FORM), Some(state(40, Some(-40))));
    // The caller's own caller has its frame pointer where the caller saved it.
    let saving = state(24, Some(-16));
    let expected = Some(state(40, Some(-16)));
    assert_eq!(composed(saving, state(16, None), FORM), expected);
    assert_eq!(composed(saving, state(16, Some(-24)), FORM), expected);
}

#[test]
fn a_frame_found_by_the_frame_pointer_stays_as_long_as_the_callee_leaves_it() {
    let by_frame = [16, 0, 0xf0, 0xff, 0x14, 2];
    assert_eq!(composed(by_frame, state(16, None), FORM), Some(by_frame));
    assert_eq!(composed(by_frame, state(16, Some(-16)), FORM), None);
    // A callee's frame is found by the stack pointer, or the callee is not inlined.
    for other in [by_frame, [0; 6], [8, 0, 0, 0, 0x05, 3], [8, 0, 0, 0, 0x25, 2], state(-16, None)]
    {
        assert_eq!(composed(state(24, None), other, FORM), None);
    }
    assert_eq!(composed([0; 6], state(0, None), FORM), None);
}

#[test]
fn since_7_2_the_registers_have_other_numbers() {
    let form = OrcForm { stack_pointer: 3, frame_end: 8, ..FORM };
    let of = |size, saved| {
        let [low, high, bp_low, bp_high, registers, kind] = state(size, saved);
        let registers = if registers >> 4 == 0 { 0x03 } else { 0x83 };
        [low, high, bp_low, bp_high, registers, kind]
    };
    let found = composed(of(24, None), of(16, Some(-16)), form);
    assert_eq!(found, Some(of(40, Some(-40))));
    // What was the frame's end is another register now.
    assert_eq!(composed(of(24, None), [24, 0, 0xf0, 0xff, 0x13, 2], form), None);
    assert_eq!(composed(state(24, None), state(16, None), form), None);
}

#[test]
fn an_instruction_is_refused_that_looks_beyond_the_frame() {
    let allowed = |size, bytes: &[u8]| {
        let instruction = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
        assert_eq!(instruction.len(), bytes.len(), "{instruction}");
        let frame = Frame { size, changes_frame_pointer: false };
        frame.allows(&instruction, &mut InstructionInfoFactory::new())
    };
    // mov 8(%rsp),%rax: of 16 bytes the last, of 8 bytes the return address.
    let load = [0x48, 0x8b, 0x44, 0x24, 0x08];
    assert_eq!(allowed(16, &load), Ok(()));
    assert_eq!(allowed(15, &load), Err(Obstacle::BeyondFrame));
    // lea 8(%rsp),%rdi; lea 8(%rsp),%rsp releases all of 8 bytes.
    assert_eq!(allowed(16, &[0x48, 0x8d, 0x7c, 0x24, 0x08]), Ok(()));
    assert_eq!(allowed(8, &[0x48, 0x8d, 0x7c, 0x24, 0x08]), Err(Obstacle::BeyondFrame));
    assert_eq!(allowed(8, &[0x48, 0x8d, 0x64, 0x24, 0x08]), Ok(()));
    // push %rbx, pop %rbx, pushf, sub $16,%rsp, call, mov %rdi,%rax.
    for plain in [
        &[0x53][..],
        &[0x5b],
        &[0x9c],
        &[0x48, 0x83, 0xec, 16],
        &[0xe8, 0, 0, 0, 0],
        &[0x48, 0x89, 0xf8],
    ] {
        assert_eq!(allowed(0, plain), Ok(()), "{plain:x?}");
    }
    // mov %rsp,%rdi: the address of a variable, or with an empty frame that of the return address.
    assert_eq!(allowed(8, &[0x48, 0x89, 0xe7]), Ok(()));
    assert_eq!(allowed(0, &[0x48, 0x89, 0xe7]), Err(Obstacle::StackPointer));
    // mov %rsp,8(%rsp), a list's head that names itself; add %rsp,8(%rsp).
    assert_eq!(allowed(16, &[0x48, 0x89, 0x64, 0x24, 0x08]), Ok(()));
    assert_eq!(allowed(16, &[0x48, 0x01, 0x64, 0x24, 0x08]), Err(Obstacle::StackPointer));
    // push %rsp, pop %rsp, mov %rsp,%rbp, mov %rax,%rsp, and $-16,%rsp, sub %rax,%rsp, leave.
    for odd in [
        &[0x54][..],
        &[0x5c],
        &[0x48, 0x89, 0xe5],
        &[0x48, 0x89, 0xc4],
        &[0x48, 0x83, 0xe4, 0xf0],
        &[0x48, 0x29, 0xc4],
        &[0xc9],
    ] {
        assert_eq!(allowed(64, odd), Err(Obstacle::StackPointer), "{odd:x?}");
    }
}
