//! Values that are read while a run is executed again: the program for the plugin.
//!
//! Input: text, a line for each instruction. Output: what to read there, and back.
//!
//! ```text
//! ffffffff81466590 rdi,+112,u4 percpu,+0x1a40,u8,+2912,text
//! ```
//!
//! A line has the address of an instruction, and the values that are read before it. A value begins
//! with a register, `percpu` (the base of the CPU's variables) or a number. Each step makes another
//! number of it: `+N` and `-N` add, `uN` and `sN` load N bytes at it (with zeros or the sign in
//! front), `bits:FROM:COUNT` and `sbits:FROM:COUNT` take bits, `text` reads the text at it.

use crate::RunAddr;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The longest text that is read, in bytes.
pub const LONGEST_TEXT: usize = 255;

/// What is read at which instructions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeProgram {
    /// The instructions. Several may have one address.
    pub points: Vec<ProbePoint>,
}

/// What is read before an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePoint {
    /// The address of the instruction.
    pub addr: RunAddr,
    /// The values.
    pub values: Vec<ProbeValue>,
}

/// A value to be read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProbeValue {
    /// Where it begins.
    pub start: ValueStart,
    /// What is done with it, in turn.
    pub steps: Vec<ValueStep>,
}

/// What a value begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueStart {
    /// A general register, by its number in [`REGISTERS`].
    Register(u8),
    /// The base of the variables of the CPU that executes.
    PerCpu,
    /// A number, the address of a variable for example.
    Number(u64),
}

/// A step from one number to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueStep {
    /// Adds a number, modulo 2⁶⁴.
    Add(i64),
    /// Loads the integer at the address: its bytes (1, 2, 4 or 8), and whether it is signed.
    Load(u8, bool),
    /// Takes bits: the lowest, how many (1 to 64), and whether they are signed.
    Bits(u8, u8, bool),
    /// Reads the text at the address, up to a NUL or [`LONGEST_TEXT`] bytes. The last step.
    Text,
}

/// The names of the general registers.
pub const REGISTERS: [&str; 17] = [
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15", "rip",
];

/// A line of a program is not understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not part of a program of probes")]
pub struct NoProbe(String);

impl fmt::Display for ProbeProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for point in &self.points {
            write!(f, "{}", point.addr)?;
            point.values.iter().try_for_each(|value| write!(f, " {value}"))?;
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for ProbeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.start {
            ValueStart::Register(number) => {
                f.write_str(REGISTERS.get(usize::from(number)).copied().unwrap_or("rax"))?;
            }
            ValueStart::PerCpu => f.write_str("percpu")?,
            ValueStart::Number(number) => write!(f, "{number:#x}")?,
        }
        self.steps.iter().try_for_each(|step| write!(f, ",{step}"))
    }
}

impl fmt::Display for ValueStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |signed: bool| if signed { 's' } else { 'u' };
        match *self {
            ValueStep::Add(number) => write!(f, "{number:+}"),
            ValueStep::Load(bytes, signed) => write!(f, "{}{bytes}", letter(signed)),
            ValueStep::Bits(from, count, false) => write!(f, "bits:{from}:{count}"),
            ValueStep::Bits(from, count, true) => write!(f, "sbits:{from}:{count}"),
            ValueStep::Text => f.write_str("text"),
        }
    }
}

impl FromStr for ProbeProgram {
    type Err = NoProbe;

    fn from_str(text: &str) -> Result<ProbeProgram, NoProbe> {
        let points = text.lines().map(|line| {
            let mut words = line.split(' ');
            let addr = words.next().unwrap_or_default();
            let addr = u64::from_str_radix(addr, 16).map_err(|_| NoProbe(line.to_owned()))?;
            let values = words.map(str::parse).collect::<Result<_, _>>()?;
            Ok(ProbePoint { addr: RunAddr(addr), values })
        });
        Ok(ProbeProgram { points: points.collect::<Result<_, _>>()? })
    }
}

impl FromStr for ProbeValue {
    type Err = NoProbe;

    fn from_str(text: &str) -> Result<ProbeValue, NoProbe> {
        let wrong = || NoProbe(text.to_owned());
        let mut words = text.split(',');
        let first = words.next().unwrap_or_default();
        let start = if let Some(at) = REGISTERS.iter().position(|&name| name == first) {
            ValueStart::Register(at as u8)
        } else if first == "percpu" {
            ValueStart::PerCpu
        } else {
            let digits = first.strip_prefix("0x").ok_or_else(wrong)?;
            ValueStart::Number(u64::from_str_radix(digits, 16).map_err(|_| wrong())?)
        };
        let steps: Vec<ValueStep> =
            words.map(|word| step(word).ok_or_else(wrong)).collect::<Result<_, _>>()?;
        let behind_text = steps.iter().skip_while(|&&step| step != ValueStep::Text).nth(1);
        match behind_text {
            Some(_) => Err(wrong()),
            None => Ok(ProbeValue { start, steps }),
        }
    }
}

fn step(word: &str) -> Option<ValueStep> {
    let bits = |rest: &str, signed| {
        let (from, count) = rest.split_once(':')?;
        let (from, count): (u8, u8) = (from.parse().ok()?, count.parse().ok()?);
        let fits = count > 0 && u32::from(from) + u32::from(count) <= 64;
        fits.then_some(ValueStep::Bits(from, count, signed))
    };
    let bytes = |rest: &str| rest.parse().ok().filter(|bytes| [1, 2, 4, 8].contains(bytes));
    if let Some(rest) = word.strip_prefix("bits:") {
        return bits(rest, false);
    }
    if let Some(rest) = word.strip_prefix("sbits:") {
        return bits(rest, true);
    }
    match word.split_at_checked(1)? {
        _ if word == "text" => Some(ValueStep::Text),
        ("+" | "-", _) => word.parse().ok().map(ValueStep::Add),
        ("u", rest) => Some(ValueStep::Load(bytes(rest)?, false)),
        ("s", rest) => Some(ValueStep::Load(bytes(rest)?, true)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_read_back() {
        let value = |start, steps: &[ValueStep]| ProbeValue { start, steps: steps.to_vec() };
        let program = ProbeProgram {
            points: vec![
                ProbePoint { addr: RunAddr(0xffff_ffff_8146_6590), values: vec![] },
                ProbePoint {
                    addr: RunAddr(0x1000),
                    values: vec![
                        value(ValueStart::Register(5), &[]),
                        value(
                            ValueStart::Register(0),
                            &[
                                ValueStep::Add(-8),
                                ValueStep::Load(8, false),
                                ValueStep::Load(4, true),
                                ValueStep::Bits(3, 1, false),
                                ValueStep::Bits(60, 4, true),
                            ],
                        ),
                        value(ValueStart::PerCpu, &[ValueStep::Add(i64::MAX), ValueStep::Text]),
                        value(ValueStart::Number(u64::MAX), &[ValueStep::Add(i64::MIN)]),
                    ],
                },
            ],
        };
        let text = program.to_string();
        assert_eq!(text.parse::<ProbeProgram>().unwrap(), program, "{text}");
    }

    #[test]
    fn other_lines_are_refused() {
        for text in [
            "x",
            "10 rxx",
            "10 rdi,",
            "10 rdi,u3",
            "10 rdi,text,+1",
            "10 rdi,bits:60:5",
            "10 rdi,bits:0:0",
            "10 rdi,+x",
            "10  rdi",
            "10 12",
            "\n10 rdi",
        ] {
            assert!(text.parse::<ProbeProgram>().is_err(), "{text:?}");
        }
    }
}
