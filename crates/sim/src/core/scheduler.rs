//! A scheduler: the places in which uops wait for their operands.
//!
//! Uops enter in program order and leave in the cycle in which they begin, in any order. So the
//! next uop takes the place that becomes free first. A calendar counts the places that become free
//! on each coming day, and a bit for each day finds the first one:
//!
//! ```text
//! day      … 40 41 42 43 44 45 46 …      a `When`: a cycle, and whether memory decided it
//! counts      2  0  0  1  0  3  0
//! bits        1  0  0  1  0  1  0        64 in a word
//!             └ first
//! ```
//!
//! Places that become free behind the end of the calendar wait in a list. This happens only in long
//! chains of misses.

use super::when::When;

/// The days in the calendar.
const DAYS: usize = 1 << 13;
const WORDS: usize = DAYS / 64;
/// How far the end of the calendar is ahead of the first place, at least. The rest is for places
/// that become free before the first one.
const AHEAD: u64 = DAYS as u64 / 2;

#[derive(Clone, Debug)]
pub(crate) struct Scheduler {
    /// The day on which a place becomes free first.
    first: u64,
    /// The end of the calendar, which begins `DAYS` days before.
    end: u64,
    /// For a day modulo `DAYS`: the places that become free.
    counts: Box<[u16; DAYS]>,
    /// For a day modulo `DAYS`: whether its count is not 0.
    bits: Box<[u64; WORDS]>,
    /// The days of the other places, from `end` on.
    later: Vec<u64>,
    /// The first of these days; `u64::MAX`: there is none.
    first_later: u64,
}

impl Scheduler {
    /// `entries` must lie between 1 and 65535.
    pub(super) fn new(entries: u32) -> Scheduler {
        let mut scheduler = Scheduler {
            first: When::START.value(),
            end: When::START.value() + AHEAD,
            counts: Box::new([0; DAYS]),
            bits: Box::new([0; WORDS]),
            later: Vec::new(),
            first_later: u64::MAX,
        };
        for _ in 0..entries {
            scheduler.count(When::START.value());
        }
        scheduler
    }

    /// The cycle from which a place is free.
    #[inline]
    pub(super) fn free(&self) -> When {
        When::of_value(self.first)
    }

    /// Takes the place that is free first, until `leaves`.
    #[inline]
    pub(super) fn enter(&mut self, leaves: When) {
        let leaves = leaves.value();
        let day = self.first as usize % DAYS;
        self.counts[day] -= 1;
        if self.counts[day] == 0 {
            self.bits[day / 64] &= !(1 << (day % 64));
        }
        if leaves + DAYS as u64 >= self.end && leaves < self.end {
            self.count(leaves);
        } else {
            self.count_far(leaves);
        }
        // An earlier day comes when another uop of the same slot took the place before.
        if leaves < self.first {
            self.first = leaves;
        } else if self.counts[day] == 0 {
            self.advance();
        }
    }

    /// Counts a place whose day is in the calendar.
    #[inline]
    fn count(&mut self, day: u64) {
        let day = day as usize % DAYS;
        self.counts[day] += 1;
        self.bits[day / 64] |= 1 << (day % 64);
    }

    /// Finds the first day with a place. There is none before `first`.
    #[inline]
    fn advance(&mut self) {
        let day = self.first as usize % DAYS;
        let word = self.bits[day / 64] >> (day % 64);
        if word != 0 {
            self.first += u64::from(word.trailing_zeros());
        } else {
            self.first = self.next_word(day / 64);
        }
        if self.first + AHEAD > self.end {
            self.end = self.first + AHEAD;
            if self.first_later < self.end {
                self.bring_in();
            }
        }
    }

    /// The first day with a place, behind the word of `first`.
    fn next_word(&self, word: usize) -> u64 {
        let bits = |ahead: usize| self.bits[(word + ahead) % WORDS];
        match (1..=WORDS).find(|&ahead| bits(ahead) != 0) {
            Some(ahead) => {
                let word = self.first / 64 + ahead as u64;
                word * 64 + u64::from(bits(ahead).trailing_zeros())
            }
            None => self.first_later,
        }
    }

    /// Counts a place whose day is not in the calendar.
    #[cold]
    fn count_far(&mut self, leaves: u64) {
        if leaves < self.end {
            // The calendar begins again: all places leave it, and come back if their day is in it.
            let begin = self.end - DAYS as u64;
            for day in begin..self.end {
                let count = std::mem::take(&mut self.counts[day as usize % DAYS]);
                self.later.extend((0..count).map(|_| day));
            }
            self.bits.fill(0);
            self.end = leaves + AHEAD;
        }
        self.later.push(leaves);
        self.bring_in();
    }

    /// Counts the places of the list whose days are in the calendar.
    #[cold]
    fn bring_in(&mut self) {
        let (end, mut later) = (self.end, std::mem::take(&mut self.later));
        later.retain(|&day| {
            if day < end {
                self.count(day);
            }
            day >= end
        });
        self.first_later = later.iter().copied().min().unwrap_or(u64::MAX);
        self.later = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_that_is_free_first_is_taken() {
        let mut scheduler = Scheduler::new(3);
        let mut enter = |leaves| {
            let free = scheduler.free().cycle();
            scheduler.enter(When::new(leaves, false));
            free
        };
        // Three places are free at once. Then the uops leave in the cycles 4, 7, 9, 11.
        assert_eq!([9, 4, 7, 11, 20, 21].map(&mut enter), [0, 0, 0, 4, 7, 9]);
    }

    /// Against a sorted list: uops that leave soon, far ahead, and long before others.
    #[test]
    fn agrees_with_a_sorted_list() {
        for (entries, spread) in [(1, 20), (7, 30), (96, 9), (7, 90_000), (40, 1 << 40)] {
            let (mut scheduler, mut naive) = (Scheduler::new(entries), vec![0; entries as usize]);
            let mut state = 1_u64;
            for step in 0..4000 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let random = state >> 40;
                let leaves = match random % 16 {
                    0 => step + (random >> 4) * spread / 64,
                    _ => step + (random >> 4) % 64,
                };
                naive.sort_unstable();
                assert_eq!(scheduler.free(), naive_when(naive[0]), "step {step} of {entries}");
                naive[0] = leaves;
                scheduler.enter(naive_when(leaves));
            }
        }
    }

    /// Odd numbers are cycles that memory determined.
    fn naive_when(number: u64) -> When {
        When::new(number / 2, !number.is_multiple_of(2))
    }
}
