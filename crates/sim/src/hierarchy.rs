//! The caches and TLBs of a machine together: L1 for instructions and for data, L2 and L3 for both.
//!
//! Takes what a processor fetches, loads and stores, in order; gives counters by mode and cause. A
//! level is asked when the one above it missed, and keeps what it was asked for; levels do not
//! reach into one another (neither inclusive nor exclusive). Stores bring their line in, as loads
//! do. An access across the end of a line uses both lines, one after the other, and is one
//! reference.
//!
//! ```text
//! fetch ──→ L1I ─┐
//!                ├─ miss → L2 ─ miss → L3 ─ miss → memory
//! load, store → L1D ─┘
//! ```
//!
//! L1I lines are whatever numbers the caller gives them; all others are lines of physical memory.
//!
//! Whoever wants to know what a stretch of execution cost (a service, a function) takes
//! [`Hierarchy::counters`] before and after it and subtracts: a copy of some forty numbers.

use crate::geometry::Geometry;
use crate::level::{Cause, Level, Misses, Requester};
use crate::line::{Line, Mode, PerMode};
use crate::machine::{CacheDescription, Machine};
use crate::tlb::Tlb;
use std::ops::{AddAssign, Sub};

/// An address of the guest's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PhysAddr(pub u64);

/// What a machine did, of one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub instructions: u64,
    pub loads: u64,
    pub stores: u64,
    pub l1i: Misses,
    pub l1d: Misses,
    /// Misses of the L2 by fetches and by loads and stores; 0 where there is none.
    pub l2i: Misses,
    pub l2d: Misses,
    pub l3i: Misses,
    pub l3d: Misses,
    pub itlb: u64,
    pub dtlb: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.instructions += other.instructions;
        self.loads += other.loads;
        self.stores += other.stores;
        self.l1i += other.l1i;
        self.l1d += other.l1d;
        self.l2i += other.l2i;
        self.l2d += other.l2d;
        self.l3i += other.l3i;
        self.l3d += other.l3d;
        self.itlb += other.itlb;
        self.dtlb += other.dtlb;
    }
}

/// What happened between an earlier state of the counters and a later one.
impl Sub for Counters {
    type Output = Counters;

    fn sub(self, earlier: Counters) -> Counters {
        Counters {
            instructions: self.instructions - earlier.instructions,
            loads: self.loads - earlier.loads,
            stores: self.stores - earlier.stores,
            l1i: self.l1i - earlier.l1i,
            l1d: self.l1d - earlier.l1d,
            l2i: self.l2i - earlier.l2i,
            l2d: self.l2d - earlier.l2d,
            l3i: self.l3i - earlier.l3i,
            l3d: self.l3d - earlier.l3d,
            itlb: self.itlb - earlier.itlb,
            dtlb: self.dtlb - earlier.dtlb,
        }
    }
}

/// Which levels missed, and why: the L1 did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    pub l1: Cause,
    /// `None`: it was there, or there is no such level.
    pub l2: Option<Cause>,
    pub l3: Option<Cause>,
}

/// A level whose lines are lines of physical memory.
#[derive(Clone, Debug)]
struct Physical {
    level: Level,
    line_log2: u32,
}

impl Physical {
    fn new(cache: &CacheDescription) -> Physical {
        Physical { level: Level::new(cache.geometry), line_log2: cache.line.trailing_zeros() }
    }

    #[inline]
    fn line(&self, addr: PhysAddr) -> Line {
        Line::physical(addr.0 >> self.line_log2)
    }

    #[inline]
    fn used_last(&self, addr: PhysAddr) -> bool {
        self.level.used_last(self.line(addr))
    }

    #[inline]
    fn access(&mut self, addr: PhysAddr, requester: Requester) -> Option<Cause> {
        self.level.access(self.line(addr), requester)
    }
}

#[derive(Clone, Debug)]
pub struct Hierarchy {
    requester: Requester,
    mode: Mode,
    l1i: Level,
    l1d: Physical,
    l2: Option<Physical>,
    l3: Option<Physical>,
    itlb: Option<Tlb>,
    dtlb: Option<Tlb>,
    counters: PerMode<Counters>,
}

impl Hierarchy {
    /// `None` when the machine describes no data cache.
    pub fn new(machine: &Machine) -> Option<Hierarchy> {
        let memory = machine.memory.as_ref()?;
        let tlb = |geometry: Geometry| Tlb::new(geometry);
        Some(Hierarchy {
            requester: Requester::KERNEL,
            mode: Mode::Kernel,
            l1i: Level::new(machine.l1i),
            l1d: Physical::new(&memory.l1d),
            l2: memory.l2.as_ref().map(Physical::new),
            l3: memory.l3.as_ref().map(Physical::new),
            itlb: machine.itlb.map(|itlb| tlb(itlb.geometry)),
            dtlb: memory.dtlb.map(tlb),
            counters: PerMode::default(),
        })
    }

    /// Who executes from now on.
    #[inline]
    pub fn runs(&mut self, requester: Requester) {
        self.requester = requester;
        self.mode = requester.mode();
    }

    /// Counts instructions, and the loads and stores they made; what these touch goes to
    /// [`Hierarchy::data`].
    #[inline]
    pub fn executed(&mut self, instructions: u64, loads: u64, stores: u64) {
        let counters = self.counters.get_mut(self.mode);
        counters.instructions += instructions;
        counters.loads += loads;
        counters.stores += stores;
    }

    /// Fetches from the L1I's `line`, which lies at `physical`.
    #[inline]
    pub fn fetch(&mut self, line: Line, physical: PhysAddr) -> Option<Missed> {
        let cause = self.fetch_ahead(line, self.requester)?;
        Some(self.fetch_missed(cause, physical))
    }

    /// Loads from or stores into the line at `physical`.
    #[inline]
    pub fn data(&mut self, physical: PhysAddr) -> Option<Missed> {
        let cause = self.data_ahead(physical, self.requester)?;
        Some(self.data_missed(cause, physical))
    }

    /// The L1I's part of a fetch by `requester`. What an L1 or a TLB answers depends on none of the
    /// other caches, so each can be asked ahead for many executions; [`Hierarchy::fetch_missed`]
    /// and [`Hierarchy::data_missed`] are then told the misses of both, in the order of the
    /// executions.
    #[inline]
    pub fn fetch_ahead(&mut self, line: Line, requester: Requester) -> Option<Cause> {
        self.l1i.access(line, requester)
    }

    /// Whether fetching from the line would change nothing: its set's last fetch was from it.
    #[inline]
    pub fn fetched_last(&self, line: Line) -> bool {
        self.l1i.used_last(line)
    }

    /// As [`Hierarchy::fetch_ahead`]: the L1D's part of a load or store.
    #[inline]
    pub fn data_ahead(&mut self, physical: PhysAddr, requester: Requester) -> Option<Cause> {
        self.l1d.access(physical, requester)
    }

    /// As [`Hierarchy::fetched_last`], for loads and stores.
    #[inline]
    pub fn accessed_last(&self, physical: PhysAddr) -> bool {
        self.l1d.used_last(physical)
    }

    /// The L1I missed a line, which lies at `physical`: asks what is behind it, and counts.
    pub fn fetch_missed(&mut self, l1: Cause, physical: PhysAddr) -> Missed {
        let (l2, l3) = self.below(physical);
        let counters = self.counters.get_mut(self.mode);
        counters.l1i.count(l1);
        l2.into_iter().for_each(|cause| counters.l2i.count(cause));
        l3.into_iter().for_each(|cause| counters.l3i.count(cause));
        Missed { l1, l2, l3 }
    }

    /// The L1D missed the line at `physical`: asks what is behind it, and counts.
    pub fn data_missed(&mut self, l1: Cause, physical: PhysAddr) -> Missed {
        let (l2, l3) = self.below(physical);
        let counters = self.counters.get_mut(self.mode);
        counters.l1d.count(l1);
        l2.into_iter().for_each(|cause| counters.l2d.count(cause));
        l3.into_iter().for_each(|cause| counters.l3d.count(cause));
        Missed { l1, l2, l3 }
    }

    /// log2 of the bytes in a line of the L1D.
    #[inline]
    pub fn data_line_log2(&self) -> u32 {
        self.l1d.line_log2
    }

    /// What the L2 and the L3 say to a miss of an L1.
    fn below(&mut self, physical: PhysAddr) -> (Option<Cause>, Option<Cause>) {
        let Some(l2) = &mut self.l2 else { return (None, None) };
        let Some(missed) = l2.access(physical, self.requester) else {
            return (None, None);
        };
        let l3 = self.l3.as_mut().and_then(|l3| l3.access(physical, self.requester));
        (Some(missed), l3)
    }

    /// Translates the address of a fetch in this page.
    #[inline]
    pub fn fetch_page(&mut self, page: Line) {
        if self.fetch_page_ahead(page) {
            self.fetch_page_missed();
        }
    }

    /// As [`Hierarchy::fetch_ahead`]: the instruction TLB's part; true when it missed.
    #[inline]
    pub fn fetch_page_ahead(&mut self, page: Line) -> bool {
        self.itlb.as_mut().is_some_and(|itlb| itlb.access(page))
    }

    /// Counts a miss of the instruction TLB.
    pub fn fetch_page_missed(&mut self) {
        self.counters.get_mut(self.mode).itlb += 1;
    }

    /// Translates the address of a load or store in this page.
    #[inline]
    pub fn data_page(&mut self, page: Line) {
        if self.data_page_ahead(page) {
            self.data_page_missed();
        }
    }

    /// As [`Hierarchy::fetch_ahead`]: the data TLB's part; true when it missed.
    #[inline]
    pub fn data_page_ahead(&mut self, page: Line) -> bool {
        self.dtlb.as_mut().is_some_and(|dtlb| dtlb.access(page))
    }

    /// Counts a miss of the data TLB.
    pub fn data_page_missed(&mut self) {
        self.counters.get_mut(self.mode).dtlb += 1;
    }

    /// All that happened so far, by mode.
    pub fn counters(&self) -> PerMode<Counters> {
        self.counters
    }
}
