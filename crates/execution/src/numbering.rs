//! Turns addresses into the dense numbers of lines and pages that a simulated cache or TLB takes.
//!
//! A cache chooses the set by the low bits of a line's address, so the numbers keep these bits.
//! Addresses are split into *frames* with as many lines as the largest cache has sets. Frames are
//! numbered in the order in which they are first seen. The number of a line is frame × lines in a
//! frame + its place in the frame.
//!
//! A line of user code has the number of its physical line, where that is known: processes share
//! the lines of a library at different addresses, and have different lines at one address. The
//! kernel's code has one place, so its lines have virtual numbers.

use crate::division::{LinePlace, LineTag, SetDivision};
use anyhow::{Context, Result};
use sim::{ItlbDescription, LineId, Mode, PhysAddr};
use std::collections::HashMap;
use trace::RunAddr;

/// The unit that is numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FetchUnit {
    /// Cache lines of this many bytes.
    Lines(u32),
    /// Pages. Large ones have `kernel` bytes: those of the kernel's image, and of code that says
    /// so. All others have `other` bytes.
    Pages {
        /// The bytes of a large page.
        kernel: u64,
        /// The bytes of any other page.
        other: u64,
    },
}

/// The range in which x86-64 Linux maps the kernel's image (Documentation/arch/x86/x86_64/mm.rst).
/// Modules and everything else lie outside. A recording is made with `nokaslr`.
const KERNEL_IMAGE: std::ops::Range<u64> = 0xffff_ffff_8000_0000..0xffff_ffff_a000_0000;

impl FetchUnit {
    /// The pages that this TLB translates.
    pub fn of_pages(itlb: &ItlbDescription) -> FetchUnit {
        FetchUnit::Pages { kernel: itlb.kernel_page(), other: itlb.user_page() }
    }

    /// log2 of the unit's size at an address. `large`: whether a large page is there, outside of
    /// the kernel's image. Sizes are powers of two: the reader of the machine has checked this.
    fn shift(self, addr: RunAddr, large: bool) -> u32 {
        match self {
            FetchUnit::Lines(bytes) => bytes.trailing_zeros(),
            FetchUnit::Pages { kernel, .. } if large || KERNEL_IMAGE.contains(&addr.0) => {
                kernel.trailing_zeros()
            }
            FetchUnit::Pages { other, .. } => other.trailing_zeros(),
        }
    }
}

/// A line or page that was numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberedUnit {
    /// The number.
    pub id: LineId,
    /// The first of the wanted addresses in the unit.
    pub addr: RunAddr,
    /// Where the byte at this address lies in physical memory, if known.
    pub physical: Option<PhysAddr>,
}

/// Numbers the units of one layout.
#[derive(Clone, Debug)]
pub struct Numbering {
    unit: FetchUnit,
    /// log2 of the units in a frame.
    frame_bits: u32,
    /// Only lines can have a divided cache; pages have a whole one.
    division: SetDivision,
    /// The numbers of frames, by tag and by log2 of the unit's size.
    frames: HashMap<(LineTag, u32), u32>,
}

impl Numbering {
    /// A numbering for caches with up to `sets` sets, a power of two.
    pub fn new(unit: FetchUnit, sets: u32) -> Numbering {
        Numbering::divided(unit, sets, SetDivision::Whole)
    }

    /// A numbering for a cache with exactly `sets` sets, divided by `division`.
    pub fn divided(unit: FetchUnit, sets: u32, division: SetDivision) -> Numbering {
        Numbering { unit, frame_bits: sets.trailing_zeros(), division, frames: HashMap::new() }
    }

    /// Appends the units that hold the `bytes` at `start`, in a large page or not. `lies` gives the
    /// physical address of code, if known.
    ///
    /// # Errors
    /// There are more units than a simulation can number.
    pub fn units(
        &mut self,
        (start, bytes): (RunAddr, u32),
        large: bool,
        lies: &mut impl FnMut(RunAddr) -> Option<PhysAddr>,
        into: &mut Vec<NumberedUnit>,
    ) -> Result<()> {
        let end = u128::from(start.0) + u128::from(bytes);
        let mut at = start;
        while u128::from(at.0) < end {
            let (shift, physical) = (self.unit.shift(at, large), lies(at));
            into.push(NumberedUnit { id: self.number(at, large, physical)?, addr: at, physical });
            let behind = (u128::from(at.0 >> shift) + 1) << shift;
            match u64::try_from(behind) {
                Ok(next) => at = RunAddr(next),
                Err(_) => break, // the last unit of the address space
            }
        }
        Ok(())
    }

    /// The number of the unit that holds the byte at `addr`, in a large page or not.
    ///
    /// # Errors
    /// There are more units than a simulation can number.
    pub fn number(
        &mut self,
        addr: RunAddr,
        large: bool,
        physical: Option<PhysAddr>,
    ) -> Result<LineId> {
        let mode = if addr.is_kernel() { Mode::Kernel } else { Mode::User };
        let shift = self.unit.shift(addr, large);
        let unit = match (self.unit, mode, physical) {
            (FetchUnit::Lines(_), Mode::User, Some(physical)) => physical.0 >> shift,
            _ => addr.0 >> shift,
        };
        let LinePlace { set, tag } = self.division.place(unit, mode, 1 << self.frame_bits);
        let next = self.frames.len() as u32;
        let frame = *self.frames.entry((tag, shift)).or_insert(next);
        let index = u64::from(frame) << self.frame_bits | u64::from(set);
        u32::try_from(index)
            .ok()
            .and_then(|index| LineId::new(mode, index))
            .context("too much code for a simulation: the recording names over 2^31 cache lines")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(numbering: &mut Numbering, start: u64, bytes: u32) -> Vec<(Mode, u32, u64)> {
        let mut found = Vec::new();
        numbering.units((RunAddr(start), bytes), false, &mut |_| None, &mut found).unwrap();
        found.into_iter().map(|unit| (unit.id.mode(), unit.id.index(), unit.addr.0)).collect()
    }

    #[test]
    fn lines_keep_the_bits_that_choose_the_set() {
        let mut numbering = Numbering::new(FetchUnit::Lines(64), 64);
        let base = 0xffff_ffff_8123_4000;
        assert_eq!(units(&mut numbering, base + 0x3f, 1), [(Mode::Kernel, 0, base + 0x3f)]);
        assert_eq!(
            units(&mut numbering, base + 0x3f, 2),
            [(Mode::Kernel, 0, base + 0x3f), (Mode::Kernel, 1, base + 0x40)]
        );
        assert_eq!(
            units(&mut numbering, 0x40_0fc0, 65),
            [(Mode::User, 64 + 63, 0x40_0fc0), (Mode::User, 128, 0x40_1000)]
        );
        assert_eq!(units(&mut numbering, base + 0xfff, 1), [(Mode::Kernel, 63, base + 0xfff)]);
        assert_eq!(units(&mut numbering, base, 0), []);
    }

    #[test]
    fn user_lines_are_physical_where_known() {
        let mut numbering = Numbering::new(FetchUnit::Lines(64), 64);
        let mut line = |addr, physical: Option<u64>| {
            numbering.number(RunAddr(addr), false, physical.map(PhysAddr)).unwrap()
        };
        let shared = line(0x7f00_0000_1040, Some(0x5_3040));
        assert_eq!(line(0x7e00_0000_9050, Some(0x5_3050)), shared);
        assert_ne!(line(0x7f00_0000_1040, Some(0x6_2040)), shared);
        let kernel = line(0xffff_ffff_8100_0040, Some(0x100_0040));
        assert_eq!(line(0xffff_ffff_8100_0040, None), kernel);
        // Pages are translated, so their numbers are virtual.
        let mut pages = Numbering::new(FetchUnit::Pages { kernel: 2 << 20, other: 4096 }, 1);
        let mut page = |addr| pages.number(RunAddr(addr), false, Some(PhysAddr(0x5_3040))).unwrap();
        assert_ne!(page(0x40_1000), page(0x40_2000));
    }

    #[test]
    fn pages_are_large_in_the_kernels_image_and_where_code_says_so() {
        let mut numbering = Numbering::new(FetchUnit::Pages { kernel: 2 << 20, other: 4096 }, 1);
        let number = |numbering: &mut Numbering, addr| units(numbering, addr, 1)[0].1;
        let first = number(&mut numbering, 0xffff_ffff_8100_0000);
        assert_eq!(number(&mut numbering, 0xffff_ffff_811f_ffff), first);
        assert_ne!(number(&mut numbering, 0xffff_ffff_8120_0000), first);
        let module = number(&mut numbering, 0xffff_ffff_a000_0000);
        assert_ne!(number(&mut numbering, 0xffff_ffff_a000_1000), module);
        assert_eq!(number(&mut numbering, 0xffff_ffff_a000_0fff), module);
        let mut copies = |addr| numbering.number(RunAddr(addr), true, None).unwrap();
        let first = copies(0xffff_ffff_a020_0000);
        assert_eq!(copies(0xffff_ffff_a03f_ffff), first);
        assert_ne!(copies(0xffff_ffff_a040_0000), first);
    }

    #[test]
    fn units_end_at_the_end_of_the_address_space() {
        let mut numbering = Numbering::new(FetchUnit::Lines(16), 1);
        assert_eq!(units(&mut numbering, u64::MAX - 15, 64).len(), 1);
    }
}
