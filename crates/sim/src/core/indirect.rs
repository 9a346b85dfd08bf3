//! Predicts the targets of indirect branches by the path to them, and on some cores by the outcomes
//! of conditional branches: tagged tables of targets with longer and longer histories (ITTAGE:
//! Seznec, "A 64-Kbytes ITTAGE indirect branch predictor", JWAC-2, 2011). Where no table has the
//! branch, the branch target buffer's last target holds.
//!
//! Input: indirect branches with their targets, in order. Output: each prediction.

use super::tagged::{Seen, TaggedTable, TaggedTables};
use crate::branches::CodeAddr;

#[derive(Clone, Copy, Debug)]
struct PathTarget {
    target: CodeAddr,
    /// From 0 to 3. A target with 0 is replaced when it is wrong.
    confidence: u8,
}

#[derive(Clone, Debug)]
pub(crate) struct PathTargets {
    tables: TaggedTables<PathTarget>,
}

impl PathTargets {
    pub(super) fn new(tables: &[TaggedTable]) -> PathTargets {
        let none = PathTarget { target: CodeAddr(0), confidence: 0 };
        PathTargets { tables: TaggedTables::new(tables, false, none) }
    }

    /// Predicts the target of the branch at `at`, whose last target was `last`. Learns `target`.
    pub(super) fn predicts(&mut self, at: CodeAddr, last: CodeAddr, target: CodeAddr) -> CodeAddr {
        let found = self.tables.find(at);
        let of = |hit| self.tables.entry(hit).prediction.target;
        let shorter = found.shorter.map_or(last, of);
        let predicted = found.longest.map_or(last, of);
        if let Some(longest) = found.longest {
            let entry = self.tables.entry_mut(longest);
            let known = &mut entry.prediction;
            if known.target == target {
                known.confidence = (known.confidence + 1).min(3);
                entry.useful |= u8::from(shorter != target);
            } else if known.confidence > 0 {
                known.confidence -= 1;
            } else {
                known.target = target;
                entry.useful = 0;
            }
        }
        if predicted != target {
            self.tables.allocate(at, &found, PathTarget { target, confidence: 0 });
        }
        predicted
    }

    /// The view that its tables have of the branches before.
    pub(super) fn seen(&mut self) -> &mut Seen {
        &mut self.tables.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::history::PathHistory;

    const TABLES: [TaggedTable; 2] = [
        TaggedTable { entries: 64, history: 2, outcomes: 0 },
        TaggedTable { entries: 64, history: 8, outcomes: 0 },
    ];

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
                predictor.seen().push(&history, footprint);
                history.push(footprint);
            }
            wrong
        };
        assert_eq!(wrong(&[]), [30, 30]);
        let learned = wrong(&TABLES);
        assert!(learned[0] < 15 && learned[1] == 0, "{learned:?}");
    }
}
