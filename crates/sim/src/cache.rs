//! A set-associative store of lines: what is in it, and what has to leave.
//!
//! Takes one line after the other; says hit or miss and which line was evicted. Knows no modes, no
//! counters, no time.
//!
//! Most accesses are to the line that was used last of its set. Using it again changes nothing,
//! whatever the replacement, so these lines stand apart, a set a number, and all else is looked for
//! only when the line is another.

use crate::access::{Access, occupied};
use crate::geometry::{Geometry, Replacement};
use crate::line::Line;
use crate::plru::Trees;
use crate::wide::Wide;

/// A cache of any [`Geometry`].
#[derive(Clone, Debug)]
pub struct Cache {
    set_mask: u32,
    ways: usize,
    /// The line used last of each set.
    last: Vec<Line>,
    /// Sets × ways, a set's ways side by side.
    lines: Vec<Line>,
    order: Order,
}

/// How a set knows what has to leave.
#[derive(Clone, Debug)]
enum Order {
    /// LRU: a set's ways stand in the order of their last use, the most recent first, so that the
    /// victim is always the last way.
    Sorted,
    /// LRU of many ways: too many to move.
    Wide(Wide),
    Tree(Trees),
}

/// Sets of more ways than this are not sorted.
const MOST_SORTED: usize = 16;

impl Cache {
    pub fn new(geometry: Geometry) -> Cache {
        let sets = geometry.sets() as usize;
        let ways = geometry.ways() as usize;
        Cache {
            set_mask: geometry.sets() - 1,
            ways,
            last: vec![Line::NONE; sets],
            lines: vec![Line::NONE; sets * ways],
            order: match geometry.replacement() {
                Replacement::Lru if ways <= MOST_SORTED => Order::Sorted,
                Replacement::Lru => Order::Wide(Wide::new(sets * ways)),
                Replacement::TreePlru => Order::Tree(Trees::new(sets, ways as u32)),
            },
        }
    }

    /// Whether `line` is the one used last of its set: then it is there, and using it changes
    /// nothing.
    #[inline]
    pub fn used_last(&self, line: Line) -> bool {
        self.last[(line.index() & self.set_mask) as usize] == line
    }

    /// Uses `line`, bringing it in if it is not there.
    #[inline]
    pub fn access(&mut self, line: Line) -> Access {
        if self.used_last(line) {
            return Access::Hit;
        }
        self.access_another(line)
    }

    /// Uses a line that is not the one used last of its set.
    fn access_another(&mut self, line: Line) -> Access {
        let set = (line.index() & self.set_mask) as usize;
        self.last[set] = line;
        let start = set * self.ways;
        let ways = &mut self.lines[start..start + self.ways];
        match &mut self.order {
            Order::Sorted => match ways.len() {
                1 => sorted::<1>(ways, line),
                2 => sorted::<2>(ways, line),
                4 => sorted::<4>(ways, line),
                8 => sorted::<8>(ways, line),
                12 => sorted::<12>(ways, line),
                16 => sorted::<16>(ways, line),
                _ => sorted_by_steps(ways, line),
            },
            Order::Wide(wide) => wide.access(&mut self.lines, start..start + self.ways, line),
            Order::Tree(trees) => trees.access(ways, set, line),
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
fn sorted<const WAYS: usize>(ways: &mut [Line], line: Line) -> Access {
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
        ways[way] = Line::choose(moved[way], shifted[way], old[way]);
    }
    match found {
        0 => Access::Miss { evicted: occupied(old[WAYS - 1]) },
        _ => Access::Hit,
    }
}

/// Moves `line` to the front; if it was not there, the last way leaves.
///
/// One pass does both: each way takes what its left neighbour held, until the line's old place is
/// reached.
fn sorted_by_steps(ways: &mut [Line], line: Line) -> Access {
    let mut carried = line;
    for way in ways {
        std::mem::swap(way, &mut carried);
        if carried == line {
            return Access::Hit;
        }
    }
    Access::Miss { evicted: occupied(carried) }
}
