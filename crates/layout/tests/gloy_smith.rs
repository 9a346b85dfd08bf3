//! The cache lines that alternating procedures get.

use kernlane_layout::gloy_smith::{GloySmithParameters, gloy_smith};
use kernlane_layout::{BlockId, Edge, EdgeKind, Graph, TemporalEdge, check};

/// Functions of one block each, by size and count. A block with count 0 is cold.
fn graph(blocks: &[(u32, u64)], temporal_edges: &[(u32, u32, u64)]) -> Graph {
    let edge =
        |&(a, b, count): &(u32, u32, u64)| TemporalEdge { a: BlockId(a), b: BlockId(b), count };
    Graph {
        sizes: blocks.iter().map(|block| block.0).collect(),
        counts: blocks.iter().map(|block| block.1).collect(),
        glued: vec![false; blocks.len()],
        alignments: vec![1; blocks.len()],
        functions: (0..blocks.len() as u32).map(|n| n..n + 1).collect(),
        temporal_edges: temporal_edges.iter().map(edge).collect(),
        ..Graph::default()
    }
}

fn fall_through(from: u32) -> Edge {
    Edge { from: BlockId(from), to: BlockId(from + 1), count: 9, kind: EdgeKind::FallThrough }
}

/// A cache of 8 lines, in which everything that ran is popular.
fn small() -> GloySmithParameters {
    GloySmithParameters {
        cache_bytes: 256,
        line_bytes: 32,
        popular_share: 1.0,
        ..GloySmithParameters::default()
    }
}

fn numbers(graph: &Graph, parameters: &GloySmithParameters) -> Vec<u32> {
    let ordered = gloy_smith(graph, parameters).unwrap();
    check(graph, &ordered.order).unwrap();
    ordered.order.0.iter().map(|block| block.0).collect()
}

/// The cache line at which each block begins.
fn lines(graph: &Graph, parameters: &GloySmithParameters) -> Vec<u64> {
    let mut lines = vec![0; graph.len()];
    let mut address = 0;
    for block in numbers(graph, parameters) {
        lines[block as usize] =
            address / parameters.line_bytes % (parameters.cache_bytes / parameters.line_bytes);
        address += u64::from(graph.sizes[block as usize]);
    }
    lines
}

/// ```text
/// line   0 1 2 3 4 5 6 7
///        B B B B B B c c     B, the most popular, alternates with neither of the others
///        A A C C             A and C alternate: C follows A, and cold code leads to the line of A
/// ```
#[test]
fn alternating_code_lies_side_by_side_and_cold_code_fills_the_gap() {
    let g = graph(&[(64, 9), (192, 9), (64, 9), (32, 0), (32, 0), (64, 0)], &[(0, 2, 10)]);
    assert_eq!(numbers(&g, &small()), [1, 3, 4, 0, 2, 5]);
    assert_eq!(lines(&g, &small())[..3], [0, 0, 2]);
}

/// ```text
/// line   0 1 2 3 4 5 6 7
///        A A A A B B B B     A and B alternate most
///        D D     C C C C     C conflicts less with B than with A; D with A than with C or B
/// ```
#[test]
fn the_heaviest_pair_is_placed_first_and_the_least_conflict_is_chosen() {
    let temporal_edges = [(0, 1, 100), (0, 2, 9), (1, 2, 4), (0, 3, 1), (1, 3, 2), (2, 3, 2)];
    let g = graph(&[(128, 9), (128, 9), (128, 9), (64, 9), (128, 0), (64, 0)], &temporal_edges);
    assert_eq!(lines(&g, &small())[..4], [0, 4, 4, 0]);
}

/// ```text
/// line   0 … 8   8 … 14
///        F F F   F F F     G alternates with one half of F, and lies on the lines of the other
/// ```
#[test]
fn a_large_procedure_is_placed_by_its_chunks() {
    let line_of_other = |half: u32| {
        let mut g =
            graph(&[(1, 9), (256, 9), (192, 9), (64, 9), (63, 0), (288, 0)], &[(half, 3, 5)]);
        g.functions = vec![0..3, 3..4, 4..5, 5..6];
        g.edges = [0, 1].map(fall_through).to_vec();
        let parameters = GloySmithParameters { cache_bytes: 512, ..small() };
        lines(&g, &parameters)[3]
    };
    assert_eq!(line_of_other(2), 0);
    assert_eq!(line_of_other(1), 9);
}

#[test]
fn unpopular_procedures_fill_gaps_before_cold_code_does() {
    let parameters = GloySmithParameters { popular_share: 0.9, ..small() };
    // As in the first drawing, with an unpopular procedure that fits into the gap and one that does
    // not.
    let g = graph(
        &[(64, 900), (192, 900), (64, 900), (32, 0), (60, 1), (64, 0), (200, 1)],
        &[(0, 2, 10)],
    );
    assert_eq!(numbers(&g, &parameters), [1, 4, 0, 2, 6, 3, 5]);
}

#[test]
fn an_impossible_cache_is_refused() {
    let g = graph(&[(64, 9)], &[]);
    let refused =
        |parameters: GloySmithParameters| gloy_smith(&g, &parameters).unwrap_err().to_string();
    let message = refused(GloySmithParameters { line_bytes: 0, ..small() });
    assert!(message.starts_with("parameter `line_bytes` is 0"), "{message}");
    let message = refused(GloySmithParameters { cache_bytes: u64::MAX, ..small() });
    assert!(message.starts_with("parameter `line_bytes` is 32"), "{message}");
    let message = refused(GloySmithParameters { popular_share: f64::NAN, ..small() });
    assert!(message.starts_with("parameter `popular_share`"), "{message}");
}
