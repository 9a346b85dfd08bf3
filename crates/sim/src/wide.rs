//! True LRU of sets with many ways (a TLB of 64 entries): ways stay where they are and bear the
//! time of their last use.
//!
//! A hit is found by a guess where the line was last, and only looked for when the guess is wrong;
//! a miss looks at all ways.

use crate::access::{Access, occupied};
use crate::line::Line;
use std::ops::Range;

#[derive(Clone, Debug)]
pub(crate) struct Wide {
    /// When each way was used last; 0: never.
    used: Vec<u64>,
    now: u64,
    /// Where a line was when it was last looked for, by its low bits; may be out of date.
    guesses: Vec<u32>,
}

const GUESSES: usize = 1 << 10;

impl Wide {
    pub fn new(lines: usize) -> Wide {
        Wide { used: vec![0; lines], now: 0, guesses: vec![0; GUESSES] }
    }

    /// Uses `line`, which belongs into the ways `set` of `lines`.
    pub fn access(&mut self, lines: &mut [Line], set: Range<usize>, line: Line) -> Access {
        self.now += 1;
        let guess = &mut self.guesses[line.index() as usize % GUESSES];
        let at = *guess as usize;
        if lines[at] == line {
            self.used[at] = self.now;
            return Access::Hit;
        }
        if let Some(way) = lines[set.clone()].iter().position(|&held| held == line) {
            let at = set.start + way;
            *guess = at as u32;
            self.used[at] = self.now;
            return Access::Hit;
        }
        // Ways never used come first, from the first to the last.
        let oldest = self.used[set.clone()].iter().enumerate().min_by_key(|&(_, used)| used);
        let at = set.start + oldest.map_or(0, |(way, _)| way);
        *guess = at as u32;
        self.used[at] = self.now;
        Access::Miss { evicted: occupied(std::mem::replace(&mut lines[at], line)) }
    }
}
