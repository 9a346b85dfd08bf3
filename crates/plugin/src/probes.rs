//! Reads values before chosen instructions, for `kernlane ask --probe`.
//!
//! Input: a program of probes, registers and memory of the guest. Output: the file of values
//! (`trace::probe_file`). The guest is only read.

use crate::cpus::BaseRegisters;
use crate::qemu::{ByteArray, Register, read_memory};
use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use trace::RunAddr;
use trace::probe::{LONGEST_TEXT, ProbeProgram, ProbeValue, REGISTERS, ValueStart, ValueStep};
use trace::probe_file::{ProbeHit, ProbeWriter, ReadValue};

/// The probes of a recording that is being made.
pub(crate) struct Probes {
    program: ProbeProgram,
    /// The points at each address.
    points: HashMap<u64, Vec<u32>>,
    registers: GuestRegisters,
    /// `None` after an error, which was reported.
    writer: Option<ProbeWriter<BufWriter<File>>>,
}

impl Probes {
    /// Reads a program from a file, and begins the file of its values.
    ///
    /// # Errors
    /// The program cannot be read, or the file cannot be written.
    pub(crate) fn begin(program: &Path, out: &PathBuf) -> Result<Probes, String> {
        let text = std::fs::read_to_string(program);
        let text = text.map_err(|error| format!("{}: {error}", program.display()))?;
        let program: ProbeProgram =
            text.parse().map_err(|error| format!("{}: {error}", program.display()))?;
        let mut points: HashMap<u64, Vec<u32>> = HashMap::new();
        for (at, point) in program.points.iter().enumerate() {
            points.entry(point.addr.0).or_default().push(at as u32);
        }
        let file = File::create(out).map(BufWriter::new);
        let writer = file.and_then(|file| ProbeWriter::new(file, &program));
        let writer = writer.map_err(|error| format!("{}: {error}", out.display()))?;
        Ok(Probes { program, points, registers: GuestRegisters::default(), writer: Some(writer) })
    }

    /// Whether an instruction has a probe.
    pub(crate) fn has(&self, addr: RunAddr) -> bool {
        self.points.contains_key(&addr.0)
    }

    /// Reads the values at an instruction with a probe. Must be called in a callback that reads
    /// registers.
    ///
    /// # Errors
    /// The values cannot be written. No more are written then.
    pub(crate) fn reached(
        &mut self,
        addr: RunAddr,
        execution: u64,
        instruction: u16,
    ) -> io::Result<()> {
        let Some(mut writer) = self.writer.take() else { return Ok(()) };
        for &point in self.points.get(&addr.0).into_iter().flatten() {
            let values = &self.program.points[point as usize].values;
            let values = values.iter().map(|value| self.registers.read(value)).collect();
            writer.hit(&ProbeHit { execution, instruction, point, values })?;
        }
        self.writer = Some(writer);
        Ok(())
    }

    /// Ends the file, of a run with this hash.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn finish(&mut self, hash: u64) -> io::Result<()> {
        match self.writer.take() {
            Some(writer) => writer.end(hash).map(drop),
            None => Ok(()),
        }
    }
}

/// The registers that values begin with. They are looked up at the first use.
#[derive(Default)]
struct GuestRegisters {
    general: HashMap<u8, Option<Register>>,
    bases: BaseRegisters,
    buffer: ByteArray,
}

impl GuestRegisters {
    fn read(&mut self, value: &ProbeValue) -> ReadValue {
        let Some(mut number) = self.start(value.start) else { return ReadValue::None };
        for &step in &value.steps {
            let next = match step {
                ValueStep::Text => return text(number),
                ValueStep::Add(more) => Some(number.wrapping_add_signed(more)),
                ValueStep::Load(bytes, signed) => load(number, bytes, signed),
                ValueStep::Bits(from, count, signed) => Some(bits(number, from, count, signed)),
            };
            let Some(next) = next else { return ReadValue::None };
            number = next;
        }
        ReadValue::Number(number)
    }

    fn start(&mut self, start: ValueStart) -> Option<u64> {
        match start {
            ValueStart::Number(number) => Some(number),
            ValueStart::Register(number) => {
                let register = self.general.entry(number).or_insert_with(|| {
                    let name = CString::new(*REGISTERS.get(usize::from(number))?).ok()?;
                    Register::find(&name)
                });
                (*register)?.value_by(&mut self.buffer)
            }
            // On its way into the kernel and out of it, the kernel runs on the user's base.
            ValueStart::PerCpu => [true, false].into_iter().find_map(|in_kernel| {
                let base = self.bases.likely(in_kernel)?.0;
                RunAddr(base).is_kernel().then_some(base)
            }),
        }
    }
}

fn load(addr: u64, bytes: u8, signed: bool) -> Option<u64> {
    let word = match bytes {
        1 => u8::from_le_bytes(read_memory(addr)?).into(),
        2 => u16::from_le_bytes(read_memory(addr)?).into(),
        4 => u32::from_le_bytes(read_memory(addr)?).into(),
        _ => u64::from_le_bytes(read_memory(addr)?),
    };
    Some(bits(word, 0, bytes * 8, signed))
}

fn bits(word: u64, from: u8, count: u8, signed: bool) -> u64 {
    let unused = 64 - u32::from(count);
    let upper = (word >> from) << unused;
    match signed {
        true => ((upper as i64) >> unused) as u64,
        false => upper >> unused,
    }
}

/// The text at an address, up to a NUL.
fn text(addr: u64) -> ReadValue {
    let mut text = Vec::new();
    // A text may end right before memory that cannot be read.
    while text.len() < LONGEST_TEXT {
        let next = addr.wrapping_add(text.len() as u64);
        let Some([byte]) = read_memory::<1>(next) else {
            return ReadValue::None;
        };
        if byte == 0 {
            break;
        }
        text.push(byte);
    }
    ReadValue::Text(text.into())
}

#[cfg(test)]
mod tests {
    use super::bits;

    #[test]
    fn bits_are_taken_with_zeros_or_the_sign() {
        for (word, from, count, signed, expected) in [
            (0xff, 0, 8, false, 0xff),
            (0xff, 0, 8, true, u64::MAX),
            (0x7f, 0, 8, true, 0x7f),
            (0b1011_0000, 4, 3, false, 0b011),
            (0b1101_0000, 4, 3, true, 0b101_u64.wrapping_sub(8)),
            (u64::MAX, 0, 64, false, u64::MAX),
            (1 << 63, 63, 1, true, u64::MAX),
        ] {
            assert_eq!(bits(word, from, count, signed), expected, "{word:#x} {from} {count}");
        }
    }
}
