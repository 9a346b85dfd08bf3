//! The numbers of x86 registers in a simulated core.
//!
//! A register counts with all its parts: `al` and `rax` have one number. All flags are one
//! register.
//!
//! Input: a register of the decoder. Output: its number.

use iced_x86::Register;
use sim::core::{RegisterFile, RegisterFiles, UopRegister};

const FLAGS: u8 = 73;
const SYSTEM: u8 = 74;
/// The first of the values within an instruction.
const LOADED: u8 = 90;
const RESULT: u8 = 110;

fn numbered(number: u8) -> UopRegister {
    UopRegister::new(number).unwrap_or(UopRegister::NONE)
}

/// The number of a register; `None` for those that carry no value that a uop waits for.
pub(crate) fn of(register: Register) -> Option<UopRegister> {
    let full = register.full_register();
    let number = if full.is_gpr64() {
        1 + full.number()
    } else if full.is_vector_register() {
        17 + full.number()
    } else if full.is_k() {
        49 + full.number()
    } else if full.is_st() || full.is_mm() {
        57 + full.number()
    } else if full == Register::RIP || full == Register::None || full.is_segment_register() {
        return None;
    } else {
        return Some(numbered(SYSTEM));
    };
    Some(numbered(number as u8))
}

/// The files in which a result takes a place.
pub(crate) fn files(result: UopRegister) -> RegisterFiles {
    let any = RegisterFiles::NONE.with(RegisterFile::Any);
    match result.number() {
        1..=16 => any.with(RegisterFile::Integer),
        17..=72 => any.with(RegisterFile::Vector),
        FLAGS | LOADED.. if result != UopRegister::DISCARD => any,
        _ => RegisterFiles::NONE,
    }
}

/// All flags.
pub(crate) fn flags() -> UopRegister {
    numbered(FLAGS)
}

/// The value of an instruction's load, by its place among the loads.
pub(crate) fn loaded(place: usize) -> UopRegister {
    numbered(LOADED + (place % 8) as u8)
}

/// The value that an instruction stores.
pub(crate) fn result() -> UopRegister {
    numbered(RESULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_number_of_the_whole() {
        assert_eq!(of(Register::AL), of(Register::RAX));
        assert_eq!(of(Register::XMM3), of(Register::YMM3));
        assert_ne!(of(Register::RAX), of(Register::RCX));
        assert_eq!([Register::RIP, Register::FS].map(of), [None; 2]);
        let mut all: Vec<Option<UopRegister>> = Register::values().map(of).collect();
        all.sort_unstable();
        all.dedup();
        assert!(!all.contains(&Some(flags())) && !all.contains(&Some(loaded(0))));
        assert!(!all.contains(&Some(result())) && !all.contains(&Some(UopRegister::NONE)));
    }
}
