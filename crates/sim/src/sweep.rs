//! Counts the misses of many caches, by size and associativity, in one pass over the accesses.
//!
//! Under LRU the ways of a set form a stack (Mattson et al. 1970). A cache of `ways` ways holds the
//! topmost `ways` lines of the set's stack. So one stack for each set serves all associativities. A
//! line that sinks below place `ways` leaves the cache of `ways` ways, evicted by the requester
//! that pushed it down. A line on top of a set is also on top of every smaller set that contains
//! it. So the search ends at the first number of sets for which the line is on top.
//!
//! Input: lines with their requesters, in order. Output: misses of each cache, by cause.

use crate::level::{Evictors, MissCause, MissCounts, Requester};
use crate::line::{LineId, PerMode};
use std::ops::RangeInclusive;

/// LRU caches with every power of two of sets in a range, and every power of two of ways up to a
/// limit.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The smallest number of sets comes first.
    stacks: Vec<LruStacks>,
}

/// All caches with one number of sets.
#[derive(Clone, Debug)]
struct LruStacks {
    set_mask: u32,
    /// The ways of the cache with the most ways.
    depth: usize,
    /// The lines by set, the most recently used first in each set.
    lines: Vec<LineId>,
    /// The evictors of each line from the caches of 1, 2, 4 … ways.
    evicted_by: PerMode<Evictors<MOST_CACHES>>,
    /// The misses of these caches.
    misses: Vec<PerMode<MissCounts>>,
}

/// The largest number of caches with one number of sets.
const MOST_CACHES: usize = 8;

impl Sweep {
    /// `sets` gives the log2 of the numbers of sets, `ways` the log2 of the largest number of ways,
    /// at most 7.
    pub fn new(sets: RangeInclusive<u32>, ways: u32) -> Sweep {
        assert!((ways as usize) < MOST_CACHES, "2^{ways} ways are too many for a sweep");
        let stacks = sets.map(|sets| LruStacks {
            set_mask: (1 << sets) - 1,
            depth: 1 << ways,
            lines: vec![LineId::NONE; 1 << (sets + ways)],
            evicted_by: PerMode::default(),
            misses: vec![PerMode::default(); ways as usize + 1],
        });
        Sweep { stacks: stacks.collect() }
    }

    /// `requester` uses `line` in every cache.
    #[inline]
    pub fn access(&mut self, line: LineId, requester: Requester) {
        for stacks in &mut self.stacks {
            if stacks.lines[(line.index() & stacks.set_mask) as usize * stacks.depth] == line {
                return;
            }
            stacks.access(line, requester);
        }
    }

    /// The misses of the cache with this number of sets and ways, by the mode of the requester.
    /// `None`: the sweep has no such cache.
    pub fn misses(&self, sets: u32, ways: u32) -> Option<PerMode<MissCounts>> {
        let stacks =
            self.stacks.iter().find(|stacks| stacks.set_mask.checked_add(1) == Some(sets))?;
        let misses = ways.is_power_of_two().then(|| stacks.misses.get(ways.ilog2() as usize))??;
        Some(*misses)
    }
}

impl LruStacks {
    /// Uses a line that is not on top of its stack.
    fn access(&mut self, line: LineId, requester: Requester) {
        let first = (line.index() & self.set_mask) as usize * self.depth;
        let stack = &mut self.lines[first..first + self.depth];
        let place = stack.iter().position(|&held| held == line);
        // The lines above it move down by one place. The last line of each smaller cache leaves
        // that cache.
        let pushed = place.unwrap_or(self.depth);
        let evictors = *self.evicted_by.get_mut(line.mode()).of(line);
        for (log2, misses) in
            self.misses.iter_mut().enumerate().take_while(|(log2, _)| 1 << log2 <= pushed)
        {
            let cause = match evictors[log2] {
                Requester::NOBODY => MissCause::Cold,
                evictor if evictor == requester => MissCause::Own,
                _ => MissCause::Other,
            };
            misses.get_mut(requester.mode()).count(cause);
            let evicted = stack[(1 << log2) - 1];
            if evicted != LineId::NONE {
                self.evicted_by.get_mut(evicted.mode()).of(evicted)[log2] = requester;
            }
        }
        stack.copy_within(..pushed.min(self.depth - 1), 1);
        stack[0] = line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Replacement;
    use crate::geometry::CacheGeometry;
    use crate::level::CacheLevel;
    use crate::line::Mode;

    /// The sweep counts the same misses as each cache does alone.
    #[test]
    fn the_sweep_counts_the_misses_of_each_cache() {
        let (sets, ways) = (0..=6, 4);
        let mut sweep = Sweep::new(sets.clone(), ways);
        let mut alone = Vec::new();
        for sets in sets {
            for ways in (0..=ways).map(|ways| 1 << ways) {
                let size = (1_u64 << sets) * ways * 16;
                let level = CacheLevel::new(
                    CacheGeometry::cache(size, ways, 16, Replacement::Lru).unwrap(),
                );
                alone.push((1 << sets, ways as u32, level, PerMode::<MissCounts>::default()));
            }
        }
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut below = |bound: u64| {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
        };
        for _ in 0..40_000 {
            let requester = match below(3) {
                0 => Requester::KERNEL,
                number => Requester::process(number as u32),
            };
            let span = [16, 100, 3000][below(3) as usize];
            let line = LineId::new(Mode::BOTH[below(2) as usize], below(span) as u32).unwrap();
            sweep.access(line, requester);
            for (_, _, level, misses) in &mut alone {
                if let Some(cause) = level.access(line, requester) {
                    misses.get_mut(requester.mode()).count(cause);
                }
            }
        }
        for (sets, ways, _, misses) in alone {
            assert_eq!(sweep.misses(sets, ways), Some(misses), "{sets} sets, {ways} ways");
            assert!(misses.kernel.own > 0 && misses.user.other > 0, "{sets} sets, {ways} ways");
        }
        assert_eq!(sweep.misses(128, 1), None);
        assert_eq!(sweep.misses(64, 32), None);
        assert_eq!(sweep.misses(64, 3), None);
    }
}
