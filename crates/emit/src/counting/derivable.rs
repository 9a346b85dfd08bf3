//! The blocks that need a counter so that the counts of all blocks follow (Knuth and Stevenson,
//! "Optimal measurement points for program frequency counts", BIT 13, 1973).
//!
//! Input: a flow graph. Output: the blocks to count; later, the counts of the other blocks.
//!
//! Idea: the flow into a point equals the flow out of it. An edge joins the end of a block to the
//! start of another. Ends and starts that edges join form a *class*, and each block leads from one
//! class to another. Take a spanning tree over the classes: the blocks on the tree follow from
//! those off it. Class 0 is the world outside the graph. Its sums need not balance.

/// A flow graph. Blocks are numbered from 0.
pub(crate) struct FlowGraph {
    /// Block and successor, in any order.
    pub edges: Vec<(u32, u32)>,
    /// Per block: control also enters in other ways than by edges.
    pub open_in: Vec<bool>,
    /// Per block: control also leaves in other ways than by edges.
    pub open_out: Vec<bool>,
}

/// Per block: the class from which it leads, and the class to which. Class 0 is the world outside.
struct FlowClasses {
    into: Vec<u32>,
    out_of: Vec<u32>,
    count: usize,
}

impl FlowGraph {
    fn blocks(&self) -> usize {
        self.open_in.len()
    }

    fn classes(&self) -> FlowClasses {
        let blocks = self.blocks() as u32;
        let (outside, before, behind) = (0, |b: u32| 1 + b, |b: u32| 1 + blocks + b);
        let mut sets = DisjointSets::new(1 + 2 * blocks as usize);
        for &(from, to) in &self.edges {
            sets.join(behind(from), before(to));
        }
        for b in 0..blocks {
            if self.open_in[b as usize] {
                sets.join(outside, before(b));
            }
            if self.open_out[b as usize] {
                sets.join(outside, behind(b));
            }
        }
        let mut names = vec![u32::MAX; 1 + 2 * blocks as usize];
        let mut count = 0;
        let mut name = |member: u32| {
            let root = sets.root(member) as usize;
            if names[root] == u32::MAX {
                names[root] = count;
                count += 1;
            }
            names[root]
        };
        name(outside);
        let into = (0..blocks).map(|b| name(before(b))).collect();
        let out_of = (0..blocks).map(|b| name(behind(b))).collect();
        FlowClasses { into, out_of, count: count as usize }
    }

    /// The blocks to count: the fewest from which all follow, with the least sum of `reluctance`.
    /// Argument and result have one element per block.
    pub(crate) fn to_count(&self, reluctance: &[u32]) -> Vec<bool> {
        let classes = self.classes();
        let mut order: Vec<usize> = (0..self.blocks()).collect();
        order.sort_by_key(|&b| std::cmp::Reverse(reluctance[b]));
        let mut tree = DisjointSets::new(classes.count);
        let mut counts = vec![true; self.blocks()];
        for b in order {
            counts[b] = !tree.join(classes.into[b], classes.out_of[b]);
        }
        counts
    }

    /// Fills in the counts that follow from others, one per block. Returns the number of counts
    /// that came out negative. They are set to 0. Control then went a way that the graph does not
    /// have, for example because a task never came back from a call.
    pub(crate) fn fill(&self, counts: &mut [Option<u64>]) -> usize {
        let classes = self.classes();
        // Per class: the known flow into it less the known flow out of it, and its blocks of
        // unknown count.
        let mut surplus = vec![0i128; classes.count];
        let mut unknown: Vec<Vec<u32>> = vec![Vec::new(); classes.count];
        for (b, count) in counts.iter().enumerate() {
            let (from, to) = (classes.into[b] as usize, classes.out_of[b] as usize);
            match count {
                Some(count) => {
                    surplus[from] -= i128::from(*count);
                    surplus[to] += i128::from(*count);
                }
                // The count of a block from a class to itself follows from no other count.
                None if from == to => {}
                None => [from, to].into_iter().for_each(|c| unknown[c].push(b as u32)),
            }
        }
        let mut ready: Vec<usize> = (1..classes.count).filter(|&c| unknown[c].len() == 1).collect();
        let mut negative = 0;
        while let Some(class) = ready.pop() {
            let Some(b) = unknown[class].pop().map(|b| b as usize) else {
                continue;
            };
            let (from, to) = (classes.into[b] as usize, classes.out_of[b] as usize);
            let count = if from == class { surplus[class] } else { -surplus[class] };
            negative += usize::from(count < 0);
            counts[b] = Some(u64::try_from(count).unwrap_or(0));
            surplus[from] -= count;
            surplus[to] += count;
            let other = if from == class { to } else { from };
            unknown[other].retain(|&u| u as usize != b);
            if other != 0 && unknown[other].len() == 1 {
                ready.push(other);
            }
        }
        negative
    }
}

/// Disjoint sets of numbers.
struct DisjointSets(Vec<u32>);

impl DisjointSets {
    fn new(count: usize) -> DisjointSets {
        DisjointSets((0..count as u32).collect())
    }

    fn root(&mut self, mut member: u32) -> u32 {
        while self.0[member as usize] != member {
            let above = self.0[self.0[member as usize] as usize];
            self.0[member as usize] = above;
            member = above;
        }
        member
    }

    /// Joins two sets; `false` if they were one.
    fn join(&mut self, a: u32, b: u32) -> bool {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b) as usize] = a.min(b);
        a != b
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::random::SplitMix64;

    fn flow(blocks: usize, edges: &[(u32, u32)]) -> FlowGraph {
        FlowGraph {
            edges: edges.to_vec(),
            open_in: (0..blocks).map(|b| b == 0).collect(),
            open_out: (0..blocks).map(|b| b == blocks - 1).collect(),
        }
    }

    /// ```text
    ///     0
    ///    / \
    ///   1   2 ⟲
    ///    \ /
    ///     3
    /// ```
    #[test]
    fn a_diamond_with_a_loop_needs_three_counters() {
        let diamond = flow(4, &[(0, 1), (0, 2), (2, 2), (1, 3), (2, 3)]);
        // The loop joins the ways into the arms with the ways out of them: neither arm follows from
        // anything, and 0 and 3 from each other.
        let counted = diamond.to_count(&[1, 1, 10, 1]);
        assert_eq!(counted.iter().filter(|&&c| c).count(), 3);
        let truth = [10u64, 4, 26, 10];
        let mut counts: Vec<Option<u64>> = (0..4).map(|b| counted[b].then_some(truth[b])).collect();
        assert_eq!(diamond.fill(&mut counts), 0);
        assert_eq!(counts, truth.map(Some));
    }

    #[test]
    fn straight_code_is_counted_once_and_where_it_is_cheapest() {
        let straight = flow(4, &[(0, 1), (1, 2), (2, 3)]);
        assert_eq!(straight.to_count(&[3, 3, 1, 3]), [false, false, true, false]);
    }

    #[test]
    fn contradicting_counts_are_reported() {
        // 5 come in, 7 of them go left.
        let fork = FlowGraph {
            edges: vec![(0, 1), (0, 2)],
            open_in: vec![true, false, false],
            open_out: vec![false, true, true],
        };
        let mut counts = [Some(5), Some(7), None];
        assert_eq!(fork.fill(&mut counts), 1);
        assert_eq!(counts[2], Some(0));
    }

    /// Walks at random through random graphs, counts some blocks, and derives the others.
    #[test]
    fn all_counts_follow_from_those_of_the_counted() {
        let mut spared = 0;
        for seed in 0..300 {
            let mut random = SplitMix64::new(seed);
            let blocks = 2 + random.below(12) as usize;
            let mut edges: Vec<(u32, u32)> = (1..blocks as u32).map(|b| (b - 1, b)).collect();
            for _ in 0..random.below(10) {
                edges
                    .push((random.below(blocks as u64) as u32, random.below(blocks as u64) as u32));
            }
            edges.sort_unstable();
            edges.dedup();
            let flow = flow(blocks, &edges);
            let mut truth = vec![0u64; blocks];
            for _ in 0..50 {
                let mut at = 0;
                loop {
                    truth[at] += 1;
                    let ways: Vec<u32> =
                        edges.iter().filter(|e| e.0 as usize == at).map(|e| e.1).collect();
                    if at == blocks - 1 && random.below(2) == 0 || ways.is_empty() {
                        break;
                    }
                    at = ways[random.below(ways.len() as u64) as usize] as usize;
                }
            }
            let reluctance: Vec<u32> = (0..blocks).map(|_| random.below(4) as u32).collect();
            let counted = flow.to_count(&reluctance);
            spared += counted.iter().filter(|&&c| !c).count();
            let mut counts: Vec<Option<u64>> =
                (0..blocks).map(|b| counted[b].then_some(truth[b])).collect();
            assert_eq!(flow.fill(&mut counts), 0, "seed {seed}");
            let truth: Vec<Option<u64>> = truth.into_iter().map(Some).collect();
            assert_eq!(counts, truth, "seed {seed}");
        }
        assert!(spared > 300);
    }
}
