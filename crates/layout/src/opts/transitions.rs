//! The flow graph that sequences are built in: between pieces, across functions, loops taken as one
//! iteration per invocation.
//!
//! Takes the part of a graph that ran; gives for each piece the calls it makes and the control
//! transfers out of it, most frequent first.

use super::loops::Loops;
use crate::graph::{BlockId, Graph};
use crate::hot::Hot;
use crate::pieces::PieceId;
use std::collections::BTreeMap;

/// A transition out of a piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arc {
    pub to: PieceId,
    /// Executions, as profiled: the most frequent is followed first.
    weight: f64,
    /// Executions over those of the source, both with one iteration per invocation: compared with
    /// BranchThresh.
    pub share: f64,
}

pub(super) struct Transitions {
    /// The callees of each piece.
    pub calls: Vec<Vec<Arc>>,
    /// Where each piece leads without a call, or when the call returns.
    pub arcs: Vec<Vec<Arc>>,
    /// Executions of each piece over those of the most popular one, with one iteration per
    /// invocation: compared with ExecThresh. 0 for what never ran.
    pub popularity: Vec<f64>,
    /// The loops of the image.
    pub loops: Loops,
    /// The loops from whose end each piece leads back to their header.
    loops_ending_in: BTreeMap<PieceId, Vec<usize>>,
    /// The ways out of each loop.
    exits: Vec<Vec<Arc>>,
}

impl Transitions {
    pub fn new(hot: &Hot) -> Self {
        let graph = hot.graph;
        let loops = Loops::new(graph);
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

    /// The ways out of the loops that end in a piece, the smallest loop first. One iteration per
    /// invocation means that there control goes on.
    pub fn behind_loops(&self, piece: PieceId) -> impl Iterator<Item = &Arc> {
        self.loops_ending_in.get(&piece).into_iter().flatten().flat_map(|&l| &self.exits[l])
    }
}

/// Executions of each piece with one iteration per invocation: the most that one of its blocks has.
fn executions(hot: &Hot, loops: &Loops) -> Vec<f64> {
    let block = |b: u32| hot.graph.counts[b as usize] as f64 * loops.block_scale(BlockId(b));
    hot.pieces.all().map(|piece| hot.pieces.blocks(piece).map(block).fold(0.0, f64::max)).collect()
}

/// Arcs by source, those between the same pieces added up; most frequent first, then by target.
fn arcs(
    hot: &Hot,
    once: &[f64],
    transfers: impl Iterator<Item = (BlockId, BlockId, u64, f64)>,
) -> Vec<Vec<Arc>> {
    let mut sums: BTreeMap<(PieceId, PieceId), (f64, f64)> = BTreeMap::new();
    for (from, to, count, scale) in transfers.filter(|t| t.2 > 0) {
        let (from, to) = (hot.pieces.of_block(from), hot.pieces.of_block(to));
        if from != to && hot.ran(from) && hot.ran(to) {
            let (weight, scaled) = sums.entry((from, to)).or_default();
            *weight += count as f64;
            *scaled += count as f64 * scale;
        }
    }
    let mut arcs = vec![Vec::new(); once.len()];
    for ((from, to), (weight, scaled)) in sums {
        arcs[from.index()].push(Arc { to, weight, share: scaled / once[from.index()] });
    }
    arcs.iter_mut().for_each(|arcs| most_frequent_first(arcs));
    arcs
}

fn exits(graph: &Graph, hot: &Hot, once: &[f64], loops: &Loops) -> Vec<Vec<Arc>> {
    let mut exits = vec![Vec::new(); loops.loops.len()];
    for edge in graph.edges.iter().filter(|e| e.count > 0) {
        let (from, to) = (hot.pieces.of_block(edge.from), hot.pieces.of_block(edge.to));
        if from != to && hot.ran(from) && hot.ran(to) {
            let weight = edge.count as f64;
            let share = weight * loops.edge_scale(edge.from, edge.to) / once[from.index()];
            loops
                .left_by(edge.from, edge.to)
                .for_each(|l| exits[l].push(Arc { to, weight, share }));
        }
    }
    exits.iter_mut().for_each(|arcs| most_frequent_first(arcs));
    exits
}

fn most_frequent_first(arcs: &mut [Arc]) {
    arcs.sort_by(|a, b| b.weight.total_cmp(&a.weight).then(a.to.cmp(&b.to)));
}
