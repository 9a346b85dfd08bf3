//! What a core executes: uops, the instructions that they belong to, and where the instructions
//! lie.
//!
//! The maker of a stream turns each instruction into uops once. The core reads nothing else: it
//! knows no instruction set.
//!
//! This module has only data.

use super::register_file::RegisterFiles;
use super::serialising::Serialising;
use crate::branches::{Branch, CodeAddr};
use crate::line::{LineId, Mode, PhysAddr};

/// A register that carries a value from one uop to another. The maker of the stream gives each
/// architectural register, the flags, and the values within an instruction a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UopRegister(u8);

/// The number of registers, the two below included.
pub(crate) const REGISTERS: usize = 128;

impl UopRegister {
    /// As an operand: there is no operand. It is always ready.
    pub const NONE: UopRegister = UopRegister(0);
    /// As a result: there is no result. Nothing reads it.
    pub const DISCARD: UopRegister = UopRegister(REGISTERS as u8 - 1);

    /// The register with this number, from 1 to 126.
    pub const fn new(number: u8) -> Option<UopRegister> {
        if number == 0 || number as usize >= REGISTERS - 1 {
            return None;
        }
        Some(UopRegister(number))
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// An index into an array of [`REGISTERS`].
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize & (REGISTERS - 1)
    }
}

/// How an instruction names an address in memory. A core can rename a load whose store named the
/// same address the same way ([`super::CoreMemoryDescription::renamed_addresses`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressForm(u16);

impl AddressForm {
    /// The load cannot be renamed, because it also computes or takes a part of a register.
    pub const NONE: AddressForm = AddressForm(0);
    /// No register names the address.
    pub const NO_REGISTER: AddressForm = AddressForm(1);
    /// By the stack pointer. Cores know how pushes, calls and additions move it.
    pub const STACK: AddressForm = AddressForm(2);

    /// By registers. `hash` stands for their names, the scale and the displacement.
    pub const fn by_registers(hash: u16) -> AddressForm {
        AddressForm(if hash < 3 { hash + 3 } else { hash })
    }

    /// Identifies the address by its form and the cycles in which its registers got their values: a
    /// register that was written again has another cycle. 0: two addresses with this key can
    /// differ.
    #[inline]
    pub(crate) fn key(self, base: u64, index: u64) -> u64 {
        match self {
            AddressForm::NONE | AddressForm::NO_REGISTER => 0,
            AddressForm::STACK => 2,
            AddressForm(form) => u64::from(form) | (base ^ index.rotate_left(20)) << 16,
        }
    }
}

/// What a uop does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UopKind {
    /// Computes; branches are also of this kind.
    Compute,
    /// Reads memory. Its operands are those of the address.
    Load,
    /// Computes the address of a store.
    StoreAddress,
    /// Reads the data of the store whose address the uop before it computed.
    StoreData,
    /// Done when it is renamed: no port executes it (a no-op, a register set to zero).
    Eliminated,
    /// Begins the microcode of a repeated string instruction ([`super::StringSlots`]). It is the
    /// last uop of the instruction.
    Microcode,
    /// Waits for all earlier uops, and lets no later one begin.
    Serialising(Serialising),
}

/// A micro-operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uop {
    /// What it does.
    pub kind: UopKind,
    /// The ports that can execute it, one bit each. 0: it needs none.
    pub ports: u16,
    /// Cycles from its operands to its results. For loads: the cycles in addition to those of
    /// memory.
    pub latency: u16,
    /// The operands.
    pub reads: [UopRegister; 3],
    /// The results.
    pub writes: [UopRegister; 3],
    /// The register files in which it takes a register for its results.
    pub files: RegisterFiles,
    /// A unit that is not pipelined (a divider): its number from 0 to 7, and the cycles for which
    /// the uop keeps it; 0 cycles: none.
    pub unit: u8,
    /// See `unit`.
    pub unit_cycles: u8,
    /// Loads and addresses of stores: how the instruction names the address.
    pub form: AddressForm,
    /// Waits until all earlier instructions have retired and all earlier stores are written, as
    /// atomic instructions do.
    pub waits_for_stores: bool,
    /// Whether it begins a slot of the dispatch. A uop that is fused with the one before does not.
    pub begins_slot: bool,
}

impl Uop {
    /// A uop of one slot and one cycle that reads and writes nothing. A load takes as long as
    /// memory says.
    pub const fn new(kind: UopKind, ports: u16) -> Uop {
        Uop {
            kind,
            ports,
            latency: if matches!(kind, UopKind::Load) { 0 } else { 1 },
            reads: [UopRegister::NONE; 3],
            writes: [UopRegister::DISCARD; 3],
            files: RegisterFiles::NONE,
            unit: 0,
            unit_cycles: 0,
            form: AddressForm::NONE,
            waits_for_stores: false,
            begins_slot: true,
        }
    }
}

/// An instruction under a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreInstruction {
    /// The index of its first uop in the stream's table of uops. It also identifies the
    /// instruction for prefetchers.
    pub first_uop: u32,
    /// The number of uops.
    pub uops: u8,
    /// The number of slots that they take. An instruction fused with the one before takes 0.
    pub slots: u8,
    /// The number of bytes.
    pub bytes: u8,
    /// The number of the block's branch that the instruction is, from 1; 0: it is not a branch.
    pub branch: u8,
    /// Its index in the code that was recorded, by which accesses name it. An instruction that was
    /// not recorded (a layout's jump) has none: `u16::MAX`.
    pub recorded: u16,
}

/// Instructions of one line that follow one another. An instruction belongs to the line with its
/// last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchRun {
    /// The line.
    pub line: LineId,
    /// The line's page.
    pub page: LineId,
    /// The line's physical address. A stream without data accesses gives any address that no other
    /// line has.
    pub physical: PhysAddr,
    /// The number of instructions. A line that only holds the first bytes of one has none.
    pub instructions: u16,
    /// The slots of these instructions.
    pub slots: u16,
    /// The number of the block's branch that the last instruction is, as
    /// [`CoreInstruction::branch`] gives it.
    pub branch: u8,
}

/// A piece of code that runs from its start to its end.
#[derive(Clone, Copy, Debug)]
pub struct CoreBlock<'a> {
    /// The mode of the code.
    pub mode: Mode,
    /// Where control arrives, as branches name it; `None`: no instruction runs.
    pub arrives: Option<CodeAddr>,
    /// The lines of the code, in order. Behind each branch a new run begins.
    pub runs: &'a [FetchRun],
    /// The instructions, in order.
    pub instructions: &'a [CoreInstruction],
    /// The branches that the instructions refer to. Only the last one can lack its target: it goes
    /// to where the next block begins.
    pub branches: &'a [Branch],
}

/// A load or store of an instruction that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataAccess {
    /// The physical address.
    pub physical: PhysAddr,
    /// The page.
    pub page: LineId,
    /// The instruction, by [`CoreInstruction::recorded`].
    pub instruction: u16,
    /// The number of bytes.
    pub size: u8,
    /// Whether it is a store.
    pub is_store: bool,
}

impl DataAccess {
    /// The bytes of a line of the L1D.
    const LINE: u64 = 64;

    /// Whether its bytes lie in two lines.
    #[inline]
    pub(crate) fn crosses_line(&self) -> bool {
        self.physical.0 % Self::LINE + u64::from(self.size) > Self::LINE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_their_range() {
        assert_eq!([0, 127, 255].map(UopRegister::new), [None; 3]);
        assert_eq!(UopRegister::new(126).map(UopRegister::index), Some(126));
        assert!(size_of::<Uop>() <= 20);
    }

    #[test]
    fn an_address_is_another_one_when_its_register_was_written() {
        let form = AddressForm::by_registers(500);
        assert_eq!(form.key(7, 0), form.key(7, 0));
        assert_ne!(form.key(7, 0), form.key(8, 0));
        assert_ne!(form.key(7, 0), AddressForm::by_registers(501).key(7, 0));
        assert_eq!(AddressForm::STACK.key(7, 0), AddressForm::STACK.key(8, 0));
        assert_eq!(AddressForm::NO_REGISTER.key(7, 0), 0);
    }
}
