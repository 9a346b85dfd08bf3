//! A set-associative store of lines: what is in it, and what has to leave.
//!
//! Takes one line after the other; says hit or miss and which line was evicted. Knows no modes, no
//! counters, no time.
//!
//! Most accesses are to the line that was used last of its set. Using it again changes nothing,
//! whatever the replacement, so these lines stand apart, a set a number, and all else is looked for
//! only when the line is another.

use crate::access::Access;
use crate::geometry::Geometry;
use crate::line::Line;
use crate::replacement::State;

/// A cache of any [`Geometry`].
#[derive(Clone, Debug)]
pub struct Cache {
    set_mask: u32,
    ways: usize,
    /// The line used last of each set.
    last: Vec<Line>,
    /// Sets × ways, a set's ways side by side.
    lines: Vec<Line>,
    state: State,
}

impl Cache {
    pub fn new(geometry: Geometry) -> Cache {
        let sets = geometry.sets() as usize;
        let ways = geometry.ways() as usize;
        Cache {
            set_mask: geometry.sets() - 1,
            ways,
            last: vec![Line::NONE; sets],
            lines: vec![Line::NONE; sets * ways],
            state: State::new(geometry.replacement(), sets, ways),
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
        self.state.access(&mut self.lines, set, self.ways, line)
    }
}
