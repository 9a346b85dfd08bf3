//! Temporal-relationship edges: Gloy and Smith's temporal relationship graph (TOPLAS 1999, section
//! 3.1).
//!
//! Input: the translation blocks that run, in their order. Output: for each pair of chunks of
//! movable functions, how often one ran between two runs of the other. Two runs count only when the
//! code that ran in between is at most twice as large as the cache. Code that does not move (entry
//! code, modules, user code) counts there in lines of 64 bytes and is in no pair. This module never
//! looks at an order.

use crate::ideal::{CacheUnit, CacheUnits, IdealCache};
use image::Image;
use image::address::LinkAddr;
use std::collections::{BTreeMap, HashMap};

/// Bytes of recently run code that are remembered: twice the cache for which `gloy-smith` lays out
/// code.
pub(crate) const RECENT_BYTES: u64 = 2 * 8 * 1024;
/// Bytes of a line of code that does not move.
const LINE: u64 = 64;

/// Counts temporal-relationship edges while the execution is followed.
pub(crate) struct TemporalEdges {
    recent: IdealCache,
    units: CacheUnits,
    counts: HashMap<(CacheUnit, CacheUnit), u64>,
}

impl TemporalEdges {
    pub(crate) fn new(recent_bytes: u64, image: &Image) -> TemporalEdges {
        TemporalEdges {
            recent: IdealCache::new(recent_bytes),
            units: CacheUnits::of_chunks(LINE, image),
            counts: HashMap::new(),
        }
    }

    /// Adds the next translation block: its start, and the lengths of its instructions.
    pub(crate) fn define(&mut self, image: &Image, start: u64, lengths: &[u8]) {
        let known = self.units.count();
        self.units.define(image, start, lengths);
        (known..self.units.count())
            .for_each(|unit| self.recent.add_unit(self.units.bytes(unit as CacheUnit)));
    }

    /// The first `reached` instructions of a translation block ran.
    #[inline]
    pub(crate) fn ran(&mut self, translation: u32, reached: u32) {
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

    /// The pairs; a chunk is named by its first block, and the lower address stands first.
    pub(crate) fn counts(&self, image: &Image) -> BTreeMap<(LinkAddr, LinkAddr), u64> {
        self.units.by_address(image, &self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::examples::row_of_blocks;

    /// Each block is a translation block of one instruction. With `apart`, each block is a
    /// function; otherwise all blocks are one function.
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

    /// The example of the paper: a chunk that ran between two runs of another counts once each
    /// time.
    #[test]
    fn a_chunk_between_two_runs_of_another_is_counted() {
        // 0 1 0 2 0: chunk 1 ran between the first two runs of 0, and 2 between the next two.
        // Neither 1 nor 2 runs again.
        assert_eq!(followed(&[9, 9, 9], true, 1000, &[0, 1, 0, 2, 0]), [(0, 1, 1), (0, 2, 1)]);
        // 1 runs again: 0 and 2 ran since, and each counts once.
        let back = followed(&[9, 9, 9], true, 1000, &[0, 1, 0, 2, 0, 1]);
        assert_eq!(back, [(0, 1, 2), (0, 2, 1), (1, 2, 1)]);
    }

    #[test]
    fn a_chunk_that_runs_again_after_too_much_code_is_not_counted() {
        assert_eq!(followed(&[90, 90, 90], true, 200, &[0, 1, 2, 0, 1, 2]), []);
        assert_eq!(followed(&[90, 90, 90], true, 270, &[0, 1, 2, 0]), [(0, 1, 1), (0, 2, 1)]);
    }

    #[test]
    fn blocks_of_one_chunk_count_as_one() {
        assert_eq!(followed(&[100, 100, 100], false, 1000, &[0, 1, 2, 1, 0]), []);
        // The next chunk begins 256 bytes behind the entry.
        assert_eq!(followed(&[100, 200, 100, 100], false, 1000, &[0, 3, 1, 3]), [(0, 3, 2)]);
    }
}
