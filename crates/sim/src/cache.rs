//! A set-associative store of lines: which lines it holds, and which one leaves.
//!
//! Input: one line after the other. Output: hit or miss, and the line that was evicted. A cache
//! knows no modes, counters or time.
//!
//! Most accesses use the line that was used last in its set. Such an access changes nothing under
//! any replacement policy. So the last line of each set is kept in an array of its own, and the
//! cache searches its ways only for other lines.

use crate::access::{CacheAccess, occupied};
use crate::geometry::{CacheGeometry, Replacement};
use crate::line::LineId;
use crate::plru::PlruTrees;
use crate::wide::WideLru;

/// A cache of any [`CacheGeometry`].
#[derive(Clone, Debug)]
pub struct Cache {
    set_mask: u32,
    ways: usize,
    /// For each set, the line used last.
    last: Vec<LineId>,
    /// The lines by set. The ways of a set lie side by side.
    lines: Vec<LineId>,
    order: ReplacementState,
}

/// The data from which a set chooses its victim.
#[derive(Clone, Debug)]
enum ReplacementState {
    /// LRU: the ways of a set are sorted by their last use, the most recent first. The victim is
    /// the last way.
    Sorted,
    /// LRU of sets with too many ways to move.
    WideLru(WideLru),
    /// Tree pseudo-LRU.
    Tree(PlruTrees),
}

/// Sets with more ways than this are not sorted.
const MOST_SORTED: usize = 16;

impl Cache {
    /// An empty cache of this geometry.
    pub fn new(geometry: CacheGeometry) -> Cache {
        let sets = geometry.sets() as usize;
        let ways = geometry.ways() as usize;
        Cache {
            set_mask: geometry.sets() - 1,
            ways,
            last: vec![LineId::NONE; sets],
            lines: vec![LineId::NONE; sets * ways],
            order: match geometry.replacement() {
                Replacement::Lru if ways <= MOST_SORTED => ReplacementState::Sorted,
                Replacement::Lru => ReplacementState::WideLru(WideLru::new(sets * ways)),
                Replacement::TreePlru => ReplacementState::Tree(PlruTrees::new(sets, ways as u32)),
            },
        }
    }

    /// Whether `line` was used last in its set. Then it is there, and an access changes nothing.
    #[inline]
    pub fn used_last(&self, line: LineId) -> bool {
        self.last[(line.index() & self.set_mask) as usize] == line
    }

    /// Uses `line`. A line that is not there comes in.
    #[inline]
    pub fn access(&mut self, line: LineId) -> CacheAccess {
        if self.used_last(line) {
            return CacheAccess::Hit;
        }
        self.access_another(line)
    }

    /// Uses a line that was not used last in its set.
    fn access_another(&mut self, line: LineId) -> CacheAccess {
        let set = (line.index() & self.set_mask) as usize;
        self.last[set] = line;
        let start = set * self.ways;
        let ways = &mut self.lines[start..start + self.ways];
        match &mut self.order {
            ReplacementState::Sorted => match ways.len() {
                1 => sorted::<1>(ways, line),
                2 => sorted::<2>(ways, line),
                4 => sorted::<4>(ways, line),
                8 => sorted::<8>(ways, line),
                12 => sorted::<12>(ways, line),
                16 => sorted::<16>(ways, line),
                _ => sorted_by_steps(ways, line),
            },
            ReplacementState::WideLru(wide) => {
                wide.access(&mut self.lines, start..start + self.ways, line)
            }
            ReplacementState::Tree(trees) => trees.access(ways, set, line),
        }
    }
}

/// For each way, a mask with all bits set for it and for the ways before it, and with no bit set
/// for the ways behind it.
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

/// The same as [`sorted_by_steps`] for a number of ways known at compile time. The loops compare
/// and move all ways at once, without a branch that depends on the place of the line.
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

/// Moves `line` to the front. If it was not there, the last way leaves.
///
/// One pass does both: each way takes the line of the way before it, until the old place of `line`.
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
