//! Whether hot blocks fit into an instruction cache: how many of their lines fall into each set
//! (Tamches 2001, figure 2).
//!
//! Input: address ranges and a cache's geometry. Output: lines per set. This is an estimate: it
//! does not know what else runs, and how often each line is fetched.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

/// An instruction cache's geometry, in bytes and lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionCacheGeometry {
    /// The number of sets.
    pub sets: u64,
    /// The number of ways of a set.
    pub ways: u64,
    /// The size of a line in bytes.
    pub line: u64,
}

impl InstructionCacheGeometry {
    /// The cache to assume where the kernel describes none, as in most virtual machines.
    pub const ASSUMED: InstructionCacheGeometry =
        InstructionCacheGeometry { sets: 64, ways: 8, line: 64 };

    /// The first CPU's first-level instruction cache, as the kernel describes it; `None` if the
    /// kernel describes none.
    ///
    /// # Errors
    /// A file under `/sys` cannot be read as a number.
    pub fn of_this_machine() -> Result<Option<InstructionCacheGeometry>> {
        let caches = Path::new("/sys/devices/system/cpu/cpu0/cache");
        let read = |index: u32, name: &str| {
            std::fs::read_to_string(caches.join(format!("index{index}/{name}")))
        };
        for index in 0.. {
            let Ok(kind) = read(index, "type") else { return Ok(None) };
            if kind.trim() != "Instruction" {
                continue;
            }
            let number = |name: &str| -> Result<u64> {
                let text = read(index, name)
                    .with_context(|| format!("{}: index{index}/{name}", caches.display()))?;
                text.trim()
                    .parse()
                    .with_context(|| format!("{}: index{index}/{name}: {text:?}", caches.display()))
            };
            let found = InstructionCacheGeometry {
                sets: number("number_of_sets")?,
                ways: number("ways_of_associativity")?,
                line: number("coherency_line_size")?,
            };
            ensure!(
                found.sets > 0 && found.ways > 0 && found.line > 0,
                "{}: {found} is not a cache",
                caches.display()
            );
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// The size of the cache in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.sets * self.ways * self.line
    }
}

impl fmt::Display for InstructionCacheGeometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KB, {} ways, {}-byte lines", self.size() / 1024, self.ways, self.line)
    }
}

/// How many lines of some blocks fall into each set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupancy {
    /// The cache.
    pub geometry: InstructionCacheGeometry,
    /// Per set: the number of lines.
    pub lines: Vec<u32>,
}

impl Occupancy {
    /// `blocks`: address and size of each.
    pub fn of(
        geometry: InstructionCacheGeometry,
        blocks: impl IntoIterator<Item = (u64, u32)>,
    ) -> Occupancy {
        let mut touched = BTreeSet::new();
        for (at, size) in blocks {
            let last = at.saturating_add(u64::from(size.max(1)) - 1);
            touched.extend(at / geometry.line..=last / geometry.line);
        }
        let mut lines = vec![0; geometry.sets as usize];
        for line in touched {
            lines[(line % geometry.sets) as usize] += 1;
        }
        Occupancy { geometry, lines }
    }

    /// All lines.
    pub fn total(&self) -> u64 {
        self.lines.iter().map(|&count| u64::from(count)).sum()
    }

    /// Lines for which their set has no way left.
    pub fn without_room(&self) -> u64 {
        let over =
            self.lines.iter().map(|&count| u64::from(count).saturating_sub(self.geometry.ways));
        over.sum()
    }

    /// Whether the blocks alone cannot be in the cache all at once, or leave less than half of it
    /// to everything else.
    pub fn is_tight(&self) -> bool {
        self.without_room() > 0 || self.total() * self.geometry.line * 2 > self.geometry.size()
    }
}

/// One digit a set, 64 in a row; `+` from 10 lines on, `.` for none.
impl fmt::Display for Occupancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in self.lines.chunks(64) {
            let digit = |&count: &u32| match count {
                0 => '.',
                1..=9 => char::from(b'0' + count as u8),
                _ => '+',
            };
            writeln!(f, "  {}", row.iter().map(digit).collect::<String>())?;
        }
        write!(
            f,
            "  {} lines ({:.1} KB of {}), {} of them without room in their set",
            self.total(),
            (self.total() * self.geometry.line) as f64 / 1024.0,
            self.geometry,
            self.without_room()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: InstructionCacheGeometry = InstructionCacheGeometry { sets: 4, ways: 2, line: 64 };

    #[test]
    fn blocks_take_all_lines_that_they_touch_once() {
        let found = Occupancy::of(SMALL, [(0, 64), (60, 8), (256, 1), (512, 130)]);
        assert_eq!(found.lines, [3, 2, 1, 0]);
        assert_eq!((found.total(), found.without_room(), found.is_tight()), (6, 1, true));
        assert!(found.to_string().starts_with("  321.\n  6 lines"));
    }

    #[test]
    fn what_fits_into_half_is_not_tight() {
        assert!(!Occupancy::of(SMALL, [(0, 256)]).is_tight());
        assert!(Occupancy::of(SMALL, [(0, 257)]).is_tight());
        assert_eq!(Occupancy::of(SMALL, []).total(), 0);
    }
}
