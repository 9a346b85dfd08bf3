//! The units that algorithms move: a piece is a block together with all the blocks glued behind it.
//!
//! Input: a valid graph. Output: its pieces, and the piece of each block. This module orders
//! nothing.
//!
//! ```text
//! blocks   0 | 1 | 2g| 3g| 4 | 5g      g: glued
//! pieces   0 |     1     |   2
//! ```

use crate::graph::{BlockId, Graph, Order, Ordered};
use std::ops::Range;

/// The number of a piece, in the original order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PieceId(pub u32);

impl PieceId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The pieces of a graph.
pub(crate) struct Pieces {
    /// The first block of each piece, and the number of blocks at the end.
    starts: Vec<u32>,
    /// The piece of each block.
    of_block: Vec<PieceId>,
}

impl Pieces {
    pub(crate) fn new(graph: &Graph) -> Self {
        let mut starts = Vec::new();
        let mut of_block = Vec::with_capacity(graph.len());
        for (block, &glued) in graph.glued.iter().enumerate() {
            if !glued {
                starts.push(block as u32);
            }
            of_block.push(PieceId(starts.len() as u32 - 1));
        }
        starts.push(graph.len() as u32);
        Pieces { starts, of_block }
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = PieceId> + use<> {
        (0..self.len() as u32).map(PieceId)
    }

    pub(crate) fn blocks(&self, piece: PieceId) -> Range<u32> {
        self.starts[piece.index()]..self.starts[piece.index() + 1]
    }

    pub(crate) fn of_block(&self, block: BlockId) -> PieceId {
        self.of_block[block.index()]
    }

    /// The pieces that start in each function, in the original order. A function whose entry is
    /// glued to the function before has only the pieces that start in itself.
    pub(crate) fn by_function(&self, graph: &Graph) -> Vec<Range<u32>> {
        let first_from =
            |block: u32| self.starts[..self.len()].partition_point(|&start| start < block) as u32;
        graph.functions.iter().map(|f| first_from(f.start)..first_from(f.end)).collect()
    }

    /// The order of blocks for an order of pieces. The first `hot` pieces are arranged.
    pub(crate) fn expand(&self, pieces: &[PieceId], hot: usize) -> Ordered {
        let blocks = |pieces: &[PieceId]| {
            pieces.iter().flat_map(|&p| self.blocks(p)).map(BlockId).collect::<Vec<_>>()
        };
        let mut order = blocks(&pieces[..hot]);
        let hot_blocks = order.len();
        order.extend(blocks(&pieces[hot..]));
        Ordered { order: Order(order), hot: hot_blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glued_blocks_follow_their_piece_even_into_the_next_function() {
        let graph = Graph {
            sizes: vec![1; 6],
            glued: vec![false, false, true, true, false, true],
            functions: vec![0..2, 2..3, 3..6],
            ..Graph::default()
        };
        let pieces = Pieces::new(&graph);
        assert_eq!(pieces.all().map(|p| pieces.blocks(p)).collect::<Vec<_>>(), [0..1, 1..4, 4..6]);
        assert_eq!(pieces.by_function(&graph), [0..2, 2..2, 2..3]);
        let ordered = pieces.expand(&[PieceId(2), PieceId(0), PieceId(1)], 1);
        assert_eq!(ordered.order.0.iter().map(|b| b.0).collect::<Vec<_>>(), [4, 5, 0, 1, 2, 3]);
        assert_eq!(ordered.hot, 2);
    }
}
