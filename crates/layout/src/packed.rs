//! Packs code by time: code that is needed in the same epochs shares cache lines.
//!
//! Input: a graph with working-set epochs. Output: its order. `docs/algorithms/packed.md` explains
//! the idea. `packing.rs` computes the cost of an order.

use crate::ext_tsp_parameters::ExtTspParameters;
use crate::global::{GlobalGraph, ext_tsp_global};
use crate::graph::{Graph, Ordered};
use crate::packing::Packing;
use crate::pieces::PieceId;
use crate::row::{AlgorithmRow, MakeOrder, Uses};
use crate::validate::{InputError, at_least, at_most, validate};

/// Segments of one ext-TSP, those needed in the same stretches of time in the same lines.
pub(crate) const PACKED: AlgorithmRow = AlgorithmRow {
    name: "packed",
    uses: Uses::RanTogether,
    order: MakeOrder::BySeed(|graph, seed| {
        packed(graph, &PackedParameters { seed, ..Default::default() })
    }),
};

/// The parameters of the packed layout. The defaults are measured: `docs/algorithms/packed.md`.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedParameters {
    /// The parameters of the chains from which segments are cut. The parameters for functions are
    /// not used.
    pub transfers: ExtTspParameters,
    /// The bytes of a cache line. Pieces at this distance share no line.
    pub line_bytes: u64,
    /// Neighbours in a chain stay neighbours if control goes from one to the other in at least this
    /// share of the executions of either.
    pub cut_share: f64,
    /// The number of possible successors of a segment: those that are most often needed together
    /// with its end.
    pub candidates: usize,
    /// The number of moves that the search tries for each segment.
    pub moves: u64,
    /// The seed of the search.
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

/// The largest number of segments. The algorithm compares each end of a segment with each
/// beginning. A distribution's kernel with 118 000 executed blocks has fewer segments.
const MOST_SEGMENTS: usize = 200_000;

/// Orders all hot blocks: segments of the chains of one ext-TSP, in the order that wastes the
/// fewest bytes of the fetched lines. Cold code follows in its original order. A graph without
/// epochs is ordered by [`ext_tsp_global`].
///
/// # Errors
/// The graph or a parameter breaks a rule, or there are too many segments.
pub fn packed(graph: &Graph, parameters: &PackedParameters) -> Result<Ordered, InputError> {
    parameters.transfers.validate()?;
    at_least("line_bytes", parameters.line_bytes as f64, 1.0)?;
    at_least("cut_share", parameters.cut_share, 0.0)?;
    if graph.block_epochs.is_empty() {
        return ext_tsp_global(graph, &parameters.transfers);
    }
    validate(graph)?;
    let global = GlobalGraph::new(graph);
    let fewest = fewest_segments(&global, parameters.cut_share);
    at_most(MOST_SEGMENTS, "packed", "segments of code that ran at the least", fewest)?;
    let chains = global.arrange(&global.transfers(), &parameters.transfers);
    let segments = segments(&global, &chains, parameters.cut_share);
    at_most(MOST_SEGMENTS, "packed", "segments of code that ran", segments.len())?;
    let packing = Packing::new(&global, segments, parameters.line_bytes);
    let mut order = packing.paths(parameters.candidates);
    packing.improve(&mut order, parameters.moves, parameters.seed);
    let segments = order.iter().flat_map(|&segment| packing.segment(segment));
    Ok(global.hot.finish(segments.map(|&node| global.pieces[node as usize]).collect()))
}

/// Whether neighbours belong to one segment when control goes `falls` times from one to the other.
fn stay_together(global: &GlobalGraph, a: PieceId, b: PieceId, falls: u64, cut_share: f64) -> bool {
    let hot = &global.hot;
    let entry = hot.graph.alignments[hot.pieces.blocks(b).start as usize] > 1;
    let executions = hot.count(a).max(hot.count(b));
    // Nothing runs into an entry: padding lies before it.
    !entry && falls > 0 && falls as f64 >= cut_share * executions as f64
}

/// The least number of segments for any chains. A piece that leads nowhere often enough ends a
/// segment.
fn fewest_segments(global: &GlobalGraph, cut_share: f64) -> usize {
    let mut flows = global.hot.edge_transfers();
    flows.retain(|flow| flow.may_fall);
    flows.sort_unstable_by_key(|flow| (flow.from, flow.to));
    let mut continues = vec![false; global.hot.pieces.len()];
    for same in flows.chunk_by(|a, b| (a.from, a.to) == (b.from, b.to)) {
        let falls = same.iter().fold(0u64, |sum, flow| sum.saturating_add(flow.count));
        continues[same[0].from.index()] |=
            stay_together(global, same[0].from, same[0].to, falls, cut_share);
    }
    global.pieces.iter().filter(|piece| !continues[piece.index()]).count()
}

/// Cuts the chains where control seldom goes from one piece to the next. The result has nodes.
fn segments(global: &GlobalGraph, chains: &[PieceId], cut_share: f64) -> Vec<Vec<u32>> {
    let hot = &global.hot;
    let mut behind = vec![None; hot.pieces.len()];
    chains.windows(2).for_each(|pair| behind[pair[0].index()] = Some(pair[1]));
    let mut falls = vec![0u64; hot.pieces.len()];
    for flow in hot
        .edge_transfers()
        .iter()
        .filter(|flow| flow.may_fall && behind[flow.from.index()] == Some(flow.to))
    {
        let fall = &mut falls[flow.from.index()];
        *fall = fall.saturating_add(flow.count);
    }
    let together =
        |&a: &PieceId, &b: &PieceId| stay_together(global, a, b, falls[a.index()], cut_share);
    let nodes = |chunk: &[PieceId]| chunk.iter().map(|&piece| global.node(piece)).collect();
    chains.chunk_by(together).map(nodes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{BlockId, Edge, EdgeKind};
    use crate::random::SplitMix64;

    /// One function with thirty executed blocks. The jumps lead anywhere, about as often as blocks
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
    fn no_chains_give_fewer_segments_than_the_least_number() {
        let mut random = SplitMix64::new(9);
        let (mut all_fewest, mut all_found, mut pieces) = (0, 0, 0);
        for _ in 0..500 {
            let graph = graph(&mut random);
            let global = GlobalGraph::new(&graph);
            let parameters = PackedParameters::default();
            let chains = global.arrange(&global.transfers(), &parameters.transfers);
            let found = segments(&global, &chains, parameters.cut_share).len();
            let fewest = fewest_segments(&global, parameters.cut_share);
            assert!(fewest <= found && fewest > 0, "{found} segments, {fewest} at the least");
            all_fewest += fewest;
            all_found += found;
            pieces += global.pieces.len();
        }
        assert!(all_fewest * 3 > all_found * 2, "{all_found} segments, {all_fewest} at the least");
        assert!(all_found * 10 < pieces * 9, "{all_found} segments of {pieces} pieces");
    }
}
