//! Blocks that nothing holds together, and how far from each other an order lays two of them. Used
//! by the tests of layouts that look beyond control.

use kernlane_layout::Graph;

/// Six blocks of 32 bytes that nothing joins; the function's last three ran, too, but less often.
pub fn apart() -> Graph {
    Graph {
        sizes: vec![32; 6],
        counts: vec![90, 80, 70, 9, 8, 7],
        glued: vec![false; 6],
        alignments: vec![1; 6],
        functions: std::iter::once(0..6).collect(),
        ..Graph::default()
    }
}

pub fn distance(order: &[u32], a: u32, b: u32) -> usize {
    let place = |block: u32| order.iter().position(|&found| found == block).unwrap();
    place(a).abs_diff(place(b))
}
