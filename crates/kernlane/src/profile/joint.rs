//! Which code misses together.
//!
//! Takes what runs, translation by translation; gives for each pair of blocks that may move how often they missed one directly after the
//! other in an *ideal* cache: as large as a real one, fully associative, least recently used out first, and packed to the byte, so that it holds
//! blocks and not lines. What misses in it misses because of what the program does, not because of where the code lies. Code that does not
//! move (entry code, modules, user code) shares the cache, in lines of 64 bytes, and is in no pair. Never looks at an order.

use crate::image::address::LinkAddr;
use crate::image::{BlockIndex, Image};
use std::collections::{BTreeMap, HashMap};

/// Bytes of the ideal cache: the L1 instruction cache of most processors of today.
pub const CACHE_BYTES: u64 = 32 * 1024;
/// Bytes of a line of code that does not move.
const LINE: u64 = 64;

/// What the cache holds: a block that may move, or a line of other code.
type Unit = u32;

/// Follows the execution and counts.
pub struct JointMisses {
    cache: IdealCache,
    /// The block of each unit that is one.
    blocks: Vec<Option<BlockIndex>>,
    unit_of_block: HashMap<BlockIndex, Unit>,
    unit_of_line: HashMap<u64, Unit>,
    /// By translation: the units that it fetches, each with the number of instructions before it.
    fetches: Vec<Box<[(Unit, u32)]>>,
    /// The block that missed last.
    last: Option<Unit>,
    counts: HashMap<(Unit, Unit), u64>,
}

impl JointMisses {
    pub fn new(cache_bytes: u64) -> JointMisses {
        JointMisses {
            cache: IdealCache::new(cache_bytes),
            blocks: Vec::new(),
            unit_of_block: HashMap::new(),
            unit_of_line: HashMap::new(),
            fetches: Vec::new(),
            last: None,
            counts: HashMap::new(),
        }
    }

    /// Learns the next translation: where it starts, and the lengths of its instructions.
    pub fn define(&mut self, image: &Image, start: u64, lengths: &[u8]) {
        let mut fetches: Vec<(Unit, u32)> = Vec::new();
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

    fn unit(&mut self, image: &Image, at: u64) -> Unit {
        let block = image.block_at(LinkAddr(at));
        let next = self.blocks.len() as Unit;
        let (unit, block, bytes) = match block.filter(|&block| image.function_of(block).movable) {
            Some(index) => {
                let (block, function) = (image.block(index), image.function_of(index));
                let padding = if block.addr == function.addr { image.entry_padding } else { 0 };
                let unit = *self.unit_of_block.entry(index).or_insert(next);
                (unit, Some(index), u64::from(block.size) + u64::from(padding))
            }
            None => (*self.unit_of_line.entry(at / LINE).or_insert(next), None, LINE),
        };
        if unit == next {
            self.blocks.push(block);
            self.cache.add_unit(bytes);
        }
        unit
    }

    /// The first `reached` instructions of a translation ran.
    #[inline]
    pub fn ran(&mut self, translation: u32, reached: u32) {
        for &(unit, before) in &self.fetches[translation as usize] {
            if before >= reached || self.cache.fetch(unit) || self.blocks[unit as usize].is_none() {
                continue;
            }
            if let Some(last) = self.last.replace(unit).filter(|&last| last != unit) {
                *self.counts.entry((last.min(unit), last.max(unit))).or_insert(0) += 1;
            }
        }
    }

    /// The pairs, the lower address first.
    pub fn counts(&self, image: &Image) -> BTreeMap<(LinkAddr, LinkAddr), u64> {
        let address = |unit: Unit| self.blocks[unit as usize].map(|block| image.block(block).addr);
        let pair = |(&(a, b), &count): (&(Unit, Unit), &u64)| {
            let (a, b) = (address(a)?, address(b)?);
            Some(((a.min(b), a.max(b)), count))
        };
        self.counts.iter().filter_map(pair).collect()
    }
}

/// Least recently used out first; a ring of the units inside, by age, through the entry `HEAD`.
struct IdealCache {
    bytes: u64,
    used: u64,
    sizes: Vec<u64>,
    inside: Vec<bool>,
    newer: Vec<Unit>,
    older: Vec<Unit>,
}

/// Stands between the newest and the oldest; every unit's entry is one behind its number.
const HEAD: usize = 0;

impl IdealCache {
    fn new(bytes: u64) -> IdealCache {
        IdealCache {
            bytes,
            used: 0,
            sizes: Vec::new(),
            inside: Vec::new(),
            newer: vec![0],
            older: vec![0],
        }
    }

    fn add_unit(&mut self, bytes: u64) {
        self.sizes.push(bytes);
        self.inside.push(false);
        self.newer.push(0);
        self.older.push(0);
    }

    /// True when it was there.
    #[inline]
    fn fetch(&mut self, unit: Unit) -> bool {
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
        // What is larger than the cache stays alone until the next.
        while self.used > self.bytes && self.newer[HEAD] != entry {
            let oldest = self.newer[HEAD];
            self.take_out(oldest);
            self.inside[oldest as usize - 1] = false;
            self.used -= self.sizes[oldest as usize - 1];
        }
        hit
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Block, BuildId, End, Function};
    use layout::random::SplitMix64;

    /// Blocks of these sizes in one function that moves, one behind the other from 0x1000.
    fn image(sizes: &[u32]) -> Image {
        let mut at = 0x1000;
        let block = |&size: &u32| {
            at += u64::from(size);
            Block {
                addr: LinkAddr(at - u64::from(size)),
                size,
                end: End::Stop,
                glued: false,
            }
        };
        let blocks: Vec<Block> = sizes.iter().map(block).collect();
        Image {
            build_id: BuildId("00".into()),
            entry_padding: 0,
            entry_alignment: 1,
            functions: vec![Function {
                name: "f".into(),
                addr: LinkAddr(0x1000),
                size: at - 0x1000,
                blocks: 0..blocks.len() as u32,
                section: ".text".into(),
                movable: true,
            }],
            blocks,
        }
    }

    /// Each block is a translation of one instruction.
    fn followed(image: &Image, cache: u64, ran: &[u32]) -> BTreeMap<(LinkAddr, LinkAddr), u64> {
        let mut joint = JointMisses::new(cache);
        for block in &image.blocks {
            joint.define(image, block.addr.0, &[block.size as u8]);
        }
        ran.iter().for_each(|&translation| joint.ran(translation, 1));
        joint.counts(image)
    }

    #[test]
    fn a_loop_larger_than_the_cache_misses_in_its_order() {
        let image = image(&[10, 10, 10]);
        let at = |block: usize| image.blocks[block].addr;
        let ran: Vec<u32> = (0..30).map(|i| i % 3).collect();
        let expected = BTreeMap::from([((at(0), at(1)), 10), ((at(1), at(2)), 10), ((at(0), at(2)), 9)]);
        assert_eq!(followed(&image, 29, &ran), expected);
        let once = BTreeMap::from([((at(0), at(1)), 1), ((at(1), at(2)), 1)]);
        assert_eq!(followed(&image, 30, &ran), once, "what fits misses once");
    }

    #[test]
    fn what_is_larger_than_the_cache_is_fetched_all_the_same() {
        let image = image(&[200, 10]);
        assert_eq!(followed(&image, 64, &[0, 0, 1, 1, 0, 1]).values().sum::<u64>(), 3);
    }

    #[test]
    fn other_code_shares_the_cache_but_is_in_no_pair() {
        let image = image(&[10, 10]);
        let mut joint = JointMisses::new(70);
        joint.define(&image, 0x1000, &[10]);
        joint.define(&image, 0x100a, &[10]);
        joint.define(&image, 0x40_0000, &[4, 4]);
        for translation in [0, 1, 2, 0, 1] {
            joint.ran(translation, 2);
        }
        // The line of user code drove both out, so both missed again.
        assert_eq!(joint.counts(&image).into_values().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn instructions_that_were_not_reached_fetch_nothing() {
        let image = image(&[10, 10]);
        let mut joint = JointMisses::new(64);
        joint.define(&image, 0x1000, &[10, 10]);
        joint.ran(0, 1);
        assert!(joint.counts(&image).is_empty());
        joint.ran(0, 2);
        assert_eq!(joint.counts(&image).len(), 1);
    }

    /// The ring against a list that is searched.
    #[test]
    fn it_hits_and_misses_as_a_plain_list_does() {
        let mut random = SplitMix64::new(3);
        let sizes: Vec<u64> = (0..40).map(|_| 1 + random.below(20)).collect();
        let mut cache = IdealCache::new(100);
        sizes.iter().for_each(|&bytes| cache.add_unit(bytes));
        let mut list: Vec<Unit> = Vec::new();
        for _ in 0..5000 {
            let unit = random.below(40).min(random.below(40)) as Unit;
            let known = list.iter().position(|&u| u == unit);
            known.map(|at| list.remove(at));
            list.insert(0, unit);
            while list.iter().map(|&u| sizes[u as usize]).sum::<u64>() > 100 {
                list.pop();
            }
            assert_eq!(cache.fetch(unit), known.is_some());
        }
    }
}
