//! Joint misses: code that misses together is laid together, apart from code that misses less
//! often.
//!
//! Takes a graph with joint misses; gives its order. `docs/algorithms/joint.md` tells the idea; the
//! merging stands in `chains.rs`.

use crate::ext_tsp_parameters::ExtTspParameters;
use crate::global::Whole;
use crate::graph::{Graph, Ordered};
use crate::jumps::{Jump, JumpKind};
use crate::pieces::PieceId;
use crate::validate::{InputError, at_least, validate};
use std::collections::BTreeMap;

/// The defaults are measured: `docs/algorithms/joint.md`.
#[derive(Clone, Debug, PartialEq)]
pub struct JointParameters {
    /// How transfers of control are scored, and the limits on chains. The parameters for functions
    /// are not used.
    pub transfers: ExtTspParameters,
    /// Worth of two pieces that touch, for each time they missed together. In executions, like the
    /// worths of `transfers`.
    pub miss: f64,
    /// Bytes of a cache line: pieces as far apart as this share none.
    pub line_bytes: u64,
    /// Neighbours stay neighbours if control runs from one into the other, or they miss together,
    /// in at least this share of all times.
    pub cut_share: f64,
    /// Code of one class misses at most so many times as often as other code of the class.
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

/// Arranges all blocks that ran, by their transfers of control and by their joint misses. What
/// never ran goes behind, as it was.
pub fn joint(graph: &Graph, parameters: &JointParameters) -> Result<Ordered, InputError> {
    validate(graph)?;
    parameters.transfers.validate()?;
    at_least("miss", parameters.miss, 0.0)?;
    at_least("line_bytes", parameters.line_bytes as f64, 1.0)?;
    at_least("cut_share", parameters.cut_share, 0.0)?;
    at_least("class_factor", parameters.class_factor, 1.001)?;
    let whole = Whole::new(graph);
    let pairs = pairs(&whole, graph);
    let mut jumps = whole.transfers();
    jumps.extend(pairs.iter().map(|(&pair, &count)| together(&whole, pair, count, parameters)));
    let order = whole.arrange(&jumps, &parameters.transfers);
    let bonds = Bonds::new(&whole, graph, pairs, &order);
    let mut segments = segments(&order, &bonds, parameters);
    // The sort is stable: within a class the segments keep the order that the chains gave them,
    // which keeps near what runs at one time.
    segments.sort_by_key(|segment| std::cmp::Reverse(class(&whole, segment, &bonds, parameters)));
    Ok(whole.hot.finish(segments.concat()))
}

/// How often each two pieces missed together; the lower number first.
fn pairs(whole: &Whole, graph: &Graph) -> BTreeMap<(PieceId, PieceId), u64> {
    let mut counts: BTreeMap<(PieceId, PieceId), u64> = BTreeMap::new();
    for joint in graph.joint_misses.iter().filter(|joint| joint.count > 0) {
        if let Some((a, b)) = whole.apart(joint.a, joint.b) {
            let count = counts.entry((a.min(b), a.max(b))).or_default();
            *count = count.saturating_add(joint.count);
        }
    }
    counts
}

fn together(
    whole: &Whole,
    (a, b): (PieceId, PieceId),
    count: u64,
    parameters: &JointParameters,
) -> Jump {
    let size = |piece: PieceId| whole.hot.sizes[piece.index()];
    Jump {
        from: whole.node(a),
        to: whole.node(b),
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

/// What holds neighbours in an order together.
struct Bonds {
    /// How often each two pieces missed together; the lower number first.
    joint: BTreeMap<(PieceId, PieceId), u64>,
    /// How often control goes from each piece to the one placed behind it, by the piece.
    falls: Vec<u64>,
    counts: Vec<u64>,
    /// How often each piece missed.
    misses: Vec<f64>,
}

impl Bonds {
    fn new(
        whole: &Whole,
        graph: &Graph,
        joint: BTreeMap<(PieceId, PieceId), u64>,
        order: &[PieceId],
    ) -> Bonds {
        let hot = &whole.hot;
        // A miss is in two pairs: with the one before and with the one behind.
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
        let flows = hot.flows().into_iter().filter(|flow| flow.may_fall);
        for flow in flows.filter(|flow| behind[flow.from.index()] == Some(flow.to)) {
            let fall = &mut falls[flow.from.index()];
            *fall = fall.saturating_add(flow.count);
        }
        Bonds {
            joint,
            falls,
            counts: hot.pieces.all().map(|piece| hot.count(piece)).collect(),
            misses: hot.pieces.all().map(most).collect(),
        }
    }

    /// The larger of two shares: of the executions of either that run from one into the other, of
    /// the misses of either that are joint ones.
    fn strength(&self, a: PieceId, b: PieceId) -> f64 {
        let (x, y) = (a.index(), b.index());
        let executions = self.counts[x].max(self.counts[y]).max(1) as f64;
        let misses = self.misses[x].max(self.misses[y]).max(1.0);
        let joint = self.joint.get(&(a.min(b), a.max(b))).copied().unwrap_or(0);
        (self.falls[x] as f64 / executions).max(joint as f64 / misses)
    }
}

/// The order, cut where little holds two neighbours together.
fn segments(order: &[PieceId], bonds: &Bonds, parameters: &JointParameters) -> Vec<Vec<PieceId>> {
    let chunks = order.chunk_by(|&a, &b| bonds.strength(a, b) >= parameters.cut_share);
    chunks.map(<[PieceId]>::to_vec).collect()
}

/// The class of a segment by how often a byte of it misses: 0 for never, each further one begins at
/// `class_factor` times the one before.
fn class(whole: &Whole, segment: &[PieceId], bonds: &Bonds, parameters: &JointParameters) -> u32 {
    let size = |piece: &PieceId| whole.hot.sizes[piece.index()] as f64;
    let bytes: f64 = segment.iter().map(size).sum();
    let fetched: f64 = segment.iter().map(|piece| size(piece) * bonds.misses[piece.index()]).sum();
    let (mean, mut bound, mut class) = (fetched / bytes.max(1.0), 1.0, 0);
    while mean >= bound && bound.is_finite() {
        bound *= parameters.class_factor;
        class += 1;
    }
    class
}
