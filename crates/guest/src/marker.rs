//! The marks by which a workload tells the plugin where counting starts and ends.
//!
//! A mark is an eight-byte no-operation, `nopl imm32(%rax,%rax,1)`. No compiler emits it with these
//! immediates, and it does nothing on any machine. Output: the bytes of a static ELF program that
//! executes one mark and exits. The program needs no compiler on the host and no library in the
//! guest. Another such program stops the guest for a checkpoint.

/// A mark is `0f 1f 84 00`, followed by the sum of this number and the mark's number, little
/// endian.
pub(crate) const MARK_BASE: u32 = 0x4b4c_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Counting starts with the next instruction.
    Start = 1,
    /// Counting has ended.
    GuestEnd = 2,
    /// The workload failed, so the recording is useless.
    Failed = 3,
}

impl Mark {
    pub(crate) const ALL: [Mark; 3] = [Mark::Start, Mark::GuestEnd, Mark::Failed];

    /// The program's path in the guest.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Mark::Start => "kernlane/mark-start",
            Mark::GuestEnd => "kernlane/mark-end",
            Mark::Failed => "kernlane/mark-failed",
        }
    }

    pub(crate) const fn instruction(self) -> [u8; 8] {
        let [a, b, c, d] = (MARK_BASE | self as u32).to_le_bytes();
        [0x0f, 0x1f, 0x84, 0x00, a, b, c, d]
    }

    /// A program that executes the mark and exits.
    pub(crate) fn elf(self) -> Vec<u8> {
        program(0x40_0000, &self.instruction())
    }

    /// The program of a guest whose workload executes the marks of start and end itself: there it
    /// does nothing.
    pub(crate) fn elf_of_guest(self, marks_itself: bool) -> Vec<u8> {
        match self {
            Mark::Start | Mark::GuestEnd if marks_itself => program(0x40_0000, &[]),
            _ => self.elf(),
        }
    }
}

/// The path in the guest of the program at whose first instruction the guest stops for a
/// checkpoint. Without a checkpoint the program does nothing.
pub(crate) const PAUSE: &str = "kernlane/pause";

/// The address of that instruction. No other program of a guest has code there.
pub(crate) const PAUSE_ADDRESS: u64 = 0x4b4c_0000 + HEADERS;

pub(crate) fn pause() -> Vec<u8> {
    program(PAUSE_ADDRESS - HEADERS, &[])
}

/// The bytes of an ELF header and one program header.
const HEADERS: u64 = 64 + 56;

/// A static ELF64 executable of one segment: the instructions, then `exit(0)`.
fn program(base: u64, instructions: &[u8]) -> Vec<u8> {
    let mut code = instructions.to_vec();
    code.extend([0x31, 0xff]); //                   xor %edi,%edi
    code.extend([0xb8, 0x3c, 0x00, 0x00, 0x00]); // mov $60,%eax (exit)
    code.extend([0x0f, 0x05]); //                   syscall
    let size = HEADERS + code.len() as u64;

    let mut elf = Vec::new();
    elf.extend(*b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0"); // 64 bit, little endian, System V
    elf.extend(2u16.to_le_bytes()); //            e_type: executable
    elf.extend(62u16.to_le_bytes()); //           e_machine: x86-64
    elf.extend(1u32.to_le_bytes()); //            e_version
    elf.extend((base + HEADERS).to_le_bytes()); // e_entry
    elf.extend(64u64.to_le_bytes()); //           e_phoff
    elf.extend(0u64.to_le_bytes()); //            e_shoff: no sections
    elf.extend(0u32.to_le_bytes()); //            e_flags
    for half in [64u16, 56, 1, 0, 0, 0] {
        // e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx
        elf.extend(half.to_le_bytes());
    }
    elf.extend(1u32.to_le_bytes()); //            p_type: load
    elf.extend(5u32.to_le_bytes()); //            p_flags: read, execute
    for word in [0, base, base, size, size, 0x1000] {
        elf.extend(word.to_le_bytes()); // p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align
    }
    elf.extend(code);
    elf
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};
    use object::{Object, ObjectSegment};

    #[test]
    fn a_mark_is_a_no_operation_of_eight_bytes() {
        for mark in Mark::ALL {
            let bytes = mark.instruction();
            let instruction = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
            assert_eq!(instruction.mnemonic(), Mnemonic::Nop);
            assert_eq!(instruction.len(), 8);
            assert_eq!(instruction.memory_displacement32(), MARK_BASE + mark as u32);
        }
    }

    #[test]
    fn the_program_marks_and_exits_with_zero() {
        for mark in Mark::ALL {
            let (_, mnemonics) = disassembled(&mark.elf());
            assert_eq!(mnemonics, [Mnemonic::Nop, Mnemonic::Xor, Mnemonic::Mov, Mnemonic::Syscall]);
        }
        let (_, mnemonics) = disassembled(&Mark::Start.elf_of_guest(true));
        assert_eq!(mnemonics, [Mnemonic::Xor, Mnemonic::Mov, Mnemonic::Syscall]);
        assert_eq!(Mark::Failed.elf_of_guest(true), Mark::Failed.elf());
        let (entry, mnemonics) = disassembled(&pause());
        assert_eq!(mnemonics, [Mnemonic::Xor, Mnemonic::Mov, Mnemonic::Syscall]);
        assert_eq!(entry, PAUSE_ADDRESS);
    }

    /// The address of the entry, and the instructions from there.
    fn disassembled(elf: &[u8]) -> (u64, Vec<Mnemonic>) {
        let file = object::File::parse(elf).unwrap();
        let segment = file.segments().next().unwrap();
        assert_eq!(segment.size(), elf.len() as u64);
        let code = &segment.data().unwrap()[(file.entry() - segment.address()) as usize..];
        let mnemonics =
            Decoder::new(64, code, DecoderOptions::NONE).iter().map(|i| i.mnemonic()).collect();
        (file.entry(), mnemonics)
    }
}
