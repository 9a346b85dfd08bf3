//! "Closest is best": chooses which two groups of nodes are joined next.
//!
//! K. Pettis, R. C. Hansen, "Profile guided code positioning" (PLDI 1990), section 3. Input:
//! weights between nodes. Output: again and again the two groups with the heaviest weight between
//! them, until no two groups have a weight. The caller decides what joining means.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// A graph whose nodes are joined to groups.
pub(crate) struct Closest {
    /// The weights to each other group.
    neighbours: Vec<BTreeMap<usize, u128>>,
    /// The weights between groups, and the groups, the lower one first. Outdated weights are
    /// skipped.
    heap: BinaryHeap<(u128, Reverse<(usize, usize)>)>,
    /// The lowest node of each group. It decides which of two groups comes first.
    lowest: Vec<usize>,
    /// For each node, the index at which the neighbours of its group are kept now.
    kept_in: Vec<usize>,
}

impl Closest {
    /// `weights` are the weights between two different nodes: each pair once, the lower node first.
    pub(crate) fn new(
        nodes: usize,
        weights: impl IntoIterator<Item = ((usize, usize), u128)>,
    ) -> Closest {
        let mut neighbours = vec![BTreeMap::new(); nodes];
        let mut heap = BinaryHeap::new();
        for ((a, b), weight) in weights {
            neighbours[a].insert(b, weight);
            neighbours[b].insert(a, weight);
            heap.push((weight, Reverse((a, b))));
        }
        Closest { neighbours, heap, lowest: (0..nodes).collect(), kept_in: (0..nodes).collect() }
    }

    /// The two closest groups, the one with the lowest node first. The number of a group is that of
    /// one of its nodes.
    pub(crate) fn pair(&mut self) -> Option<(usize, usize)> {
        while let Some((weight, Reverse((a, b)))) = self.heap.pop() {
            let (a, b) = (self.kept_in[a], self.kept_in[b]);
            if self.neighbours[a].get(&b) == Some(&weight) {
                return Some(if self.lowest[a] < self.lowest[b] { (a, b) } else { (b, a) });
            }
        }
        None
    }

    /// Joins two groups, and returns the number of the new one: that of the group with more
    /// neighbours. So the neighbours of a large group are never copied again.
    pub(crate) fn join(&mut self, a: usize, b: usize) -> usize {
        let (kept, gone) =
            if self.neighbours[a].len() >= self.neighbours[b].len() { (a, b) } else { (b, a) };
        self.kept_in[gone] = kept;
        self.kept_in[self.lowest[gone]] = kept;
        self.lowest[kept] = self.lowest[a].min(self.lowest[b]);
        self.neighbours[kept].remove(&gone);
        for (group, weight) in std::mem::take(&mut self.neighbours[gone]) {
            self.neighbours[group].remove(&gone);
            if group != kept {
                let sum = weight + self.neighbours[kept].get(&group).unwrap_or(&0);
                self.neighbours[kept].insert(group, sum);
                let (one, other) = (self.lowest[kept], self.lowest[group]);
                self.heap.push((sum, Reverse((one.min(other), one.max(other)))));
                self.neighbours[group].insert(kept, sum);
            }
        }
        kept
    }
}
