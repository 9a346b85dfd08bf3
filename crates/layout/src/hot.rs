//! The hot part of a graph, in pieces. Every algorithm that separates hot from cold code starts
//! from it.
//!
//! Input: a valid graph. Output: the hot pieces, function by function, and the transfers between
//! them. This module orders only the cold part, which keeps its original order.

use crate::graph::{BlockId, EdgeKind, FunctionId, Graph, Ordered};
use crate::pieces::{PieceId, Pieces};
use std::collections::BTreeMap;

/// The pieces of a graph with their counts.
pub(crate) struct HotCode<'g> {
    pub graph: &'g Graph,
    pub pieces: Pieces,
    /// The bytes of each piece, without the alignment inside it.
    pub sizes: Vec<u64>,
    /// The hot pieces by the function in which they start, in ascending order.
    pub functions: Vec<Vec<PieceId>>,
    /// The count of each piece: the largest count of its blocks.
    counts: Vec<u64>,
    /// The function in which each piece starts.
    function_of: Vec<FunctionId>,
    /// The bytes from the start of a block's piece to the block.
    offsets: Vec<u64>,
}

/// A transfer of control between two different hot pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceTransfer {
    pub from: PieceId,
    pub to: PieceId,
    /// The bytes from the start of `from` to the end of the block that the transfer leaves.
    pub from_end: u64,
    /// The bytes from the start of `to` to the block that the transfer reaches.
    pub to_start: u64,
    pub count: u64,
    /// Whether the transfer can become a fall-through. An indirect jump cannot.
    pub may_fall: bool,
    /// Whether the source block has another successor.
    pub conditional: bool,
}

impl<'g> HotCode<'g> {
    pub(crate) fn new(graph: &'g Graph) -> Self {
        let pieces = Pieces::new(graph);
        let mut offsets = vec![0; graph.len()];
        let mut sizes = Vec::with_capacity(pieces.len());
        let mut counts = Vec::with_capacity(pieces.len());
        for piece in pieces.all() {
            let mut size = 0;
            for block in pieces.blocks(piece) {
                offsets[block as usize] = size;
                size += u64::from(graph.sizes[block as usize]);
            }
            sizes.push(size);
            counts.push(pieces.blocks(piece).map(|b| graph.counts[b as usize]).max().unwrap_or(0));
        }
        let mut function_of = vec![FunctionId(0); pieces.len()];
        let mut functions = Vec::with_capacity(graph.functions.len());
        for (index, range) in pieces.by_function(graph).into_iter().enumerate() {
            range.clone().for_each(|p| function_of[p as usize] = FunctionId(index as u32));
            functions.push(range.map(PieceId).filter(|p| counts[p.index()] > 0).collect());
        }
        HotCode { graph, pieces, sizes, functions, counts, function_of, offsets }
    }

    pub(crate) fn count(&self, piece: PieceId) -> u64 {
        self.counts[piece.index()]
    }

    pub(crate) fn is_hot(&self, piece: PieceId) -> bool {
        self.count(piece) > 0
    }

    pub(crate) fn function_of(&self, piece: PieceId) -> FunctionId {
        self.function_of[piece.index()]
    }

    /// The start and the end of a piece that is placed behind `address`, with alignments.
    pub(crate) fn range_from(&self, piece: PieceId, address: u64) -> (u64, u64) {
        let blocks = self.pieces.blocks(piece);
        let aligned = |address: u64, block: u32| {
            address.next_multiple_of(u64::from(self.graph.alignments[block as usize]))
        };
        let start = aligned(address, blocks.start);
        (
            start,
            blocks.fold(start, |end, block| {
                aligned(end, block) + u64::from(self.graph.sizes[block as usize])
            }),
        )
    }

    /// The largest number of bytes that a piece needs at any address, including the loss to
    /// alignment.
    pub(crate) fn most_bytes(&self, piece: PieceId) -> u64 {
        let padding = self
            .pieces
            .blocks(piece)
            .map(|b| u64::from(self.graph.alignments[b as usize]) - 1)
            .sum::<u64>();
        self.sizes[piece.index()] + padding
    }

    /// Whether a transfer goes from the end of a piece to the start of another. Side by side, the
    /// two need no jump.
    pub(crate) fn adjoining(&self, flow: &PieceTransfer) -> bool {
        flow.from_end == self.sizes[flow.from.index()] && flow.to_start == 0
    }

    /// The position of a hot piece among the hot pieces of its function.
    pub(crate) fn local(&self, piece: PieceId) -> usize {
        self.functions[self.function_of(piece).index()].partition_point(|&p| p < piece)
    }

    /// Whether the function's entry starts a piece of its own and is hot. Then it is the first of
    /// the function's pieces.
    pub(crate) fn entry_is_hot(&self, function: FunctionId) -> bool {
        let entry = self.graph.functions[function.index()].start;
        self.functions[function.index()]
            .first()
            .is_some_and(|&first| self.pieces.blocks(first).start == entry)
    }

    /// The fetched bytes for each byte of hot code in some functions.
    pub(crate) fn density(&self, functions: &[FunctionId]) -> f64 {
        self.work(functions) / self.bytes(functions).max(1) as f64
    }

    /// The bytes of the hot pieces in some functions.
    pub(crate) fn bytes(&self, functions: &[FunctionId]) -> u64 {
        functions
            .iter()
            .flat_map(|f| &self.functions[f.index()])
            .map(|p| self.sizes[p.index()])
            .sum()
    }

    /// The bytes fetched in some functions: the sum over their blocks of size times count.
    pub(crate) fn work(&self, functions: &[FunctionId]) -> f64 {
        let blocks = functions
            .iter()
            .flat_map(|f| &self.functions[f.index()])
            .flat_map(|&p| self.pieces.blocks(p));
        blocks
            .map(|b| f64::from(self.graph.sizes[b as usize]) * self.graph.counts[b as usize] as f64)
            .sum()
    }

    /// The bytes from the start of a block's piece to the block.
    pub(crate) fn start_in_piece(&self, block: BlockId) -> u64 {
        self.offsets[block.index()]
    }

    /// The bytes from the start of a block's piece to the block's end.
    pub(crate) fn end_in_piece(&self, block: BlockId) -> u64 {
        self.offsets[block.index()] + u64::from(self.graph.sizes[block.index()])
    }

    /// The transfers within each function.
    pub(crate) fn edge_transfers_by_function(&self) -> Vec<Vec<PieceTransfer>> {
        let mut by_function = vec![Vec::new(); self.functions.len()];
        for flow in self.edge_transfers() {
            let function = self.function_of(flow.from);
            if function == self.function_of(flow.to) {
                by_function[function.index()].push(flow);
            }
        }
        by_function
    }

    /// The edges between different hot pieces, in the order of the graph's edges, without edges
    /// that were never taken.
    pub(crate) fn edge_transfers(&self) -> Vec<PieceTransfer> {
        let forks = forks(self.graph);
        let executed = self.graph.edges.iter().filter(|e| e.count > 0);
        executed
            .map(|edge| PieceTransfer {
                from: self.pieces.of_block(edge.from),
                to: self.pieces.of_block(edge.to),
                from_end: self.end_in_piece(edge.from),
                to_start: self.start_in_piece(edge.to),
                count: edge.count,
                may_fall: edge.kind != EdgeKind::Indirect,
                conditional: forks[edge.from.index()],
            })
            .filter(|flow| flow.from != flow.to && self.is_hot(flow.from) && self.is_hot(flow.to))
            .collect()
    }

    /// The calls and then the edges between different hot pieces. None of them may become a
    /// fall-through.
    pub(crate) fn transfers(&self) -> impl Iterator<Item = PieceTransfer> {
        let calls = self.graph.calls.iter().map(|c| (c.from, c.to, c.count));
        let jumps = self.graph.edges.iter().map(|e| (e.from, e.to, e.count));
        calls.chain(jumps).filter(|&(_, _, count)| count > 0).filter_map(|(from, to, count)| {
            let (from_piece, to_piece) = (self.pieces.of_block(from), self.pieces.of_block(to));
            let between_hot =
                from_piece != to_piece && self.is_hot(from_piece) && self.is_hot(to_piece);
            between_hot.then(|| PieceTransfer {
                from: from_piece,
                to: to_piece,
                from_end: self.end_in_piece(from),
                to_start: self.start_in_piece(to),
                count,
                may_fall: false,
                conditional: true,
            })
        })
    }

    /// How often each function entered another, by calls and by jumps, for hot code. Ascending by
    /// caller, then callee.
    pub(crate) fn arcs(&self) -> BTreeMap<(FunctionId, FunctionId), u128> {
        let mut arcs = BTreeMap::new();
        for transfer in self.transfers() {
            let (caller, callee) = (self.function_of(transfer.from), self.function_of(transfer.to));
            if caller != callee {
                *arcs.entry((caller, callee)).or_insert(0) += u128::from(transfer.count);
            }
        }
        arcs
    }

    /// The count of a function's entry block.
    pub(crate) fn entries(&self, function: FunctionId) -> u64 {
        self.graph.counts[self.graph.functions[function.index()].start as usize]
    }

    /// Every function that ran. First the functions at which the kernel is entered, by entries,
    /// then the others, by executions.
    pub(crate) fn roots(&self) -> Vec<FunctionId> {
        let mut entered: BTreeMap<FunctionId, u128> = BTreeMap::new();
        for seed in &self.graph.seeds {
            let piece = self.pieces.of_block(seed.block);
            if self.is_hot(piece) {
                *entered.entry(self.function_of(piece)).or_insert(0) += u128::from(seed.count);
            }
        }
        let mut roots: Vec<(FunctionId, u128)> =
            entered.iter().map(|(&function, &count)| (function, count)).collect();
        roots.sort_by_key(|&(function, count)| (std::cmp::Reverse(count), function));
        let mut others: Vec<FunctionId> = (0..self.functions.len())
            .filter(|&f| !self.functions[f].is_empty())
            .map(|f| FunctionId(f as u32))
            .filter(|f| !entered.contains_key(f))
            .collect();
        let most = |f: FunctionId| self.functions[f.index()].iter().map(|&p| self.count(p)).max();
        others.sort_by_key(|&f| (std::cmp::Reverse(most(f)), f));
        roots.into_iter().map(|(function, _)| function).chain(others).collect()
    }

    /// The whole order: `hot`, which must have every hot piece exactly once, and then the cold
    /// pieces in their original order.
    pub(crate) fn finish(&self, mut hot: Vec<PieceId>) -> Ordered {
        let arranged = hot.len();
        let mut placed = vec![false; self.pieces.len()];
        hot.iter().for_each(|p| placed[p.index()] = true);
        hot.extend(self.pieces.all().filter(|p| !placed[p.index()]));
        self.pieces.expand(&hot, arranged)
    }
}

/// Whether each block has more than one successor, according to its edges.
fn forks(graph: &Graph) -> Vec<bool> {
    let mut successors: Vec<Option<BlockId>> = vec![None; graph.len()];
    let mut forks = vec![false; graph.len()];
    for edge in &graph.edges {
        let first = *successors[edge.from.index()].get_or_insert(edge.to);
        forks[edge.from.index()] |= first != edge.to;
    }
    forks
}
