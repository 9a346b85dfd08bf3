//! The units of an ideal cache, which wastes no byte: movable blocks, each by itself, and lines of
//! code that does not move.
//!
//! Input: translation blocks. Output: the units that they fetch. The cache is fully associative and
//! packed to the byte, and evicts the least recently used unit. This module never looks at an
//! order.

use image::address::LinkAddr;
use image::{BlockIndex, Image};
use std::collections::{BTreeMap, HashMap};

/// The number of a unit: a movable block, or a line of other code.
pub type CacheUnit = u32;

/// The units, and the units that each translation block fetches.
pub struct CacheUnits {
    line: u64,
    /// Bytes of padding in front of each function's entry.
    padding: u64,
    /// When units are chunks: for each block, the first block of its chunk. Otherwise empty.
    chunks: Vec<BlockIndex>,
    blocks: Vec<Option<BlockIndex>>,
    bytes: Vec<u64>,
    kernel: Vec<bool>,
    unit_of_block: HashMap<BlockIndex, CacheUnit>,
    unit_of_line: HashMap<u64, CacheUnit>,
    /// By translation block: its units, each with the number of instructions before it.
    fetches: Vec<Box<[(CacheUnit, u32)]>>,
}

impl CacheUnits {
    /// `line`: bytes of a line of code that does not move. `padding`: bytes in front of each
    /// function's entry.
    pub fn new(line: u64, padding: u64) -> CacheUnits {
        CacheUnits {
            line,
            padding,
            chunks: Vec::new(),
            blocks: Vec::new(),
            bytes: Vec::new(),
            kernel: Vec::new(),
            unit_of_block: HashMap::new(),
            unit_of_line: HashMap::new(),
            fetches: Vec::new(),
        }
    }

    /// Uses chunks of functions (`layout::chunks`) instead of blocks. A chunk is named by its first
    /// block.
    pub(crate) fn of_chunks(line: u64, image: &Image) -> CacheUnits {
        let mut units = CacheUnits::new(line, 0);
        units.chunks = (0..image.blocks.len() as u32).map(BlockIndex).collect();
        for function in &image.functions {
            let blocks =
                &image.blocks[function.blocks.start as usize..function.blocks.end as usize];
            let sizes: Vec<u32> = blocks.iter().map(|block| block.size).collect();
            for (block, first) in
                function.blocks.clone().zip(layout::chunks::first_of_chunk(&sizes))
            {
                units.chunks[block as usize] = BlockIndex(function.blocks.start + first);
            }
        }
        units
    }

    /// The block that names the unit of a movable block, and the unit's bytes.
    fn movable(&self, image: &Image, block: BlockIndex) -> (BlockIndex, u64) {
        if let Some(&first) = self.chunks.get(block.0 as usize) {
            let chunk = self.chunks[first.0 as usize..].iter().take_while(|&&other| other == first);
            let blocks = &image.blocks[first.0 as usize..first.0 as usize + chunk.count()];
            return (first, blocks.iter().map(|block| u64::from(block.size)).sum());
        }
        let entry = image.block(block).addr == image.function_of(block).addr;
        let padding = if entry { self.padding } else { 0 };
        (block, u64::from(image.block(block).size) + padding)
    }

    /// Adds the next translation block: its start, and the lengths of its instructions.
    pub fn define(&mut self, image: &Image, start: u64, lengths: &[u8]) {
        let mut fetches: Vec<(CacheUnit, u32)> = Vec::new();
        let mut at = start;
        for (before, &length) in lengths.iter().enumerate() {
            let unit = self.unit(image, at);
            if fetches.last().is_none_or(|&(last, _)| last != unit) {
                fetches.push((unit, before as u32));
            }
            at = at.wrapping_add(u64::from(length));
        }
        self.fetches.push(fetches.into());
    }

    fn unit(&mut self, image: &Image, at: u64) -> CacheUnit {
        let block = image.block_at(LinkAddr(at));
        let next = self.blocks.len() as CacheUnit;
        let (unit, block, bytes) = match block.filter(|&block| image.function_of(block).movable()) {
            Some(index) => {
                let (index, bytes) = self.movable(image, index);
                let unit = *self.unit_of_block.entry(index).or_insert(next);
                (unit, Some(index), bytes)
            }
            None => (*self.unit_of_line.entry(at / self.line).or_insert(next), None, self.line),
        };
        if unit == next {
            self.blocks.push(block);
            self.bytes.push(bytes);
            self.kernel.push(trace::RunAddr(at).is_kernel());
        }
        unit
    }

    /// The units that the first `reached` instructions of a translation block fetch.
    #[inline]
    pub fn fetched(&self, translation: u32, reached: u32) -> impl Iterator<Item = CacheUnit> + '_ {
        let fetches = self.fetches[translation as usize].iter();
        fetches.take_while(move |&&(_, before)| before < reached).map(|&(unit, _)| unit)
    }

    /// The number of units.
    pub fn count(&self) -> usize {
        self.blocks.len()
    }

    /// The block that a unit stands for; `None` for a line.
    pub(crate) fn block(&self, unit: CacheUnit) -> Option<BlockIndex> {
        self.blocks[unit as usize]
    }

    /// Turns counts of pairs of movable units into counts by block address, the lower address
    /// first.
    pub(crate) fn by_address(
        &self,
        image: &Image,
        counts: &HashMap<(CacheUnit, CacheUnit), u64>,
    ) -> BTreeMap<(LinkAddr, LinkAddr), u64> {
        let address = |unit: CacheUnit| self.block(unit).map(|block| image.block(block).addr);
        let pair = |(&(a, b), &count): (&(CacheUnit, CacheUnit), &u64)| {
            let (a, b) = (address(a)?, address(b)?);
            Some(((a.min(b), a.max(b)), count))
        };
        counts.iter().filter_map(pair).collect()
    }

    /// The bytes of a unit.
    pub fn bytes(&self, unit: CacheUnit) -> u64 {
        self.bytes[unit as usize]
    }

    /// Whether a unit is kernel code.
    pub fn is_kernel(&self, unit: CacheUnit) -> bool {
        self.kernel[unit as usize]
    }
}

/// A fully associative LRU cache: a ring of the cached units by age, through the entry `HEAD`.
pub struct IdealCache {
    bytes: u64,
    used: u64,
    sizes: Vec<u64>,
    inside: Vec<bool>,
    newer: Vec<CacheUnit>,
    older: Vec<CacheUnit>,
}

/// Stands between the newest and the oldest entry. The entry of unit n is n + 1.
const HEAD: usize = 0;

impl IdealCache {
    /// An empty cache of this size.
    pub fn new(bytes: u64) -> IdealCache {
        IdealCache {
            bytes,
            used: 0,
            sizes: Vec::new(),
            inside: Vec::new(),
            newer: vec![0],
            older: vec![0],
        }
    }

    /// Adds the next unit, of this size.
    pub fn add_unit(&mut self, bytes: u64) {
        self.sizes.push(bytes);
        self.inside.push(false);
        self.newer.push(0);
        self.older.push(0);
    }

    /// Fetches a unit. Returns true for a hit.
    #[inline]
    pub fn fetch(&mut self, unit: CacheUnit) -> bool {
        let entry = unit + 1;
        if self.older[HEAD] == entry {
            return true;
        }
        let hit = self.inside[unit as usize];
        if hit {
            self.take_out(entry);
        } else {
            self.inside[unit as usize] = true;
            self.used += self.sizes[unit as usize];
        }
        self.put_first(entry);
        // A unit larger than the cache stays alone until the next fetch.
        while self.used > self.bytes && self.newer[HEAD] != entry {
            let oldest = self.newer[HEAD];
            self.take_out(oldest);
            self.inside[oldest as usize - 1] = false;
            self.used -= self.sizes[oldest as usize - 1];
        }
        hit
    }

    /// The units fetched after the last fetch of `unit`, the latest first; none if `unit` is not
    /// cached.
    #[inline]
    pub(crate) fn since(&self, unit: CacheUnit) -> impl Iterator<Item = CacheUnit> + '_ {
        let stop = if self.inside[unit as usize] { unit + 1 } else { self.older[HEAD] };
        let later = std::iter::successors(Some(self.older[HEAD]), |&entry| {
            Some(self.older[entry as usize])
        });
        later.take_while(move |&entry| entry != stop).map(|entry| entry - 1)
    }

    fn take_out(&mut self, entry: u32) {
        let (newer, older) = (self.newer[entry as usize], self.older[entry as usize]);
        self.older[newer as usize] = older;
        self.newer[older as usize] = newer;
    }

    fn put_first(&mut self, entry: u32) {
        let second = self.older[HEAD];
        self.older[HEAD] = entry;
        self.newer[entry as usize] = HEAD as u32;
        self.older[entry as usize] = second;
        self.newer[second as usize] = entry;
    }
}

#[cfg(any(test, feature = "examples"))]
impl CacheUnits {
    /// Kernel blocks with these sizes in bytes.
    pub fn of_sizes(sizes: &[u64]) -> CacheUnits {
        CacheUnits {
            blocks: (0..sizes.len() as u32).map(|block| Some(BlockIndex(block))).collect(),
            bytes: sizes.to_vec(),
            kernel: vec![true; sizes.len()],
            ..CacheUnits::new(64, 0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::random::SplitMix64;

    /// Compares the ring with a list that is searched.
    #[test]
    fn it_hits_and_misses_as_a_plain_list_does() {
        let mut random = SplitMix64::new(3);
        let sizes: Vec<u64> = (0..40).map(|_| 1 + random.below(20)).collect();
        let mut cache = IdealCache::new(100);
        sizes.iter().for_each(|&bytes| cache.add_unit(bytes));
        let mut list: Vec<CacheUnit> = Vec::new();
        for _ in 0..5000 {
            let unit = random.below(40).min(random.below(40)) as CacheUnit;
            let known = list.iter().position(|&u| u == unit);
            let before = list.clone();
            known.map(|at| list.remove(at));
            list.insert(0, unit);
            while list.iter().map(|&u| sizes[u as usize]).sum::<u64>() > 100 {
                list.pop();
            }
            let later: Vec<CacheUnit> = known.map_or(Vec::new(), |at| before[..at].to_vec());
            assert_eq!(cache.since(unit).collect::<Vec<_>>(), later);
            assert_eq!(cache.fetch(unit), known.is_some());
        }
    }
}
