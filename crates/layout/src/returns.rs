//! Calls and returns as transfers between blocks, for the algorithms that look across functions.
//!
//! Input: a valid graph, which counts calls but not returns. Output: both.

use crate::graph::{BlockId, EdgeKind, Graph};

/// Every call, from the calling block to the entry of the callee, and every return, from the last
/// blocks of the callee to the block behind the call.
pub(crate) fn calls_and_returns(graph: &Graph) -> Vec<(BlockId, BlockId, u64)> {
    let exits = exits(graph);
    let mut returned = vec![0; graph.len()];
    for edge in graph.edges.iter().filter(|e| e.kind == EdgeKind::FallThrough) {
        returned[edge.from.index()] = edge.count;
    }
    let mut transfers = Vec::new();
    for call in graph.calls.iter().filter(|c| c.count > 0) {
        transfers.push((call.from, call.to, call.count));
        let function = graph.functions.partition_point(|f| f.end <= call.to.0);
        let all: u128 = exits[function].iter().map(|&(_, count)| u128::from(count)).sum();
        // A callee of an indirect call has at most as many returns as calls.
        let returns = call.count.min(returned[call.from.index()]);
        for &(exit, count) in &exits[function] {
            let share = u128::from(returns) * u128::from(count) / all;
            if share > 0 {
                transfers.push((exit, BlockId(call.from.0 + 1), share as u64));
            }
        }
    }
    transfers
}

/// The blocks of each function that control leaves without an edge, and how often: the returns, as
/// far as the profile shows them.
fn exits(graph: &Graph) -> Vec<Vec<(BlockId, u64)>> {
    let mut left = graph.counts.clone();
    for edge in &graph.edges {
        left[edge.from.index()] = left[edge.from.index()].saturating_sub(edge.count);
    }
    let blocks = |f: &std::ops::Range<u32>| {
        f.clone().map(|b| (BlockId(b), left[b as usize])).filter(|&(_, count)| count > 0).collect()
    };
    graph.functions.iter().map(blocks).collect()
}
