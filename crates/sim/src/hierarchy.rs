//! The caches and TLBs of a machine: L1 for instructions and for data, L2 and L3 for both.
//!
//! Input: the fetches, loads and stores of a processor, in order. Output: counters by mode and
//! cause. A level is accessed when the level above it missed, and keeps the line. A level changes
//! no other level (it is neither inclusive nor exclusive). A store brings its line in, as a load
//! does. An access across the end of a line uses both lines, one after the other, and counts as one
//! reference.
//!
//! ```text
//! fetch ──→ L1I ─┐
//!                ├─ miss → L2 ─ miss → L3 ─ miss → memory
//! load, store → L1D ─┘
//! ```
//!
//! The caller numbers the lines of the L1I. All other lines are lines of physical memory.
//!
//! To find out what a stretch of execution (a service, a function) cost, take
//! [`Hierarchy::counters`] before and after it and subtract. This copies about forty numbers.

use crate::geometry::CacheGeometry;
use crate::level::{CacheLevel, MissCause, MissCounts, Requester};
use crate::line::{LineId, Mode, PerMode, PhysAddr};
use crate::machine::{CacheDescription, MachineModel};
use crate::tlb::Tlb;

counters! {
    /// The counters of a machine for one mode.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MachineCounters {
        /// Instructions.
        pub instructions: u64,
        /// Loads.
        pub loads: u64,
        /// Stores.
        pub stores: u64,
        /// L1I misses.
        pub l1i: MissCounts,
        /// L1D misses.
        pub l1d: MissCounts,
        /// L2 misses of fetches; 0 without an L2.
        pub l2i: MissCounts,
        /// L2 misses of loads and stores; 0 without an L2.
        pub l2d: MissCounts,
        /// L3 misses of fetches; 0 without an L3.
        pub l3i: MissCounts,
        /// L3 misses of loads and stores; 0 without an L3.
        pub l3d: MissCounts,
        /// Misses of the instruction TLB.
        pub itlb: u64,
        /// Misses of the data TLB.
        pub dtlb: u64,
    }
}

/// The levels that missed in one access, and the causes. The L1 missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissedLevels {
    /// The cause of the L1's miss.
    pub l1: MissCause,
    /// The cause of the L2's miss. `None`: the L2 hit, or there is none.
    pub l2: Option<MissCause>,
    /// The cause of the L3's miss. `None`: the L3 hit or was not accessed, or there is none.
    pub l3: Option<MissCause>,
}

/// A level that holds lines of physical memory.
#[derive(Clone, Debug)]
struct PhysicalLevel {
    level: CacheLevel,
    line_log2: u32,
}

impl PhysicalLevel {
    fn new(cache: &CacheDescription) -> PhysicalLevel {
        PhysicalLevel {
            level: CacheLevel::new(cache.geometry),
            line_log2: cache.line.trailing_zeros(),
        }
    }

    #[inline]
    fn line(&self, addr: PhysAddr) -> LineId {
        LineId::physical(addr.0 >> self.line_log2)
    }

    #[inline]
    fn used_last(&self, addr: PhysAddr) -> bool {
        self.level.used_last(self.line(addr))
    }

    #[inline]
    fn access(&mut self, addr: PhysAddr, requester: Requester) -> Option<MissCause> {
        self.level.access(self.line(addr), requester)
    }
}

/// The caches and TLBs of a machine, with their counters.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    requester: Requester,
    mode: Mode,
    l1i: CacheLevel,
    l1d: PhysicalLevel,
    l2: Option<PhysicalLevel>,
    l3: Option<PhysicalLevel>,
    itlb: Option<Tlb>,
    dtlb: Option<Tlb>,
    counters: PerMode<MachineCounters>,
}

impl Hierarchy {
    /// Empty caches and TLBs; `None` when the machine describes no data cache.
    pub fn new(machine: &MachineModel) -> Option<Hierarchy> {
        let memory = machine.memory.as_ref()?;
        let tlb = |geometry: CacheGeometry| Tlb::new(geometry);
        Some(Hierarchy {
            requester: Requester::KERNEL,
            mode: Mode::Kernel,
            l1i: CacheLevel::new(machine.l1i),
            l1d: PhysicalLevel::new(&memory.l1d),
            l2: memory.l2.as_ref().map(PhysicalLevel::new),
            l3: memory.l3.as_ref().map(PhysicalLevel::new),
            itlb: machine.itlb.map(|itlb| tlb(itlb.geometry)),
            dtlb: memory.dtlb.map(tlb),
            counters: PerMode::default(),
        })
    }

    /// Sets the requester that executes from now on.
    #[inline]
    pub fn runs(&mut self, requester: Requester) {
        self.requester = requester;
        self.mode = requester.mode();
    }

    /// Counts instructions and their loads and stores. The caller gives the accessed lines to
    /// [`Hierarchy::data`].
    #[inline]
    pub fn executed(&mut self, instructions: u64, loads: u64, stores: u64) {
        let counters = self.counters.get_mut(self.mode);
        counters.instructions += instructions;
        counters.loads += loads;
        counters.stores += stores;
    }

    /// Fetches from `line` of the L1I, which lies at `physical`.
    #[inline]
    pub fn fetch(&mut self, line: LineId, physical: PhysAddr) -> Option<MissedLevels> {
        let cause = self.fetch_ahead(line, self.requester)?;
        Some(self.fetch_missed(cause, physical))
    }

    /// Loads from the line at `physical` or stores into it.
    #[inline]
    pub fn data(&mut self, physical: PhysAddr) -> Option<MissedLevels> {
        let cause = self.data_ahead(physical, self.requester)?;
        Some(self.data_missed(cause, physical))
    }

    /// The L1I's part of a fetch by `requester`. The answer of an L1 or a TLB does not depend on
    /// the other caches. So a caller can run each of them ahead over many executions, and then give
    /// the misses of both to [`Hierarchy::fetch_missed`] and [`Hierarchy::data_missed`], in the
    /// order of the executions.
    #[inline]
    pub fn fetch_ahead(&mut self, line: LineId, requester: Requester) -> Option<MissCause> {
        self.l1i.access(line, requester)
    }

    /// Whether a fetch from the line would change nothing, because the last fetch of its set was
    /// from it.
    #[inline]
    pub fn fetched_last(&self, line: LineId) -> bool {
        self.l1i.used_last(line)
    }

    /// The L1D's part of a load or store; see [`Hierarchy::fetch_ahead`].
    #[inline]
    pub fn data_ahead(&mut self, physical: PhysAddr, requester: Requester) -> Option<MissCause> {
        self.l1d.access(physical, requester)
    }

    /// The same as [`Hierarchy::fetched_last`] for loads and stores.
    #[inline]
    pub fn accessed_last(&self, physical: PhysAddr) -> bool {
        self.l1d.used_last(physical)
    }

    /// The L1I missed a line, which lies at `physical`: accesses the next levels, and counts.
    pub fn fetch_missed(&mut self, l1: MissCause, physical: PhysAddr) -> MissedLevels {
        let (l2, l3) = self.below(physical);
        let counters = self.counters.get_mut(self.mode);
        counters.l1i.count(l1);
        l2.into_iter().for_each(|cause| counters.l2i.count(cause));
        l3.into_iter().for_each(|cause| counters.l3i.count(cause));
        MissedLevels { l1, l2, l3 }
    }

    /// The L1D missed the line at `physical`: accesses the next levels, and counts.
    pub fn data_missed(&mut self, l1: MissCause, physical: PhysAddr) -> MissedLevels {
        let (l2, l3) = self.below(physical);
        let counters = self.counters.get_mut(self.mode);
        counters.l1d.count(l1);
        l2.into_iter().for_each(|cause| counters.l2d.count(cause));
        l3.into_iter().for_each(|cause| counters.l3d.count(cause));
        MissedLevels { l1, l2, l3 }
    }

    /// log2 of the bytes in a line of the L1D.
    #[inline]
    pub fn data_line_log2(&self) -> u32 {
        self.l1d.line_log2
    }

    /// Accesses the L2, and the L3 when the L2 misses.
    fn below(&mut self, physical: PhysAddr) -> (Option<MissCause>, Option<MissCause>) {
        let Some(l2) = &mut self.l2 else { return (None, None) };
        let Some(missed) = l2.access(physical, self.requester) else {
            return (None, None);
        };
        let l3 = self.l3.as_mut().and_then(|l3| l3.access(physical, self.requester));
        (Some(missed), l3)
    }

    /// Translates the address of a fetch in this page.
    #[inline]
    pub fn fetch_page(&mut self, page: LineId) {
        if self.fetch_page_ahead(page) {
            self.fetch_page_missed();
        }
    }

    /// The instruction TLB's part of a fetch; see [`Hierarchy::fetch_ahead`]. Returns whether the
    /// TLB missed.
    #[inline]
    pub fn fetch_page_ahead(&mut self, page: LineId) -> bool {
        self.itlb.as_mut().is_some_and(|itlb| itlb.access(page))
    }

    /// Counts a miss of the instruction TLB.
    pub fn fetch_page_missed(&mut self) {
        self.counters.get_mut(self.mode).itlb += 1;
    }

    /// Translates the address of a load or store in this page.
    #[inline]
    pub fn data_page(&mut self, page: LineId) {
        if self.data_page_ahead(page) {
            self.data_page_missed();
        }
    }

    /// The data TLB's part of a load or store; see [`Hierarchy::fetch_ahead`]. Returns whether the
    /// TLB missed.
    #[inline]
    pub fn data_page_ahead(&mut self, page: LineId) -> bool {
        self.dtlb.as_mut().is_some_and(|dtlb| dtlb.access(page))
    }

    /// Counts a miss of the data TLB.
    pub fn data_page_missed(&mut self) {
        self.counters.get_mut(self.mode).dtlb += 1;
    }

    /// The counters of everything so far, by mode.
    pub fn counters(&self) -> PerMode<MachineCounters> {
        self.counters
    }
}
