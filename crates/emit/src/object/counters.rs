//! Counters in the code: the instruction that counts, and the room for what it counts.
//!
//! Takes places in `.text`; gives the bytes that go in front of what stands there, and their
//! relocations. The counts are 64 bits each, in the order of the counters, behind what the object's
//! `.bss` has: zero when the kernel starts.

use super::translate::Translation;
use anyhow::{Context, Result, ensure};
use image::object::KernelObject;
use image::object::elf::{Relocation, SectionId};
use image::object::pieces::Piece;
use object::elf::{R_X86_64_PC32, SHT_NOBITS};

/// The symbol of the counts, whose size is that of all of them.
pub const COUNTS: &str = "__kernlane_counts";

/// A counter in front of an instruction. What goes to the instruction goes to its counter first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Where the instruction is in the old `.text`.
    pub at: u32,
    /// The arithmetic flags are needed behind it.
    pub keeps_flags: bool,
}

/// `incq count(%rip)`. Not atomic: exact on one CPU only.
const COUNT: [u8; 7] = [0x48, 0xff, 0x05, 0, 0, 0, 0];
/// The same with the flags kept. The code of a program may have data below its stack pointer (128
/// bytes, "red zone").
#[rustfmt::skip]
const COUNT_KEEPING_FLAGS: [u8; 22] = [
    0x48, 0x8d, 0x64, 0x24, 0x80,                       // lea -128(%rsp), %rsp
    0x9c,                                               // pushfq
    0x48, 0xff, 0x05, 0, 0, 0, 0,                       // incq count(%rip)
    0x9d,                                               // popfq
    0x48, 0x8d, 0xa4, 0x24, 0x80, 0x00, 0x00, 0x00,     // lea 128(%rsp), %rsp
];

impl Counter {
    pub fn code(&self) -> &'static [u8] {
        if self.keeps_flags { &COUNT_KEEPING_FLAGS } else { &COUNT }
    }

    pub fn bytes(&self) -> u8 {
        self.code().len() as u8
    }

    /// Where in its code the displacement of the count is.
    fn field(&self) -> u32 {
        if self.keeps_flags { 9 } else { 3 }
    }
}

/// The counters of a piece.
pub fn within<'c>(counters: &'c [Counter], piece: &Piece) -> &'c [Counter] {
    let from = counters.partition_point(|c| c.at < piece.at);
    let to = counters.partition_point(|c| c.at < piece.end());
    &counters[from..to]
}

/// Where the counts lie.
pub struct Room {
    /// The object's `.bss`.
    pub section: SectionId,
    pub at: u64,
    /// Bytes.
    pub size: u64,
}

impl Room {
    pub const ALIGN: u64 = 64;

    /// The room for these counters; `None` for none.
    pub fn of(object: &KernelObject<'_>, counters: &[Counter]) -> Result<Option<Room>> {
        if counters.is_empty() {
            return Ok(None);
        }
        let ascending = counters.windows(2).all(|pair| pair[0].at < pair[1].at);
        ensure!(ascending, "two counters in one place");
        let section =
            object.elf.by_name(".bss").filter(|&id| object.elf.section(id).kind == SHT_NOBITS);
        let section = section.context("no .bss section, in which counts could lie")?;
        Ok(Some(Room {
            section,
            at: object.elf.section(section).size.next_multiple_of(Self::ALIGN),
            size: counters.len() as u64 * 8,
        }))
    }

    /// The relocations of `.text` with which the counters reach their counts, with old symbol
    /// numbers.
    pub fn relocations(
        &self,
        object: &KernelObject<'_>,
        translation: &Translation<'_>,
        counters: &[Counter],
    ) -> Result<Vec<Relocation>> {
        let symbol = object.elf.section_symbol(self.section)?;
        let of = |(n, counter): (usize, &Counter)| {
            Ok(Relocation {
                offset: u64::from(translation.start(counter.at)? + counter.field()),
                symbol,
                kind: R_X86_64_PC32,
                addend: (self.at + 8 * n as u64) as i64 - 4,
            })
        };
        counters.iter().enumerate().map(of).collect()
    }
}
