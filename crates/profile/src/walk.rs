//! An execution that the counts describe, for profiles that do not say what ran together.
//!
//! Samples, counters and other tools give counts only. `packed` and `joint` also ask which code was
//! needed in the same stretches of time. This module walks through the counts at random: it enters
//! functions as often as calls and edges cannot explain their counts, takes edges and calls as
//! often as they were counted, and returns. The walk runs through the ideal cache as a recording
//! does (`joint.rs`).
//!
//! Input: a graph with counts. Output: its joint misses and working-set epochs. A walk knows what a
//! service needs together. It does not know which services follow one another.

use crate::ideal::CacheUnit;
use crate::joint::{CACHE_BYTES, JointFetches};
use layout::Graph;
use layout::graph::{BlockEpochs, BlockId, JointMiss};
use layout::random::SplitMix64;

/// The length of a walk: blocks for each block that ran, and at most.
const STEPS_A_BLOCK: u64 = 1000;
const MOST_STEPS: u64 = 30_000_000;
/// A visit that is longer is left: its loops have no counted end.
const LONGEST_VISIT: u64 = 200_000;
/// Calls that are deeper are passed over.
const DEEPEST: usize = 64;
/// A function is entered from outside when at least this share of its executions comes from no
/// counted call or edge. Samples leave small differences everywhere.
const ENTERED: f64 = 0.1;
const SEED: u64 = 1;

/// Where control can go, each with the sum of the counts up to it.
#[derive(Clone, Default)]
struct Choices {
    targets: Vec<(u32, u64)>,
    total: u64,
}

impl Choices {
    fn add(&mut self, target: u32, count: u64) {
        if count > 0 {
            self.total = self.total.saturating_add(count);
            self.targets.push((target, self.total));
        }
    }

    /// A target, as often as it was counted; `None` when there is none.
    fn pick(&self, random: &mut SplitMix64) -> Option<u32> {
        let drawn = match self.targets.len() {
            0 => return None,
            1 => 0,
            _ => random.below(self.total),
        };
        let at = self.targets.partition_point(|&(_, sum)| sum <= drawn);
        self.targets.get(at).map(|&(target, _)| target)
    }
}

/// The counts by block.
struct Counted<'a> {
    counts: &'a [u64],
    edges: Vec<Choices>,
    calls: Vec<Choices>,
    /// Where the kernel is entered.
    entries: Choices,
}

impl Counted<'_> {
    fn new(graph: &Graph) -> Counted<'_> {
        let none = vec![Choices::default(); graph.len()];
        let mut counted = Counted {
            counts: &graph.counts,
            edges: none.clone(),
            calls: none,
            entries: Choices::default(),
        };
        let mut explained = vec![0_u64; graph.len()];
        let mut explain = |to: BlockId, count: u64| {
            explained[to.index()] = explained[to.index()].saturating_add(count);
        };
        for edge in &graph.edges {
            counted.edges[edge.from.index()].add(edge.to.0, edge.count);
            explain(edge.to, edge.count);
        }
        for call in &graph.calls {
            counted.calls[call.from.index()].add(call.to.0, call.count);
            explain(call.to, call.count);
        }
        for entry in graph.functions.iter().map(|blocks| blocks.start) {
            let count = graph.counts[entry as usize];
            let from_outside = count.saturating_sub(explained[entry as usize]);
            if from_outside as f64 >= ENTERED * count as f64 {
                counted.entries.add(entry, from_outside);
            }
        }
        counted
    }

    /// The callee of a block's call, when it makes one this time.
    fn callee(&self, block: u32, random: &mut SplitMix64) -> Option<u32> {
        let calls = &self.calls[block as usize];
        let executions = self.counts[block as usize].max(calls.total);
        (calls.total > 0 && random.below(executions) < calls.total)
            .then(|| calls.pick(random))
            .flatten()
    }

    /// Walks one entry into the kernel to its end, at most `most` blocks. Returns their number.
    fn visit(&self, most: u64, random: &mut SplitMix64, mut ran: impl FnMut(u32)) -> u64 {
        let Some(mut block) = self.entries.pick(random) else { return 0 };
        let mut callers = Vec::new();
        for step in 1..=most {
            ran(block);
            let callee = self.callee(block, random).filter(|_| callers.len() < DEEPEST);
            let next = match callee {
                Some(callee) => {
                    callers.push(block);
                    Some(callee)
                }
                None => self.edges[block as usize].pick(random),
            };
            // Nothing follows: the function returns, and so do callers with nothing behind a call.
            let returned = || {
                std::iter::from_fn(|| callers.pop())
                    .find_map(|caller| self.edges[caller as usize].pick(random))
            };
            match next.or_else(returned) {
                Some(next) => block = next,
                None => return step,
            }
        }
        most
    }
}

/// Adds joint misses and working-set epochs to a graph that has neither, by a walk through its
/// counts. False: the graph has them, or all that ran fits into the cache at once, so that nothing
/// tells one order from another.
pub fn add_what_ran_together(graph: &mut Graph) -> bool {
    if !graph.joint_misses.is_empty() || !graph.block_epochs.is_empty() {
        return false;
    }
    let fetches = walked(graph, CACHE_BYTES);
    if fetches.epochs.ended() == 0 {
        return false;
    }
    let pair = |(&(a, b), &count): (&(CacheUnit, CacheUnit), &u64)| JointMiss {
        a: BlockId(a),
        b: BlockId(b),
        count,
    };
    graph.joint_misses = fetches.counts.iter().map(pair).collect();
    graph.joint_misses.sort_unstable_by_key(|pair| (pair.a, pair.b));
    let rows = fetches.epochs.rows(|unit| Some(BlockId(unit))).blocks.into_iter();
    graph.block_epochs = rows.map(|(block, epochs)| BlockEpochs { block, epochs }).collect();
    true
}

/// What a walk through the counts fetches together. The units are the blocks.
fn walked(graph: &Graph, cache_bytes: u64) -> JointFetches {
    let counted = Counted::new(graph);
    let mut fetches = JointFetches::new(cache_bytes);
    graph.sizes.iter().for_each(|&size| fetches.add_unit(size.into(), true));
    let ran = graph.counts.iter().filter(|&&count| count > 0).count() as u64;
    let mut left = (ran * STEPS_A_BLOCK).min(MOST_STEPS);
    let mut random = SplitMix64::new(SEED);
    while left > 0 {
        let most = left.min(LONGEST_VISIT);
        match counted.visit(most, &mut random, |block| fetches.fetch(block)) {
            0 => break,
            steps => left -= steps,
        }
    }
    fetches
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::{Call, Edge, EdgeKind};

    /// One function of blocks of 10 bytes with these counts.
    fn graph(counts: &[u64], calls: &[(u32, u32, u64)], edges: &[(u32, u32, u64)]) -> Graph {
        let block = BlockId;
        Graph {
            sizes: vec![10; counts.len()],
            counts: counts.to_vec(),
            glued: vec![false; counts.len()],
            alignments: vec![1; counts.len()],
            functions: std::iter::once(0..counts.len() as u32).collect(),
            calls: calls
                .iter()
                .map(|&(from, to, count)| Call { from: block(from), to: block(to), count })
                .collect(),
            edges: edges
                .iter()
                .map(|&(from, to, count)| Edge {
                    from: block(from),
                    to: block(to),
                    count,
                    kind: EdgeKind::Jump,
                })
                .collect(),
            ..Graph::default()
        }
    }

    fn visits(graph: &Graph, count: usize) -> Vec<Vec<u32>> {
        let counted = Counted::new(graph);
        let mut random = SplitMix64::new(7);
        let mut visit = || {
            let mut ran = Vec::new();
            counted.visit(1000, &mut random, |block| ran.push(block));
            ran
        };
        (0..count).map(|_| visit()).collect()
    }

    /// Block 0 is entered, calls 1, and goes on in 2. Block 1 jumps to 3.
    #[test]
    fn a_walk_calls_returns_and_takes_edges_as_counted() {
        let graph = graph(&[100; 4], &[(0, 1, 100)], &[(0, 2, 100), (1, 3, 100)]);
        assert_eq!(visits(&graph, 3), vec![vec![0, 1, 3, 2]; 3]);
    }

    #[test]
    fn a_call_is_made_as_often_as_it_was_counted() {
        let graph = graph(&[400, 100], &[(0, 1, 100)], &[]);
        let called = visits(&graph, 4000).iter().filter(|ran| ran.len() == 2).count();
        // 1000 of 4000 are expected; six standard deviations are 164.
        assert!((836..=1164).contains(&called), "{called}");
    }

    #[test]
    fn a_loop_without_an_end_is_left() {
        let graph = graph(&[9, 9], &[], &[(0, 1, 9), (1, 1, 9)]);
        assert_eq!(visits(&graph, 1)[0].len(), 1000);
    }

    #[test]
    fn what_fits_into_the_cache_is_left_alone() {
        for counts in [[0, 0], [5, 5]] {
            let mut graph = graph(&counts, &[], &[(0, 1, counts[0])]);
            assert!(!add_what_ran_together(&mut graph));
            assert!(graph.joint_misses.is_empty() && graph.block_epochs.is_empty());
        }
    }

    /// Three services of two blocks each, in a cache of two blocks: the blocks of each miss together
    /// and run in the same epochs. What follows a service is one of two others.
    #[test]
    fn the_blocks_of_a_service_run_together() {
        let mut graph = graph(&[50; 6], &[], &[(0, 1, 50), (2, 3, 50), (4, 5, 50)]);
        graph.functions = vec![0..2, 2..4, 4..6];
        let fetches = walked(&graph, 20);
        let [own, other] = [(0, 1), (1, 2)].map(|pair| fetches.counts[&pair]);
        assert!(2 * own > 3 * other, "{own} {other}");
        let rows = fetches.epochs.rows(Some).blocks;
        assert_eq!(rows[&0], rows[&1]);
        assert_ne!(rows[&1], rows[&2]);
    }
}
