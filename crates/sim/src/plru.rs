//! Tree pseudo-LRU of one set: a binary tree over the ways whose inner nodes each hold one bit, the half that was used less recently.
//!
//! ```text
//!            node 1                 bit set: the victim is in the right half
//!         ┌────┴────┐
//!       node 2    node 3            a use makes every node on its path point to the other half
//!      ┌──┴──┐   ┌──┴──┐
//!     way 0  1   2     3
//! ```

/// The bits of one set; node n is bit n, bit 0 is unused.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tree(u64);

impl Tree {
    /// Marks `way` of `ways` (a power of two up to 64) as just used.
    #[inline]
    pub fn touch(&mut self, way: u32, ways: u32) {
        let mut node = way + ways;
        while node > 1 {
            let parent = node / 2;
            let bit = 1 << parent;
            if node.is_multiple_of(2) {
                self.0 |= bit;
            } else {
                self.0 &= !bit;
            }
            node = parent;
        }
    }

    /// The way that the bits point to.
    #[inline]
    pub fn victim(self, ways: u32) -> u32 {
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
        let mut tree = Tree::default();
        assert_eq!(tree.victim(4), 0);
        for (used, victim) in [(0, 2), (2, 1), (1, 3), (3, 0), (0, 2), (1, 2), (2, 0)] {
            tree.touch(used, 4);
            assert_eq!(tree.victim(4), victim, "after a use of way {used}");
        }
    }

    #[test]
    fn one_way_is_always_the_victim() {
        let mut tree = Tree::default();
        tree.touch(0, 1);
        assert_eq!(tree.victim(1), 0);
    }

    #[test]
    fn the_way_just_used_is_never_the_victim() {
        for ways in [2, 4, 8, 16, 32, 64] {
            let mut tree = Tree::default();
            for step in 0..1000u32 {
                let way = step.wrapping_mul(2654435761) >> 7 & (ways - 1);
                tree.touch(way, ways);
                assert_ne!(tree.victim(ways), way);
            }
        }
    }
}
