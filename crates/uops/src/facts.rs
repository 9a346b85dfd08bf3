//! What an instruction reads and writes: registers, flags, and memory.
//!
//! Input: a decoded instruction. Output: the registers of its operands and results, and the number
//! of its loads and stores. This module knows no processor.

use crate::registers;
use iced_x86::{
    FlowControl, Instruction, InstructionInfo, InstructionInfoFactory, OpAccess, Register,
    UsedMemory,
};
use sim::core::UopRegister;

/// The flags that arithmetic sets, among iced-x86's bits of flags: OF, SF, ZF, AF, CF, PF.
const ARITHMETIC: u32 = 0x3f;

/// What an instruction reads and writes.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// The registers of addresses.
    pub address: Vec<UopRegister>,
    pub reads: Vec<UopRegister>,
    pub writes: Vec<UopRegister>,
    pub loads: usize,
    pub stores: usize,
}

impl Facts {
    pub(crate) fn new(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Facts {
        let mut facts = Facts::default();
        let info = factory.info(instruction);
        for memory in info.used_memory() {
            facts.memory(memory);
        }
        let by_stack = instruction.is_stack_instruction()
            || matches!(
                instruction.flow_control(),
                FlowControl::Call | FlowControl::IndirectCall | FlowControl::Return
            );
        for used in info.used_registers() {
            let Some(register) = registers::of(used.register()) else { continue };
            let stack_pointer = used.register().full_register() == Register::RSP;
            if stack_pointer && by_stack {
                continue;
            }
            let (reads, writes) = accesses(used.access());
            // A register of an address is also a value if the instruction names it as an operand.
            let only_address =
                facts.address.contains(&register) && !takes(instruction, info, used.register());
            // A small part of a register keeps the rest, which is an operand then.
            let merges = writes && is_part(used.register());
            if (reads && !only_address || merges) && !facts.reads.contains(&register) {
                facts.reads.push(register);
            }
            if writes && !facts.writes.contains(&register) {
                facts.writes.push(register);
            }
        }
        if instruction.rflags_read() & ARITHMETIC != 0 {
            facts.reads.push(registers::flags());
        }
        if instruction.rflags_modified() & ARITHMETIC != 0 {
            facts.writes.insert(facts.writes.len().min(1), registers::flags());
        }
        facts
    }

    fn memory(&mut self, memory: &UsedMemory) {
        let (reads, writes) = accesses(memory.access());
        self.loads += usize::from(reads);
        self.stores += usize::from(writes);
        if reads || writes {
            let registers = [memory.base(), memory.index()].into_iter().filter_map(registers::of);
            for register in registers {
                if !self.address.contains(&register) {
                    self.address.push(register);
                }
            }
        }
    }
}

fn accesses(access: OpAccess) -> (bool, bool) {
    match access {
        OpAccess::None | OpAccess::NoMemAccess => (false, false),
        OpAccess::Read | OpAccess::CondRead => (true, false),
        OpAccess::Write => (false, true),
        OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
    }
}

/// Whether the instruction takes the value of this register as an operand. The destination of a
/// load is not an operand, even if it held the address.
fn takes(instruction: &Instruction, info: &InstructionInfo, register: Register) -> bool {
    (0..instruction.op_count()).any(|operand| {
        let named = instruction.op_register(operand);
        named != Register::None
            && named.full_register() == register.full_register()
            && accesses(info.op_access(operand)).0
    })
}

/// Whether a write of the register keeps other parts of it.
fn is_part(register: Register) -> bool {
    register.is_gpr8() || register.is_gpr16()
}
