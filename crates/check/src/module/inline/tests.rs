//! The height of the stack over single instructions.

use super::*;

/// The height of the stack behind an instruction, in front of which it is `height`.
fn after(height: i64, bytes: &[u8]) -> Option<i64> {
    let instruction = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
    assert_eq!(instruction.len(), bytes.len(), "{instruction}");
    changed(height, &instruction, &mut InstructionInfoFactory::new()).ok()
}

#[test]
fn each_instruction_changes_the_height_of_the_stack_as_it_does() {
    for (bytes, change) in [
        (&[0x53][..], 8),                // push %rbx
        (&[0x6a, 1], 8),                 // push $1
        (&[0x9c], 8),                    // pushf
        (&[0x5b], -8),                   // pop %rbx
        (&[0x9d], -8),                   // popf
        (&[0x48, 0x83, 0xec, 0x18], 24), // sub $24,%rsp
        (&[0x48, 0x83, 0xc4, 0x18], -24),
        (&[0x48, 0x81, 0xec, 0, 1, 0, 0], 256),
        (&[0x48, 0x8d, 0x64, 0x24, 0xf8], 8), // lea -8(%rsp),%rsp
        (&[0xe8, 0, 0, 0, 0], 0),
        (&[0xff, 0xd0], 0),                   // call *%rax
        (&[0x48, 0x89, 0xe7], 0),             // mov %rsp,%rdi
        (&[0x48, 0x89, 0x64, 0x24, 0x08], 0), // mov %rsp,8(%rsp)
        (&[0x48, 0x8b, 0x44, 0x24, 0x18], 0), // mov 24(%rsp),%rax
        (&[0x48, 0x8d, 0x7c, 0x24, 0x1f], 0), // lea 31(%rsp),%rdi
        (&[0x48, 0x83, 0x04, 0x24, 1], 0),    // addq $1,(%rsp)
    ] {
        assert_eq!(after(32, bytes), Some(32 + change), "{bytes:x?}");
    }
}

#[test]
fn what_reaches_the_return_address_is_found() {
    for (height, bytes) in [
        (24, &[0x48, 0x8b, 0x44, 0x24, 0x18][..]), // mov 24(%rsp),%rax
        (31, &[0x48, 0x8b, 0x44, 0x24, 0x18]),     // the last byte of it
        (31, &[0x48, 0x8d, 0x7c, 0x24, 0x1f]),     // lea 31(%rsp),%rdi
        (32, &[0x48, 0x8b, 0x44, 0x24, 0xf8]),     // mov -8(%rsp),%rax, below the stack
        (0, &[0x5b]),                              // pop %rbx
        (16, &[0x48, 0x83, 0xc4, 0x18]),           // add $24,%rsp
        (0, &[0x48, 0x89, 0xe7]),                  // mov %rsp,%rdi
        (32, &[0x48, 0x89, 0xe5]),                 // mov %rsp,%rbp
        (32, &[0x54]),                             // push %rsp
        (32, &[0x5c]),                             // pop %rsp
        (32, &[0x48, 0x89, 0xc4]),                 // mov %rax,%rsp
        (32, &[0x48, 0x83, 0xe4, 0xf0]),           // and $-16,%rsp
        (32, &[0x48, 0x29, 0xc4]),                 // sub %rax,%rsp
        (32, &[0x48, 0x01, 0xe0]),                 // add %rsp,%rax
        (32, &[0x48, 0x01, 0x64, 0x24, 0x08]),     // add %rsp,8(%rsp)
        (32, &[0x48, 0x89, 0x64, 0x24, 0x19]),     // mov %rsp,25(%rsp)
        (32, &[0xc9]),                             // leave
        (32, &[0xff, 0x34, 0x24]),                 // push (%rsp)
        (32, &[0x48, 0x94]),                       // xchg %rax,%rsp
    ] {
        assert_eq!(after(height, bytes), None, "{bytes:x?}");
    }
}
