//! Tables whose entries are found by an address and a path, and bear a tag.
//!
//! The predictors of directions and of targets are made of such tables, each with a longer history
//! than the one before. The entry of the longest history that is there predicts.
//!
//! Input: an address and a path. Output: the entry, or none. This module does not know what an
//! entry predicts.

use super::history::{Folded, PathHistory};
use crate::branches::CodeAddr;

/// The size of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggedTable {
    /// The number of entries: a power of two.
    pub entries: u32,
    /// The number of taken branches that it looks at.
    pub history: u32,
}

/// The bits of a tag.
pub(crate) const TAG_BITS: u32 = 11;

/// Where an address lies in a table under the present path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub index: u32,
    pub tag: u16,
}

/// The present path as one table sees it.
#[derive(Clone, Debug)]
pub(crate) struct TableHistory {
    index: Folded,
    tags: [Folded; 2],
    index_bits: u32,
}

impl TableHistory {
    pub(super) fn new(table: TaggedTable) -> TableHistory {
        let index_bits = table.entries.trailing_zeros();
        let folded = |bits: u32| Folded::new(table.history, bits.max(1));
        TableHistory {
            index: folded(index_bits),
            tags: [folded(TAG_BITS), folded(TAG_BITS - 1)],
            index_bits,
        }
    }

    #[inline]
    pub(super) fn push(&mut self, history: &PathHistory, footprint: u32) {
        let leaving = history.leaving(self.index.length());
        self.index.push(leaving, footprint);
        self.tags.iter_mut().for_each(|tag| tag.push(leaving, footprint));
    }

    #[inline]
    pub(super) fn place(&self, at: CodeAddr) -> Place {
        // User code is known by its address, too, so all its bits count.
        let at = (at.0 ^ at.0 >> 32) as u32;
        let index = at ^ at >> self.index_bits ^ self.index.value();
        let tag = at ^ at >> 13 ^ self.tags[0].value() ^ self.tags[1].value() << 1;
        Place {
            index: index & ((1 << self.index_bits) - 1),
            tag: (tag & ((1 << TAG_BITS) - 1)) as u16,
        }
    }
}
