//! Counters in the code: the instructions that count, and the memory for the counts.
//!
//! Input: places in `.text`. Output: the bytes that go in front of each place, and their
//! relocations. Each count has 64 bits. The counts lie behind the old contents of the object's
//! `.bss`, in the order of the counters, and are zero when the kernel starts.

use super::translate::TextTranslation;
use anyhow::{Context, Result, ensure};
use image::object::KernelObject;
use image::object::elf::{ElfRelocation, SectionId};
use image::object::pieces::Piece;
use object::elf::{R_X86_64_PC32, SHT_NOBITS};

/// The symbol of the counts. Its size is the size of all counts.
pub(crate) const COUNTS: &str = "__kernlane_counts";

/// A counter in front of an instruction. Control that goes to the instruction enters at the
/// counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCounter {
    /// The offset of the instruction in the old `.text`.
    pub at: u32,
    /// Whether code behind the counter needs the arithmetic flags.
    pub keeps_flags: bool,
}

/// `incq count(%rip)`. The instruction is not atomic, so it is exact on one CPU only.
const COUNT: [u8; 7] = [0x48, 0xff, 0x05, 0, 0, 0, 0];
/// The same instruction with the flags saved. A program may have data below its stack pointer (128
/// bytes, the red zone).
#[rustfmt::skip]
const COUNT_KEEPING_FLAGS: [u8; 22] = [
    0x48, 0x8d, 0x64, 0x24, 0x80,                       // lea -128(%rsp), %rsp
    0x9c,                                               // pushfq
    0x48, 0xff, 0x05, 0, 0, 0, 0,                       // incq count(%rip)
    0x9d,                                               // popfq
    0x48, 0x8d, 0xa4, 0x24, 0x80, 0x00, 0x00, 0x00,     // lea 128(%rsp), %rsp
];

impl BlockCounter {
    /// The instructions that count.
    pub(crate) fn code(&self) -> &'static [u8] {
        if self.keeps_flags { &COUNT_KEEPING_FLAGS } else { &COUNT }
    }

    /// The length of the instructions.
    pub(crate) fn bytes(&self) -> u8 {
        self.code().len() as u8
    }

    /// The offset of the count's displacement in the instructions.
    fn field(&self) -> u32 {
        if self.keeps_flags { 9 } else { 3 }
    }
}

/// The counters of a piece.
pub(super) fn within<'c>(counters: &'c [BlockCounter], piece: &Piece) -> &'c [BlockCounter] {
    let from = counters.partition_point(|c| c.at < piece.at);
    let to = counters.partition_point(|c| c.at < piece.end());
    &counters[from..to]
}

/// The memory of the counts.
pub(super) struct CountStorage {
    /// The object's `.bss`.
    pub section: SectionId,
    /// The offset of the first count in the section.
    pub at: u64,
    /// Bytes.
    pub size: u64,
}

impl CountStorage {
    /// The alignment of the counts in bytes.
    pub(crate) const ALIGN: u64 = 64;

    /// The memory for these counters; `None` if there are none.
    pub(super) fn of(
        object: &KernelObject<'_>,
        counters: &[BlockCounter],
    ) -> Result<Option<CountStorage>> {
        if counters.is_empty() {
            return Ok(None);
        }
        let ascending = counters.windows(2).all(|pair| pair[0].at < pair[1].at);
        ensure!(ascending, "two counters have the same place");
        let section =
            object.elf.by_name(".bss").filter(|&id| object.elf.section(id).kind == SHT_NOBITS);
        let section = section.context("no .bss section for the counts")?;
        Ok(Some(CountStorage {
            section,
            at: object.elf.section(section).size.next_multiple_of(Self::ALIGN),
            size: counters.len() as u64 * 8,
        }))
    }

    /// The relocations of `.text` by which the counters reach their counts, with old symbol
    /// numbers.
    pub(super) fn relocations(
        &self,
        object: &KernelObject<'_>,
        translation: &TextTranslation<'_>,
        counters: &[BlockCounter],
    ) -> Result<Vec<ElfRelocation>> {
        let symbol = object.elf.section_symbol(self.section)?;
        let of = |(n, counter): (usize, &BlockCounter)| {
            Ok(ElfRelocation {
                offset: u64::from(translation.start(counter.at)? + counter.field()),
                symbol,
                kind: R_X86_64_PC32,
                addend: (self.at + 8 * n as u64) as i64 - 4,
            })
        };
        counters.iter().enumerate().map(of).collect()
    }
}
