//! ext-TSP over the whole graph at once: blocks of all functions, with calls and returns as jumps.
//!
//! Input: a graph. Output: its order. `docs/algorithms/ext-tsp-global.md` explains the idea.
//! `chains.rs` has the merging.

use crate::chains::arrange;
use crate::ext_tsp_parameters::ExtTspParameters;
use crate::graph::{BlockId, Graph, Ordered};
use crate::hot::HotCode;
use crate::jumps::{ChainNode, JumpKind, ScoredJump};
use crate::pieces::PieceId;
use crate::returns::calls_and_returns;
use crate::row::{AlgorithmRow, MakeOrder, Uses};
use crate::validate::{InputError, validate};

/// One ext-TSP over the blocks of all functions, calls and returns too, cold code behind.
pub(crate) const EXT_TSP_GLOBAL: AlgorithmRow = AlgorithmRow {
    name: "ext-tsp-global",
    uses: Uses::Counts,
    order: MakeOrder::One(|graph| ext_tsp_global(graph, &Default::default())),
};

/// Orders all hot blocks by one ext-TSP. Cold code follows in its original order. The parameters
/// for functions are not used.
///
/// # Errors
/// The graph or a parameter breaks a rule.
pub fn ext_tsp_global(graph: &Graph, parameters: &ExtTspParameters) -> Result<Ordered, InputError> {
    validate(graph)?;
    parameters.validate()?;
    let global = GlobalGraph::new(graph);
    Ok(global.hot.finish(global.arrange(&global.transfers(), parameters)))
}

/// All hot pieces, as the nodes of one graph.
pub(crate) struct GlobalGraph<'g> {
    pub hot: HotCode<'g>,
    pub pieces: Vec<PieceId>,
}

impl<'g> GlobalGraph<'g> {
    pub(crate) fn new(graph: &'g Graph) -> GlobalGraph<'g> {
        let hot = HotCode::new(graph);
        let pieces = hot.pieces.all().filter(|&p| hot.is_hot(p)).collect();
        GlobalGraph { hot, pieces }
    }

    /// The node of a hot piece.
    pub(crate) fn node(&self, piece: PieceId) -> u32 {
        self.pieces.partition_point(|&p| p < piece) as u32
    }

    /// The pieces of two blocks, if the pieces differ and both are hot.
    pub(crate) fn different_pieces(&self, a: BlockId, b: BlockId) -> Option<(PieceId, PieceId)> {
        let (a, b) = (self.hot.pieces.of_block(a), self.hot.pieces.of_block(b));
        (a != b && self.hot.is_hot(a) && self.hot.is_hot(b)).then_some((a, b))
    }

    /// The edges, calls and returns between hot pieces.
    pub(crate) fn transfers(&self) -> Vec<ScoredJump> {
        let hot = &self.hot;
        let alignment =
            |piece: PieceId| hot.graph.alignments[hot.pieces.blocks(piece).start as usize];
        let edges = hot.edge_transfers().into_iter().map(|flow| ScoredJump {
            from: self.node(flow.from),
            to: self.node(flow.to),
            from_end: flow.from_end,
            to_start: flow.to_start,
            count: flow.count,
            kind: JumpKind::Control {
                // An aligned block begins behind padding. Nothing may run into padding.
                may_fall: flow.may_fall && alignment(flow.to) == 1,
                conditional: flow.conditional,
            },
        });
        let calls = calls_and_returns(hot.graph).into_iter().filter_map(|(from, to, count)| {
            let (from_piece, to_piece) = self.different_pieces(from, to)?;
            Some(ScoredJump {
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
    pub(crate) fn arrange(
        &self,
        jumps: &[ScoredJump],
        parameters: &ExtTspParameters,
    ) -> Vec<PieceId> {
        let node =
            |&p: &PieceId| ChainNode { size: self.hot.sizes[p.index()], count: self.hot.count(p) };
        let nodes: Vec<ChainNode> = self.pieces.iter().map(node).collect();
        let order = arrange(&nodes, jumps, None, parameters);
        order.into_iter().map(|node| self.pieces[node as usize]).collect()
    }
}
