//! The unique identity of a group: the name of its module, which may be used again later, and a
//! number, which is never used again.
//!
//! Input: random bytes of the kernel, or what the device prints. This module does not know whether
//! there is such a group.

use anyhow::{Context, Result, ensure};
use emit::module::NUMBER;
use std::fmt;
use std::io::Read;

/// A group, by its module's name and number. Prints the name.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct GroupId {
    /// The name of its module.
    pub module: String,
    /// The number of its module.
    pub number: ModuleNumber,
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.module)
    }
}

/// The number of a module of copies. Prints as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleNumber(pub(crate) [u8; NUMBER]);

impl ModuleNumber {
    /// Draws a number.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub(crate) fn draw() -> Result<ModuleNumber> {
        const RANDOM: &str = "/dev/urandom";
        let mut number = [0; NUMBER];
        let mut random =
            std::fs::File::open(RANDOM).with_context(|| format!("opening {RANDOM}"))?;
        random.read_exact(&mut number).with_context(|| format!("reading {RANDOM}"))?;
        Ok(ModuleNumber(number))
    }

    /// Reads 32 hexadecimal digits.
    ///
    /// # Errors
    /// The text is not such a number.
    pub(crate) fn parse(text: &str) -> Result<ModuleNumber> {
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        ensure!(text.len() == 2 * NUMBER && is_hex, "{text:?} is not a number of a module");
        let mut number = [0; NUMBER];
        for (n, byte) in number.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16)?;
        }
        Ok(ModuleNumber(number))
    }
}

impl fmt::Display for ModuleNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl serde::Serialize for ModuleNumber {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_read_as_it_was_printed() {
        let number = ModuleNumber([0x0f, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xf0]);
        assert_eq!(number.to_string(), "0f0102030405060708090a0b0c0d0ef0");
        assert_eq!(ModuleNumber::parse(&number.to_string()).unwrap(), number);
        for wrong in
            ["", "0f", "0f0102030405060708090a0b0c0d0ef", "+f0102030405060708090a0b0c0d0ef0"]
        {
            assert!(ModuleNumber::parse(wrong).is_err(), "{wrong}");
        }
        assert_ne!(ModuleNumber::draw().unwrap(), ModuleNumber::draw().unwrap());
    }
}
