//! Misses of many caches at once, by size and associativity, in one pass over the accesses.
//!
//! Under LRU the ways of a set are a stack (Mattson et al. 1970): a cache of `ways` ways holds the
//! topmost `ways` lines of its set's stack, so one stack a set answers for every associativity, and
//! a line that leaves place `ways` was evicted from the cache of `ways` ways by whoever pushed it.
//! And what is on top of a set is on top of every smaller set that it belongs to, so the search
//! ends at the first number of sets for which a line is.

use crate::level::{Cause, Evictors, Misses, Requester};
use crate::line::{Line, PerMode};
use std::ops::RangeInclusive;

/// LRU caches with every power of two of sets in a range, and of ways up to a number.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The fewest sets first.
    stacks: Vec<Stacks>,
}

/// All caches of one number of sets.
#[derive(Clone, Debug)]
struct Stacks {
    set_mask: u32,
    /// Of the cache with the most ways.
    depth: usize,
    /// Sets × depth, the most recently used first.
    lines: Vec<Line>,
    /// For caches of 1, 2, 4 … ways.
    caches: Vec<OfWays>,
}

#[derive(Clone, Debug, Default)]
struct OfWays {
    evicted_by: PerMode<Evictors>,
    misses: PerMode<Misses>,
}

impl Sweep {
    /// `sets`: log2 of the numbers of sets; `ways`: log2 of the most ways.
    pub fn new(sets: RangeInclusive<u32>, ways: u32) -> Sweep {
        let stacks = sets.map(|sets| Stacks {
            set_mask: (1 << sets) - 1,
            depth: 1 << ways,
            lines: vec![Line::NONE; 1 << (sets + ways)],
            caches: vec![OfWays::default(); ways as usize + 1],
        });
        Sweep { stacks: stacks.collect() }
    }

    /// `requester` uses `line` in every cache.
    #[inline]
    pub fn access(&mut self, line: Line, requester: Requester) {
        for stacks in &mut self.stacks {
            if stacks.lines[(line.index() & stacks.set_mask) as usize * stacks.depth] == line {
                return;
            }
            stacks.access(line, requester);
        }
    }

    /// Misses of the cache with so many sets and ways, by whose they are; `None`: it is not among
    /// them.
    pub fn misses(&self, sets: u32, ways: u32) -> Option<PerMode<Misses>> {
        let stacks =
            self.stacks.iter().find(|stacks| stacks.set_mask.checked_add(1) == Some(sets))?;
        let cache = ways.is_power_of_two().then(|| stacks.caches.get(ways.ilog2() as usize))??;
        Some(cache.misses)
    }
}

impl Stacks {
    /// For a line that is not on top of its stack.
    fn access(&mut self, line: Line, requester: Requester) {
        let first = (line.index() & self.set_mask) as usize * self.depth;
        let stack = &mut self.lines[first..first + self.depth];
        let place = stack.iter().position(|&held| held == line);
        // All above it are pushed one place down; those at the end of a cache leave it.
        let pushed = place.unwrap_or(self.depth);
        for (log2, cache) in
            self.caches.iter_mut().enumerate().take_while(|(log2, _)| 1 << log2 <= pushed)
        {
            let cause = match *cache.evicted_by.get_mut(line.mode()).of(line) {
                Requester::NOBODY => Cause::Cold,
                evictor if evictor == requester => Cause::Own,
                _ => Cause::Other,
            };
            cache.misses.get_mut(requester.mode()).count(cause);
            let evicted = stack[(1 << log2) - 1];
            if evicted != Line::NONE {
                *cache.evicted_by.get_mut(evicted.mode()).of(evicted) = requester;
            }
        }
        stack.copy_within(..pushed.min(self.depth - 1), 1);
        stack[0] = line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::{Geometry, Replacement};
    use crate::level::Level;
    use crate::line::Mode;

    /// Every cache of the sweep counts what that cache alone counts.
    #[test]
    fn one_pass_counts_what_each_cache_alone_counts() {
        let (sets, ways) = (0..=6, 4);
        let mut sweep = Sweep::new(sets.clone(), ways);
        let mut alone = Vec::new();
        for sets in sets {
            for ways in (0..=ways).map(|ways| 1 << ways) {
                let size = (1_u64 << sets) * ways * 16;
                let level = Level::new(Geometry::cache(size, ways, 16, Replacement::Lru).unwrap());
                alone.push((1 << sets, ways as u32, level, PerMode::<Misses>::default()));
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
            let line = Line::new(Mode::BOTH[below(2) as usize], below(span) as u32).unwrap();
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
