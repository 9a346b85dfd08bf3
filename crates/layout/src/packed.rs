//! Packed by time: code that is needed in the same stretches of time shares cache lines.
//!
//! Takes a graph with working-set epochs; gives its order. `docs/algorithms/packed.md` tells the
//! idea; what an order costs stands in `packing.rs`.

use crate::ext_tsp_parameters::ExtTspParameters;
use crate::global::{Whole, ext_tsp_global};
use crate::graph::{Graph, Ordered};
use crate::packing::Packing;
use crate::pieces::PieceId;
use crate::validate::{InputError, at_least, at_most, validate};

/// The defaults are measured: `docs/algorithms/packed.md`.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedParameters {
    /// How the chains are made that segments are cut from. The parameters for functions are not
    /// used.
    pub transfers: ExtTspParameters,
    /// Bytes of a cache line: pieces as far apart as this share none.
    pub line_bytes: u64,
    /// Neighbours in a chain stay neighbours if control runs from one into the other in at least
    /// this share of the executions of either.
    pub cut_share: f64,
    /// For how many others, those that are most often needed with its end, it is considered that
    /// they follow a segment.
    pub candidates: usize,
    /// How many moves the search tries, for each segment.
    pub moves: u64,
    /// Seed of the search.
    pub seed: u64,
}

impl Default for PackedParameters {
    fn default() -> Self {
        PackedParameters {
            transfers: ExtTspParameters::default(),
            line_bytes: 64,
            cut_share: 0.3,
            candidates: 40,
            moves: 100,
            seed: 1,
        }
    }
}

/// Each end of a segment is compared with each beginning. A distribution's kernel of which 118 000
/// blocks ran has fewer.
const MOST_SEGMENTS: usize = 200_000;

/// Arranges all blocks that ran: segments of the chains of one ext-TSP, in the order that wastes
/// least of the lines. What never ran goes behind, as it was. A graph without epochs is arranged
/// by [`ext_tsp_global`].
pub fn packed(graph: &Graph, parameters: &PackedParameters) -> Result<Ordered, InputError> {
    parameters.transfers.validate()?;
    at_least("line_bytes", parameters.line_bytes as f64, 1.0)?;
    at_least("cut_share", parameters.cut_share, 0.0)?;
    if graph.block_epochs.is_empty() {
        return ext_tsp_global(graph, &parameters.transfers);
    }
    validate(graph)?;
    let whole = Whole::new(graph);
    let fewest = fewest_segments(&whole, parameters.cut_share);
    at_most(MOST_SEGMENTS, "packed", "segments of code that ran at the least", fewest)?;
    let chains = whole.arrange(&whole.transfers(), &parameters.transfers);
    let segments = segments(&whole, &chains, parameters.cut_share);
    at_most(MOST_SEGMENTS, "packed", "segments of code that ran", segments.len())?;
    let packing = Packing::new(&whole, segments, parameters.line_bytes);
    let mut order = packing.paths(parameters.candidates);
    packing.improve(&mut order, parameters.moves, parameters.seed);
    let segments = order.iter().flat_map(|&segment| packing.segment(segment));
    Ok(whole.hot.finish(segments.map(|&node| whole.pieces[node as usize]).collect()))
}

/// Whether neighbours are of one segment when control runs from one into the other so many times.
fn stay_together(whole: &Whole, a: PieceId, b: PieceId, falls: u64, cut_share: f64) -> bool {
    let hot = &whole.hot;
    let entry = hot.graph.alignments[hot.pieces.blocks(b).start as usize] > 1;
    let executions = hot.count(a).max(hot.count(b));
    // Nothing runs into an entry: padding lies before it.
    !entry && falls > 0 && falls as f64 >= cut_share * executions as f64
}

/// How many segments there are at the least, whatever the chains are: a piece that leads nowhere
/// often enough ends one.
fn fewest_segments(whole: &Whole, cut_share: f64) -> usize {
    let mut flows = whole.hot.flows();
    flows.retain(|flow| flow.may_fall);
    flows.sort_unstable_by_key(|flow| (flow.from, flow.to));
    let mut goes_on = vec![false; whole.hot.pieces.len()];
    for same in flows.chunk_by(|a, b| (a.from, a.to) == (b.from, b.to)) {
        let falls = same.iter().fold(0u64, |sum, flow| sum.saturating_add(flow.count));
        goes_on[same[0].from.index()] |=
            stay_together(whole, same[0].from, same[0].to, falls, cut_share);
    }
    whole.pieces.iter().filter(|piece| !goes_on[piece.index()]).count()
}

/// The chains, cut where control seldom runs from one piece into the next; as nodes.
fn segments(whole: &Whole, chains: &[PieceId], cut_share: f64) -> Vec<Vec<u32>> {
    let hot = &whole.hot;
    let mut behind = vec![None; hot.pieces.len()];
    chains.windows(2).for_each(|pair| behind[pair[0].index()] = Some(pair[1]));
    let mut falls = vec![0u64; hot.pieces.len()];
    for flow in hot
        .flows()
        .iter()
        .filter(|flow| flow.may_fall && behind[flow.from.index()] == Some(flow.to))
    {
        let fall = &mut falls[flow.from.index()];
        *fall = fall.saturating_add(flow.count);
    }
    let together =
        |&a: &PieceId, &b: &PieceId| stay_together(whole, a, b, falls[a.index()], cut_share);
    let nodes = |chunk: &[PieceId]| chunk.iter().map(|&piece| whole.node(piece)).collect();
    chains.chunk_by(together).map(nodes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{BlockId, Edge, EdgeKind};
    use crate::random::SplitMix64;

    /// One function of thirty blocks that all ran; jumps lead anywhere, about as often as blocks
    /// run.
    fn graph(random: &mut SplitMix64) -> Graph {
        let blocks = 30;
        let jump = |random: &mut SplitMix64| Edge {
            from: BlockId(random.below(blocks) as u32),
            to: BlockId(random.below(blocks) as u32),
            count: random.below(60),
            kind: EdgeKind::Jump,
        };
        Graph {
            sizes: vec![16; blocks as usize],
            counts: (0..blocks).map(|_| 1 + random.below(100)).collect(),
            glued: (0..blocks).map(|block| block > 0 && random.below(5) == 0).collect(),
            alignments: (0..blocks).map(|_| 1 << (random.below(8) / 7)).collect(),
            functions: std::iter::once(0..blocks as u32).collect(),
            edges: (0..40).map(|_| jump(random)).collect(),
            ..Graph::default()
        }
    }

    #[test]
    fn no_chains_give_fewer_segments_than_the_fewest() {
        let mut random = SplitMix64::new(9);
        let (mut all_fewest, mut all_found, mut pieces) = (0, 0, 0);
        for _ in 0..500 {
            let graph = graph(&mut random);
            let whole = Whole::new(&graph);
            let parameters = PackedParameters::default();
            let chains = whole.arrange(&whole.transfers(), &parameters.transfers);
            let found = segments(&whole, &chains, parameters.cut_share).len();
            let fewest = fewest_segments(&whole, parameters.cut_share);
            assert!(fewest <= found && fewest > 0, "{found} segments, {fewest} at the least");
            all_fewest += fewest;
            all_found += found;
            pieces += whole.pieces.len();
        }
        assert!(all_fewest * 3 > all_found * 2, "{all_found} segments, {all_fewest} at the least");
        assert!(all_found * 10 < pieces * 9, "{all_found} segments of {pieces} pieces");
    }
}
