//! A set-associative store of lines: which lines it holds, and which one leaves.
//!
//! Input: one line after the other. Output: hit or miss, and the line that was evicted. A cache
//! knows no modes, counters or time.
//!
//! Most accesses use the line that was used last in its set. Such an access changes nothing under
//! any replacement policy. So the last line of each set is kept in an array of its own, and the
//! cache searches its ways only for other lines.

use crate::PolicyState;
use crate::access::CacheAccess;
use crate::geometry::CacheGeometry;
use crate::line::LineId;

/// A cache of any [`CacheGeometry`].
#[derive(Clone, Debug)]
pub struct Cache {
    set_mask: u32,
    ways: usize,
    /// The line used last of each set.
    last: Vec<LineId>,
    /// Sets × ways, a set's ways side by side.
    lines: Vec<LineId>,
    state: PolicyState,
}

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
            state: PolicyState::new(geometry.replacement(), sets, ways),
        }
    }

    /// Whether `line` was used last in its set. Then it is there, and an access changes nothing.
    #[inline]
    pub(crate) fn used_last(&self, line: LineId) -> bool {
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
        self.state.access(&mut self.lines, set, self.ways, line)
    }
}
