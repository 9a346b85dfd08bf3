//! ext-TSP over the whole graph at once: blocks of all functions, with calls and returns as jumps.
//!
//! Takes a graph; gives its order. `docs/algorithms/ext-tsp-global.md` tells the idea; the merging
//! stands in `chains.rs`.

use crate::chains::arrange;
use crate::ext_tsp_parameters::ExtTspParameters;
use crate::graph::{BlockId, Graph, Ordered};
use crate::hot::Hot;
use crate::jumps::{Jump, JumpKind, Node};
use crate::pieces::PieceId;
use crate::returns::calls_and_returns;
use crate::validate::{InputError, validate};

/// Arranges all blocks that ran in one ext-TSP. What never ran goes behind, as it was. The
/// parameters for functions are not used.
pub fn ext_tsp_global(graph: &Graph, parameters: &ExtTspParameters) -> Result<Ordered, InputError> {
    validate(graph)?;
    parameters.validate()?;
    let whole = Whole::new(graph);
    Ok(whole.hot.finish(whole.arrange(&whole.transfers(), parameters)))
}

/// All pieces that ran, as the nodes of one graph.
pub(crate) struct Whole<'g> {
    pub hot: Hot<'g>,
    pub pieces: Vec<PieceId>,
}

impl<'g> Whole<'g> {
    pub fn new(graph: &'g Graph) -> Whole<'g> {
        let hot = Hot::new(graph);
        let pieces = hot.pieces.all().filter(|&p| hot.ran(p)).collect();
        Whole { hot, pieces }
    }

    /// The node of a piece that ran.
    pub fn node(&self, piece: PieceId) -> u32 {
        self.pieces.partition_point(|&p| p < piece) as u32
    }

    /// The pieces of two blocks, if they are different ones and both ran.
    pub fn apart(&self, a: BlockId, b: BlockId) -> Option<(PieceId, PieceId)> {
        let (a, b) = (self.hot.pieces.of_block(a), self.hot.pieces.of_block(b));
        (a != b && self.hot.ran(a) && self.hot.ran(b)).then_some((a, b))
    }

    /// Edges, calls and returns between them.
    pub fn transfers(&self) -> Vec<Jump> {
        let hot = &self.hot;
        let alignment =
            |piece: PieceId| hot.graph.alignments[hot.pieces.blocks(piece).start as usize];
        let edges = hot.flows().into_iter().map(|flow| Jump {
            from: self.node(flow.from),
            to: self.node(flow.to),
            from_end: flow.from_end,
            to_start: flow.to_start,
            count: flow.count,
            kind: JumpKind::Control {
                // An aligned block begins behind padding, which nothing may run into.
                may_fall: flow.may_fall && alignment(flow.to) == 1,
                conditional: flow.conditional,
            },
        });
        let calls = calls_and_returns(hot.graph).into_iter().filter_map(|(from, to, count)| {
            let (from_piece, to_piece) = self.apart(from, to)?;
            Some(Jump {
                from: self.node(from_piece),
                to: self.node(to_piece),
                from_end: hot.end_in_piece(from),
                to_start: hot.start_in_piece(to),
                count,
                kind: JumpKind::Control { may_fall: false, conditional: true },
            })
        });
        edges.chain(calls).collect()
    }

    /// The order that merging along `jumps` gives.
    pub fn arrange(&self, jumps: &[Jump], parameters: &ExtTspParameters) -> Vec<PieceId> {
        let node =
            |&p: &PieceId| Node { size: self.hot.sizes[p.index()], count: self.hot.count(p) };
        let nodes: Vec<Node> = self.pieces.iter().map(node).collect();
        let order = arrange(&nodes, jumps, None, parameters);
        order.into_iter().map(|node| self.pieces[node as usize]).collect()
    }
}
