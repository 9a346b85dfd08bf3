//! What all cores together know of each line: who holds it, and what was written since a core lost
//! it. A line is as long as the L2's.

use crate::line::{LineId, Mode, PerMode};

/// Parts of a line: a bit for each 64th of the line, and for each byte of a shorter line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineParts(pub u64);

impl LineParts {
    /// The parts of a line of `1 << line_log2` bytes that `size` bytes from `offset` on touch.
    /// Bytes behind the line's end are left out.
    #[inline]
    pub(crate) fn new(offset: u32, size: u32, line_log2: u32) -> LineParts {
        let part = line_log2.saturating_sub(6);
        let (first, last) = (offset >> part, (offset + size.max(1) - 1) >> part);
        let below = |bits: u32| u64::MAX.checked_shl(bits).map_or(u64::MAX, |above| !above);
        LineParts(below(last + 1) & !below(first))
    }

    pub(super) const ALL: LineParts = LineParts(u64::MAX);

    #[inline]
    pub(super) fn meets(self, other: LineParts) -> bool {
        self.0 & other.0 != 0
    }

    #[inline]
    pub(super) fn within(self, other: LineParts) -> bool {
        self.0 & !other.0 == 0
    }

    #[inline]
    pub(super) fn join(&mut self, other: LineParts) {
        self.0 |= other.0;
    }
}

/// The state of a line in the caches that hold it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LineState {
    /// No core holds the line.
    #[default]
    Absent,
    /// The holders may read.
    Shared,
    /// The one holder may write, and has not written yet.
    Exclusive,
    /// The one holder has written.
    Modified,
}

/// A set of cores, by bits.
pub(super) type Cores = u8;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LineRecord {
    pub holders: Cores,
    /// The cores that ever held the line.
    pub had: Cores,
    /// The cores from which another core's write took the line, until they get it again.
    pub lost: Cores,
    pub state: LineState,
    /// One more than the index of the line's [`SharedLine`]; 0: there is none.
    shared: u32,
    /// The parts that the holder of a modified line has written since it may write.
    pub written: LineParts,
}

/// What cores did to a line that a write took from one of them.
#[derive(Clone, Debug)]
pub struct SharedLine {
    pub(super) line: LineId,
    /// By core: the parts that others wrote since it lost the line.
    pub(super) foreign: [LineParts; 8],
    /// The cores whose last miss counts as false sharing, and can still turn out to be true.
    pub(super) open: Cores,
    /// By core: the mode of that miss, and whether it was a fetch.
    pub(super) open_miss: [(Mode, bool); 8],
    /// By core: the parts that it loaded since the line was first taken from a core.
    pub loaded: [LineParts; 8],
    /// By core: the parts that it stored.
    pub stored: [LineParts; 8],
    /// Coherence misses and upgrades, by the mode of the core that asked.
    pub counts: PerMode<SharingCounts>,
}

counters! {
    /// Coherence misses and upgrades.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SharingCounts {
        /// Misses on what another core wrote.
        pub true_sharing: u64,
        /// Misses on what no other core wrote.
        pub false_sharing: u64,
        /// Upgrades.
        pub upgrades: u64,
    }
}

impl SharingCounts {
    /// All coherence misses and upgrades.
    pub fn total(&self) -> u64 {
        self.true_sharing + self.false_sharing + self.upgrades
    }
}

/// The records of all lines. The lines in use form neighbourhoods that lie far apart. Only these
/// neighbourhoods take memory.
#[derive(Clone, Debug, Default)]
pub(super) struct LineTable {
    neighbourhoods: Vec<Option<Box<[LineRecord; LineTable::LINES]>>>,
    shared: Vec<SharedLine>,
}

impl LineTable {
    const LINES: usize = 1 << 10;

    #[inline]
    pub(super) fn record(&mut self, line: LineId) -> &mut LineRecord {
        let at = line.index() as usize / LineTable::LINES;
        if at >= self.neighbourhoods.len() {
            self.neighbourhoods.resize(at + 1, None);
        }
        let new = || Box::new([LineRecord::default(); LineTable::LINES]);
        &mut self.neighbourhoods[at].get_or_insert_with(new)
            [line.index() as usize % LineTable::LINES]
    }

    /// The line's sharing, if a core lost it before.
    #[inline]
    pub(super) fn sharing(&mut self, record: LineRecord) -> Option<&mut SharedLine> {
        let at = record.shared.checked_sub(1)?;
        self.shared.get_mut(at as usize)
    }

    /// The line's sharing; `record` is the line's.
    pub(super) fn sharing_or_new(
        &mut self,
        line: LineId,
        record: &mut LineRecord,
    ) -> &mut SharedLine {
        if record.shared == 0 {
            self.shared.push(SharedLine {
                line,
                foreign: Default::default(),
                open: 0,
                open_miss: [(Mode::Kernel, false); 8],
                loaded: Default::default(),
                stored: Default::default(),
                counts: PerMode::default(),
            });
            record.shared = self.shared.len() as u32;
        }
        &mut self.shared[record.shared as usize - 1]
    }

    pub(super) fn all_shared(&self) -> &[SharedLine] {
        &self.shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_bytes_of_a_short_line_and_pairs_of_a_longer() {
        assert_eq!(LineParts::new(0, 1, 6), LineParts(1));
        assert_eq!(LineParts::new(60, 4, 6), LineParts(0xf << 60));
        assert_eq!(LineParts::new(0, 64, 6), LineParts::ALL);
        assert_eq!(LineParts::new(60, 8, 6), LineParts(0xf << 60));
        assert_eq!(LineParts::new(8, 8, 4), LineParts(0xff00));
        assert_eq!(LineParts::new(3, 2, 7), LineParts(0b110));
        assert_eq!(LineParts::new(0, 128, 7), LineParts::ALL);
        assert!(LineParts(1).meets(LineParts(3)) && !LineParts(4).meets(LineParts(3)));
        assert!(LineParts(1).within(LineParts(3)) && !LineParts(6).within(LineParts(3)));
    }
}
