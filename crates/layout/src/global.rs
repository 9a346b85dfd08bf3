//! ext-TSP over the whole graph at once: blocks of all functions, with calls and returns as jumps.
//!
//! Takes a graph; gives its order. `docs/algorithms/ext-tsp-global.md` tells the idea; the merging stands in `chains.rs`.

use crate::chains::{Jump, Node, arrange};
use crate::ext_tsp::ExtTspParameters;
use crate::graph::{BlockId, EdgeKind, Graph, Ordered};
use crate::hot::Hot;
use crate::pieces::PieceId;
use crate::validate::{InputError, validate};

/// Arranges all blocks that ran in one ext-TSP. What never ran goes behind, as it was. The parameters for functions are not used.
pub fn ext_tsp_global(graph: &Graph, parameters: &ExtTspParameters) -> Result<Ordered, InputError> {
    validate(graph)?;
    parameters.validate()?;
    let hot = Hot::new(graph);
    let pieces: Vec<PieceId> = hot.pieces.all().filter(|&p| hot.ran(p)).collect();
    let number = |piece: PieceId| pieces.partition_point(|&p| p < piece) as u32;
    let nodes: Vec<Node> = pieces
        .iter()
        .map(|&p| Node {
            size: hot.sizes[p.index()],
            count: hot.count(p),
        })
        .collect();
    let edges = hot.flows().into_iter().map(|flow| Jump {
        from: number(flow.from),
        to: number(flow.to),
        from_end: flow.from_end,
        to_start: flow.to_start,
        count: flow.count,
        // An aligned block begins behind padding, which nothing may run into.
        may_fall: flow.may_fall && graph.alignments[hot.pieces.blocks(flow.to).start as usize] == 1,
        conditional: flow.conditional,
    });
    let calls = calls_and_returns(graph).into_iter().filter_map(|(from, to, count)| {
        let (from_piece, to_piece) = (hot.pieces.of_block(from), hot.pieces.of_block(to));
        let both = from_piece != to_piece && hot.ran(from_piece) && hot.ran(to_piece);
        both.then(|| Jump {
            from: number(from_piece),
            to: number(to_piece),
            from_end: hot.end_in_piece(from),
            to_start: hot.start_in_piece(to),
            count,
            may_fall: false,
            conditional: true,
        })
    });
    let jumps: Vec<Jump> = edges.chain(calls).collect();
    let order = arrange(&nodes, &jumps, None, parameters);
    Ok(hot.finish(order.into_iter().map(|node| pieces[node as usize]).collect()))
}

/// Every call, from the calling block to the callee's entry, and every return, from the callee's last blocks to the one behind the call.
fn calls_and_returns(graph: &Graph) -> Vec<(BlockId, BlockId, u64)> {
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
        // Of an indirect call's returns, each callee has no more than its calls.
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

/// The blocks of each function that control leaves otherwise than by an edge, with how often: returns, as far as the profile tells.
fn exits(graph: &Graph) -> Vec<Vec<(BlockId, u64)>> {
    let mut left = graph.counts.clone();
    for edge in &graph.edges {
        left[edge.from.index()] = left[edge.from.index()].saturating_sub(edge.count);
    }
    let blocks = |f: &std::ops::Range<u32>| {
        f.clone()
            .map(|b| (BlockId(b), left[b as usize]))
            .filter(|&(_, count)| count > 0)
            .collect()
    };
    graph.functions.iter().map(blocks).collect()
}
