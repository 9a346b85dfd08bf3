//! Predicts the direction of conditional branches: a base table of counters, and tagged tables with
//! longer and longer histories (TAGE: Seznec and Michaud, JILP 8, 2006).
//!
//! The history is the path of taken branches, as in Intel's processors since Haswell (Yavarzadeh et
//! al., "Half&Half: Demystifying Intel's Directional Branch Predictors", IEEE S&P 2023, section 3).
//! Tables can also look at the outcomes of conditional branches, as in AMD's Zen 4. There is no
//! predictor of loops and no statistical corrector.
//!
//! Input: conditional branches with their outcomes, in order. Output: each prediction.

use super::description::DirectionDescription;
use super::tagged::{Found, Hit, Seen, TaggedTables};
use crate::branches::CodeAddr;

/// A counter from -4 to 3; taken when it is not negative.
type Counter = i8;

/// Predicts directions.
#[derive(Clone, Debug)]
pub(crate) struct PathDirection {
    /// Counters of two bits.
    base: Vec<u8>,
    tables: TaggedTables<Counter>,
    /// Not negative: a new entry is trusted less than the shorter history.
    shorter_is_better: i8,
}

impl PathDirection {
    pub(super) fn new(description: &DirectionDescription) -> PathDirection {
        PathDirection {
            base: vec![1; description.base_entries as usize],
            tables: TaggedTables::new(&description.tables, description.shared, 0),
            shorter_is_better: 0,
        }
    }

    /// Predicts whether the branch at `at` is taken, and learns that it was `taken`.
    #[inline]
    pub(super) fn predicts(&mut self, at: CodeAddr, taken: bool) -> bool {
        let found = self.tables.find(at);
        let base = self.base_index(at);
        let of = |hit: Option<Hit>| match hit {
            None => self.base[base] >= 2,
            Some(hit) => self.tables.entry(hit).prediction >= 0,
        };
        let (longest, shorter) = (of(found.longest), of(found.shorter));
        let is_new = found.longest.is_some_and(|hit| {
            let entry = self.tables.entry(hit);
            entry.useful == 0 && matches!(entry.prediction, -1 | 0)
        });
        let predicted = if is_new && self.shorter_is_better >= 0 { shorter } else { longest };
        self.learn(&found, base, shorter, is_new, taken);
        // A new entry that was right, but not trusted yet, does not need a longer history.
        if predicted != taken && !(is_new && longest == taken) {
            self.tables.allocate(at, &found, if taken { 0 } else { -1 });
        }
        predicted
    }

    /// The view that its tables have of the branches before.
    pub(super) fn seen(&mut self) -> &mut Seen {
        &mut self.tables.seen
    }

    #[inline]
    fn base_index(&self, at: CodeAddr) -> usize {
        (at.0 ^ at.0 >> 16) as usize & (self.base.len() - 1)
    }

    fn learn(&mut self, found: &Found, base: usize, shorter: bool, is_new: bool, taken: bool) {
        let up = |counter: i8, limit: i8| (counter + 1).min(limit);
        let Some(longest) = found.longest else {
            let counter = &mut self.base[base];
            *counter = if taken { (*counter + 1).min(3) } else { counter.saturating_sub(1) };
            return;
        };
        let entry = self.tables.entry_mut(longest);
        let own = entry.prediction >= 0;
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
        entry.prediction =
            if taken { up(entry.prediction, 3) } else { (entry.prediction - 1).max(-4) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::history::PathHistory;
    use crate::core::tagged::TaggedTable;

    struct Judge {
        predictor: PathDirection,
        history: PathHistory,
    }

    impl Judge {
        fn new(tables: &[TaggedTable]) -> Judge {
            let description =
                DirectionDescription { base_entries: 64, tables: tables.to_vec(), shared: false };
            Judge::of(&description)
        }

        fn of(description: &DirectionDescription) -> Judge {
            Judge { predictor: PathDirection::new(description), history: PathHistory::new() }
        }

        /// Whether the prediction was right.
        fn branch(&mut self, at: u64, taken: bool) -> bool {
            let right = self.predictor.predicts(CodeAddr(at), taken) == taken;
            if taken {
                let footprint = PathHistory::footprint(CodeAddr(at), CodeAddr(at + 64));
                self.predictor.seen().push(&self.history, footprint);
                self.history.push(footprint);
            }
            right
        }
    }

    const TABLES: [TaggedTable; 3] = [
        TaggedTable { entries: 256, history: 4, outcomes: 0 },
        TaggedTable { entries: 256, history: 12, outcomes: 0 },
        TaggedTable { entries: 256, history: 40, outcomes: 0 },
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

    /// An entry that is right, but not trusted yet, does not bring another one with it.
    #[test]
    fn a_new_entry_that_was_right_stays_the_only_one() {
        let mut judge = Judge::new(&TABLES);
        let outcomes = [false, false, true, true].map(|taken| {
            let right = judge.predictor.predicts(CodeAddr(8), taken) == taken;
            let longest = judge.predictor.tables.find(CodeAddr(8)).longest;
            (right, longest.map(|hit| hit.table))
        });
        let (known, new) = ((true, None), (false, Some(1)));
        assert_eq!(outcomes, [known, known, new, new]);
    }

    /// Patterns of random outcomes, one after another, in 4096 shared entries, which could not hold
    /// all of them.
    #[test]
    fn a_long_pattern_takes_the_place_of_what_is_not_used_any_more() {
        let tables = [5, 12, 25, 50, 100, 200];
        let tables =
            tables.map(|history| TaggedTable { entries: 4096, history, outcomes: 0 }).to_vec();
        let description = DirectionDescription { base_entries: 64, tables, shared: true };
        let mut judge = Judge::of(&description);
        let mut state = 1_u64;
        let mut wrong = [0; 6];
        for (number, wrong) in (1..).zip(&mut wrong) {
            let next = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                state >> 60 & 1 != 0
            };
            let pattern: Vec<bool> = std::iter::repeat_with(next).take(2048).collect();
            for round in 0..24 {
                for &taken in &pattern {
                    let right = judge.branch(number << 16, taken);
                    judge.branch((number << 16) + 0x20, true);
                    *wrong += u32::from(round == 23 && !right);
                }
            }
        }
        assert!(wrong.iter().all(|&wrong| wrong <= 100), "{wrong:?} of 2048");
    }
}
