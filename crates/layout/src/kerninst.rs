//! KernInst's code positioning: groups of functions, and hot chunks of chained blocks. A group is
//! the hot code under a root function.
//!
//! A. Tamches, B. P. Miller, "Dynamic kernel code optimization" (2001), sections 2.1 and 2.2.
//! Input: a graph. Output: its order. `docs/algorithms/kerninst.md` explains the idea and our
//! changes.

use crate::graph::{FunctionId, Graph, Ordered};
use crate::hot::{HotCode, PieceTransfer};
use crate::pettis_hansen::chained;
use crate::pieces::PieceId;
use crate::row::{AlgorithmRow, MakeOrder, Uses};
use crate::validate::{InputError, at_least, validate};
use std::collections::VecDeque;

/// KernInst's groups of functions with hot chunks.
pub(crate) const KERNINST: AlgorithmRow = AlgorithmRow {
    name: "kerninst",
    uses: Uses::Counts,
    order: MakeOrder::One(|graph| kerninst(graph, &Default::default())),
};

/// The parameters of KernInst's layout.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KernInstParameters {
    /// The root functions, in the order of their groups. When empty: the functions at which the
    /// kernel is entered, by entries.
    pub roots: Vec<FunctionId>,
    /// A block is hot when it ran more often than this share of the executions of its group's root
    /// (section 2.2).
    pub hot_share: f64,
}

impl Default for KernInstParameters {
    fn default() -> Self {
        KernInstParameters { roots: Vec::new(), hot_share: 0.05 }
    }
}

/// Places the groups one behind the other, then the blocks that ran but are hot in no group. Cold
/// code follows in its original order.
///
/// # Errors
/// The graph or a parameter breaks a rule.
pub(crate) fn kerninst(
    graph: &Graph,
    parameters: &KernInstParameters,
) -> Result<Ordered, InputError> {
    validate(graph)?;
    at_least("hot_share", parameters.hot_share, 0.0)?;
    let functions = graph.functions.len();
    if let Some(&function) = parameters.roots.iter().find(|root| root.index() >= functions) {
        return Err(InputError::RootFunction { function, functions });
    }
    let hot = HotCode::new(graph);
    let flows = hot.edge_transfers_by_function();
    let mut groups = RootGroups::new(&hot);
    let mut order = Vec::new();
    let roots = match parameters.roots.is_empty() {
        true => hot.roots(),
        false => parameters.roots.clone(),
    };
    for root in roots {
        for (function, pieces) in groups.group(root, parameters.hot_share) {
            order.extend(chunk(&hot, function, &pieces, &flows[function.index()]));
        }
    }
    for (function, pieces) in groups.rest() {
        order.extend(chunk(&hot, function, &pieces, &flows[function.index()]));
    }
    Ok(hot.finish(order))
}

/// The blocks of a chunk in chains. If the entry is one of them, it comes first.
fn chunk(
    hot: &HotCode,
    function: FunctionId,
    pieces: &[PieceId],
    flows: &[PieceTransfer],
) -> Vec<PieceId> {
    let holds_entry =
        hot.entry_is_hot(function) && pieces.first() == hot.functions[function.index()].first();
    chained(pieces, hot, holds_entry, flows)
}

struct RootGroups<'a> {
    hot: &'a HotCode<'a>,
    callees: Vec<Vec<FunctionId>>,
    /// Whether each function is in a group already.
    taken: Vec<bool>,
    placed: Vec<bool>,
}

impl<'a> RootGroups<'a> {
    fn new(hot: &'a HotCode<'a>) -> Self {
        let mut callees = vec![Vec::new(); hot.functions.len()];
        hot.arcs().into_keys().for_each(|(caller, callee)| callees[caller.index()].push(callee));
        RootGroups {
            hot,
            callees,
            taken: vec![false; hot.functions.len()],
            placed: vec![false; hot.pieces.len()],
        }
    }

    /// The group of a root, breadth first: every called function that has a hot block, with its hot
    /// chunk. The search continues only behind functions of the group, because callees of cold
    /// blocks are seldom hot.
    fn group(&mut self, root: FunctionId, hot_share: f64) -> Vec<(FunctionId, Vec<PieceId>)> {
        let threshold = hot_share * self.frequency(root);
        let mut group = Vec::new();
        let mut waiting = VecDeque::from([root]);
        while let Some(function) = waiting.pop_front() {
            if self.taken[function.index()] {
                continue;
            }
            let mut chunk: Vec<PieceId> = self.hot.functions[function.index()].to_vec();
            let entry = chunk.first().copied().filter(|_| self.hot.entry_is_hot(function));
            let is_hot = |piece: PieceId| self.hot.count(piece) as f64 > threshold;
            if !chunk.iter().any(|&piece| is_hot(piece)) {
                continue;
            }
            chunk.retain(|&piece| is_hot(piece) || Some(piece) == entry);
            self.taken[function.index()] = true;
            chunk.iter().for_each(|piece| self.placed[piece.index()] = true);
            waiting.extend(&self.callees[function.index()]);
            group.push((function, chunk));
        }
        group
    }

    /// How often a root was called, including entries from outside.
    fn frequency(&self, root: FunctionId) -> f64 {
        let seeds = self.hot.graph.seeds.iter();
        let entered =
            seeds.filter(|seed| self.hot.function_of(self.hot.pieces.of_block(seed.block)) == root);
        let entered: u128 = entered.map(|seed| u128::from(seed.count)).sum();
        (self.hot.entries(root) as f64).max(entered as f64)
    }

    /// The executed code that is in no hot chunk, function by function.
    fn rest(&self) -> Vec<(FunctionId, Vec<PieceId>)> {
        let unplaced = |(number, pieces): (usize, &Vec<PieceId>)| {
            let pieces =
                pieces.iter().copied().filter(|piece| !self.placed[piece.index()]).collect();
            (FunctionId(number as u32), pieces)
        };
        self.hot.functions.iter().enumerate().map(unplaced).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{BlockId, Call, Seed, SeedClass};

    /// ```text
    ///     f: 0 1      g: 2 3      h: 4
    ///     f, entered 100 times, calls g from 1 and h from 0; 3 and 4 ran only 5 times
    /// ```
    #[test]
    fn a_group_is_the_hot_code_under_its_root() {
        let call = |from, to, count| Call { from: BlockId(from), to: BlockId(to), count };
        let graph = Graph {
            sizes: vec![8; 5],
            counts: vec![100, 100, 90, 5, 5],
            glued: vec![false; 5],
            alignments: vec![1; 5],
            functions: vec![0..2, 2..4, 4..5],
            calls: vec![call(1, 2, 90), call(0, 4, 5)],
            seeds: vec![Seed { block: BlockId(0), class: SeedClass::SystemCall, count: 100 }],
            ..Graph::default()
        };
        let hot = HotCode::new(&graph);
        let mut groups = RootGroups::new(&hot);
        let group = groups.group(FunctionId(0), 0.05);
        assert_eq!(
            group,
            [(FunctionId(0), vec![PieceId(0), PieceId(1)]), (FunctionId(1), vec![PieceId(2)])]
        );
        // h is hot under itself: it was called five times and ran five times.
        assert_eq!(
            kerninst(&graph, &KernInstParameters::default()).unwrap().order.0,
            [0, 1, 2, 4, 3].map(BlockId)
        );
        let nowhere =
            KernInstParameters { roots: vec![FunctionId(3)], ..KernInstParameters::default() };
        assert!(kerninst(&graph, &nowhere).is_err());
    }
}
