//! The TLBs of a core: the first level of code or of data, and the second level and page walks
//! behind both.
//!
//! Input: pages, and the cycles in which they are asked for. Output: the cycle in which each
//! translation is known. This module reads no page tables.

use super::description::CoreMemoryDescription;
use super::in_flight::InFlight;
use crate::access::CacheAccess;
use crate::cache::Cache;
use crate::geometry::CacheGeometry;
use crate::line::LineId;

/// The second-level TLB and the page walkers.
#[derive(Clone, Debug)]
pub(crate) struct SecondTlb {
    cache: Cache,
    latency: u64,
    walk: u64,
    walkers: InFlight,
    /// A hash chooses the set of a page.
    hashed: bool,
}

/// The pages of code and of data are numbered apart. This bit of their numbers keeps them apart in
/// the common TLB.
const OF_CODE: u32 = 1 << 30;

impl SecondTlb {
    pub(super) fn new(core: &CoreMemoryDescription) -> SecondTlb {
        SecondTlb {
            cache: Cache::new(core.second_tlb),
            latency: core.second_tlb_latency.into(),
            walk: core.page_walk.into(),
            walkers: InFlight::new(core.page_walkers),
            hashed: core.second_tlb_hashed,
        }
    }

    /// The number of a page in the common TLB.
    fn page(&self, page: LineId, of_code: bool) -> LineId {
        let index = page.index() & !OF_CODE;
        let index = if self.hashed { mixed(index) } else { index };
        let index = index | if of_code { OF_CODE } else { 0 };
        LineId::new(page.mode(), index.min(LineId::MAX_INDEX)).unwrap_or(page)
    }

    /// As [`SecondTlb::translate`], whenever that is. Returns whether a walk was needed.
    fn warm(&mut self, page: LineId, of_code: bool) -> bool {
        let page = self.page(page, of_code);
        self.cache.access(page) != CacheAccess::Hit
    }

    /// The cycle in which the translation of `page` is known, and whether a walk was needed.
    fn translate(&mut self, page: LineId, of_code: bool, now: u64) -> (u64, bool) {
        let page = self.page(page, of_code);
        let now = now + self.latency;
        if self.cache.access(page) == CacheAccess::Hit {
            return (self.walkers.there(page, now), false);
        }
        let ends = self.walkers.free(now) + self.walk;
        self.walkers.begin(page, ends);
        (ends, true)
    }
}

/// Another, pseudo-random number below `OF_CODE`. Two numbers never become one, because each step
/// is invertible. The factors are those of the finaliser of MurmurHash3 (Appleby, public domain).
#[inline]
fn mixed(number: u32) -> u32 {
    let mixed = |number: u32| number ^ number >> 15;
    let mut number = mixed(number);
    for factor in [0x85eb_ca6b_u32, 0xc2b2_ae35] {
        number = mixed(number.wrapping_mul(factor) & (OF_CODE - 1));
    }
    number
}

/// A first-level TLB.
#[derive(Clone, Debug)]
pub(crate) struct FirstTlb {
    cache: Cache,
    /// The page used last, and the cycle in which its translation is known.
    last: (LineId, u64),
    of_code: bool,
}

/// How a translation was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Translated {
    First,
    Second,
    Walked,
}

impl FirstTlb {
    pub(super) fn new(geometry: CacheGeometry, of_code: bool) -> FirstTlb {
        FirstTlb { cache: Cache::new(geometry), last: (LineId::NONE, 0), of_code }
    }

    /// The cycle in which the translation of `page` is known.
    #[inline]
    pub(super) fn translate(
        &mut self,
        page: LineId,
        now: u64,
        second: &mut SecondTlb,
    ) -> (u64, Translated) {
        // The page used last is the most recent of its set.
        if page == self.last.0 {
            return (now.max(self.last.1), Translated::First);
        }
        if self.cache.access(page) == CacheAccess::Hit {
            self.last = (page, 0);
            return (now, Translated::First);
        }
        let (known, walked) = second.translate(page, self.of_code, now);
        self.last = (page, known);
        (known, if walked { Translated::Walked } else { Translated::Second })
    }

    /// As [`FirstTlb::translate`], whenever that is.
    #[inline]
    pub(super) fn warm(&mut self, page: LineId, second: &mut SecondTlb) -> Translated {
        if page == self.last.0 {
            return Translated::First;
        }
        self.last = (page, 0);
        if self.cache.access(page) == CacheAccess::Hit {
            return Translated::First;
        }
        match second.warm(page, self.of_code) {
            true => Translated::Walked,
            false => Translated::Second,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Replacement;
    use crate::line::Mode;

    #[test]
    fn hashed_pages_stay_apart() {
        let pages = 1_u32 << 16;
        let numbers: std::collections::BTreeSet<u32> = (0..pages).map(mixed).collect();
        assert_eq!(numbers.len(), pages as usize);
        assert!(numbers.iter().all(|number| *number < OF_CODE));
        // 2048 pages in 256 sets: 8 in each if they lie side by side; a Poisson distribution has
        // more than 12 of them in 0.064 of the sets.
        let mut over = 0;
        for first in (0..pages).step_by(2048) {
            let mut sets = [0_u32; 256];
            (first..first + 2048).for_each(|page| sets[mixed(page) as usize & 255] += 1);
            over += sets.iter().filter(|&&pages| pages > 12).count();
        }
        let share = over as f64 / (32.0 * 256.0);
        assert!((share - 0.064).abs() < 0.02, "{share}");
    }

    #[test]
    fn two_levels_and_a_walk() {
        let tlb = |entries| CacheGeometry::tlb(entries, entries, Replacement::Lru).unwrap();
        let mut second = SecondTlb::new(&CoreMemoryDescription {
            second_tlb: tlb(4),
            second_tlb_latency: 7,
            page_walk: 30,
            page_walkers: 1,
            ..crate::core::examples::memory()
        });
        let (mut code, mut data) = (FirstTlb::new(tlb(1), true), FirstTlb::new(tlb(1), false));
        let page = |number| LineId::new(Mode::Kernel, number).unwrap();
        let mut ask =
            |tlb: &mut FirstTlb, number, now| tlb.translate(page(number), now, &mut second);
        assert_eq!(ask(&mut code, 1, 0), (37, Translated::Walked));
        // The walk is still under way, then over.
        assert_eq!(ask(&mut code, 1, 30), (37, Translated::First));
        assert_eq!(ask(&mut code, 1, 50), (50, Translated::First));
        // The page of data with the same number is another page. Its walk waits for no other.
        assert_eq!(ask(&mut data, 1, 50), (87, Translated::Walked));
        // The only walker is busy until 87.
        assert_eq!(ask(&mut code, 2, 60), (117, Translated::Walked));
        assert_eq!(ask(&mut code, 1, 200), (207, Translated::Second));
    }
}
