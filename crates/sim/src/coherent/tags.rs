//! A set-associative store of lines under LRU, from which a line can be taken away.
//!
//! A set's ways stand in the order of their last use, the most recent first. Empty ways come last.

use crate::access::occupied;
use crate::geometry::CacheGeometry;
use crate::line::LineId;

#[derive(Clone, Debug)]
pub(super) struct TagArray {
    set_mask: u32,
    ways: usize,
    lines: Vec<LineId>,
}

impl TagArray {
    pub(super) fn new(geometry: CacheGeometry) -> TagArray {
        let (sets, ways) = (geometry.sets() as usize, geometry.ways() as usize);
        TagArray { set_mask: geometry.sets() - 1, ways, lines: vec![LineId::NONE; sets * ways] }
    }

    /// The number of the line's set.
    #[inline]
    pub(super) fn set_of(&self, line: LineId) -> usize {
        (line.index() & self.set_mask) as usize
    }

    #[inline]
    fn set(&mut self, line: LineId) -> &mut [LineId] {
        let first = self.set_of(line) * self.ways;
        &mut self.lines[first..first + self.ways]
    }

    /// Uses the line. Returns false, and changes nothing, if the line is not there.
    #[inline]
    pub(super) fn touch(&mut self, line: LineId) -> bool {
        let set = self.set(line);
        match set.iter().position(|&held| held == line) {
            Some(at) => {
                set[..=at].rotate_right(1);
                true
            }
            None => false,
        }
    }

    /// Whether the line is there.
    pub(super) fn contains(&self, line: LineId) -> bool {
        let first = self.set_of(line) * self.ways;
        self.lines[first..first + self.ways].contains(&line)
    }

    /// Brings in a line that is not there. Returns the line that left.
    pub(super) fn insert(&mut self, line: LineId) -> Option<LineId> {
        let set = self.set(line);
        set.rotate_right(1);
        occupied(std::mem::replace(&mut set[0], line))
    }

    /// Uses the line, and brings it in when it is not there.
    pub(super) fn keep(&mut self, line: LineId) {
        if !self.touch(line) {
            self.insert(line);
        }
    }

    /// Takes the line away, if it is there.
    pub(super) fn remove(&mut self, line: LineId) {
        let set = self.set(line);
        if let Some(at) = set.iter().position(|&held| held == line) {
            set[at..].rotate_left(1);
            if let Some(last) = set.last_mut() {
                *last = LineId::NONE;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Replacement;

    #[test]
    fn a_line_that_was_taken_away_leaves_room() {
        let mut tags = TagArray::new(CacheGeometry::cache(32, 2, 16, Replacement::Lru).unwrap());
        let line = LineId::physical;
        assert_eq!(tags.insert(line(1)), None);
        assert_eq!(tags.insert(line(2)), None);
        assert!(tags.touch(line(1)));
        tags.remove(line(1));
        tags.remove(line(7));
        assert!(!tags.touch(line(1)));
        assert_eq!(tags.insert(line(3)), None);
        assert_eq!(tags.insert(line(4)), Some(line(2)));
        tags.keep(line(3));
        assert_eq!(tags.insert(line(5)), Some(line(4)));
    }
}
