//! Tree pseudo-LRU. Each set has a binary tree over its ways. Each inner node holds one bit: the
//! half that was used less recently.
//!
//! ```text
//!            node 1                 bit set: the victim is in the right half
//!         ┌────┴────┐
//!       node 2    node 3            a use makes every node on its path point to the other half
//!      ┌──┴──┐   ┌──┴──┐
//!     way 0  1   2     3
//! ```
//!
//! Input: the lines that are used. Output: hit, or miss with the line that left.

use crate::access::{CacheAccess, occupied};
use crate::line::LineId;
use crate::policy::Policy;

/// The trees of all sets.
#[derive(Clone, Debug)]
pub(crate) struct PlruTrees {
    trees: Vec<PlruTree>,
    /// For each way, how a use of it changes the tree of its set.
    uses: Vec<PlruUse>,
}

impl Policy for PlruTrees {
    const NAME: &str = "tree-plru";
    const WAYS: &str = "a power of two of at most 64";

    fn allows(ways: u64) -> bool {
        ways.is_power_of_two() && ways <= 64
    }

    fn new(sets: usize, ways: usize) -> PlruTrees {
        let ways = ways as u32;
        PlruTrees {
            trees: vec![PlruTree::default(); sets],
            uses: (0..ways).map(|way| PlruUse::of(way, ways)).collect(),
        }
    }

    /// Empty ways are filled from the first to the last before anything is evicted.
    fn access(
        &mut self,
        lines: &mut [LineId],
        set: usize,
        ways: usize,
        line: LineId,
    ) -> CacheAccess {
        let ways = &mut lines[set * ways..(set + 1) * ways];
        let tree = &mut self.trees[set];
        if let Some(way) = ways.iter().position(|&held| held == line) {
            tree.touch(self.uses[way]);
            return CacheAccess::Hit;
        }
        let way = match ways.iter().position(|&held| held == LineId::NONE) {
            Some(empty) => empty,
            None => tree.victim(ways.len() as u32) as usize,
        };
        let evicted = occupied(std::mem::replace(&mut ways[way], line));
        tree.touch(self.uses[way]);
        CacheAccess::Miss { evicted }
    }
}

/// The bits that a use of a way sets, and a mask of the bits that it leaves.
#[derive(Clone, Copy, Debug)]
struct PlruUse {
    set: u64,
    leave: u64,
}

impl PlruUse {
    fn of(way: u32, ways: u32) -> PlruUse {
        let mut of = PlruUse { set: 0, leave: u64::MAX };
        let mut node = way + ways;
        while node > 1 {
            let parent = node / 2;
            if node.is_multiple_of(2) {
                of.set |= 1 << parent;
            } else {
                of.leave &= !(1 << parent);
            }
            node = parent;
        }
        of
    }
}

/// The bits of one set. Node n is bit n. Bit 0 is unused.
#[derive(Clone, Copy, Debug, Default)]
struct PlruTree(u64);

impl PlruTree {
    /// Marks a way as just used.
    #[inline]
    fn touch(&mut self, used: PlruUse) {
        self.0 = self.0 & used.leave | used.set;
    }

    /// The way that the bits point to.
    #[inline]
    fn victim(self, ways: u32) -> u32 {
        let mut node = 1;
        while node < ways {
            node = node * 2 + (self.0 >> node & 1) as u32;
        }
        node - ways
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_ways_by_hand() {
        let mut tree = PlruTree::default();
        assert_eq!(tree.victim(4), 0);
        for (used, victim) in [(0, 2), (2, 1), (1, 3), (3, 0), (0, 2), (1, 2), (2, 0)] {
            tree.touch(PlruUse::of(used, 4));
            assert_eq!(tree.victim(4), victim, "after a use of way {used}");
        }
    }

    #[test]
    fn one_way_is_always_the_victim() {
        let mut tree = PlruTree::default();
        tree.touch(PlruUse::of(0, 1));
        assert_eq!(tree.victim(1), 0);
    }

    #[test]
    fn the_way_just_used_is_never_the_victim() {
        for ways in [2, 4, 8, 16, 32, 64] {
            let mut tree = PlruTree::default();
            for step in 0..1000u32 {
                let way = step.wrapping_mul(2654435761) >> 7 & (ways - 1);
                tree.touch(PlruUse::of(way, ways));
                assert_ne!(tree.victim(ways), way);
            }
        }
    }
}
