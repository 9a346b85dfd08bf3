//! An instruction cache that says why it missed.
//!
//! Torrellas (1998, sections 2.2 and 5.1): a miss on a line is *cold* when the line was never fetched before, *self*-interference when
//! the line had been evicted by code of its own side, interference with the *other* side when by code of the other.

use crate::cache::{Access, Cache};
use crate::geometry::Geometry;
use crate::line::{Line, PerSide, Side};

/// Misses of one side, by what caused them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Misses {
    pub cold: u64,
    pub own: u64,
    pub other: u64,
}

impl Misses {
    pub fn total(&self) -> u64 {
        self.cold + self.own + self.other
    }
}

/// What became of a line; a line that is in the cache keeps the value it had when it was brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    NeverFetched,
    EvictedByKernel,
    EvictedByUser,
}

#[derive(Clone, Debug)]
pub struct InstructionCache {
    cache: Cache,
    /// The line fetched last: by definition the most recently used of its set, so that fetching it again changes nothing.
    last: Line,
    fates: PerSide<Vec<Fate>>,
    misses: PerSide<Misses>,
}

impl InstructionCache {
    pub fn new(geometry: Geometry) -> InstructionCache {
        InstructionCache {
            cache: Cache::new(geometry),
            last: Line::NONE,
            fates: PerSide::default(),
            misses: PerSide::default(),
        }
    }

    /// Fetches from `line`; true when it missed.
    #[inline]
    pub fn fetch(&mut self, line: Line) -> bool {
        if line == self.last {
            return false;
        }
        self.last = line;
        match self.cache.access(line) {
            Access::Hit => false,
            Access::Miss { evicted } => {
                self.missed(line, evicted);
                true
            }
        }
    }

    fn missed(&mut self, line: Line, evicted: Option<Line>) {
        let side = line.side();
        let fates = self.fates.get_mut(side);
        let index = line.index() as usize;
        if index >= fates.len() {
            fates.resize((index + 1).next_power_of_two(), Fate::NeverFetched);
        }
        let misses = self.misses.get_mut(side);
        match (fates[index], side) {
            (Fate::NeverFetched, _) => misses.cold += 1,
            (Fate::EvictedByKernel, Side::Kernel) | (Fate::EvictedByUser, Side::User) => misses.own += 1,
            (Fate::EvictedByKernel, Side::User) | (Fate::EvictedByUser, Side::Kernel) => misses.other += 1,
        }
        if let Some(evicted) = evicted {
            // A line that is evicted was once fetched, and its own miss made room for its entry.
            self.fates.get_mut(evicted.side())[evicted.index() as usize] = match side {
                Side::Kernel => Fate::EvictedByKernel,
                Side::User => Fate::EvictedByUser,
            };
        }
    }

    /// Misses so far, by the side whose code missed.
    pub fn misses(&self) -> PerSide<Misses> {
        self.misses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Replacement;

    fn kernel(index: u32) -> Line {
        Line::new(Side::Kernel, index).unwrap()
    }

    fn user(index: u32) -> Line {
        Line::new(Side::User, index).unwrap()
    }

    /// Four sets of one way: lines 0, 4, 8 conflict.
    #[test]
    fn every_miss_has_its_cause() {
        let mut cache = InstructionCache::new(Geometry::cache(64, 1, 16, Replacement::Lru).unwrap());
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
        assert_eq!(misses.kernel, Misses { cold: 3, own: 2, other: 1 });
        assert_eq!(misses.user, Misses { cold: 2, own: 1, other: 1 });
        assert_eq!(misses.kernel.total() + misses.user.total(), 10);
    }
}
