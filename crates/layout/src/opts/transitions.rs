//! The flow graph in which sequences grow: between pieces, across functions. A loop counts as one
//! iteration for each invocation.
//!
//! Input: the hot part of a graph. Output: for each piece, its calls and the transfers out of it,
//! the most frequent first.

use super::loops::LoopForest;
use crate::graph::{BlockId, Graph};
use crate::hot::HotCode;
use crate::pieces::PieceId;
use std::collections::BTreeMap;

/// A transition out of a piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransitionArc {
    pub to: PieceId,
    /// The executions in the profile. The most frequent transition is followed first.
    weight: f64,
    /// The executions over those of the source, both with one iteration for each invocation.
    /// BranchThresh limits this share.
    pub share: f64,
}

pub(super) struct Transitions {
    /// The callees of each piece.
    pub calls: Vec<Vec<TransitionArc>>,
    /// The successors of each piece without a call, or after the call returns.
    pub arcs: Vec<Vec<TransitionArc>>,
    /// The executions of each piece over those of the most popular one, with one iteration for each
    /// invocation; 0 for cold pieces. ExecThresh limits this value.
    pub popularity: Vec<f64>,
    /// The loops of the image.
    pub loops: LoopForest,
    /// For each piece, the loops whose latch is in it.
    loops_ending_in: BTreeMap<PieceId, Vec<usize>>,
    /// The ways out of each loop.
    exits: Vec<Vec<TransitionArc>>,
}

impl Transitions {
    pub(super) fn new(hot: &HotCode) -> Self {
        let graph = hot.graph;
        let loops = LoopForest::new(graph);
        let once = executions(hot, &loops);
        let most = once.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let calls = graph.calls.iter().map(|c| (c.from, c.to, c.count, loops.block_scale(c.from)));
        let edges =
            graph.edges.iter().map(|e| (e.from, e.to, e.count, loops.edge_scale(e.from, e.to)));
        let mut loops_ending_in: BTreeMap<PieceId, Vec<usize>> = BTreeMap::new();
        for (number, found) in loops.loops.iter().enumerate().rev() {
            for &latch in &found.latches {
                loops_ending_in.entry(hot.pieces.of_block(latch)).or_default().push(number);
            }
        }
        Transitions {
            calls: arcs(hot, &once, calls),
            arcs: arcs(hot, &once, edges),
            exits: exits(graph, hot, &once, &loops),
            loops_ending_in,
            loops,
            popularity: once.into_iter().map(|count| count / most).collect(),
        }
    }

    /// The ways out of the loops that end in a piece, the smallest loop first. With one iteration
    /// for each invocation, control goes on there.
    pub(super) fn behind_loops(&self, piece: PieceId) -> impl Iterator<Item = &TransitionArc> {
        self.loops_ending_in.get(&piece).into_iter().flatten().flat_map(|&l| &self.exits[l])
    }
}

/// The executions of each piece with one iteration for each invocation: the largest value of its
/// blocks.
fn executions(hot: &HotCode, loops: &LoopForest) -> Vec<f64> {
    let block = |b: u32| hot.graph.counts[b as usize] as f64 * loops.block_scale(BlockId(b));
    hot.pieces.all().map(|piece| hot.pieces.blocks(piece).map(block).fold(0.0, f64::max)).collect()
}

/// The arcs by source. Arcs between the same pieces are added up. The most frequent comes first,
/// then the lowest target.
fn arcs(
    hot: &HotCode,
    once: &[f64],
    transfers: impl Iterator<Item = (BlockId, BlockId, u64, f64)>,
) -> Vec<Vec<TransitionArc>> {
    let mut sums: BTreeMap<(PieceId, PieceId), (f64, f64)> = BTreeMap::new();
    for (from, to, count, scale) in transfers.filter(|t| t.2 > 0) {
        let (from, to) = (hot.pieces.of_block(from), hot.pieces.of_block(to));
        if from != to && hot.is_hot(from) && hot.is_hot(to) {
            let (weight, scaled) = sums.entry((from, to)).or_default();
            *weight += count as f64;
            *scaled += count as f64 * scale;
        }
    }
    let mut arcs = vec![Vec::new(); once.len()];
    for ((from, to), (weight, scaled)) in sums {
        arcs[from.index()].push(TransitionArc { to, weight, share: scaled / once[from.index()] });
    }
    arcs.iter_mut().for_each(|arcs| most_frequent_first(arcs));
    arcs
}

fn exits(
    graph: &Graph,
    hot: &HotCode,
    once: &[f64],
    loops: &LoopForest,
) -> Vec<Vec<TransitionArc>> {
    let mut exits = vec![Vec::new(); loops.loops.len()];
    for edge in graph.edges.iter().filter(|e| e.count > 0) {
        let (from, to) = (hot.pieces.of_block(edge.from), hot.pieces.of_block(edge.to));
        if from != to && hot.is_hot(from) && hot.is_hot(to) {
            let weight = edge.count as f64;
            let share = weight * loops.edge_scale(edge.from, edge.to) / once[from.index()];
            loops
                .left_by(edge.from, edge.to)
                .for_each(|l| exits[l].push(TransitionArc { to, weight, share }));
        }
    }
    exits.iter_mut().for_each(|arcs| most_frequent_first(arcs));
    exits
}

fn most_frequent_first(arcs: &mut [TransitionArc]) {
    arcs.sort_by(|a, b| b.weight.total_cmp(&a.weight).then(a.to.cmp(&b.to)));
}
