//! Scores an order by static measures. Input: a graph and an order. Output: the score. This module
//! is independent of the algorithms, and never changes an order.
//!
//! The blocks have consecutive addresses from 0, with their original sizes and their alignments.
//! The addresses do not include the bytes that a rewriter adds or saves (an appended jump behind a
//! broken fall-through, a longer branch). The counts of taken jumps do include such jumps.

use crate::graph::{BlockId, Edge, EdgeKind, Graph, Order};

/// The bytes of a cache line, for `Score::lines`.
pub(crate) const LINE: u64 = 64;
/// The bytes of a page, for `Score::pages`.
pub(crate) const PAGE: u64 = 4096;

/// The score of an order. The counts are sums over edges, so they may exceed 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Newell and Pupyrev's ext-TSP (2020, section 3). Higher is better. Edges between functions
    /// also count.
    pub ext_tsp: f64,
    /// Conditional branches that were taken.
    pub taken_branches: u128,
    /// Direct unconditional jumps: those of the original code that remain, and those appended
    /// behind broken fall-throughs.
    pub taken_jumps: u128,
    /// Indirect jumps. No order changes them.
    pub indirect_jumps: u128,
    /// Edges that need no taken jump.
    pub fall_throughs: u128,
    /// 64-byte lines that contain a byte of an executed block.
    pub lines: u64,
    /// 4096-byte pages that contain a byte of an executed block.
    pub pages: u64,
}

impl Score {
    /// Direct jumps taken, conditional and unconditional. A layout can save these.
    pub fn taken(&self) -> u128 {
        self.taken_branches + self.taken_jumps
    }
}

/// Scores `order`. [`crate::validate`] must accept the graph, and [`crate::check`] the order.
pub fn score(graph: &Graph, order: &Order) -> Score {
    let addresses = addresses(graph, order);
    let mut next: Vec<Option<BlockId>> = vec![None; graph.len()];
    for pair in order.0.windows(2) {
        next[pair[0].index()] = Some(pair[1]);
    }
    let endings = BlockEndings::new(graph);
    let mut score = Score {
        lines: touched(graph, order, &addresses, LINE),
        pages: touched(graph, order, &addresses, PAGE),
        ..Score::default()
    };
    for edge in &graph.edges {
        let behind = next[edge.from.index()];
        endings.count(edge, behind, &mut score);
        score.ext_tsp += ext_tsp(graph, edge, behind, &addresses, endings.conditional(edge.from));
    }
    score
}

/// The address of each block.
fn addresses(graph: &Graph, order: &Order) -> Vec<u64> {
    let mut addresses = vec![0; graph.len()];
    let mut address = 0u64;
    for block in &order.0 {
        address = address.next_multiple_of(u64::from(graph.alignments[block.index()]));
        addresses[block.index()] = address;
        address += u64::from(graph.sizes[block.index()]);
    }
    addresses
}

/// The number of stretches of `granule` bytes that contain a byte of an executed block. The blocks
/// have ascending addresses.
fn touched(graph: &Graph, order: &Order, addresses: &[u64], granule: u64) -> u64 {
    let mut touched = 0;
    let mut from = 0;
    for block in order.0.iter().map(|b| b.index()).filter(|&b| graph.counts[b] > 0) {
        let first = (addresses[block] / granule).max(from);
        let end = (addresses[block] + u64::from(graph.sizes[block]) - 1) / granule + 1;
        touched += end.saturating_sub(first);
        from = from.max(end);
    }
    touched
}

/// The end of each block, according to its edges.
struct BlockEndings {
    /// The target of each block's conditional branch; `None` for a block without one.
    branch: Vec<Option<BlockId>>,
    /// Whether a block has more than one successor.
    forks: Vec<bool>,
}

impl BlockEndings {
    fn new(graph: &Graph) -> Self {
        let mut branch = vec![None; graph.len()];
        let mut forks = vec![false; graph.len()];
        let mut successor = vec![None; graph.len()];
        for edge in &graph.edges {
            let from = edge.from.index();
            if edge.kind == EdgeKind::Branch {
                branch[from] = Some(edge.to);
            }
            forks[from] |= successor[from].is_some_and(|to| to != edge.to);
            successor[from] = Some(edge.to);
        }
        BlockEndings { branch, forks }
    }

    fn conditional(&self, block: BlockId) -> bool {
        self.forks[block.index()]
    }

    /// Adds the cost of `edge` when `behind` is the block placed directly behind its source.
    fn count(&self, edge: &Edge, behind: Option<BlockId>, score: &mut Score) {
        let count = u128::from(edge.count);
        let inverted = behind.is_some() && self.branch[edge.from.index()] == behind;
        let sum = match edge.kind {
            EdgeKind::Indirect => &mut score.indirect_jumps,
            _ if behind == Some(edge.to) => &mut score.fall_throughs,
            EdgeKind::Branch => &mut score.taken_branches,
            EdgeKind::FallThrough if inverted => &mut score.taken_branches,
            EdgeKind::FallThrough | EdgeKind::Jump => &mut score.taken_jumps,
        };
        *sum += count;
    }
}

/// The score of one edge in ext-TSP. A fall-through scores its count (5 % more when the source has
/// no other successor). A jump scores a tenth of its count at distance 0, less with the distance,
/// and nothing beyond 1024 bytes forward and 640 backward.
fn ext_tsp(
    graph: &Graph,
    edge: &Edge,
    behind: Option<BlockId>,
    addresses: &[u64],
    conditional: bool,
) -> f64 {
    let count = edge.count as f64;
    if edge.kind != EdgeKind::Indirect && behind == Some(edge.to) {
        return if conditional { count } else { 1.05 * count };
    }
    let source = addresses[edge.from.index()] + u64::from(graph.sizes[edge.from.index()]);
    let target = addresses[edge.to.index()];
    let nearness = if target >= source {
        1.0 - (target - source) as f64 / 1024.0
    } else {
        1.0 - (source - target) as f64 / 640.0
    };
    0.1 * count * nearness.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ```text
    ///        0 ──90──▶ 2      0 falls through to 1 ten times, branches to 2 ninety times;
    ///        │10       ▲      1 jumps to 3; 2 falls through to 3.
    ///        ▼         │
    ///        1 ──10──▶ 3
    /// ```
    fn diamond() -> Graph {
        let edge =
            |from, to, count, kind| Edge { from: BlockId(from), to: BlockId(to), count, kind };
        Graph {
            sizes: vec![32; 4],
            counts: vec![100, 10, 90, 100],
            glued: vec![false; 4],
            alignments: vec![16, 1, 1, 1],
            functions: std::iter::once(0..4).collect(),
            edges: vec![
                edge(0, 1, 10, EdgeKind::FallThrough),
                edge(0, 2, 90, EdgeKind::Branch),
                edge(1, 3, 10, EdgeKind::Jump),
                edge(2, 3, 90, EdgeKind::FallThrough),
            ],
            ..Graph::default()
        }
    }

    fn scored(graph: &Graph, order: &[u32]) -> Score {
        score(graph, &Order(order.iter().map(|&b| BlockId(b)).collect()))
    }

    #[test]
    fn original_order_of_a_diamond() {
        let s = scored(&diamond(), &[0, 1, 2, 3]);
        assert_eq!((s.taken_branches, s.taken_jumps, s.fall_throughs), (90, 10, 100));
        let expected = 10.0
            + 0.1 * 90.0 * (1.0 - 32.0 / 1024.0)
            + 0.1 * 10.0 * (1.0 - 32.0 / 1024.0)
            + 1.05 * 90.0;
        assert!((s.ext_tsp - expected).abs() < 1e-9);
        assert_eq!((s.lines, s.pages), (2, 1));
    }

    #[test]
    fn inverting_the_branch_of_a_diamond_saves_it() {
        let s = scored(&diamond(), &[0, 2, 3, 1]);
        // 0 falls through to 2 (inverted). Its old fall-through to 1 is a taken branch. 1 keeps its
        // jump back to 3.
        assert_eq!((s.taken_branches, s.taken_jumps, s.fall_throughs), (10, 10, 180));
        let expected = 90.0
            + 0.1 * 10.0 * (1.0 - 64.0 / 1024.0)
            + 0.1 * 10.0 * (1.0 - 64.0 / 640.0)
            + 1.05 * 90.0;
        assert!((s.ext_tsp - expected).abs() < 1e-9);
    }

    #[test]
    fn broken_fall_throughs_are_jumps() {
        let s = scored(&diamond(), &[3, 2, 1, 0]);
        assert_eq!((s.taken_branches, s.taken_jumps, s.fall_throughs), (90, 110, 0));
    }

    #[test]
    fn an_indirect_jump_is_never_a_fall_through() {
        let mut graph = diamond();
        graph.edges[3].kind = EdgeKind::Indirect;
        let s = scored(&graph, &[0, 1, 2, 3]);
        assert_eq!((s.indirect_jumps, s.fall_throughs), (90, 10));
    }

    #[test]
    fn lines_and_pages_are_those_of_blocks_that_ran() {
        let mut graph = diamond();
        graph.counts[1] = 0;
        graph.sizes[1] = 4096;
        // 0 at 0..32, 2 at 4128, 3 at 4160: lines 0, 64 and 65; pages 0 and 1.
        let s = scored(&graph, &[0, 1, 2, 3]);
        assert_eq!((s.lines, s.pages), (3, 2));
        // Alignment 16 of block 0 behind a block of 33 bytes: 2 at 0..33, 0 at 48..80.
        graph.sizes[2] = 33;
        let s = scored(&graph, &[2, 0, 3, 1]);
        assert_eq!((s.lines, s.pages), (2, 1));
    }

    #[test]
    fn huge_counts_do_not_overflow() {
        let mut graph = diamond();
        for edge in &mut graph.edges {
            edge.count = u64::MAX;
        }
        let s = scored(&graph, &[3, 2, 1, 0]);
        assert_eq!(s.taken(), 4 * u128::from(u64::MAX));
        assert!(s.ext_tsp.is_finite());
    }
}
