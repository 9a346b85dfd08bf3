//! Builds an order in which addresses matter: pieces one behind the other, with cold code in the
//! gaps.
//!
//! Input: pieces to place and addresses to reach. Output: the order. Addresses start at 0 and
//! follow from the graph's sizes and alignments. Address 0 stands for any start of a cache line.

use crate::hot::HotCode;
use crate::pieces::PieceId;

/// The order so far, and the address at its end.
pub(crate) struct Filling<'a> {
    hot: &'a HotCode<'a>,
    pub order: Vec<PieceId>,
    pub address: u64,
    /// The cold pieces in the original order that were neither placed nor skipped.
    seldom: std::vec::IntoIter<PieceId>,
}

impl<'a> Filling<'a> {
    pub(crate) fn new(hot: &'a HotCode<'a>) -> Filling<'a> {
        Filling {
            hot,
            order: Vec::new(),
            address: 0,
            seldom: hot.pieces.all().filter(|&p| !hot.is_hot(p)).collect::<Vec<_>>().into_iter(),
        }
    }

    /// The start and the end of a piece if it came next.
    pub(crate) fn range(&self, piece: PieceId) -> (u64, u64) {
        self.hot.range_from(piece, self.address)
    }

    pub(crate) fn put(&mut self, piece: PieceId) {
        self.address = self.range(piece).1;
        self.order.push(piece);
    }

    /// Places cold pieces in the original order, until `end` is reached or none is left. A piece
    /// that would reach more than `beyond` bytes past `end` is skipped and stays in the cold part.
    pub(crate) fn fill(&mut self, end: u64, beyond: u64) {
        while self.address < end {
            let (hot, address, limit) = (self.hot, self.address, end.saturating_add(beyond));
            match self.seldom.find(|&piece| hot.range_from(piece, address).1 <= limit) {
                Some(piece) => self.put(piece),
                None => return,
            }
        }
    }
}
