//! The effect of working-set epochs on an order.

mod apart;

use apart::{apart, distance};
use kernlane_layout::global::ext_tsp_global;
use kernlane_layout::packed::{PackedParameters, packed};
use kernlane_layout::{BlockEpochs, BlockId, Edge, EdgeKind, Graph};

/// For each block, the epochs in which it ran, one in each bit.
fn present(epochs: [u64; 6]) -> Vec<BlockEpochs> {
    let row = |(block, &epochs): (usize, &u64)| BlockEpochs {
        block: BlockId(block as u32),
        epochs: vec![epochs],
    };
    epochs.iter().enumerate().map(row).collect()
}

fn order(graph: &Graph) -> Vec<u32> {
    let ordered = packed(graph, &PackedParameters::default()).unwrap();
    ordered.order.0.iter().map(|b| b.0).collect()
}

#[test]
fn code_that_is_needed_together_is_placed_together() {
    let mut graph = apart();
    graph.block_epochs =
        present([0b000111, 0b111000, 0b010101 << 8, 0b111000, 0b010101 << 8, 0b000111]);
    let order = order(&graph);
    for (a, b) in [(0, 5), (1, 3), (2, 4)] {
        assert_eq!(distance(&order, a, b), 1, "{order:?}");
    }
}

#[test]
fn code_that_is_needed_most_often_comes_first() {
    let mut graph = apart();
    graph.block_epochs = present([0b1, 0, 0b1111_0000, 0b1111_0000, 0, 0b1]);
    let order = order(&graph);
    assert!(order[..2].contains(&2) && order[..2].contains(&3), "{order:?}");
    assert!(order[2..4].contains(&0) && order[2..4].contains(&5), "{order:?}");
}

/// Blocks 0 and 1 are one segment as long as control goes from one to the other often enough,
/// although 0 is needed together with 3.
#[test]
fn a_frequent_fall_through_is_not_broken() {
    let mut graph = apart();
    graph.block_epochs = present([0b11, 0b100, 0, 0b11, 0b100, 0]);
    let mut fall = |count| {
        graph.edges =
            vec![Edge { from: BlockId(0), to: BlockId(1), count, kind: EdgeKind::FallThrough }];
        order(&graph)
    };
    let kept = fall(80);
    assert_eq!(
        kept.iter().position(|&b| b == 1),
        kept.iter().position(|&b| b == 0).map(|at| at + 1),
        "{kept:?}"
    );
    let cut = fall(1);
    assert_eq!((distance(&cut, 0, 3), distance(&cut, 1, 4)), (1, 1), "{cut:?}");
}

#[test]
fn the_search_is_the_same_every_time() {
    let mut graph = apart();
    graph.block_epochs = present([0b1010, 0b0110, 0b0011, 0b1001, 0b1100, 0b0101]);
    assert_eq!(order(&graph), order(&graph));
}

#[test]
fn without_epochs_it_is_one_ext_tsp() {
    let graph = apart();
    let parameters = PackedParameters::default();
    assert_eq!(packed(&graph, &parameters), ext_tsp_global(&graph, &parameters.transfers));
}
