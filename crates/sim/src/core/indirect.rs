//! Predicts the targets of indirect branches by the path to them: tagged tables of targets with
//! longer and longer histories (ITTAGE: Seznec, "A 64-Kbytes ITTAGE indirect branch predictor",
//! JWAC-2, 2011). Where no table has the branch, the branch target buffer's last target holds.
//!
//! Input: indirect branches with their targets, in order. Output: each prediction.

use super::history::PathHistory;
use super::tagged::{Place, TableHistory, TaggedTable};
use crate::branches::CodeAddr;

/// The most tables.
pub(crate) const TABLES: usize = 8;

#[derive(Clone, Copy, Debug)]
struct Entry {
    target: CodeAddr,
    tag: u16,
    /// From 0 to 3. The target of an entry with 0 is replaced when it is wrong.
    confidence: u8,
    /// An entry that is useful is not replaced by another branch.
    useful: bool,
}

#[derive(Clone, Debug)]
struct Table {
    history: TableHistory,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug)]
pub(crate) struct PathTargets {
    tables: Vec<Table>,
}

impl PathTargets {
    /// At most [`TABLES`] tables.
    pub(super) fn new(tables: &[TaggedTable]) -> PathTargets {
        let empty = Entry { target: CodeAddr(0), tag: u16::MAX, confidence: 0, useful: false };
        let table = |&table: &TaggedTable| Table {
            history: TableHistory::new(table),
            entries: vec![empty; table.entries as usize],
        };
        PathTargets { tables: tables.iter().take(TABLES).map(table).collect() }
    }

    /// Predicts the target of the branch at `at`, whose last target was `last`. Learns `target`.
    pub(super) fn predicts(&mut self, at: CodeAddr, last: CodeAddr, target: CodeAddr) -> CodeAddr {
        let mut places = [Place::default(); TABLES];
        let mut longest = None;
        let mut shorter = last;
        for (index, (table, place)) in self.tables.iter().zip(&mut places).enumerate() {
            *place = table.history.place(at);
            let entry = &table.entries[place.index as usize];
            if entry.tag == place.tag {
                shorter = longest.map_or(last, |(_, target)| target);
                longest = Some((index, entry.target));
            }
        }
        let predicted = longest.map_or(last, |(_, target)| target);
        if let Some((index, _)) = longest {
            let entry = &mut self.tables[index].entries[places[index].index as usize];
            if entry.target == target {
                entry.confidence = (entry.confidence + 1).min(3);
                entry.useful |= shorter != target;
            } else if entry.confidence > 0 {
                entry.confidence -= 1;
            } else {
                entry.target = target;
                entry.useful = false;
            }
        }
        if predicted != target {
            self.allocate(longest.map_or(0, |(index, _)| index + 1), &places, target);
        }
        predicted
    }

    /// A branch was taken, which left `footprint`. Call before [`PathHistory::push`].
    #[inline]
    pub(super) fn push(&mut self, history: &PathHistory, footprint: u32) {
        self.tables.iter_mut().for_each(|table| table.history.push(history, footprint));
    }

    fn allocate(&mut self, from: usize, places: &[Place; TABLES], target: CodeAddr) {
        for (table, place) in self.tables.iter_mut().zip(places).skip(from) {
            let entry = &mut table.entries[place.index as usize];
            if !entry.useful {
                *entry = Entry { target, tag: place.tag, confidence: 0, useful: false };
                return;
            }
            entry.useful = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: [TaggedTable; 2] =
        [TaggedTable { entries: 64, history: 2 }, TaggedTable { entries: 64, history: 8 }];

    /// A jump that goes to three targets in turn. The last target is always wrong, the path is not.
    #[test]
    fn targets_in_turn_are_learned() {
        let targets = [0x100, 0x200, 0x300].map(CodeAddr);
        let wrong = |tables: &[TaggedTable]| {
            let (mut predictor, mut history) = (PathTargets::new(tables), PathHistory::new());
            let (mut last, mut wrong) = (CodeAddr(0), [0; 2]);
            for round in 0..60 {
                let target = targets[round % 3];
                let right = predictor.predicts(CodeAddr(0x40), last, target) == target;
                wrong[round / 30] += u32::from(!right);
                last = target;
                let footprint = PathHistory::footprint(CodeAddr(0x40), target);
                predictor.push(&history, footprint);
                history.push(footprint);
            }
            wrong
        };
        assert_eq!(wrong(&[]), [30, 30]);
        let learned = wrong(&TABLES);
        assert!(learned[0] < 15 && learned[1] == 0, "{learned:?}");
    }
}
