//! The entries of a uop cache.
//!
//! Input: lines and the numbers of their entries. Output: whether all of them are there. The front
//! end decides when they are read.

use super::description::UopCacheDescription;
use crate::access::CacheAccess;
use crate::cache::Cache;
use crate::line::LineId;
use std::ops::Range;

/// The bits of a line's index that name it in the uop cache. Those above number its entries.
const LINE_BITS: u32 = 26;
/// The same, if entries also have the place at which control arrived in the line.
const SHORT_LINE_BITS: u32 = 20;

#[derive(Clone, Debug)]
pub(crate) struct UopCache {
    pub cache: Cache,
    /// The slots of an entry.
    pub slots: u32,
    /// The slots delivered in a cycle.
    pub width: u32,
    pub by_start: bool,
    pub pair_interval: Option<u64>,
    pub single_lines: u32,
}

impl UopCache {
    pub(super) fn new(cache: &UopCacheDescription) -> UopCache {
        UopCache {
            cache: Cache::new(cache.geometry),
            slots: cache.slots,
            width: cache.width,
            by_start: cache.by_start,
            pair_interval: cache.pair_interval.map(u64::from),
            single_lines: cache.single_lines,
        }
    }

    /// Whether the entries of a line are there. From now on, they are. `start`: where control
    /// arrived in the line, below 64, or, when it came from the line before, the slots that an
    /// entry of that line holds.
    pub(super) fn has(&mut self, line: LineId, start: u32, entries: Range<u32>) -> bool {
        let line_bits = if self.by_start { SHORT_LINE_BITS } else { LINE_BITS };
        let start = if self.by_start { start << SHORT_LINE_BITS } else { 0 };
        let mut has = true;
        for entry in entries {
            let line_index = line.index() & ((1 << line_bits) - 1);
            let index = line_index | start | (entry & 15) << LINE_BITS;
            let entry = LineId::new(line.mode(), index.min(LineId::MAX_INDEX)).unwrap_or(line);
            has &= self.cache.access(entry) == CacheAccess::Hit;
        }
        has
    }
}
