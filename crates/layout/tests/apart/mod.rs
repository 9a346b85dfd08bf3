//! Blocks that nothing keeps together, and the distance of two blocks in an order. The tests of
//! layouts that use more than control flow share this module.

use kernlane_layout::Graph;

/// Six blocks of 32 bytes that nothing joins. The last three of the function ran less often.
pub(crate) fn apart() -> Graph {
    Graph {
        sizes: vec![32; 6],
        counts: vec![90, 80, 70, 9, 8, 7],
        glued: vec![false; 6],
        alignments: vec![1; 6],
        functions: std::iter::once(0..6).collect(),
        ..Graph::default()
    }
}

pub(crate) fn distance(order: &[u32], a: u32, b: u32) -> usize {
    let place = |block: u32| order.iter().position(|&found| found == block).unwrap();
    place(a).abs_diff(place(b))
}
