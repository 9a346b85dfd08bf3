//! Predicts the direction of conditional branches: a base table of counters, and tagged tables with
//! longer and longer histories (TAGE: Seznec and Michaud, JILP 8, 2006).
//!
//! The history is the path of taken branches, as in Intel's processors since Haswell (Yavarzadeh et
//! al., "Half&Half: Demystifying Intel's Directional Branch Predictors", IEEE S&P 2023, section 3).
//! There is no predictor of loops and no statistical corrector. Tables have one way.
//!
//! Input: conditional branches with their outcomes, in order. Output: each prediction.

use super::history::PathHistory;
use super::tagged::{Place, TableHistory, TaggedTable};
use crate::branches::CodeAddr;

/// The most tagged tables.
pub(crate) const TABLES: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: u16,
    /// From -4 to 3; taken when it is not negative.
    counter: i8,
    /// From 0 to 3. An entry that is useful is not replaced.
    useful: u8,
}

/// No branch has this tag.
const EMPTY: Entry = Entry { tag: u16::MAX, counter: 0, useful: 0 };

#[derive(Clone, Debug)]
struct Table {
    history: TableHistory,
    entries: Vec<Entry>,
}

/// Predicts directions.
#[derive(Clone, Debug)]
pub(crate) struct PathDirection {
    /// Counters of two bits.
    base: Vec<u8>,
    tables: Vec<Table>,
    /// Not negative: a new entry is trusted less than the shorter history.
    shorter_is_better: i8,
}

/// What a prediction was made from.
#[derive(Clone, Copy, Debug)]
struct Found {
    places: [Place; TABLES],
    /// One more than the index of the table with the longest history that has the branch; 0: none.
    longest: usize,
    /// The same of the next shorter one.
    shorter: usize,
}

impl PathDirection {
    /// `base` must be a power of two. There are at most [`TABLES`] tables.
    pub(super) fn new(base: u32, tables: &[TaggedTable]) -> PathDirection {
        let table = |&table: &TaggedTable| Table {
            history: TableHistory::new(table),
            entries: vec![EMPTY; table.entries as usize],
        };
        PathDirection {
            base: vec![1; base as usize],
            tables: tables.iter().take(TABLES).map(table).collect(),
            shorter_is_better: 0,
        }
    }

    /// Predicts whether the branch at `at` is taken, and learns that it was `taken`.
    #[inline]
    pub(super) fn predicts(&mut self, at: CodeAddr, taken: bool) -> bool {
        let found = self.find(at);
        let base = self.base_index(at);
        let of = |table: usize| match table {
            0 => self.base[base] >= 2,
            table => self.entry(&found, table).counter >= 0,
        };
        let shorter = of(found.shorter);
        let (predicted, is_new) = match found.longest {
            0 => (shorter, false),
            longest => {
                let entry = self.entry(&found, longest);
                let is_new = entry.useful == 0 && matches!(entry.counter, -1 | 0);
                let predicted = entry.counter >= 0;
                (if is_new && self.shorter_is_better >= 0 { shorter } else { predicted }, is_new)
            }
        };
        self.learn(&found, base, shorter, is_new, taken);
        if predicted != taken && found.longest < self.tables.len() {
            self.allocate(&found, taken);
        }
        predicted
    }

    /// A branch was taken, which left `footprint`. Call before [`PathHistory::push`].
    #[inline]
    pub(super) fn push(&mut self, history: &PathHistory, footprint: u32) {
        self.tables.iter_mut().for_each(|table| table.history.push(history, footprint));
    }

    #[inline]
    fn find(&self, at: CodeAddr) -> Found {
        let mut found = Found { places: [Place::default(); TABLES], longest: 0, shorter: 0 };
        for (index, (table, place)) in self.tables.iter().zip(&mut found.places).enumerate() {
            *place = table.history.place(at);
            if table.entries[place.index as usize].tag == place.tag {
                found.shorter = found.longest;
                found.longest = index + 1;
            }
        }
        found
    }

    #[inline]
    fn base_index(&self, at: CodeAddr) -> usize {
        (at.0 ^ at.0 >> 16) as usize & (self.base.len() - 1)
    }

    /// `table` counts from 1.
    #[inline]
    fn entry(&self, found: &Found, table: usize) -> &Entry {
        &self.tables[table - 1].entries[found.places[table - 1].index as usize]
    }

    fn learn(&mut self, found: &Found, base: usize, shorter: bool, is_new: bool, taken: bool) {
        let up = |counter: i8, limit: i8| (counter + 1).min(limit);
        if found.longest == 0 {
            let counter = &mut self.base[base];
            *counter = if taken { (*counter + 1).min(3) } else { counter.saturating_sub(1) };
            return;
        }
        let at = found.places[found.longest - 1].index as usize;
        let entry = &mut self.tables[found.longest - 1].entries[at];
        let own = entry.counter >= 0;
        if own != shorter {
            if is_new {
                let right = shorter == taken;
                self.shorter_is_better = match right {
                    true => up(self.shorter_is_better, 7),
                    false => (self.shorter_is_better - 1).max(-8),
                };
            }
            entry.useful = if own == taken {
                (entry.useful + 1).min(3)
            } else {
                entry.useful.saturating_sub(1)
            };
        }
        entry.counter = if taken { up(entry.counter, 3) } else { (entry.counter - 1).max(-4) };
    }

    /// A longer history gets an entry: the shortest whose entry is not useful. If all are useful,
    /// all become less so.
    fn allocate(&mut self, found: &Found, taken: bool) {
        let longer = found.longest..self.tables.len();
        for index in longer.clone() {
            let place = found.places[index];
            let entry = &mut self.tables[index].entries[place.index as usize];
            if entry.useful == 0 {
                *entry = Entry { tag: place.tag, counter: if taken { 0 } else { -1 }, useful: 0 };
                return;
            }
        }
        for index in longer {
            self.tables[index].entries[found.places[index].index as usize].useful -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Judge {
        predictor: PathDirection,
        history: PathHistory,
    }

    impl Judge {
        fn new(tables: &[TaggedTable]) -> Judge {
            Judge { predictor: PathDirection::new(64, tables), history: PathHistory::new() }
        }

        /// Whether the prediction was right.
        fn branch(&mut self, at: u64, taken: bool) -> bool {
            let right = self.predictor.predicts(CodeAddr(at), taken) == taken;
            if taken {
                let footprint = PathHistory::footprint(CodeAddr(at), CodeAddr(at + 64));
                self.predictor.push(&self.history, footprint);
                self.history.push(footprint);
            }
            right
        }
    }

    const TABLES: [TaggedTable; 3] = [
        TaggedTable { entries: 256, history: 4 },
        TaggedTable { entries: 256, history: 12 },
        TaggedTable { entries: 256, history: 40 },
    ];

    /// Without tagged tables, two-bit counters are left: see the base predictor's own tests for the
    /// same numbers.
    #[test]
    fn the_base_mispredicts_a_loop_once_a_round() {
        let mut judge = Judge::new(&[]);
        let wrong = |judge: &mut Judge| {
            [true, true, true, false].into_iter().filter(|&taken| !judge.branch(8, taken)).count()
        };
        assert_eq!(wrong(&mut judge), 2);
        assert_eq!([0; 3].map(|_| wrong(&mut judge)), [1, 1, 1]);
    }

    /// A branch that does what the branch before it did: the path decides, no counter can.
    #[test]
    fn a_branch_that_follows_another_is_learned() {
        let mut judge = Judge::new(&TABLES);
        let (mut state, mut late_wrong) = (1_u64, 0);
        for round in 0..4000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let taken = state >> 60 & 1 != 0;
            judge.branch(0x100, taken);
            judge.branch(0x200, true);
            let right = judge.branch(0x300, taken);
            late_wrong += u32::from(round >= 3000 && !right);
        }
        assert!(late_wrong <= 20, "{late_wrong} of 1000");
    }

    /// A loop of 20 rounds, which only the table with 40 branches can tell to the end.
    #[test]
    fn a_long_loop_is_learned() {
        let mut judge = Judge::new(&TABLES);
        let wrong = |judge: &mut Judge| {
            (1..=20).filter(|round| !judge.branch(0x80, *round < 20)).count()
                + usize::from(!judge.branch(0xc0, true))
        };
        for _ in 0..200 {
            wrong(&mut judge);
        }
        assert_eq!((0..10).map(|_| wrong(&mut judge)).sum::<usize>(), 0);
    }
}
