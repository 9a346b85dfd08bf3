//! Which chunks of code alternate: Gloy and Smith's temporal relationship graph (TOPLAS 1999,
//! section 3.1).
//!
//! Takes what runs, translation by translation; gives for each pair of chunks of functions that may
//! move how often one ran between two runs of the other, as long as no more than twice a cache of
//! other code had run in between. Code that does not move (entry code, modules, user code) takes up
//! its part of that, in lines of 64 bytes, and is in no pair. Never looks at an order.

use crate::ideal::{IdealCache, Unit, Units};
use image::Image;
use image::address::LinkAddr;
use std::collections::{BTreeMap, HashMap};

/// Bytes of code that ran last and is remembered: twice the cache that `gloy-smith` lays out for.
pub const RECENT_BYTES: u64 = 2 * 8 * 1024;
/// Bytes of a line of code that does not move.
const LINE: u64 = 64;

/// Follows the execution and counts.
pub struct TemporalEdges {
    recent: IdealCache,
    units: Units,
    counts: HashMap<(Unit, Unit), u64>,
}

impl TemporalEdges {
    pub fn new(recent_bytes: u64, image: &Image) -> TemporalEdges {
        TemporalEdges {
            recent: IdealCache::new(recent_bytes),
            units: Units::of_chunks(LINE, image),
            counts: HashMap::new(),
        }
    }

    /// Learns the next translation: where it starts, and the lengths of its instructions.
    pub fn define(&mut self, image: &Image, start: u64, lengths: &[u8]) {
        let known = self.units.count();
        self.units.define(image, start, lengths);
        (known..self.units.count())
            .for_each(|unit| self.recent.add_unit(self.units.bytes(unit as Unit)));
    }

    /// The first `reached` instructions of a translation ran.
    #[inline]
    pub fn ran(&mut self, translation: u32, reached: u32) {
        for unit in self.units.fetched(translation, reached) {
            if self.units.block(unit).is_some() {
                let between =
                    self.recent.since(unit).filter(|&other| self.units.block(other).is_some());
                for other in between {
                    *self.counts.entry((unit.min(other), unit.max(other))).or_insert(0) += 1;
                }
            }
            self.recent.fetch(unit);
        }
    }

    /// The pairs, each chunk by its first block, the lower address first.
    pub fn counts(&self, image: &Image) -> BTreeMap<(LinkAddr, LinkAddr), u64> {
        self.units.by_address(image, &self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::examples::row_of_blocks;

    /// Each block is a translation of one instruction; a function of its own if `apart`, else all
    /// are one.
    fn followed(sizes: &[u32], apart: bool, recent: u64, ran: &[u32]) -> Vec<(usize, usize, u64)> {
        let image = row_of_blocks(sizes, apart);
        let mut temporal_edges = TemporalEdges::new(recent, &image);
        for block in &image.blocks {
            temporal_edges.define(&image, block.addr.0, &[block.size as u8]);
        }
        ran.iter().for_each(|&translation| temporal_edges.ran(translation, 1));
        let number = |addr: LinkAddr| image.block_at(addr).unwrap().0 as usize;
        let counts = temporal_edges.counts(&image).into_iter();
        counts.map(|((a, b), count)| (number(a), number(b), count)).collect()
    }

    /// The paper's example: what ran between two runs of the same is counted once for each time.
    #[test]
    fn what_ran_between_two_runs_alternates() {
        // 0 1 0 2 0: 1 between the first two runs of 0, 2 between the next; 1 and 2 never come
        // back.
        assert_eq!(followed(&[9, 9, 9], true, 1000, &[0, 1, 0, 2, 0]), [(0, 1, 1), (0, 2, 1)]);
        // 1 comes back: 0 and 2 each ran since, once each however often.
        let back = followed(&[9, 9, 9], true, 1000, &[0, 1, 0, 2, 0, 1]);
        assert_eq!(back, [(0, 1, 2), (0, 2, 1), (1, 2, 1)]);
    }

    #[test]
    fn what_came_back_after_more_than_is_remembered_did_not_alternate() {
        assert_eq!(followed(&[90, 90, 90], true, 200, &[0, 1, 2, 0, 1, 2]), []);
        assert_eq!(followed(&[90, 90, 90], true, 270, &[0, 1, 2, 0]), [(0, 1, 1), (0, 2, 1)]);
    }

    #[test]
    fn blocks_of_one_chunk_are_one() {
        assert_eq!(followed(&[100, 100, 100], false, 1000, &[0, 1, 2, 1, 0]), []);
        // From 256 bytes behind the entry on it is the next chunk.
        assert_eq!(followed(&[100, 200, 100, 100], false, 1000, &[0, 3, 1, 3]), [(0, 3, 2)]);
    }
}
