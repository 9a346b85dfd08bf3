//! Joint misses: which code misses together.
//!
//! Input: the translation blocks that run, in their order. Output: for each pair of movable blocks,
//! how often they missed one directly after the other in an *ideal* cache. That cache is as large
//! as a real one and fully associative, evicts the least recently used unit, and is packed to the
//! byte, so that it holds blocks and not lines. A block misses in this cache because of what the
//! program does, not because of where the code lies. Code that does not move (entry code, modules,
//! user code) shares the cache in lines of 64 bytes and is in no pair. This module never looks at
//! an order.

use crate::BlockEpochsTable;
use crate::epochs::WorkingSetEpochs;
use crate::ideal::{CacheUnit, CacheUnits, IdealCache};
use image::Image;
use image::address::LinkAddr;
use std::collections::{BTreeMap, HashMap};

/// Bytes of the ideal cache: the L1 instruction cache of most current processors.
pub(crate) const CACHE_BYTES: u64 = 32 * 1024;
/// Bytes of a line of code that does not move.
const LINE: u64 = 64;

/// Counts joint misses while the execution is followed.
pub(crate) struct JointMisses {
    cache: IdealCache,
    units: CacheUnits,
    /// The block that missed last.
    last: Option<CacheUnit>,
    counts: HashMap<(CacheUnit, CacheUnit), u64>,
    epochs: WorkingSetEpochs,
}

impl JointMisses {
    /// `padding`: bytes in front of each function's entry.
    pub(crate) fn new(cache_bytes: u64, padding: u64) -> JointMisses {
        JointMisses {
            cache: IdealCache::new(cache_bytes),
            units: CacheUnits::new(LINE, padding),
            last: None,
            counts: HashMap::new(),
            epochs: WorkingSetEpochs::new(cache_bytes),
        }
    }

    /// Adds the next translation block: its start, and the lengths of its instructions.
    pub(crate) fn define(&mut self, image: &Image, start: u64, lengths: &[u8]) {
        let known = self.units.count();
        self.units.define(image, start, lengths);
        (known..self.units.count())
            .for_each(|unit| self.cache.add_unit(self.units.bytes(unit as CacheUnit)));
    }

    /// The first `reached` instructions of a translation block ran.
    #[inline]
    pub(crate) fn ran(&mut self, translation: u32, reached: u32) {
        for unit in self.units.fetched(translation, reached) {
            let hit = self.cache.fetch(unit);
            self.epochs.ran(unit, if hit { 0 } else { self.units.bytes(unit) });
            if hit || self.units.block(unit).is_none() {
                continue;
            }
            if let Some(last) = self.last.replace(unit).filter(|&last| last != unit) {
                *self.counts.entry((last.min(unit), last.max(unit))).or_insert(0) += 1;
            }
        }
    }

    /// The working-set epochs in which each block ran.
    pub(crate) fn block_epochs(&self, image: &Image) -> BlockEpochsTable {
        self.epochs.block_epochs(&self.units, image)
    }

    /// The pairs, the lower address first.
    pub(crate) fn counts(&self, image: &Image) -> BTreeMap<(LinkAddr, LinkAddr), u64> {
        self.units.by_address(image, &self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::examples::row_of_blocks;

    /// Each block is a translation block of one instruction.
    fn followed(image: &Image, cache: u64, ran: &[u32]) -> BTreeMap<(LinkAddr, LinkAddr), u64> {
        let mut joint = JointMisses::new(cache, 0);
        for block in &image.blocks {
            joint.define(image, block.addr.0, &[block.size as u8]);
        }
        ran.iter().for_each(|&translation| joint.ran(translation, 1));
        joint.counts(image)
    }

    #[test]
    fn a_loop_larger_than_the_cache_misses_in_its_order() {
        let image = row_of_blocks(&[10, 10, 10], false);
        let at = |block: usize| image.blocks[block].addr;
        let ran: Vec<u32> = (0..30).map(|i| i % 3).collect();
        let expected =
            BTreeMap::from([((at(0), at(1)), 10), ((at(1), at(2)), 10), ((at(0), at(2)), 9)]);
        assert_eq!(followed(&image, 29, &ran), expected);
        let once = BTreeMap::from([((at(0), at(1)), 1), ((at(1), at(2)), 1)]);
        assert_eq!(followed(&image, 30, &ran), once, "code that fits misses once");
    }

    #[test]
    fn a_block_larger_than_the_cache_is_fetched() {
        let image = row_of_blocks(&[200, 10], false);
        assert_eq!(followed(&image, 64, &[0, 0, 1, 1, 0, 1]).values().sum::<u64>(), 3);
    }

    #[test]
    fn other_code_shares_the_cache_but_is_in_no_pair() {
        let image = row_of_blocks(&[10, 10], false);
        let mut joint = JointMisses::new(70, 0);
        joint.define(&image, 0x1000, &[10]);
        joint.define(&image, 0x100a, &[10]);
        joint.define(&image, 0x40_0000, &[4, 4]);
        for translation in [0, 1, 2, 0, 1] {
            joint.ran(translation, 2);
        }
        // The line of user code evicted both blocks, so both missed again.
        assert_eq!(joint.counts(&image).into_values().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn instructions_that_were_not_reached_fetch_nothing() {
        let image = row_of_blocks(&[10, 10], false);
        let mut joint = JointMisses::new(64, 0);
        joint.define(&image, 0x1000, &[10, 10]);
        joint.ran(0, 1);
        assert!(joint.counts(&image).is_empty());
        joint.ran(0, 2);
        assert_eq!(joint.counts(&image).len(), 1);
    }
}
