//! A branch target buffer: the last target of each taken branch.
//!
//! The buffer is set-associative with LRU replacement. The low bits of a branch's address choose
//! its set. The whole address is its tag. Addresses and targets are stored separately: a search
//! reads addresses only.
//!
//! Input: branches with their targets, in order. Output: the target that the buffer holds, or none.

use crate::branches::CodeAddr;
use crate::geometry::CacheGeometry;

#[derive(Clone, Debug)]
pub(crate) struct TargetBuffer {
    set_mask: u64,
    ways: usize,
    /// The branches by set. The ways of a set are sorted by their last use, the most recent first.
    at: Vec<CodeAddr>,
    /// Their targets.
    targets: Vec<CodeAddr>,
}

/// The address of an empty entry. A branch there would have one byte, and no branch is so short.
const EMPTY: CodeAddr = CodeAddr(u64::MAX);

impl TargetBuffer {
    pub(crate) fn new(geometry: CacheGeometry) -> TargetBuffer {
        let (sets, ways) = (geometry.sets() as usize, geometry.ways() as usize);
        TargetBuffer {
            set_mask: sets as u64 - 1,
            ways,
            at: vec![EMPTY; sets * ways],
            targets: vec![EMPTY; sets * ways],
        }
    }

    /// The address, with higher bits folded into those that choose the set, so that code whose
    /// branches lie at multiples of 16 or 64 bytes uses all sets. It is an assumption that
    /// processors fold addresses in this way. Different addresses stay different.
    #[inline]
    pub(crate) fn folded(&self, at: CodeAddr) -> CodeAddr {
        match self.set_mask.count_ones() {
            0 => at,
            bits => CodeAddr(at.0 ^ at.0 >> bits ^ at.0 >> (2 * bits)),
        }
    }

    /// Whether the buffer has the branch at `at`. The order of its entries does not change.
    #[inline]
    pub(crate) fn holds(&self, at: CodeAddr) -> bool {
        let first = (at.0 & self.set_mask) as usize * self.ways;
        at != EMPTY && self.at[first..first + self.ways].contains(&at)
    }

    /// Learns that the branch at `at` goes to `target`. Returns the target that the buffer had
    /// before.
    #[inline]
    pub(crate) fn taken(&mut self, at: CodeAddr, target: CodeAddr) -> Option<CodeAddr> {
        let first = (at.0 & self.set_mask) as usize * self.ways;
        let set = &mut self.at[first..first + self.ways];
        let targets = &mut self.targets[first..first + self.ways];
        if set[0] == at && at != EMPTY {
            return Some(std::mem::replace(&mut targets[0], target));
        }
        let found = set.iter().position(|&held| held == at).filter(|_| at != EMPTY);
        let held = found.map(|way| targets[way]);
        let moved = found.unwrap_or(self.ways - 1);
        set.copy_within(..moved, 1);
        targets.copy_within(..moved, 1);
        (set[0], targets[0]) = (at, target);
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
