//! An order whose addresses matter: pieces one behind the other, and gaps filled with what never
//! ran.
//!
//! Takes pieces to put and addresses to reach; gives the order. Addresses are counted from 0 with
//! the graph's sizes and alignments; where 0 comes to lie does not matter, as long as it starts a
//! cache line.

use crate::hot::Hot;
use crate::pieces::PieceId;

/// The order so far, and where it ends.
pub(crate) struct Filling<'a> {
    hot: &'a Hot<'a>,
    pub order: Vec<PieceId>,
    pub address: u64,
    /// What never ran, in the original order, as far as it has not been placed or passed over.
    seldom: std::vec::IntoIter<PieceId>,
}

impl<'a> Filling<'a> {
    pub fn new(hot: &'a Hot<'a>) -> Filling<'a> {
        Filling {
            hot,
            order: Vec::new(),
            address: 0,
            seldom: hot.pieces.all().filter(|&p| !hot.ran(p)).collect::<Vec<_>>().into_iter(),
        }
    }

    /// Where a piece would start and end if it came next.
    pub fn range(&self, piece: PieceId) -> (u64, u64) {
        self.hot.range_from(piece, self.address)
    }

    pub fn put(&mut self, piece: PieceId) {
        self.address = self.range(piece).1;
        self.order.push(piece);
    }

    /// Puts seldom executed pieces, in the original order, until `end` is reached or none is left.
    /// One that would reach more than `beyond` bytes behind it stays in the cold part.
    pub fn fill(&mut self, end: u64, beyond: u64) {
        while self.address < end {
            let (hot, address, limit) = (self.hot, self.address, end.saturating_add(beyond));
            match self.seldom.find(|&piece| hot.range_from(piece, address).1 <= limit) {
                Some(piece) => self.put(piece),
                None => return,
            }
        }
    }
}
