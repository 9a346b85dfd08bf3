//! The geometry of a cache or TLB, checked once.
//!
//! Input: sizes. Output: a [`CacheGeometry`], or an error that names the rule. A geometry that
//! exists can be built.

use crate::Replacement;
use thiserror::Error;

/// Sets × ways, and how a victim is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheGeometry {
    sets: u32,
    ways: u32,
    replacement: Replacement,
}

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum GeometryError {
    #[error("the size of a line must be a power of two from 16 to 256 bytes, not {0}")]
    LineSize(u64),
    #[error("the number of ways must be at least 1")]
    NoWays,
    #[error("the size, {size} bytes, is not a multiple of ways × line = {ways} × {line} bytes")]
    NotWholeSets { size: u64, ways: u64, line: u64 },
    #[error("the entries, {entries}, are not a multiple of the {ways} ways")]
    NotWholeEntries { entries: u64, ways: u64 },
    #[error(
        "the number of sets must be a power of two, because address bits choose the set; not {0}"
    )]
    Sets(u64),
    #[error("{} needs {} ways, not {ways}", replacement.name(), replacement.ways())]
    Ways { replacement: Replacement, ways: u64 },
    #[error("at most {max} lines are simulated, not {lines}", max = CacheGeometry::MAX_LINES)]
    TooLarge { lines: u64 },
}

impl CacheGeometry {
    /// The largest number of lines: 64 MB of 64-byte lines, more than any cache that holds
    /// instructions.
    pub(crate) const MAX_LINES: u64 = 1 << 20;

    /// A cache of `size` bytes in lines of `line` bytes. The number of sets must be a power of two,
    /// the size need not (48 KB in 12 ways).
    ///
    /// # Errors
    /// No cache with these numbers can be built or simulated.
    pub fn cache(
        size: u64,
        ways: u64,
        line: u64,
        replacement: Replacement,
    ) -> Result<CacheGeometry, GeometryError> {
        if !line.is_power_of_two() || !(16..=256).contains(&line) {
            return Err(GeometryError::LineSize(line));
        }
        if ways == 0 {
            return Err(GeometryError::NoWays);
        }
        if size == 0 || !size.is_multiple_of(line) || !(size / line).is_multiple_of(ways) {
            return Err(GeometryError::NotWholeSets { size, ways, line });
        }
        CacheGeometry::of_lines(size / line, ways, replacement)
    }

    /// A TLB of `entries` pages.
    ///
    /// # Errors
    /// No TLB with these numbers can be built or simulated.
    pub fn tlb(
        entries: u64,
        ways: u64,
        replacement: Replacement,
    ) -> Result<CacheGeometry, GeometryError> {
        if ways == 0 {
            return Err(GeometryError::NoWays);
        }
        if entries == 0 || !entries.is_multiple_of(ways) {
            return Err(GeometryError::NotWholeEntries { entries, ways });
        }
        CacheGeometry::of_lines(entries, ways, replacement)
    }

    fn of_lines(
        lines: u64,
        ways: u64,
        replacement: Replacement,
    ) -> Result<CacheGeometry, GeometryError> {
        if lines > CacheGeometry::MAX_LINES {
            return Err(GeometryError::TooLarge { lines });
        }
        let sets = lines / ways;
        if !sets.is_power_of_two() {
            return Err(GeometryError::Sets(sets));
        }
        if !replacement.allows(ways) {
            return Err(GeometryError::Ways { replacement, ways });
        }
        Ok(CacheGeometry { sets: sets as u32, ways: ways as u32, replacement })
    }

    /// The number of sets: a power of two.
    pub fn sets(&self) -> u32 {
        self.sets
    }

    /// The number of ways in each set.
    pub fn ways(&self) -> u32 {
        self.ways
    }

    /// How a victim is chosen.
    pub fn replacement(&self) -> Replacement {
        self.replacement
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Replacement::{Lru, TreePlru};

    #[test]
    fn real_caches_can_be_built() {
        let shape = |size, ways, line, replacement| {
            let geometry = CacheGeometry::cache(size, ways, line, replacement).unwrap();
            (geometry.sets(), geometry.ways())
        };
        assert_eq!(shape(8 << 10, 1, 32, Lru), (256, 1));
        assert_eq!(shape(16 << 10, 2, 32, Lru), (256, 2));
        assert_eq!(shape(32 << 10, 8, 64, TreePlru), (64, 8));
        assert_eq!(shape(48 << 10, 12, 64, Lru), (64, 12));
        assert_eq!(shape(4 << 10, 64, 64, TreePlru), (1, 64));
        assert_eq!(CacheGeometry::tlb(64, 64, Lru).unwrap().sets(), 1);
    }

    #[test]
    fn impossible_caches_give_an_error_that_names_the_rule() {
        use GeometryError::*;
        let cases = [
            ((8192, 1, 48, Lru), LineSize(48)),
            ((8192, 1, 8, Lru), LineSize(8)),
            ((8192, 1, 512, Lru), LineSize(512)),
            ((8192, 0, 32, Lru), NoWays),
            ((0, 1, 32, Lru), NotWholeSets { size: 0, ways: 1, line: 32 }),
            ((8192, 3, 32, Lru), NotWholeSets { size: 8192, ways: 3, line: 32 }),
            ((8200, 1, 32, Lru), NotWholeSets { size: 8200, ways: 1, line: 32 }),
            ((48 << 10, 8, 64, Lru), Sets(96)),
            ((48 << 10, 12, 64, TreePlru), Ways { replacement: TreePlru, ways: 12 }),
            ((8192, 128, 64, TreePlru), Ways { replacement: TreePlru, ways: 128 }),
            ((u64::MAX - 63, 1, 64, Lru), TooLarge { lines: u64::MAX / 64 }),
            ((8192, u64::MAX, 64, Lru), NotWholeSets { size: 8192, ways: u64::MAX, line: 64 }),
        ];
        for ((size, ways, line, replacement), error) in cases {
            assert_eq!(
                CacheGeometry::cache(size, ways, line, replacement),
                Err(error),
                "{size} {ways} {line}"
            );
        }
        assert_eq!(CacheGeometry::tlb(64, 0, Lru), Err(NoWays));
        assert_eq!(CacheGeometry::tlb(64, 5, Lru), Err(NotWholeEntries { entries: 64, ways: 5 }));
        assert_eq!(CacheGeometry::tlb(0, 5, Lru), Err(NotWholeEntries { entries: 0, ways: 5 }));
        assert_eq!(CacheGeometry::tlb(60, 5, Lru), Err(Sets(12)));
    }
}
