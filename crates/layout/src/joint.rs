//! Joint misses: code that misses together is placed together, and apart from code that misses less
//! often.
//!
//! Input: a graph with joint misses. Output: its order. `docs/algorithms/joint.md` explains the
//! idea. `chains.rs` has the merging.

use crate::ext_tsp_parameters::ExtTspParameters;
use crate::global::GlobalGraph;
use crate::graph::{Graph, Ordered};
use crate::jumps::{JumpKind, ScoredJump};
use crate::pieces::PieceId;
use crate::row::{AlgorithmRow, MakeOrder, Uses};
use crate::validate::{InputError, at_least, validate};
use std::collections::BTreeMap;

/// One ext-TSP over the whole kernel with joint misses: code that misses together in one line.
pub(crate) const JOINT: AlgorithmRow = AlgorithmRow {
    name: "joint",
    uses: Uses::RanTogether,
    order: MakeOrder::One(|graph| joint(graph, &Default::default())),
};

/// The parameters of the joint layout. The defaults are measured: `docs/algorithms/joint.md`.
#[derive(Clone, Debug, PartialEq)]
pub struct JointParameters {
    /// The scores of transfers of control, and the limits on chains. The parameters for functions
    /// are not used.
    pub transfers: ExtTspParameters,
    /// The worth of two adjacent pieces for each of their joint misses, in executions, like the
    /// worths of `transfers`.
    pub miss: f64,
    /// The bytes of a cache line. Pieces at this distance share no line.
    pub line_bytes: u64,
    /// Neighbours stay neighbours if, in at least this share of all times, control goes from one to
    /// the other or they miss together.
    pub cut_share: f64,
    /// The largest factor between the miss rates of code in one class.
    pub class_factor: f64,
}

impl Default for JointParameters {
    fn default() -> Self {
        JointParameters {
            transfers: ExtTspParameters {
                jump: 0.05,
                max_chain: 2048,
                ..ExtTspParameters::default()
            },
            miss: 0.3,
            line_bytes: 64,
            cut_share: 0.3,
            class_factor: 8.0,
        }
    }
}

/// Orders all hot blocks by their transfers of control and their joint misses. Cold code follows in
/// its original order.
///
/// # Errors
/// The graph or a parameter breaks a rule.
pub fn joint(graph: &Graph, parameters: &JointParameters) -> Result<Ordered, InputError> {
    validate(graph)?;
    parameters.transfers.validate()?;
    at_least("miss", parameters.miss, 0.0)?;
    at_least("line_bytes", parameters.line_bytes as f64, 1.0)?;
    at_least("cut_share", parameters.cut_share, 0.0)?;
    at_least("class_factor", parameters.class_factor, 1.001)?;
    let global = GlobalGraph::new(graph);
    let pairs = pairs(&global, graph);
    let mut jumps = global.transfers();
    jumps.extend(pairs.iter().map(|(&pair, &count)| together(&global, pair, count, parameters)));
    let order = global.arrange(&jumps, &parameters.transfers);
    let bonds = NeighbourBonds::new(&global, graph, pairs, &order);
    let mut segments = segments(&order, &bonds, parameters);
    // The sort is stable. Within a class, the segments keep the order of the chains. This order
    // keeps code near that runs at the same time.
    segments.sort_by_key(|segment| std::cmp::Reverse(class(&global, segment, &bonds, parameters)));
    Ok(global.hot.finish(segments.concat()))
}

/// The joint misses of each two pieces. The lower number comes first.
fn pairs(global: &GlobalGraph, graph: &Graph) -> BTreeMap<(PieceId, PieceId), u64> {
    let mut counts: BTreeMap<(PieceId, PieceId), u64> = BTreeMap::new();
    for joint in graph.joint_misses.iter().filter(|joint| joint.count > 0) {
        if let Some((a, b)) = global.different_pieces(joint.a, joint.b) {
            let count = counts.entry((a.min(b), a.max(b))).or_default();
            *count = count.saturating_add(joint.count);
        }
    }
    counts
}

fn together(
    global: &GlobalGraph,
    (a, b): (PieceId, PieceId),
    count: u64,
    parameters: &JointParameters,
) -> ScoredJump {
    let size = |piece: PieceId| global.hot.sizes[piece.index()];
    ScoredJump {
        from: global.node(a),
        to: global.node(b),
        from_end: size(a),
        to_start: 0,
        count,
        kind: JumpKind::Together {
            bytes: size(a) + size(b),
            worth: parameters.miss,
            reach: parameters.line_bytes,
        },
    }
}

/// The reasons to keep neighbours in an order together.
struct NeighbourBonds {
    /// The joint misses of each two pieces. The lower number comes first.
    joint: BTreeMap<(PieceId, PieceId), u64>,
    /// How often control goes from each piece to the piece placed behind it.
    falls: Vec<u64>,
    counts: Vec<u64>,
    /// The misses of each piece.
    misses: Vec<f64>,
}

impl NeighbourBonds {
    fn new(
        global: &GlobalGraph,
        graph: &Graph,
        joint: BTreeMap<(PieceId, PieceId), u64>,
        order: &[PieceId],
    ) -> NeighbourBonds {
        let hot = &global.hot;
        // A miss belongs to two pairs: with the miss before and with the miss after.
        let mut of_block = vec![0.0; graph.len()];
        for joint in &graph.joint_misses {
            of_block[joint.a.index()] += joint.count as f64 / 2.0;
            of_block[joint.b.index()] += joint.count as f64 / 2.0;
        }
        let most = |piece: PieceId| {
            hot.pieces.blocks(piece).map(|b| of_block[b as usize]).fold(0.0, f64::max)
        };
        let mut behind = vec![None; hot.pieces.len()];
        order.windows(2).for_each(|pair| behind[pair[0].index()] = Some(pair[1]));
        let mut falls = vec![0u64; hot.pieces.len()];
        let flows = hot.edge_transfers().into_iter().filter(|flow| flow.may_fall);
        for flow in flows.filter(|flow| behind[flow.from.index()] == Some(flow.to)) {
            let fall = &mut falls[flow.from.index()];
            *fall = fall.saturating_add(flow.count);
        }
        NeighbourBonds {
            joint,
            falls,
            counts: hot.pieces.all().map(|piece| hot.count(piece)).collect(),
            misses: hot.pieces.all().map(most).collect(),
        }
    }

    /// The larger of two shares: of the executions of either piece, those that run into the other;
    /// of the misses of either piece, the joint ones.
    fn strength(&self, a: PieceId, b: PieceId) -> f64 {
        let (x, y) = (a.index(), b.index());
        let executions = self.counts[x].max(self.counts[y]).max(1) as f64;
        let misses = self.misses[x].max(self.misses[y]).max(1.0);
        let joint = self.joint.get(&(a.min(b), a.max(b))).copied().unwrap_or(0);
        (self.falls[x] as f64 / executions).max(joint as f64 / misses)
    }
}

/// Cuts the order where little keeps two neighbours together.
fn segments(
    order: &[PieceId],
    bonds: &NeighbourBonds,
    parameters: &JointParameters,
) -> Vec<Vec<PieceId>> {
    let chunks = order.chunk_by(|&a, &b| bonds.strength(a, b) >= parameters.cut_share);
    chunks.map(<[PieceId]>::to_vec).collect()
}

/// The class of a segment by the misses of each byte: 0 for none. Each further class begins at
/// `class_factor` times the begin of the one before.
fn class(
    global: &GlobalGraph,
    segment: &[PieceId],
    bonds: &NeighbourBonds,
    parameters: &JointParameters,
) -> u32 {
    let size = |piece: &PieceId| global.hot.sizes[piece.index()] as f64;
    let bytes: f64 = segment.iter().map(size).sum();
    let fetched: f64 = segment.iter().map(|piece| size(piece) * bonds.misses[piece.index()]).sum();
    let (mean, mut bound, mut class) = (fetched / bytes.max(1.0), 1.0, 0);
    while mean >= bound && bound.is_finite() {
        bound *= parameters.class_factor;
        class += 1;
    }
    class
}
