//! An instruction cache whose lines have a mode. It counts misses by mode and cause.
//!
//! The two requesters are those of Torrellas (1998, sections 2.2 and 5.1): the kernel and all user
//! code.
//!
//! Input: the lines that are fetched, in order. Output: hit or miss, and counters.

use crate::geometry::CacheGeometry;
use crate::level::{CacheLevel, MissCounts, Requester};
use crate::line::{LineId, PerMode};

/// An instruction cache with its counters.
#[derive(Clone, Debug)]
pub struct InstructionCache {
    level: CacheLevel,
    misses: PerMode<MissCounts>,
}

impl InstructionCache {
    /// An empty cache of this geometry.
    pub fn new(geometry: CacheGeometry) -> InstructionCache {
        InstructionCache { level: CacheLevel::new(geometry), misses: PerMode::default() }
    }

    /// Fetches from `line`. Returns whether the cache missed.
    #[inline]
    pub fn fetch(&mut self, line: LineId) -> bool {
        let mode = line.mode();
        match self.level.access(line, Requester::of(mode)) {
            None => false,
            Some(cause) => {
                self.misses.get_mut(mode).count(cause);
                true
            }
        }
    }

    /// Misses so far, by the mode of the line.
    pub fn misses(&self) -> PerMode<MissCounts> {
        self.misses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Replacement;
    use crate::line::Mode;

    fn kernel(index: u32) -> LineId {
        LineId::new(Mode::Kernel, index).unwrap()
    }

    fn user(index: u32) -> LineId {
        LineId::new(Mode::User, index).unwrap()
    }

    /// Four sets of one way: lines 0, 4 and 8 conflict.
    #[test]
    fn every_miss_has_its_cause() {
        let mut cache =
            InstructionCache::new(CacheGeometry::cache(64, 1, 16, Replacement::Lru).unwrap());
        let fetches = [
            (kernel(0), true),  // cold
            (kernel(0), false), // the line fetched last
            (kernel(1), true),  // cold
            (kernel(0), false), // still there
            (kernel(4), true),  // cold; kernel evicts kernel 0
            (kernel(0), true),  // self; kernel evicts kernel 4
            (user(0), true),    // cold: another line than the kernel's 0; user evicts kernel 0
            (kernel(0), true),  // other; kernel evicts user 0
            (user(0), true),    // other; user evicts kernel 0
            (user(8), true),    // cold; user evicts user 0
            (user(0), true),    // self
            (kernel(4), true),  // self: the kernel evicted it
            (kernel(1), false), // its set was never asked for another
        ];
        for (step, (line, missed)) in fetches.into_iter().enumerate() {
            assert_eq!(cache.fetch(line), missed, "fetch {step}");
        }
        let misses = cache.misses();
        assert_eq!(misses.kernel, MissCounts { cold: 3, own: 2, other: 1 });
        assert_eq!(misses.user, MissCounts { cold: 2, own: 1, other: 1 });
        assert_eq!(misses.kernel.total() + misses.user.total(), 10);
    }
}
