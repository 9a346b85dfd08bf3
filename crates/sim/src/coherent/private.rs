//! What a core has for itself: an L1I, an L1D, an L2, TLBs and counters.

use super::counters::CoreCounters;
use super::lines::LineParts;
use super::tags::TagArray;
use crate::geometry::CacheGeometry;
use crate::line::{LineId, Mode, PerMode, PhysAddr};
use crate::tlb::Tlb;

/// An L1 line that was used last in its set, and the parts whose use changes nothing any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecentLine {
    pub line: LineId,
    pub loads: LineParts,
    pub stores: LineParts,
}

const NOTHING_RECENT: RecentLine =
    RecentLine { line: LineId::NONE, loads: LineParts(0), stores: LineParts(0) };

/// An L1 with its recent lines, by set.
#[derive(Clone, Debug)]
pub(super) struct L1 {
    pub tags: TagArray,
    pub recent: Vec<RecentLine>,
    pub line_log2: u32,
}

impl L1 {
    pub(super) fn new(geometry: CacheGeometry, line: u32) -> L1 {
        L1 {
            tags: TagArray::new(geometry),
            recent: vec![NOTHING_RECENT; geometry.sets() as usize],
            line_log2: line.trailing_zeros(),
        }
    }

    #[inline]
    pub(super) fn line(&self, addr: PhysAddr) -> LineId {
        LineId::physical(addr.0 >> self.line_log2)
    }

    /// Whether the access would change nothing.
    #[inline]
    pub(super) fn changes_nothing(&self, line: LineId, parts: LineParts, is_store: bool) -> bool {
        let recent = &self.recent[self.tags.set_of(line)];
        let known = if is_store { recent.stores } else { recent.loads };
        recent.line == line && parts.within(known)
    }

    /// The L1's lines within a line of the L2.
    fn lines_within(&self, unit: LineId, unit_log2: u32) -> impl Iterator<Item = LineId> + use<> {
        let log2 = unit_log2 - self.line_log2;
        let first = u64::from(unit.index()) << log2;
        (first..first + (1 << log2)).map(LineId::physical)
    }

    /// Forgets what is known about the lines within a line of the L2.
    pub(super) fn forget(&mut self, unit: LineId, unit_log2: u32) {
        for line in self.lines_within(unit, unit_log2) {
            let recent = &mut self.recent[self.tags.set_of(line)];
            if recent.line == line {
                *recent = NOTHING_RECENT;
            }
        }
    }

    pub(super) fn remove(&mut self, unit: LineId, unit_log2: u32) {
        self.forget(unit, unit_log2);
        for line in self.lines_within(unit, unit_log2) {
            self.tags.remove(line);
        }
    }
}

/// A TLB, if the machine has one, and the page that was used last. Its use changes nothing.
#[derive(Clone, Debug)]
pub(super) struct PageUses {
    tlb: Option<Tlb>,
    last: LineId,
}

impl PageUses {
    pub(super) fn new(tlb: Option<Tlb>) -> PageUses {
        PageUses { tlb, last: LineId::NONE }
    }

    /// Uses a page. Returns whether the TLB lacked it.
    #[inline]
    pub(super) fn misses(&mut self, page: LineId) -> bool {
        std::mem::replace(&mut self.last, page) != page
            && self.tlb.as_mut().is_some_and(|tlb| tlb.access(page))
    }
}

/// What a core has for itself.
#[derive(Clone, Debug)]
pub(super) struct PrivateCaches {
    pub l1i: L1,
    pub l1d: L1,
    pub l2: TagArray,
    pub itlb: PageUses,
    pub dtlb: PageUses,
    pub mode: Mode,
    pub counters: PerMode<CoreCounters>,
}
