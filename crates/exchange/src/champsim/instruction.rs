//! The registers that an instruction reads and writes, as a ChampSim trace numbers them.
//!
//! ChampSim derives the kind of a branch from three registers: the stack pointer, the flags and the
//! instruction pointer (the constructor of `ooo_model_instr` in its `inc/instruction.h`). Its
//! tracer numbers registers as Intel's Pin does. So do the numbers here, up to 26.
//!
//! | number | register |
//! |---|---|
//! | 3 … 10 | rdi, rsi, rbp, rsp, rbx, rdx, rcx, rax |
//! | 11 … 18 | r8 … r15 |
//! | 25, 26 | the flags, the instruction pointer |
//! | 32 … 63 | vector registers |
//! | 64 … 71 | mask registers |
//! | 72 … 79 | the x87 stack and MMX registers |
//! | 80 | control, debug and all other registers |
//! | 81 | the target that an indirect branch loads, when no register is in its address |
//!
//! A register counts with all its parts. Segment registers carry no value.
//!
//! Input: an instruction. Output: its registers, for a record that is not a branch and for one that
//! is.

use super::record::TracedRegisters;
use execution::code::LastInstruction;
use iced_x86::{Instruction, InstructionInfoFactory, OpAccess, Register};
use sim::BranchKind;

const STACK_POINTER: u8 = 6;
const FLAGS: u8 = 25;
const INSTRUCTION_POINTER: u8 = 26;
const VECTORS: u8 = 32;
const MASKS: u8 = 64;
const X87: u8 = 72;
const OTHER: u8 = 80;
const LOADED_TARGET: u8 = 81;
/// The numbers of general registers, by their numbers in an instruction.
const GENERAL: [u8; 16] = [10, 9, 8, 7, STACK_POINTER, 5, 4, 3, 11, 12, 13, 14, 15, 16, 17, 18];
/// The flags that arithmetic sets, among iced-x86's bits of flags: OF, SF, ZF, AF, CF, PF.
const ARITHMETIC: u32 = 0x3f;

/// An instruction's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TracedInstruction {
    /// The registers in a record that is not a branch.
    pub plain: TracedRegisters,
    /// The registers that ChampSim expects of a branch; `None`: the instruction is not a branch.
    pub branch: Option<TracedRegisters>,
}

impl TracedInstruction {
    /// An instruction that ends its translation as `last` says. [`LastInstruction::Plain`]: the
    /// instruction does not end the translation, or is not a branch.
    pub(super) fn new(
        instruction: &Instruction,
        last: LastInstruction,
        factory: &mut InstructionInfoFactory,
    ) -> TracedInstruction {
        let (read, written) = used(instruction, factory);
        TracedInstruction {
            plain: TracedRegisters::new(&read, &written),
            branch: branch(last, &read, &written),
        }
    }
}

/// The registers of a branch.
fn branch(last: LastInstruction, read: &[u8], written: &[u8]) -> Option<TracedRegisters> {
    let kind = match last {
        LastInstruction::Conditional { .. } => BranchKind::Conditional,
        LastInstruction::Jump { .. } => BranchKind::Jump,
        LastInstruction::Call { .. } => BranchKind::Call,
        LastInstruction::Taken(kind) => kind,
        LastInstruction::Plain | LastInstruction::InterruptReturn => return None,
    };
    let values = |kept: &[u8]| -> Vec<u8> {
        kept.iter().copied().filter(|&it| it != STACK_POINTER && it != FLAGS).collect()
    };
    let target = || {
        let registers = values(read);
        if registers.is_empty() { vec![LOADED_TARGET] } else { registers }
    };
    let (read, written) = match kind {
        BranchKind::Conditional => {
            let operands = read.iter().copied().filter(|&it| it != STACK_POINTER);
            let read = [INSTRUCTION_POINTER].into_iter().chain(operands).collect();
            (read, [vec![INSTRUCTION_POINTER], values(written)].concat())
        }
        BranchKind::Jump => (vec![INSTRUCTION_POINTER], vec![INSTRUCTION_POINTER]),
        BranchKind::Call => {
            let both = vec![INSTRUCTION_POINTER, STACK_POINTER];
            (both.clone(), both)
        }
        BranchKind::Return => (vec![STACK_POINTER], vec![INSTRUCTION_POINTER, STACK_POINTER]),
        BranchKind::IndirectJump => (target(), vec![INSTRUCTION_POINTER]),
        BranchKind::IndirectCall => {
            let both = vec![INSTRUCTION_POINTER, STACK_POINTER];
            ([both.clone(), target()].concat(), both)
        }
    };
    Some(TracedRegisters::new(&read, &written))
}

/// The registers that an instruction reads and writes, each in the decoder's order, then the flags.
fn used(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> (Vec<u8>, Vec<u8>) {
    let (mut read, mut written) = (Vec::new(), Vec::new());
    let add = |list: &mut Vec<u8>, register: u8| {
        if !list.contains(&register) {
            list.push(register);
        }
    };
    for used in factory.info(instruction).used_registers() {
        let Some(number) = number(used.register()) else { continue };
        let (reads, writes) = match used.access() {
            OpAccess::None | OpAccess::NoMemAccess => (false, false),
            OpAccess::Read | OpAccess::CondRead => (true, false),
            OpAccess::Write => (false, true),
            OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
        };
        // A small part of a register keeps the rest.
        let part = used.register().is_gpr8() || used.register().is_gpr16();
        if reads || writes && part {
            add(&mut read, number);
        }
        if writes {
            add(&mut written, number);
        }
    }
    if instruction.rflags_read() & ARITHMETIC != 0 {
        read.push(FLAGS);
    }
    if instruction.rflags_modified() & ARITHMETIC != 0 {
        written.push(FLAGS);
    }
    (read, written)
}

/// The number of a register; `None` for those that carry no value.
fn number(register: Register) -> Option<u8> {
    let full = register.full_register();
    let part = full.number() as u8;
    if full.is_gpr64() {
        GENERAL.get(usize::from(part)).copied()
    } else if full.is_vector_register() {
        Some(VECTORS + part)
    } else if full.is_k() {
        Some(MASKS + part)
    } else if full.is_st() || full.is_mm() {
        Some(X87 + part)
    } else if full == Register::RIP || full == Register::None || full.is_segment_register() {
        None
    } else {
        Some(OTHER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};
    use trace::{RunAddr, Translation, TranslationId};

    /// The kinds of branches that ChampSim knows.
    #[derive(Debug, PartialEq)]
    enum ChampSimBranch {
        DirectJump,
        Indirect,
        Conditional,
        DirectCall,
        IndirectCall,
        Return,
        Other,
        None,
    }

    /// The rules of `ooo_model_instr`, in their order.
    fn kind(registers: &TracedRegisters) -> ChampSimBranch {
        use ChampSimBranch::*;
        let writes = |register| registers.written.contains(&register);
        let reads = |register| registers.read.contains(&register);
        let (reads_sp, writes_sp) = (reads(STACK_POINTER), writes(STACK_POINTER));
        let (reads_ip, writes_ip) = (reads(INSTRUCTION_POINTER), writes(INSTRUCTION_POINTER));
        let reads_flags = reads(FLAGS);
        let named = [0, STACK_POINTER, FLAGS, INSTRUCTION_POINTER];
        let reads_other = registers.read.iter().any(|register| !named.contains(register));
        if !reads_sp && !reads_flags && writes_ip && !reads_other {
            DirectJump
        } else if !reads_sp && !reads_ip && !reads_flags && writes_ip && reads_other {
            Indirect
        } else if !reads_sp && reads_ip && !writes_sp && writes_ip && (reads_flags || reads_other) {
            Conditional
        } else if reads_sp && reads_ip && writes_sp && writes_ip && !reads_flags && !reads_other {
            DirectCall
        } else if reads_sp && reads_ip && writes_sp && writes_ip && !reads_flags && reads_other {
            IndirectCall
        } else if reads_sp && !reads_ip && writes_sp && writes_ip {
            Return
        } else if writes_ip {
            Other
        } else {
            None
        }
    }

    fn traced(bytes: &[u8]) -> TracedInstruction {
        let translation = Translation {
            id: TranslationId(0),
            addr: RunAddr(0x1000),
            lengths: [bytes.len() as u8].into(),
            code: bytes.into(),
        };
        let last = execution::code::TranslatedCode::new(&translation).unwrap().last;
        let instruction = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
        TracedInstruction::new(&instruction, last, &mut InstructionInfoFactory::new())
    }

    #[test]
    fn champsim_recognises_every_kind_of_branch() {
        use ChampSimBranch::*;
        let cases: [(&[u8], ChampSimBranch); 14] = [
            (&[0x74, 0x10], Conditional),                    // je
            (&[0xe3, 0x02], Conditional),                    // jrcxz
            (&[0xe2, 0xfe], Conditional),                    // loop
            (&[0xeb, 0x00], DirectJump),                     // jmp
            (&[0xe8, 0, 0, 0, 0], DirectCall),               // call
            (&[0xff, 0xe0], Indirect),                       // jmp rax
            (&[0xff, 0x25, 0, 0, 0, 0], Indirect),           // jmp [rip]
            (&[0xff, 0x24, 0x24], Indirect),                 // jmp [rsp]
            (&[0x41, 0xff, 0x24, 0xc7], Indirect),           // jmp [r15 + rax * 8]
            (&[0xff, 0xd0], IndirectCall),                   // call rax
            (&[0xff, 0x15, 0, 0, 0, 0], IndirectCall),       // call [rip]
            (&[0x41, 0xff, 0x54, 0xc5, 0x08], IndirectCall), // call [r13 + rax * 8 + 8]
            (&[0xc3], Return),                               // ret
            (&[0xc2, 0x08, 0x00], Return),                   // ret 8
        ];
        for (bytes, expected) in cases {
            let traced = traced(bytes);
            assert_eq!(kind(&traced.branch.unwrap()), expected, "{bytes:02x?}");
            assert_eq!(kind(&traced.plain), None, "{bytes:02x?} without its outcome");
        }
        // syscall, sysretq, iretq, ud2, int3, push rsp, popf, add rsp, 8
        let none: [&[u8]; 8] = [
            &[0x0f, 0x05],
            &[0x48, 0x0f, 0x07],
            &[0x48, 0xcf],
            &[0x0f, 0x0b],
            &[0xcc],
            &[0x54],
            &[0x9d],
            &[0x48, 0x83, 0xc4, 0x08],
        ];
        for bytes in none {
            let traced = traced(bytes);
            assert_eq!((traced.branch, kind(&traced.plain)), (Option::None, None), "{bytes:02x?}");
        }
    }

    #[test]
    fn registers_have_the_numbers_of_pin() {
        let (rax, rcx, rdx, rbx, rdi, r15) = (10, 9, 8, 7, 3, 18);
        let cases: [(&[u8], [u8; 4], [u8; 2]); 7] = [
            (&[0x48, 0x01, 0xc8], [rax, rcx, 0, 0], [rax, FLAGS]), // add rax, rcx
            (&[0x49, 0x8b, 0x1f], [r15, 0, 0, 0], [rbx, 0]),       // mov rbx, [r15]
            (&[0x8a, 0x07], [rax, rdi, 0, 0], [rax, 0]),           // mov al, [rdi] keeps ah
            (&[0x31, 0xc0], [0; 4], [rax, FLAGS]),                 // xor eax, eax
            (&[0x50], [STACK_POINTER, rax, 0, 0], [STACK_POINTER, 0]), // push rax
            (&[0x48, 0xf7, 0xf1], [rax, rdx, rcx, 0], [rax, rdx]), // div rcx: no room for flags
            (&[0x66, 0x0f, 0xef, 0xca], [33, 34, 0, 0], [33, 0]),  // pxor xmm1, xmm2
        ];
        for (bytes, read, written) in cases {
            let plain = traced(bytes).plain;
            let sorted = |mut registers: [u8; 4]| {
                registers.sort_unstable();
                registers
            };
            assert_eq!(sorted(plain.read), sorted(read), "{bytes:02x?}");
            let mut both = [plain.written, written];
            both.iter_mut().for_each(|registers| registers.sort_unstable());
            assert_eq!(both[0], both[1], "{bytes:02x?}");
        }
    }
}
