//! A TLB: pages instead of lines, misses counted by mode.

use crate::access::Access;
use crate::cache::Cache;
use crate::geometry::Geometry;
use crate::line::{Line, PerMode};

#[derive(Clone, Debug)]
pub struct Tlb {
    cache: Cache,
    misses: PerMode<u64>,
}

impl Tlb {
    pub fn new(geometry: Geometry) -> Tlb {
        Tlb { cache: Cache::new(geometry), misses: PerMode::default() }
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
            *self.misses.get_mut(page.mode()) += 1;
        }
        missed
    }

    pub fn misses(&self) -> PerMode<u64> {
        self.misses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Replacement;
    use crate::line::Mode;

    #[test]
    fn three_pages_in_two_entries() {
        let mut tlb = Tlb::new(Geometry::tlb(2, 2, Replacement::Lru).unwrap());
        for (mode, page) in [
            (Mode::Kernel, 7), // miss
            (Mode::User, 7),   // miss
            (Mode::Kernel, 7), // hit
            (Mode::Kernel, 7), // hit
            (Mode::User, 9),   // miss, evicts user 7
            (Mode::Kernel, 7), // hit
            (Mode::User, 7),   // miss, evicts user 9
        ] {
            tlb.access(Line::new(mode, page).unwrap());
        }
        assert_eq!(tlb.misses(), PerMode { kernel: 1, user: 3 });
    }
}
