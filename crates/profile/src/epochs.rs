//! Working-set epochs: which code is needed at the same time.
//!
//! Input: the fetches and the misses of an *ideal* cache (`joint.rs`). Output: for each movable
//! block, the *epochs* in which it ran. An epoch ends when the cache has fetched as many bytes as
//! it holds. In a long recording, epochs at equal distances are kept. This module never looks at an
//! order.

use crate::BlockEpochsTable;
use crate::ideal::{CacheUnit, CacheUnits};
use image::Image;
use image::address::LinkAddr;
use std::collections::BTreeMap;

/// The largest number of epochs kept. When there are more, every second epoch is kept, then every
/// fourth, and so on.
const MOST: usize = 1024;

pub(crate) struct WorkingSetEpochs {
    cache_bytes: u64,
    /// Bytes fetched in the epoch so far.
    fetched: u64,
    /// The number of epochs that have ended.
    ended: u64,
    /// The epoch in which each unit ran last, counted from 1.
    last: Vec<u64>,
    /// The units that ran in the epoch so far.
    current_units: Vec<CacheUnit>,
    kept: Vec<Vec<CacheUnit>>,
    /// One epoch of each `stride` epochs is kept.
    stride: u64,
}

impl WorkingSetEpochs {
    pub(crate) fn new(cache_bytes: u64) -> WorkingSetEpochs {
        WorkingSetEpochs {
            cache_bytes,
            fetched: 0,
            ended: 0,
            last: Vec::new(),
            current_units: Vec::new(),
            kept: Vec::new(),
            stride: 1,
        }
    }

    /// A unit ran, and the cache fetched `fetched` bytes for it (0 for a hit).
    #[inline]
    pub(crate) fn ran(&mut self, unit: CacheUnit, fetched: u64) {
        let unit_index = unit as usize;
        if self.last.len() <= unit_index {
            self.last.resize(unit_index + 1, 0);
        }
        if self.last[unit_index] <= self.ended {
            self.last[unit_index] = self.ended + 1;
            self.current_units.push(unit);
        }
        self.fetched += fetched;
        if self.fetched >= self.cache_bytes {
            self.end();
        }
    }

    fn end(&mut self) {
        let units = std::mem::take(&mut self.current_units);
        if self.ended.is_multiple_of(self.stride) {
            if self.kept.len() == MOST {
                let mut number = 0;
                self.kept.retain(|_| {
                    number += 1;
                    number % 2 == 1
                });
                self.stride *= 2;
            }
            if self.ended.is_multiple_of(self.stride) {
                self.kept.push(units);
            }
        }
        self.ended += 1;
        self.fetched = 0;
    }

    /// The kept epochs in which each block ran, including the epoch that has not ended.
    pub(crate) fn block_epochs(&self, units: &CacheUnits, image: &Image) -> BlockEpochsTable {
        let words = (self.kept.len() + 1).div_ceil(64);
        let mut blocks: BTreeMap<LinkAddr, Vec<u64>> = BTreeMap::new();
        for (epoch, ran) in self.kept.iter().chain([&self.current_units]).enumerate() {
            for block in ran.iter().filter_map(|&unit| units.block(unit)) {
                let row = blocks.entry(image.block(block).addr).or_insert_with(|| vec![0; words]);
                row[epoch / 64] |= 1 << (epoch % 64);
            }
        }
        BlockEpochsTable { words, blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By epoch: the units that ran in it.
    fn followed(cache_bytes: u64, ran: &[(CacheUnit, u64)]) -> Vec<Vec<CacheUnit>> {
        let mut epochs = WorkingSetEpochs::new(cache_bytes);
        ran.iter().for_each(|&(unit, fetched)| epochs.ran(unit, fetched));
        epochs.kept.into_iter().chain([epochs.current_units]).collect()
    }

    #[test]
    fn an_epoch_ends_when_as_much_was_fetched_as_the_cache_holds() {
        let ran = [(0, 10), (1, 10), (2, 10), (2, 0), (1, 0)];
        assert_eq!(followed(20, &ran), [vec![0, 1], vec![2, 1]]);
        assert_eq!(followed(64, &ran), [[0, 1, 2]], "what fits is one epoch");
    }

    #[test]
    fn of_many_epochs_some_are_kept_from_the_whole_recording() {
        let many = 10 * MOST as u32;
        let kept = followed(1, &(0..many).map(|unit| (unit, 1)).collect::<Vec<_>>());
        // The last epoch has not ended and is empty.
        let kept: Vec<CacheUnit> = kept.into_iter().flatten().collect();
        assert_eq!(kept, (0..many).step_by(16).collect::<Vec<_>>());
    }
}
