//! A branch target buffer: the last target of each taken branch.
//!
//! The buffer is set-associative with LRU replacement. The low bits of a branch's address choose
//! its set. The whole address is its tag.
//!
//! Input: branches with their targets, in order. Output: the target that the buffer holds, or none.

use crate::branches::CodeAddr;
use crate::geometry::CacheGeometry;

#[derive(Clone, Debug)]
pub(crate) struct TargetBuffer {
    set_mask: u64,
    ways: usize,
    /// The entries by set. The ways of a set are sorted by their last use, the most recent first.
    entries: Vec<Option<BtbEntry>>,
}

#[derive(Clone, Copy, Debug)]
struct BtbEntry {
    at: CodeAddr,
    target: CodeAddr,
}

impl TargetBuffer {
    pub fn new(geometry: CacheGeometry) -> TargetBuffer {
        let (sets, ways) = (geometry.sets() as usize, geometry.ways() as usize);
        TargetBuffer { set_mask: sets as u64 - 1, ways, entries: vec![None; sets * ways] }
    }

    /// Whether the buffer has the branch at `at`. The order of its entries does not change.
    pub fn holds(&self, at: CodeAddr) -> bool {
        let first = (at.0 & self.set_mask) as usize * self.ways;
        let set = &self.entries[first..first + self.ways];
        set.iter().any(|entry| entry.is_some_and(|entry| entry.at == at))
    }

    /// Learns that the branch at `at` goes to `target`. Returns the target that the buffer had
    /// before.
    pub fn taken(&mut self, at: CodeAddr, target: CodeAddr) -> Option<CodeAddr> {
        let first = (at.0 & self.set_mask) as usize * self.ways;
        let set = &mut self.entries[first..first + self.ways];
        let found = set.iter().position(|entry| entry.is_some_and(|entry| entry.at == at));
        let held = found.and_then(|way| set[way]).map(|entry| entry.target);
        set.copy_within(..found.unwrap_or(set.len() - 1), 1);
        set[0] = Some(BtbEntry { at, target });
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Replacement;

    /// Two sets of two ways: even addresses, odd addresses.
    #[test]
    fn the_branch_taken_longest_ago_leaves() {
        let mut buffer = TargetBuffer::new(CacheGeometry::tlb(4, 2, Replacement::Lru).unwrap());
        let steps = [
            (0, 100, None),
            (2, 102, None),
            (1, 101, None),      // the other set
            (0, 100, Some(100)), // 2 is now the oldest
            (4, 104, None),      // takes its place
            (0, 200, Some(100)), // another target, which is kept
            (2, 102, None),      // takes 4's place
            (0, 100, Some(200)),
            (4, 104, None),
            (1, 101, Some(101)),
        ];
        for (step, (at, target, held)) in steps.into_iter().enumerate() {
            assert_eq!(
                buffer.taken(CodeAddr(at), CodeAddr(target)),
                held.map(CodeAddr),
                "step {step}"
            );
            assert!(buffer.holds(CodeAddr(at)), "step {step}");
        }
        assert!(!buffer.holds(CodeAddr(2)));
    }
}
