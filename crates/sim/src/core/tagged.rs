//! Tables whose entries are found by an address and a path, and bear a tag.
//!
//! The predictors of directions and of targets are made of such tables, each with a longer history
//! than the one before. The entry with the longest history makes the prediction. Tables have
//! entries of their own, or share them (Seznec, "TAGE-SC-L Branch Predictors Again", CBP-5, 2016).
//!
//! Input: an address and a path. Output: entries. This module does not know what an entry predicts.

use super::history::{Folded, PathHistory};
use crate::branches::CodeAddr;

/// The most tables of a predictor.
pub(crate) const TABLES: usize = 16;

/// The entries of a set.
const WAYS: usize = 4;

/// The size of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedTable {
    /// The number of entries: a power of two.
    pub entries: u32,
    /// The number of taken branches that it looks at.
    pub history: u32,
    /// The number of outcomes of conditional branches that it looks at.
    pub outcomes: u32,
}

/// The bits of a tag that do not number the table.
const TAG_BITS: u32 = 11;

/// The tag of an entry that no branch has.
const NO_TAG: u16 = u16::MAX;

/// The bits of a folded path. An even number would carry half of the information: taken branches
/// rotate the path by two bits, so that it would repeat itself after half of its bits.
const PATH_BITS: u32 = 31;

/// The bits of folded outcomes: odd for the same reason, and not a divisor of [`PATH_BITS`].
const OUTCOME_BITS: u32 = 29;

/// An entry of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tagged<P> {
    /// What it predicts.
    pub prediction: P,
    /// An entry that is useful, which is more than 0, is not replaced.
    pub useful: u8,
    tag: u16,
}

/// The view that the tables of a predictor have of the branches before.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    paths: Vec<Folded<PATH_BITS>>,
    /// The same for outcomes; empty if no table looks at them.
    outcomes: Vec<Folded<OUTCOME_BITS>>,
    /// Stands for the targets of the last branches.
    recent: u64,
}

/// The tables of a predictor.
#[derive(Clone, Debug)]
pub(crate) struct TaggedTables<P> {
    pub seen: Seen,
    /// The entries of all tables. Those of a set lie side by side.
    entries: Vec<Tagged<P>>,
    /// By table: its first entry.
    first: [usize; TABLES],
    /// One less than the number of sets of a table, which is a power of two.
    last_set: u32,
    ways: usize,
    /// The way where the search for an entry to replace begins. It moves on, so that two branches
    /// of one set do not replace each other for ever.
    turn: usize,
    /// How often an entry was asked for since all became less useful.
    asked: usize,
}

/// An entry that a branch has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    /// One more than the index of its table.
    pub table: usize,
    /// Its number.
    pub entry: usize,
}

/// What the tables have of a branch under the present path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// The entry of the longest history.
    pub longest: Option<Hit>,
    /// The entry of the next shorter history.
    pub shorter: Option<Hit>,
}

impl Seen {
    fn new(tables: &[TaggedTable]) -> Seen {
        let looks = tables.iter().any(|table| table.outcomes > 0);
        let outcomes = tables.iter().filter(|_| looks);
        Seen {
            paths: tables.iter().map(|table| Folded::new(table.history)).collect(),
            outcomes: outcomes.map(|table| Folded::new(table.outcomes)).collect(),
            recent: 0,
        }
    }

    /// A branch was taken, which left `footprint`. Call before [`PathHistory::push`].
    #[inline]
    pub(super) fn push(&mut self, history: &PathHistory, footprint: u32) {
        for path in &mut self.paths {
            path.push(history.leaving(path.length()), footprint);
        }
    }

    /// Control came by the targets that `recent` stands for. All tables distinguish such paths.
    #[inline]
    pub(super) fn came_by(&mut self, recent: u64) {
        self.recent = recent;
    }

    /// A conditional branch left `footprint` in `outcomes`. Call before [`PathHistory::push`].
    #[inline]
    pub(super) fn push_outcome(&mut self, outcomes: &PathHistory, footprint: u32) {
        for folded in self.outcomes.iter_mut().filter(|folded| folded.length() > 0) {
            folded.push(outcomes.leaving(folded.length()), footprint);
        }
    }

    /// A number that depends on the branch at `at` and on all that `table` sees, each bit on all.
    #[inline]
    fn mixed(&self, table: usize, at: CodeAddr) -> u64 {
        let outcomes = u64::from(self.outcomes.get(table).map_or(0, Folded::value));
        let path = u64::from(self.paths[table].value());
        // User code is also known by its address, so all bits of the address count.
        let key = (at.0 ^ self.recent).rotate_left(PATH_BITS)
            ^ path
            ^ outcomes.wrapping_mul(0xff51_afd7_ed55_8ccd);
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
    }
}

impl<P: Copy> TaggedTables<P> {
    /// At most [`TABLES`] tables, all of one size. `shared`: all together have the entries of one.
    pub(super) fn new(tables: &[TaggedTable], shared: bool, prediction: P) -> TaggedTables<P> {
        let tables = &tables[..tables.len().min(TABLES)];
        let size = tables.first().map_or(1, |table| table.entries as usize);
        let ways = WAYS.min(size);
        let all = if shared { size } else { size * tables.len() };
        TaggedTables {
            seen: Seen::new(tables),
            entries: vec![Tagged { prediction, useful: 0, tag: NO_TAG }; all],
            first: std::array::from_fn(|table| if shared { 0 } else { table * size }),
            last_set: (size / ways) as u32 - 1,
            ways,
            turn: 0,
            asked: 0,
        }
    }

    /// The first entry of the set of the branch at `at` in a table, and its tag.
    #[inline]
    fn set(&self, table: usize, at: CodeAddr) -> (usize, u16) {
        let mixed = self.seen.mixed(table, at);
        let set = (mixed >> 40) as u32 & self.last_set;
        // Tables that share entries know theirs by the tag.
        let tag = (mixed >> 20) as u16 & ((1 << TAG_BITS) - 1) | (table as u16) << TAG_BITS;
        (self.first[table] + set as usize * self.ways, tag)
    }

    /// Looks for the branch at `at`.
    #[inline]
    pub(super) fn find(&self, at: CodeAddr) -> Found {
        let mut found = Found { longest: None, shorter: None };
        for table in 0..self.seen.paths.len() {
            let (first, tag) = self.set(table, at);
            let set = &self.entries[first..first + self.ways];
            if let Some(way) = set.iter().position(|entry| entry.tag == tag) {
                found.shorter = found.longest;
                found.longest = Some(Hit { table: table + 1, entry: first + way });
            }
        }
        found
    }

    /// The entry of a branch.
    #[inline]
    pub(super) fn entry(&self, hit: Hit) -> &Tagged<P> {
        &self.entries[hit.entry]
    }

    /// The entry of a branch.
    #[inline]
    pub(super) fn entry_mut(&mut self, hit: Hit) -> &mut Tagged<P> {
        &mut self.entries[hit.entry]
    }

    /// Gives the branch at `at`, for which `found` was found, an entry with a longer history than
    /// that of its present entry: in the table with the shortest such history whose set has an
    /// entry that is not useful. If all these entries are useful, they become less useful. Whenever
    /// the number of requests reaches the number of entries, all entries of all tables become less
    /// useful, so that unused entries leave.
    pub(super) fn allocate(&mut self, at: CodeAddr, found: &Found, prediction: P) {
        let longer = found.longest.map_or(0, |hit| hit.table)..self.seen.paths.len();
        self.turn = (self.turn + 1) % self.ways;
        self.asked += 1;
        if self.asked > self.entries.len() {
            self.asked = 0;
            self.entries.iter_mut().for_each(|entry| entry.useful /= 2);
        }
        for table in longer.clone() {
            let (first, tag) = self.set(table, at);
            let set = &mut self.entries[first..][..self.ways];
            let mut ways = (self.turn..self.ways).chain(0..self.turn);
            if let Some(way) = ways.find(|&way| set[way].useful == 0) {
                set[way] = Tagged { prediction, useful: 0, tag };
                return;
            }
        }
        for table in longer {
            let (first, _) = self.set(table, at);
            for entry in &mut self.entries[first..][..self.ways] {
                entry.useful = entry.useful.saturating_sub(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two tables; which one has the branch, and what it predicts.
    struct Tables {
        tables: TaggedTables<u8>,
        history: PathHistory,
    }

    impl Tables {
        fn new(entries: u32, shared: bool) -> Tables {
            let tables = [2, 8].map(|history| TaggedTable { entries, history, outcomes: 0 });
            let tables = TaggedTables::new(&tables, shared, 0);
            Tables { tables, history: PathHistory::new() }
        }

        fn taken(&mut self, footprint: u32) {
            self.tables.seen.push(&self.history, footprint);
            self.history.push(footprint);
        }

        fn find(&self, at: u64) -> Option<(usize, u8)> {
            let longest = self.tables.find(CodeAddr(at)).longest;
            longest.map(|hit| (hit.table, self.tables.entry(hit).prediction))
        }

        fn allocate(&mut self, at: u64, prediction: u8) {
            let found = self.tables.find(CodeAddr(at));
            self.tables.allocate(CodeAddr(at), &found, prediction);
        }

        fn use_all(&mut self) {
            self.tables.entries.iter_mut().for_each(|entry| entry.useful = 1);
        }
    }

    #[test]
    fn a_branch_has_entries_of_its_path() {
        for shared in [false, true] {
            let mut tables = Tables::new(64, shared);
            assert_eq!(tables.find(0x40), None);
            tables.allocate(0x40, 7);
            assert_eq!((tables.find(0x40), tables.find(0x41)), (Some((1, 7)), None));
            tables.allocate(0x40, 9);
            assert_eq!(tables.find(0x40), Some((2, 9)));
            // Three other branches: the short path is another one, and comes back.
            [5, 6, 6].into_iter().for_each(|footprint| tables.taken(footprint));
            assert_eq!(tables.find(0x40), None);
            (0..16).for_each(|_| tables.taken(0));
            assert_eq!(tables.find(0x40), Some((2, 9)));
        }
    }

    /// One set of four entries in each table.
    #[test]
    fn useful_entries_are_not_replaced() {
        let mut tables = Tables::new(4, false);
        (0..4).for_each(|at| tables.allocate(at, at as u8));
        assert_eq!([0, 1, 2, 3].map(|at| tables.find(at)), [0, 1, 2, 3].map(|n| Some((1, n))));
        tables.use_all();
        // Both tables are full: the entries become less useful, and the next branch gets one.
        tables.allocate(4, 4);
        assert_eq!(tables.find(4), None);
        tables.allocate(4, 4);
        assert_eq!(tables.find(4), Some((1, 4)));
    }

    #[test]
    fn branches_of_a_set_do_not_replace_each_other_for_ever() {
        let mut tables = Tables::new(4, true);
        tables.allocate(1, 1);
        tables.allocate(2, 2);
        assert_eq!([1, 2].map(|at| tables.find(at)), [Some((1, 1)), Some((1, 2))]);
    }

    /// A loop with a branch in it: two footprints in some order.
    #[test]
    fn paths_of_two_branches_are_told_apart() {
        let mut tables = TaggedTables::new(
            &[TaggedTable { entries: 1 << 12, history: 24, outcomes: 0 }],
            false,
            (),
        );
        let (mut history, mut seen) = (PathHistory::new(), std::collections::BTreeSet::new());
        let mut state = 1_u64;
        for _ in 0..60_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let footprint = if state >> 63 != 0 { 0x9a3c } else { 0x51f7 };
            tables.seen.push(&history, footprint);
            history.push(footprint);
            seen.insert(tables.set(0, CodeAddr(0x40)));
        }
        assert!(seen.len() > 55_000, "{}", seen.len());
    }
}
