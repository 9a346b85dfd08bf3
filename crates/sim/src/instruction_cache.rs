//! An instruction cache whose lines have a side, misses counted by side and cause.
//!
//! Torrellas' two parties (1998, sections 2.2 and 5.1): all user code is one.

use crate::geometry::Geometry;
use crate::level::{Level, Misses, Party};
use crate::line::{Line, PerSide};

#[derive(Clone, Debug)]
pub struct InstructionCache {
    level: Level,
    misses: PerSide<Misses>,
}

impl InstructionCache {
    pub fn new(geometry: Geometry) -> InstructionCache {
        InstructionCache { level: Level::new(geometry), misses: PerSide::default() }
    }

    /// Fetches from `line`; true when it missed.
    #[inline]
    pub fn fetch(&mut self, line: Line) -> bool {
        let side = line.side();
        match self.level.access(line, Party::of(side)) {
            None => false,
            Some(cause) => {
                self.misses.get_mut(side).count(cause);
                true
            }
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
    use crate::line::Side;

    fn kernel(index: u32) -> Line {
        Line::new(Side::Kernel, index).unwrap()
    }

    fn user(index: u32) -> Line {
        Line::new(Side::User, index).unwrap()
    }

    /// Four sets of one way: lines 0, 4, 8 conflict.
    #[test]
    fn every_miss_has_its_cause() {
        let mut cache =
            InstructionCache::new(Geometry::cache(64, 1, 16, Replacement::Lru).unwrap());
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
