//! Small functions in drawings, and the order that each algorithm must give them.

use EdgeKind::{Branch, FallThrough, Indirect, Jump};
use kernlane_layout::ext_tsp::{ExtTspParameters, ext_tsp};
use kernlane_layout::{
    Algorithm, BlockId, Call, Edge, EdgeKind, Graph, Order, check, order, score,
};

/// Functions given by the counts of their blocks. Each block has 32 bytes.
fn graph(
    functions: &[&[u64]],
    edges: &[(u32, u32, u64, EdgeKind)],
    calls: &[(u32, u32, u64)],
) -> Graph {
    let counts = functions.concat();
    let mut starts = 0;
    let ranges = functions.iter().map(|blocks| {
        starts += blocks.len() as u32;
        starts - blocks.len() as u32..starts
    });
    Graph {
        sizes: vec![32; counts.len()],
        glued: vec![false; counts.len()],
        alignments: vec![1; counts.len()],
        functions: ranges.collect(),
        edges: edges
            .iter()
            .map(|&(from, to, count, kind)| Edge {
                from: BlockId(from),
                to: BlockId(to),
                count,
                kind,
            })
            .collect(),
        calls: calls
            .iter()
            .map(|&(from, to, count)| Call { from: BlockId(from), to: BlockId(to), count })
            .collect(),
        counts,
        ..Graph::default()
    }
}

fn numbers(graph: &Graph, algorithm: Algorithm) -> Vec<u32> {
    let ordered = order(graph, algorithm, 0).unwrap();
    check(graph, &ordered.order).unwrap();
    ordered.order.0.iter().map(|b| b.0).collect()
}

const BOTH: [Algorithm; 2] = [Algorithm::PettisHansen, Algorithm::ExtTsp];

/// ```text
///     0 ─▶ 2 ─▶ 4        1 and 3 handle errors that never happen; all hot branches are taken
///     └ 1  └ 3
/// ```
#[test]
fn error_exits_leave_the_hot_path() {
    let g = graph(&[&[9, 0, 9, 0, 9]], &[(0, 2, 9, Branch), (2, 4, 9, Branch)], &[]);
    for algorithm in BOTH {
        assert_eq!(numbers(&g, algorithm), [0, 2, 4, 1, 3], "{algorithm}");
    }
}

/// ```text
///        ┌─50──────┐
///     0 ─┴49─▶ 2 ──▶ 1       the heavier arc 0 → 1 against two that are nearly as heavy
/// ```
#[test]
fn two_arcs_outweigh_one_when_chains_may_be_cut() {
    let g = graph(
        &[&[99, 99, 49]],
        &[(0, 1, 50, FallThrough), (0, 2, 49, Branch), (2, 1, 49, Jump)],
        &[],
    );
    assert_eq!(numbers(&g, Algorithm::PettisHansen), [0, 1, 2]);
    assert_eq!(numbers(&g, Algorithm::ExtTsp), [0, 2, 1]);
}

/// ```text
///               ┌─────990─────┐
///               ▼             │
///     0 ──10──▶ 2 ──990──▶ 1 ─┘      compilers rotate loops: body 1 first, test 2 last
///               └──10──▶ 3
/// ```
#[test]
fn a_rotated_loop_stays_rotated() {
    let edges =
        [(0, 2, 10, Jump), (1, 2, 990, FallThrough), (2, 1, 990, Branch), (2, 3, 10, FallThrough)];
    let g = graph(&[&[10, 990, 1000, 10]], &edges, &[]);
    assert_eq!(numbers(&g, Algorithm::ExtTsp), [0, 1, 2, 3]);
    // Without the bonus for a saved unconditional jump, the body would no longer continue at the
    // test.
    let plain = ExtTspParameters { fall_through_unconditional: 1.0, ..ExtTspParameters::default() };
    let order: Vec<u32> = ext_tsp(&g, &plain).unwrap().order.0.iter().map(|b| b.0).collect();
    assert_eq!(order, [0, 2, 1, 3]);
}

/// A function of the demo kernel that clang builds, as it ran once: its forced rows are
///
/// ```text
///     A = 0    B = 1    C = 2 … 12    D = 14    E = 15 … 20, 13    F = 21 … 30    G = 31, 32
///
///     A ──▶ B ──▶ C ──▶ D ──▶ F ──▶ B        every jump once
///           └▶ G        └▶ E ──▶ D
/// ```
///
/// Nearly every merge gains 1 or 1.05. Merging that decides by rounding errors makes the other
/// order, A E D F B G C, whose score is 31.708.
#[test]
fn equal_gains_do_not_cost_what_llvm_gains() {
    let row = |from: u32, to: u32| (from..to).map(|block| (block, block + 1));
    let mut pairs: Vec<(u32, u32)> = row(0, 12).chain([(1, 31), (12, 14), (13, 14)]).collect();
    pairs.extend(row(14, 20).chain([(14, 21), (20, 13)]).chain(row(21, 30)));
    pairs.extend([(30, 1), (31, 32)]);
    pairs.sort_unstable();
    let edges: Vec<_> = pairs.into_iter().map(|(from, to)| (from, to, 1, Jump)).collect();
    let mut counts = [1; 33];
    (counts[1], counts[14]) = (2, 2);
    let mut g = graph(&[&counts], &edges, &[]);
    g.sizes = vec![
        52, 28, 15, 62, 6, 9, 5, 13, 12, 51, 5, 13, 2, 7, 9, 16, 18, 23, 21, 9, 5, 5, 13, 6, 5, 4,
        2, 13, 6, 5, 17, 16, 20,
    ];
    let row = |from: u32, to: u32| from..to + 1;
    let rows =
        [row(0, 0), row(21, 30), row(1, 1), row(31, 32), row(2, 12), row(14, 20), row(13, 13)];
    let order = numbers(&g, Algorithm::ExtTsp);
    assert_eq!(order, rows.into_iter().flatten().collect::<Vec<u32>>());
    let score = score(&g, &Order(order.into_iter().map(BlockId).collect())).ext_tsp;
    assert!((score - 31.71875).abs() < 1e-9, "{score}");
}

/// ```text
///     0 ──indirect──▶ 2 (90), 3 (10)      and 1, which never ran
/// ```
#[test]
fn an_indirect_jump_brings_its_target_near_but_joins_no_chain() {
    let g = graph(&[&[100, 0, 10, 90]], &[(0, 2, 10, Indirect), (0, 3, 90, Indirect)], &[]);
    assert_eq!(numbers(&g, Algorithm::PettisHansen), [0, 3, 2, 1]);
    assert_eq!(numbers(&g, Algorithm::ExtTsp), [0, 3, 2, 1]);
}

/// ```text
///     0 ──▶ 3, past 1 and 2g: 2 is glued to 1, and 2 ran
/// ```
#[test]
fn glued_blocks_go_with_their_first_block() {
    let mut g = graph(
        &[&[9, 0, 1, 9]],
        &[(0, 3, 8, Branch), (0, 1, 1, FallThrough), (2, 3, 1, FallThrough)],
        &[],
    );
    g.glued[2] = true;
    for algorithm in BOTH {
        assert_eq!(numbers(&g, algorithm), [0, 3, 1, 2], "{algorithm}");
    }
}

/// ```text
///     a ══90══▶ d      b never ran      c ══10══▶ d
///     a's likeliest callee is d, and d's likeliest caller is a
/// ```
#[test]
fn callees_follow_their_likeliest_caller() {
    let g = graph(&[&[90, 0], &[0], &[10], &[100]], &[], &[(0, 4, 90), (3, 4, 10)]);
    assert_eq!(numbers(&g, Algorithm::ExtTsp), [0, 4, 3, 1, 2]);
    // "Closest is best" may reverse a group. It matters only that d is between its callers.
    assert_eq!(numbers(&g, Algorithm::PettisHansen), [0, 4, 3, 1, 2]);
}

/// ```text
///     a (1000 times, 32 bytes) ──▶ b (once, 4096 bytes)      c (500 times, 32 bytes)
/// ```
#[test]
fn a_dense_caller_does_not_take_in_a_sparse_callee() {
    let mut g = graph(&[&[1000], &[1], &[500]], &[], &[(0, 1, 1)]);
    g.sizes[1] = 4096;
    assert_eq!(numbers(&g, Algorithm::ExtTsp), [0, 2, 1]);
    assert_eq!(numbers(&g, Algorithm::PettisHansen), [2, 0, 1]);
}

/// ```text
///     f: 0 ──tail call──▶ g: 2       1 never ran
/// ```
#[test]
fn a_tail_call_counts_as_a_call() {
    let g = graph(&[&[5, 0], &[5, 5], &[7]], &[(0, 2, 5, Jump), (2, 3, 5, FallThrough)], &[]);
    // The third function runs more often, and comes first. The tail call keeps f and g together.
    for algorithm in BOTH {
        assert_eq!(numbers(&g, algorithm), [4, 0, 2, 3, 1], "{algorithm}");
    }
}
