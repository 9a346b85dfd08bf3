//! The policy "least recently used": the line that was not used for the longest time leaves.
//!
//! Sets of at most 16 ways are kept in the order of use. In sets of more ways ([`WideLru`]) each
//! way has the time of its last use.

use crate::access::{CacheAccess, occupied};
use crate::line::LineId;
use crate::policy::Policy;
use crate::wide::WideLru;

/// True LRU.
#[derive(Clone, Debug)]
pub(crate) enum Lru {
    /// A set's ways stand in the order of their last use, the most recent first, so that the victim
    /// is always the last way.
    Sorted,
    /// For sets with too many ways to move.
    WideLru(WideLru),
}

/// Sets of more ways than this are not sorted.
const MOST_SORTED: usize = 16;

impl Policy for Lru {
    const NAME: &str = "lru";

    fn new(sets: usize, ways: usize) -> Lru {
        match ways <= MOST_SORTED {
            true => Lru::Sorted,
            false => Lru::WideLru(WideLru::new(sets * ways)),
        }
    }

    #[inline]
    fn access(
        &mut self,
        lines: &mut [LineId],
        set: usize,
        ways: usize,
        line: LineId,
    ) -> CacheAccess {
        let set = set * ways..(set + 1) * ways;
        match self {
            Lru::Sorted => {
                let ways = &mut lines[set];
                match ways.len() {
                    1 => sorted::<1>(ways, line),
                    2 => sorted::<2>(ways, line),
                    4 => sorted::<4>(ways, line),
                    8 => sorted::<8>(ways, line),
                    12 => sorted::<12>(ways, line),
                    16 => sorted::<16>(ways, line),
                    _ => sorted_by_steps(ways, line),
                }
            }
            Lru::WideLru(wide) => wide.access(lines, set, line),
        }
    }
}

/// For each way, a mask of all bits for it and the ways before it, of none for those behind it.
const UP_TO: [[u32; MOST_SORTED]; MOST_SORTED] = {
    let mut masks = [[0; MOST_SORTED]; MOST_SORTED];
    let mut place = 0;
    while place < MOST_SORTED {
        let mut way = 0;
        while way <= place {
            masks[place][way] = u32::MAX;
            way += 1;
        }
        place += 1;
    }
    masks
};

/// As [`sorted_by_steps`], for a number of ways that the compiler knows: all are compared and moved
/// at once, without a branch on where the line is.
#[inline]
fn sorted<const WAYS: usize>(ways: &mut [LineId], line: LineId) -> CacheAccess {
    let Some(ways) = ways.first_chunk_mut::<WAYS>() else {
        return sorted_by_steps(ways, line);
    };
    let old = *ways;
    let mut found = [0_u32; WAYS];
    for way in 0..WAYS {
        found[way] = if old[way] == line { 1 << way } else { 0 };
    }
    let found = found.iter().fold(0, |all, way| all | way);
    let place = (found | 1 << (WAYS - 1)).trailing_zeros() as usize;
    let (moved, mut shifted) = (&UP_TO[place], [line; WAYS]);
    shifted[1..].copy_from_slice(&old[..WAYS - 1]);
    for way in 0..WAYS {
        ways[way] = LineId::choose(moved[way], shifted[way], old[way]);
    }
    match found {
        0 => CacheAccess::Miss { evicted: occupied(old[WAYS - 1]) },
        _ => CacheAccess::Hit,
    }
}

/// Moves `line` to the front; if it was not there, the last way leaves.
///
/// One pass does both: each way takes what its left neighbour held, until the line's old place is
/// reached.
fn sorted_by_steps(ways: &mut [LineId], line: LineId) -> CacheAccess {
    let mut carried = line;
    for way in ways {
        std::mem::swap(way, &mut carried);
        if carried == line {
            return CacheAccess::Hit;
        }
    }
    CacheAccess::Miss { evicted: occupied(carried) }
}
