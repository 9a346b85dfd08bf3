//! The instructions that a core treats as serialising, and those that it removes at renaming.
//!
//! Input: a decoded instruction. Output: its class. This module knows no processor's numbers.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use sim::core::{AddressForm, Serialising};

/// The serialising class of an instruction, if it is one.
pub(crate) fn serialising(instruction: &Instruction) -> Option<Serialising> {
    Some(match instruction.mnemonic() {
        Mnemonic::Syscall
        | Mnemonic::Sysenter
        | Mnemonic::Int
        | Mnemonic::Int1
        | Mnemonic::Int3
        | Mnemonic::Into => Serialising::SystemCall,
        Mnemonic::Sysret | Mnemonic::Sysretq | Mnemonic::Sysexit | Mnemonic::Sysexitq => {
            Serialising::SystemReturn
        }
        Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq | Mnemonic::Uiret => {
            Serialising::InterruptReturn
        }
        Mnemonic::Swapgs => Serialising::SwapBase,
        Mnemonic::Cli => Serialising::InterruptsOff,
        Mnemonic::Sti => Serialising::InterruptsOn,
        Mnemonic::Invlpg | Mnemonic::Invpcid => Serialising::InvalidatePage,
        Mnemonic::Wrmsr | Mnemonic::Wrfsbase | Mnemonic::Wrgsbase => {
            Serialising::WriteModelRegister
        }
        Mnemonic::Rdmsr | Mnemonic::Rdpmc => Serialising::ReadModelRegister,
        Mnemonic::Mov if writes(instruction, Register::is_cr) => match instruction.op0_register() {
            Register::CR3 => Serialising::WriteAddressSpace,
            _ => Serialising::Other,
        },
        Mnemonic::Mov if writes(instruction, Register::is_dr) => Serialising::Other,
        Mnemonic::Cpuid => Serialising::Identify,
        Mnemonic::Mfence | Mnemonic::Lfence | Mnemonic::Serialize => Serialising::Fence,
        Mnemonic::Pause => Serialising::Pause,
        Mnemonic::In
        | Mnemonic::Out
        | Mnemonic::Insb
        | Mnemonic::Insw
        | Mnemonic::Insd
        | Mnemonic::Outsb
        | Mnemonic::Outsw
        | Mnemonic::Outsd => Serialising::PortAccess,
        Mnemonic::Hlt
        | Mnemonic::Wbinvd
        | Mnemonic::Invd
        | Mnemonic::Lgdt
        | Mnemonic::Lidt
        | Mnemonic::Lldt
        | Mnemonic::Ltr
        | Mnemonic::Clts
        | Mnemonic::Lmsw
        | Mnemonic::Xsetbv
        | Mnemonic::Verw
        | Mnemonic::Monitor
        | Mnemonic::Mwait => Serialising::Other,
        _ => return None,
    })
}

fn writes(instruction: &Instruction, is: fn(Register) -> bool) -> bool {
    instruction.op0_kind() == OpKind::Register && is(instruction.op0_register())
}

/// Whether the instruction does nothing that a port would execute: no-ops and hints.
pub(crate) fn is_no_op(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Nop
            | Mnemonic::Fnop
            | Mnemonic::Endbr64
            | Mnemonic::Endbr32
            | Mnemonic::Reservednop
            | Mnemonic::Vzeroupper
    )
}

/// Whether the instruction sets a register to zero, whatever it held.
pub(crate) fn is_zeroing(instruction: &Instruction) -> bool {
    let register = |operand| instruction.op_register(operand);
    let all_registers =
        (0..instruction.op_count()).all(|operand| instruction.op_kind(operand) == OpKind::Register);
    if !all_registers {
        return false;
    }
    match instruction.mnemonic() {
        Mnemonic::Xor | Mnemonic::Sub => {
            register(0) == register(1) && (register(0).is_gpr32() || register(0).is_gpr64())
        }
        Mnemonic::Pxor | Mnemonic::Xorps | Mnemonic::Xorpd => register(0) == register(1),
        Mnemonic::Vpxor | Mnemonic::Vxorps | Mnemonic::Vxorpd => register(1) == register(2),
        _ => false,
    }
}

/// Whether the instruction is a string instruction with a repeat prefix.
pub(crate) fn is_repeated_string(instruction: &Instruction) -> bool {
    instruction.is_string_instruction()
        && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

/// Whether the address has a base, an index and a displacement.
pub(crate) fn has_three_parts(instruction: &Instruction) -> bool {
    instruction.memory_base() != Register::None
        && instruction.memory_index() != Register::None
        && instruction.memory_displ_size() > 0
}

/// Whether an operand is a vector register.
pub(crate) fn uses_vectors(instruction: &Instruction) -> bool {
    let vector = |operand| {
        let register = instruction.op_register(operand);
        register.is_vector_register() || register.is_mm()
    };
    (0..instruction.op_count()).any(vector)
}

/// Whether a core that renames loads can rename this one: it gives a whole register of 32 or 64
/// bits, or it changes such a value in memory; with `operands`, also if it computes with such a
/// value. Measured by `cargo xtask judge-processor`: on a Zen 4, `add (%rsi), %rax`, `movzbl
/// (%rsi), %eax` and loads into vectors are not renamed. On a Zen 5, the first one is
/// (`forward/load-add`).
pub(crate) fn is_renamable_load(instruction: &Instruction, stores: bool, operands: bool) -> bool {
    let whole = |bytes| matches!(bytes, 4 | 8);
    match instruction.mnemonic() {
        Mnemonic::Mov => whole(instruction.op0_register().size()),
        Mnemonic::Pop => true,
        Mnemonic::Xchg => false,
        _ => {
            (stores || operands && !uses_vectors(instruction))
                && !instruction.has_lock_prefix()
                && whole(instruction.memory_size().size())
        }
    }
}

/// How the instruction names its address in memory.
pub(crate) fn address_form(instruction: &Instruction) -> AddressForm {
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    let in_memory = (0..instruction.op_count()).any(|op| instruction.op_kind(op) == OpKind::Memory);
    if !in_memory || base == Register::RSP && index == Register::None {
        // Pushes, pops, calls and returns have no operand in memory.
        return match instruction.is_stack_instruction() || in_memory {
            true => AddressForm::STACK,
            false => AddressForm::NO_REGISTER,
        };
    }
    if matches!(base, Register::None | Register::RIP) && index == Register::None {
        return AddressForm::NO_REGISTER;
    }
    let parts = [
        base as u64,
        index as u64,
        instruction.segment_prefix() as u64,
        instruction.memory_index_scale().into(),
        instruction.memory_displacement64(),
    ];
    // FNV-1a over the parts.
    let hash = parts.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, part| {
        (hash ^ part).wrapping_mul(0x0100_0000_01b3)
    });
    AddressForm::by_registers((hash >> 48) as u16)
}

/// Whether the instruction does nothing but load or store its operand in memory.
pub(crate) fn only_moves(instruction: &Instruction) -> bool {
    use Mnemonic::{
        Mov, Movapd, Movaps, Movd, Movdqa, Movdqu, Movq, Movsd, Movss, Movsx, Movsxd, Movupd,
        Movups, Movzx, Pop, Push, Vmovaps, Vmovd, Vmovdqa, Vmovdqu, Vmovq, Vmovups,
    };
    matches!(
        instruction.mnemonic(),
        Mov | Movapd
            | Movaps
            | Movd
            | Movdqa
            | Movdqu
            | Movq
            | Movsd
            | Movss
            | Movsx
            | Movsxd
            | Movupd
            | Movups
            | Movzx
            | Pop
            | Push
            | Vmovaps
            | Vmovd
            | Vmovdqa
            | Vmovdqu
            | Vmovq
            | Vmovups
    )
}

/// Whether renaming alone moves the register.
pub(crate) fn is_eliminated_move(instruction: &Instruction) -> bool {
    let register = |operand| instruction.op_register(operand);
    let registers = instruction.op_count() == 2
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register;
    if !registers {
        return false;
    }
    match instruction.mnemonic() {
        Mnemonic::Mov => {
            let (to, from) = (register(0), register(1));
            to.is_gpr32() && from.is_gpr32() || to.is_gpr64() && from.is_gpr64()
        }
        Mnemonic::Movaps
        | Mnemonic::Movups
        | Mnemonic::Movapd
        | Mnemonic::Movdqa
        | Mnemonic::Movdqu
        | Mnemonic::Vmovaps
        | Mnemonic::Vmovups
        | Mnemonic::Vmovdqa
        | Mnemonic::Vmovdqu => true,
        _ => false,
    }
}
