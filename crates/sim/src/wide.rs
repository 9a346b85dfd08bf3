//! True LRU of sets with many ways (a TLB of 64 entries). Lines stay in their ways, and each way
//! has the time of its last use.
//!
//! A guess finds most hits: the way in which the line was last time. A wrong guess, or a miss,
//! searches all ways.

use crate::access::{CacheAccess, occupied};
use crate::line::LineId;
use std::ops::Range;

#[derive(Clone, Debug)]
pub(crate) struct WideLru {
    /// The time of each way's last use; 0 when it was never used.
    used: Vec<u64>,
    now: u64,
    /// For the low bits of a line: the way in which such a line was last found. The guess may be
    /// out of date.
    guesses: Vec<u32>,
}

const GUESSES: usize = 1 << 10;

impl WideLru {
    pub(crate) fn new(lines: usize) -> WideLru {
        WideLru { used: vec![0; lines], now: 0, guesses: vec![0; GUESSES] }
    }

    /// Uses `line` in the ways `set` of `lines`.
    pub(crate) fn access(
        &mut self,
        lines: &mut [LineId],
        set: Range<usize>,
        line: LineId,
    ) -> CacheAccess {
        self.now += 1;
        let guess = &mut self.guesses[line.index() as usize % GUESSES];
        let at = *guess as usize;
        if lines[at] == line {
            self.used[at] = self.now;
            return CacheAccess::Hit;
        }
        if let Some(way) = lines[set.clone()].iter().position(|&held| held == line) {
            let at = set.start + way;
            *guess = at as u32;
            self.used[at] = self.now;
            return CacheAccess::Hit;
        }
        // Ways that were never used come first, in order.
        let oldest = self.used[set.clone()].iter().enumerate().min_by_key(|&(_, used)| used);
        let at = set.start + oldest.map_or(0, |(way, _)| way);
        *guess = at as u32;
        self.used[at] = self.now;
        CacheAccess::Miss { evicted: occupied(std::mem::replace(&mut lines[at], line)) }
    }
}
