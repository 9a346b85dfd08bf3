//! ext-TSP over the whole graph at once: blocks of all functions, with calls and returns as jumps.
//!
//! Takes a graph; gives its order. `docs/algorithms/ext-tsp-global.md` tells the idea; the merging stands in `chains.rs`.

use crate::chains::{Jump, Node, arrange};
use crate::ext_tsp::ExtTspParameters;
use crate::graph::{Graph, Ordered};
use crate::hot::Hot;
use crate::pieces::PieceId;
use crate::returns::calls_and_returns;
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
