//! A set-associative store of lines: what is in it, and what has to leave.
//!
//! Takes one line after the other; says hit or miss and which line was evicted. Knows no sides, no counters, no time.

use crate::geometry::{Geometry, Replacement};
use crate::line::Line;
use crate::plru::Tree;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Hit,
    /// The line was not there and is now; `evicted` had to leave for it.
    Miss {
        evicted: Option<Line>,
    },
}

/// A cache of any [`Geometry`]. Under LRU a set's ways are kept in the order of their last use, so that the usual hit, on the line
/// used last, is one comparison, and the victim is always the last way.
#[derive(Clone, Debug)]
pub struct Cache {
    set_mask: u32,
    ways: usize,
    /// Sets × ways, a set's ways side by side; LRU: most recently used first.
    lines: Vec<Line>,
    /// One tree a set under tree-PLRU, else empty.
    trees: Vec<Tree>,
}

impl Cache {
    pub fn new(geometry: Geometry) -> Cache {
        let sets = geometry.sets() as usize;
        let ways = geometry.ways() as usize;
        let trees = match geometry.replacement() {
            Replacement::Lru => 0,
            Replacement::TreePlru => sets,
        };
        Cache {
            set_mask: geometry.sets() - 1,
            ways,
            lines: vec![Line::NONE; sets * ways],
            trees: vec![Tree::default(); trees],
        }
    }

    /// Uses `line`, bringing it in if it is not there.
    #[inline]
    pub fn access(&mut self, line: Line) -> Access {
        let set = (line.index() & self.set_mask) as usize;
        let start = set * self.ways;
        let ways = &mut self.lines[start..start + self.ways];
        if self.trees.is_empty() {
            return if ways[0] == line { Access::Hit } else { access_lru(ways, line) };
        }
        access_plru(ways, &mut self.trees[set], line)
    }
}

/// Moves `line` to the front; if it was not there, the last way leaves. For a line that is not at the front already.
///
/// One pass does both: each way takes what its left neighbour held, until the line's old place is reached.
#[inline]
fn access_lru(ways: &mut [Line], line: Line) -> Access {
    let mut carried = line;
    for way in ways {
        std::mem::swap(way, &mut carried);
        if carried == line {
            return Access::Hit;
        }
    }
    Access::Miss {
        evicted: occupied(carried),
    }
}

/// Empty ways are filled from the first to the last before anything is evicted.
fn access_plru(ways: &mut [Line], tree: &mut Tree, line: Line) -> Access {
    let count = ways.len() as u32;
    if let Some(way) = ways.iter().position(|&held| held == line) {
        tree.touch(way as u32, count);
        return Access::Hit;
    }
    let way = match ways.iter().position(|&held| held == Line::NONE) {
        Some(empty) => empty,
        None => tree.victim(count) as usize,
    };
    let evicted = occupied(std::mem::replace(&mut ways[way], line));
    tree.touch(way as u32, count);
    Access::Miss { evicted }
}

fn occupied(line: Line) -> Option<Line> {
    (line != Line::NONE).then_some(line)
}
