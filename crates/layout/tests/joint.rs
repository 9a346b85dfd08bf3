//! The effect of joint misses on an order.

mod apart;

use apart::{apart, distance};
use kernlane_layout::global::ext_tsp_global;
use kernlane_layout::joint::{JointParameters, joint};
use kernlane_layout::{BlockId, Edge, EdgeKind, Graph, JointMiss};

fn order(graph: &Graph) -> Vec<u32> {
    let ordered = joint(graph, &JointParameters::default()).unwrap();
    ordered.order.0.iter().map(|b| b.0).collect()
}

fn together(a: u32, b: u32, count: u64) -> JointMiss {
    JointMiss { a: BlockId(a), b: BlockId(b), count }
}

#[test]
fn code_that_misses_together_is_placed_together() {
    let mut graph = apart();
    assert_eq!(order(&graph), [0, 1, 2, 3, 4, 5]);
    graph.joint_misses = vec![together(5, 0, 6), together(2, 3, 5), together(0, 5, 1)];
    let order = order(&graph);
    assert_eq!(distance(&order, 0, 5), 1, "{order:?}");
    assert_eq!(distance(&order, 2, 3), 1, "{order:?}");
}

/// Three blocks that miss together, with 0 in the middle. Both neighbours share its line, in either
/// order.
#[test]
fn both_neighbours_of_a_block_share_its_line() {
    let mut graph = apart();
    graph.joint_misses = vec![together(0, 4, 5), together(5, 0, 5)];
    let order = order(&graph);
    assert_eq!((distance(&order, 4, 0), distance(&order, 5, 0)), (1, 1), "{order:?}");
}

/// A frequent fall-through is not broken for a line that seldom misses. It is broken for a line
/// that misses as often.
#[test]
fn a_fall_through_is_worth_more_than_a_rare_miss() {
    let mut graph = apart();
    graph.edges =
        vec![Edge { from: BlockId(0), to: BlockId(1), count: 80, kind: EdgeKind::FallThrough }];
    graph.joint_misses = vec![together(0, 3, 8), together(1, 3, 8)];
    let order_of = |graph: &Graph| order(graph);
    let order = order_of(&graph);
    let place = |block: u32| order.iter().position(|&b| b == block).unwrap();
    assert_eq!(place(1), place(0) + 1, "{order:?}");
    graph.edges[0].count = 1;
    graph.edges.push(Edge { from: BlockId(0), to: BlockId(2), count: 1, kind: EdgeKind::Branch });
    let order = order_of(&graph);
    assert_eq!(distance(&order, 0, 1), 2, "{order:?}");
}

/// Control chains the blocks, but one misses a hundred times as often. It goes to a class of its
/// own, in front.
#[test]
fn code_that_misses_often_is_apart_from_code_that_seldom_misses() {
    let mut graph = apart();
    graph.counts = vec![1000; 6];
    graph.edges =
        vec![Edge { from: BlockId(3), to: BlockId(4), count: 200, kind: EdgeKind::FallThrough }];
    graph.joint_misses = vec![together(4, 5, 400), together(0, 3, 2)];
    let order = order(&graph);
    assert_eq!(order[..2].iter().max(), Some(&5), "{order:?}");
    assert_eq!(order[..2].iter().min(), Some(&4), "{order:?}");
    let uncut = JointParameters { cut_share: 0.0, ..JointParameters::default() };
    let kept = joint(&graph, &uncut).unwrap().order.0;
    let place = |block: u32| kept.iter().position(|b| b.0 == block).unwrap();
    assert_eq!(place(4), place(3) + 1);
}

#[test]
fn without_joint_misses_it_is_one_ext_tsp() {
    let graph = apart();
    let parameters = JointParameters::default();
    assert_eq!(joint(&graph, &parameters), ext_tsp_global(&graph, &parameters.transfers));
}
