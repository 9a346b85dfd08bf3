//! A TLB: pages instead of lines, misses counted by side.

use crate::access::Access;
use crate::cache::Cache;
use crate::geometry::Geometry;
use crate::line::{Line, PerSide};

#[derive(Clone, Debug)]
pub struct Tlb {
    cache: Cache,
    misses: PerSide<u64>,
}

impl Tlb {
    pub fn new(geometry: Geometry) -> Tlb {
        Tlb { cache: Cache::new(geometry), misses: PerSide::default() }
    }

    /// Whether `page` was used last of its set: then it is there, and using it changes nothing.
    #[inline]
    pub fn used_last(&self, page: Line) -> bool {
        self.cache.used_last(page)
    }

    /// Translates an address within `page`; true when it missed.
    #[inline]
    pub fn access(&mut self, page: Line) -> bool {
        let missed = self.cache.access(page) != Access::Hit;
        if missed {
            *self.misses.get_mut(page.side()) += 1;
        }
        missed
    }

    pub fn misses(&self) -> PerSide<u64> {
        self.misses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Replacement;
    use crate::line::Side;

    #[test]
    fn three_pages_in_two_entries() {
        let mut tlb = Tlb::new(Geometry::tlb(2, 2, Replacement::Lru).unwrap());
        for (side, page) in [
            (Side::Kernel, 7), // miss
            (Side::User, 7),   // miss
            (Side::Kernel, 7), // hit
            (Side::Kernel, 7), // hit
            (Side::User, 9),   // miss, evicts user 7
            (Side::Kernel, 7), // hit
            (Side::User, 7),   // miss, evicts user 9
        ] {
            tlb.access(Line::new(side, page).unwrap());
        }
        assert_eq!(tlb.misses(), PerSide { kernel: 1, user: 3 });
    }
}
