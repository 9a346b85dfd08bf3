//! A TLB: pages instead of lines. It counts misses by mode.
//!
//! Input: the pages that are used, in order. Output: hit or miss, and counters. A TLB knows no
//! addresses and no page walks.

use crate::access::CacheAccess;
use crate::cache::Cache;
use crate::geometry::CacheGeometry;
use crate::line::{LineId, PerMode};

/// A TLB with its counters.
#[derive(Clone, Debug)]
pub struct Tlb {
    cache: Cache,
    misses: PerMode<u64>,
}

impl Tlb {
    /// An empty TLB of this geometry.
    pub fn new(geometry: CacheGeometry) -> Tlb {
        Tlb { cache: Cache::new(geometry), misses: PerMode::default() }
    }

    /// Translates an address within `page`. Returns whether the TLB missed.
    #[inline]
    pub fn access(&mut self, page: LineId) -> bool {
        let missed = self.cache.access(page) != CacheAccess::Hit;
        if missed {
            *self.misses.get_mut(page.mode()) += 1;
        }
        missed
    }

    /// Misses so far, by the mode of the page.
    pub fn misses(&self) -> PerMode<u64> {
        self.misses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Replacement;
    use crate::line::Mode;

    #[test]
    fn three_pages_in_two_entries() {
        let mut tlb = Tlb::new(CacheGeometry::tlb(2, 2, Replacement::Lru).unwrap());
        for (mode, page) in [
            (Mode::Kernel, 7), // miss
            (Mode::User, 7),   // miss
            (Mode::Kernel, 7), // hit
            (Mode::Kernel, 7), // hit
            (Mode::User, 9),   // miss, evicts user 7
            (Mode::Kernel, 7), // hit
            (Mode::User, 7),   // miss, evicts user 9
        ] {
            tlb.access(LineId::new(mode, page).unwrap());
        }
        assert_eq!(tlb.misses(), PerMode { kernel: 1, user: 3 });
    }
}
