//! A branch target buffer whose entries hold two branches of one line of 64 bytes each.
//!
//! A branch comes into an entry of its line that has room, or into a new one, which replaces the
//! entry of its set that was used longest ago.
//!
//! Input: branches with their targets, in order. Output: the target that the buffer holds, or none.

use crate::branches::CodeAddr;
use crate::geometry::CacheGeometry;

/// The bytes of a line, as a power of two.
const LINE: u32 = 6;

/// A branch and its target.
type Held = Option<(CodeAddr, CodeAddr)>;

/// The branches of an entry. They are of one line.
type Entry = [Held; 2];

#[derive(Clone, Debug)]
pub(crate) struct LineTargets {
    sets: u64,
    ways: usize,
    /// The entries by set. The ways of a set are sorted by their last use, the most recent first.
    entries: Vec<Entry>,
}

impl LineTargets {
    pub(super) fn new(geometry: CacheGeometry) -> LineTargets {
        let (sets, ways) = (geometry.sets() as usize, geometry.ways() as usize);
        LineTargets { sets: sets as u64, ways, entries: vec![[None; 2]; sets * ways] }
    }

    /// The first entry of the set of a branch's line. Higher bits of the line are folded into those
    /// that choose the set.
    fn first(&self, at: CodeAddr) -> usize {
        let (line, bits) = (at.0 >> LINE, self.sets.trailing_zeros());
        ((line ^ line >> bits) & (self.sets - 1)) as usize * self.ways
    }

    /// Whether the buffer has the branch at `at`. The order of its entries does not change.
    pub(super) fn holds(&self, at: CodeAddr) -> bool {
        let first = self.first(at);
        let set = &self.entries[first..first + self.ways];
        set.iter().flatten().flatten().any(|held| held.0 == at)
    }

    /// Learns that the branch at `at` goes to `target`. Returns the target that the buffer had
    /// before.
    pub(super) fn taken(&mut self, at: CodeAddr, target: CodeAddr) -> Option<CodeAddr> {
        let first = self.first(at);
        let set = &mut self.entries[first..first + self.ways];
        let has = |entry: &Entry| entry.iter().flatten().any(|held| held.0 == at);
        let has_room =
            |entry: &Entry| matches!(entry, [Some(held), None] if held.0.0 >> LINE == at.0 >> LINE);
        let way = set.iter().position(has).or_else(|| set.iter().position(has_room));
        let way = way.unwrap_or(set.len() - 1);
        set[..=way].rotate_right(1);
        let entry = &mut set[0];
        if let Some(held) = entry.iter_mut().flatten().find(|held| held.0 == at) {
            return Some(std::mem::replace(&mut held.1, target));
        }
        match has_room(entry) {
            true => entry[1] = Some((at, target)),
            false => *entry = [Some((at, target)), None],
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Replacement;

    /// One set of two entries.
    #[test]
    fn an_entry_holds_two_branches_of_a_line() {
        let mut buffer = LineTargets::new(CacheGeometry::tlb(2, 2, Replacement::Lru).unwrap());
        let steps = [
            (0x00, 1, None),
            (0x10, 2, None),    // the same line and entry
            (0x40, 3, None),    // the second entry
            (0x00, 4, Some(1)), // another target
            (0x10, 2, Some(2)),
            (0x20, 5, None), // a third branch of the first line takes the entry of the second
            (0x10, 2, Some(2)),
            (0x40, 3, None), // takes 0x20's place
            (0x20, 5, None), // takes the place of 0x00 and 0x10
            (0x30, 6, None), // beside 0x20
            (0x40, 3, Some(3)),
            (0x30, 6, Some(6)),
        ];
        for (step, (at, target, held)) in steps.into_iter().enumerate() {
            let found = buffer.taken(CodeAddr(at), CodeAddr(target));
            assert_eq!(found, held.map(CodeAddr), "step {step}");
            assert!(buffer.holds(CodeAddr(at)), "step {step}");
        }
        assert!(!buffer.holds(CodeAddr(0x00)) && !buffer.holds(CodeAddr(0x10)));
    }
}
