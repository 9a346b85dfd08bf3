//! The caches of a multiprocessor: an L1I, an L1D and an L2 for each core, an L3 for each cluster.
//!
//! Input: the fetches, loads and stores of all cores, in one order. Output: counters by core, mode
//! and class of miss, and what was shared. The order is the caller's: this module has no clock.
//!
//! ```text
//! core 0: L1I, L1D ─→ L2 ─┐            ┌─ L2 ←─ L1I, L1D: core 2
//!                         ├─ L3    L3 ─┤
//! core 1: L1I, L1D ─→ L2 ─┘    │   │   └─ L2 ←─ L1I, L1D: core 3
//!                              memory
//! ```
//!
//! The rules, which `tests/coherence_model.rs` states a second time:
//!
//! * A line is as long as the L2's. The L2 of a core holds all lines of its L1s: a line that leaves
//!   the L2 also leaves the L1s.
//! * A store needs the line alone. When the core does not have it, this is a miss; when it may only
//!   read it, an upgrade. In both cases all other cores, and the L3s of other clusters, lose the
//!   line.
//! * A load of a line that one core has alone leaves it shared by both. What was written goes to
//!   the L3 of the writer.
//! * A core of the same cluster that has the line alone supplies it. Otherwise the cluster's L3
//!   does, then any core of the cluster, then another cluster, where a core has the line alone or
//!   the L3 has it, then memory.
//! * A load gets the line alone, under MESI, when no core and no other cluster's L3 has it.
//! * An L3 gets every line that a core of its cluster misses, and every written line that leaves a
//!   core of its cluster. It takes no line from a core.
//! * A miss of a core is cold when the core never had the line, capacity when it evicted the line.
//!   Otherwise another core's write took the line. The miss is true sharing when the core, before
//!   it loses the line again, uses a part that others wrote since; else it is false sharing
//!   (Dubois et al., "The Detection and Elimination of Useless Misses in Multiprocessors", ISCA
//!   1993). Loads and stores are uses. So a miss counts as false sharing until it is seen to be
//!   true.

mod counters;
pub(crate) mod description;
mod energy;
mod lines;
pub(crate) mod os_core;
mod private;
mod rules;
mod served;
mod tags;

use crate::line::{LineId, Mode, PerMode, PhysAddr};
use crate::machine::MachineModel;
use crate::tlb::Tlb;
pub use counters::{ClassCounts, CoreCounters, CoreStalls, MissClass, Supplier, SupplierCounts};
pub use description::{CoherenceDescription, CoherenceError, Protocol};
use lines::{Cores, LineRecord, LineState, LineTable};
pub use lines::{LineParts, SharedLine, SharingCounts};
pub use os_core::{EnergyDescription, OsCoreDescription, OsCoreError};
use private::{L1, PageUses, PrivateCaches, RecentLine};
pub use served::{CoherentAccess, Served};
use tags::TagArray;

/// A core of a machine, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(u8);

impl CoreId {
    /// The number: 0 is the first core.
    pub fn number(self) -> u8 {
        self.0
    }

    fn bit(self) -> Cores {
        1 << self.0
    }
}

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccessKind {
    Fetch,
    Load,
    Store,
}

/// The caches and TLBs of all cores, with their counters.
#[derive(Clone, Debug)]
pub struct CoherentCaches {
    description: CoherenceDescription,
    cores: Vec<PrivateCaches>,
    /// The last core is for the operating system.
    has_os_core: bool,
    /// By cluster; empty without an L3.
    last_levels: Vec<TagArray>,
    lines: LineTable,
    /// log2 of the bytes in a line of the L2.
    line_log2: u32,
}

impl CoherentCaches {
    /// Empty caches; `None` when the machine has one core, or breaks a rule of
    /// [`MachineModel::check_coherence`].
    pub fn new(machine: &MachineModel) -> Option<CoherentCaches> {
        machine.check_coherence().ok()?;
        let description = machine.coherence?;
        let memory = machine.memory.as_ref()?;
        let l2 = memory.l2?;
        let private = |l1i, l1d, of_l2| PrivateCaches {
            l1i: L1::new(l1i, machine.l1i_line),
            l1d: L1::new(l1d, memory.l1d.line),
            l2: TagArray::new(of_l2),
            itlb: PageUses::new(machine.itlb.map(|itlb| Tlb::new(itlb.geometry))),
            dtlb: PageUses::new(memory.dtlb.map(Tlb::new)),
            mode: Mode::Kernel,
            counters: PerMode::default(),
        };
        let core = private(machine.l1i, memory.l1d.geometry, l2.geometry);
        let mut cores = vec![core; description.cores as usize];
        if let Some((os_core, last)) = machine.os_core.zip(cores.last_mut()) {
            *last = private(os_core.l1i, os_core.l1d, os_core.l2);
        }
        let clusters = 0..description.clusters;
        let last_level = memory.l3.map(|l3| TagArray::new(l3.geometry));
        Some(CoherentCaches {
            description,
            cores,
            has_os_core: machine.os_core.is_some(),
            last_levels: clusters.filter_map(|_| last_level.clone()).collect(),
            lines: LineTable::default(),
            line_log2: l2.line.trailing_zeros(),
        })
    }

    /// The application core with this number; `None` when the machine has fewer.
    pub fn core(&self, number: u8) -> Option<CoreId> {
        self.cores().nth(number.into())
    }

    /// The application cores, in the order of their numbers: all but the operating system's.
    pub fn cores(&self) -> impl Iterator<Item = CoreId> + use<> {
        (0..self.description.cores as u8 - u8::from(self.has_os_core)).map(CoreId)
    }

    /// The core for the operating system, if the machine has one.
    pub fn os_core(&self) -> Option<CoreId> {
        self.has_os_core.then_some(CoreId(self.description.cores as u8 - 1))
    }

    /// The counters of a core so far, by mode.
    pub fn counters(&self, core: CoreId) -> PerMode<CoreCounters> {
        self.private(core).counters
    }

    /// The counters of a core for one mode so far.
    #[inline]
    pub fn counters_of(&self, core: CoreId, mode: Mode) -> &CoreCounters {
        self.private(core).counters.get(mode)
    }

    /// The lines that a write took from a core, with the address of each.
    pub fn shared_lines(&self) -> impl Iterator<Item = (PhysAddr, &SharedLine)> {
        let log2 = self.line_log2;
        self.lines
            .all_shared()
            .iter()
            .map(move |shared| (PhysAddr(u64::from(shared.line.index()) << log2), shared))
    }

    /// log2 of the bytes in a line of the L2, which is what cores share.
    pub fn line_log2(&self) -> u32 {
        self.line_log2
    }

    /// log2 of the bytes in a line of the L1D. An access must not leave such a line.
    #[inline]
    pub fn data_line_log2(&self) -> u32 {
        self.cores[0].l1d.line_log2
    }

    #[inline]
    fn private(&self, core: CoreId) -> &PrivateCaches {
        &self.cores[usize::from(core.0)]
    }

    #[inline]
    fn private_mut(&mut self, core: CoreId) -> &mut PrivateCaches {
        &mut self.cores[usize::from(core.0)]
    }

    /// The counters of what the core does now.
    fn counting(&mut self, core: CoreId) -> &mut CoreCounters {
        let private = self.private_mut(core);
        private.counters.get_mut(private.mode)
    }

    /// Sets the mode in which the core executes from now on.
    #[inline]
    pub fn runs(&mut self, core: CoreId, mode: Mode) {
        self.private_mut(core).mode = mode;
    }

    /// Counts instructions and their loads and stores.
    #[inline]
    pub fn executed(&mut self, core: CoreId, instructions: u64, loads: u64, stores: u64) {
        let counters = self.counting(core);
        counters.instructions += instructions;
        counters.loads += loads;
        counters.stores += stores;
    }

    /// Translates the address of a fetch in this page. Returns whether the TLB missed.
    #[inline]
    pub fn fetch_page(&mut self, core: CoreId, page: LineId) -> bool {
        let missed = self.private_mut(core).itlb.misses(page);
        if missed {
            self.counting(core).itlb += 1;
        }
        missed
    }

    /// Translates the address of a load or store in this page. Returns whether the TLB missed.
    #[inline]
    pub fn data_page(&mut self, core: CoreId, page: LineId) -> bool {
        let missed = self.private_mut(core).dtlb.misses(page);
        if missed {
            self.counting(core).dtlb += 1;
        }
        missed
    }

    #[inline]
    fn parts(&self, addr: PhysAddr, size: u32) -> LineParts {
        LineParts::new((addr.0 & ((1 << self.line_log2) - 1)) as u32, size, self.line_log2)
    }

    /// Fetches the line of the L1I at this address.
    #[inline]
    pub fn fetch(&mut self, core: CoreId, addr: PhysAddr) -> CoherentAccess {
        let l1i = &self.private(core).l1i;
        let (line, size) = (l1i.line(addr), 1 << l1i.line_log2);
        let parts = self.parts(PhysAddr(addr.0 & !(u64::from(size) - 1)), size);
        match self.private(core).l1i.changes_nothing(line, parts, false) {
            true => CoherentAccess::BY_L1,
            false => self.access(core, addr, parts, AccessKind::Fetch),
        }
    }

    /// Loads or stores `size` bytes, all in one line of the L1D.
    #[inline]
    pub fn data(
        &mut self,
        core: CoreId,
        addr: PhysAddr,
        size: u32,
        is_store: bool,
    ) -> CoherentAccess {
        let parts = self.parts(addr, size);
        let l1d = &self.private(core).l1d;
        if l1d.changes_nothing(l1d.line(addr), parts, is_store) {
            return CoherentAccess::BY_L1;
        }
        let kind = if is_store { AccessKind::Store } else { AccessKind::Load };
        self.access(core, addr, parts, kind)
    }

    fn access(
        &mut self,
        core: CoreId,
        addr: PhysAddr,
        parts: LineParts,
        kind: AccessKind,
    ) -> CoherentAccess {
        let unit = LineId::physical(addr.0 >> self.line_log2);
        let private = self.private_mut(core);
        let counters = private.counters.get_mut(private.mode);
        let (l1, misses) = match kind {
            AccessKind::Fetch => (&mut private.l1i, &mut counters.l1i),
            AccessKind::Load | AccessKind::Store => (&mut private.l1d, &mut counters.l1d),
        };
        let line = l1.line(addr);
        let in_l1 = l1.tags.touch(line);
        let in_l2 = in_l1 || private.l2.touch(unit);
        if !in_l1 {
            *misses += 1;
            l1.tags.insert(line);
        }
        let mut record = *self.lines.record(unit);
        let was_true = in_l2 && self.use_lost(core, record, parts);
        let served = if !in_l2 {
            self.miss(core, unit, &mut record, parts, kind)
        } else if kind == AccessKind::Store && record.state == LineState::Shared {
            self.upgrade(core, unit, &mut record)
        } else if in_l1 {
            Served::L1
        } else {
            Served::L2
        };
        if kind == AccessKind::Store {
            record.state = LineState::Modified;
            record.written.join(parts);
        }
        *self.lines.record(unit) = record;
        self.remember(core, line, record, parts, kind);
        CoherentAccess { served, l1_missed: !in_l1, was_true }
    }

    /// The core uses parts of a line that it has. Returns true if its last miss on the line counted
    /// as false sharing and was true sharing.
    fn use_lost(&mut self, core: CoreId, record: LineRecord, parts: LineParts) -> bool {
        let at = usize::from(core.0);
        let Some(shared) = self.lines.sharing(record) else { return false };
        if shared.open & core.bit() == 0 || !parts.meets(shared.foreign[at]) {
            return false;
        }
        shared.open &= !core.bit();
        let (mode, is_fetch) = shared.open_miss[at];
        let of_line = shared.counts.get_mut(mode);
        of_line.false_sharing -= 1;
        of_line.true_sharing += 1;
        let counters = self.private_mut(core).counters.get_mut(mode);
        let classes = if is_fetch { &mut counters.l2_instructions } else { &mut counters.l2_data };
        classes.false_sharing -= 1;
        classes.true_sharing += 1;
        true
    }

    /// The core gets a line that it does not have.
    fn miss(
        &mut self,
        core: CoreId,
        unit: LineId,
        record: &mut LineRecord,
        parts: LineParts,
        kind: AccessKind,
    ) -> Served {
        self.publish(record);
        let class = self.classify(core, *record, parts, kind == AccessKind::Fetch);
        let supplier = self.supplier(core, unit, *record);
        if kind == AccessKind::Store {
            self.take_from_others(core, unit, record);
        } else if record.holders == 0 {
            let mesi = self.description.protocol == Protocol::Mesi;
            let alone = mesi && !self.another_l3_has(self.cluster(core), unit);
            record.state = if alone { LineState::Exclusive } else { LineState::Shared };
        } else {
            self.share(unit, record);
        }
        record.holders |= core.bit();
        record.had |= core.bit();
        record.lost &= !core.bit();
        let cluster = self.cluster(core);
        if let Some(last_level) = self.last_levels.get_mut(cluster) {
            last_level.keep(unit);
        }
        let counters = self.counting(core);
        counters.supplied.count(supplier);
        let classes = match kind {
            AccessKind::Fetch => &mut counters.l2_instructions,
            AccessKind::Load | AccessKind::Store => &mut counters.l2_data,
        };
        *classes.of(class) += 1;
        if let Some(evicted) = self.private_mut(core).l2.insert(unit) {
            self.evict(core, evicted);
        }
        Served::Missed(class, supplier)
    }

    /// From now on, the parts that the holder has written count as written by others for each core
    /// that lost the line.
    fn publish(&mut self, record: &mut LineRecord) {
        let written = std::mem::take(&mut record.written);
        if let Some(shared) = self.lines.sharing(*record) {
            for (at, foreign) in shared.foreign.iter_mut().enumerate() {
                if record.lost & 1 << at != 0 {
                    foreign.join(written);
                }
            }
        }
    }

    fn classify(
        &mut self,
        core: CoreId,
        record: LineRecord,
        parts: LineParts,
        is_fetch: bool,
    ) -> MissClass {
        if record.had & core.bit() == 0 {
            return MissClass::Cold;
        }
        let mode = self.private(core).mode;
        match self.lines.sharing(record) {
            Some(shared) if record.lost & core.bit() != 0 => {
                let at = usize::from(core.0);
                let counts = shared.counts.get_mut(mode);
                if parts.meets(shared.foreign[at]) {
                    counts.true_sharing += 1;
                    return MissClass::TrueSharing;
                }
                counts.false_sharing += 1;
                shared.open |= core.bit();
                shared.open_miss[at] = (mode, is_fetch);
                MissClass::FalseSharing
            }
            _ => MissClass::Capacity,
        }
    }

    fn cluster(&self, core: CoreId) -> usize {
        usize::from(core.0) / (self.description.cores / self.description.clusters) as usize
    }

    /// The cores of this core's cluster.
    fn neighbours(&self, core: CoreId) -> Cores {
        let size = self.description.cores / self.description.clusters;
        let of_first = u8::MAX >> (8 - size);
        of_first << (self.cluster(core) as u32 * size)
    }

    fn supplier(&mut self, core: CoreId, unit: LineId, record: LineRecord) -> Supplier {
        let alone = matches!(record.state, LineState::Exclusive | LineState::Modified);
        let near = record.holders & self.neighbours(core) != 0;
        if near && alone {
            return Supplier::Core;
        }
        let cluster = self.cluster(core);
        let has = self.last_levels.get_mut(cluster).is_some_and(|l3| l3.touch(unit));
        let elsewhere = alone || self.another_l3_has(cluster, unit);
        match () {
            // This cluster's L3 does not have what another cluster's core may have written.
            () if has && !alone => Supplier::LastLevel,
            () if near => Supplier::Core,
            () if elsewhere => Supplier::Cluster,
            () => Supplier::Memory,
        }
    }

    fn another_l3_has(&self, cluster: usize, unit: LineId) -> bool {
        let mut others = self.last_levels.iter().enumerate().filter(|&(at, _)| at != cluster);
        others.any(|(_, last_level)| last_level.contains(unit))
    }

    fn upgrade(&mut self, core: CoreId, unit: LineId, record: &mut LineRecord) -> Served {
        let others = record.holders & !core.bit();
        let near = others & self.neighbours(core);
        let farthest = match () {
            () if others != near => Supplier::Cluster,
            () if near != 0 => Supplier::Core,
            () if !self.last_levels.is_empty() => Supplier::LastLevel,
            () => Supplier::Memory,
        };
        self.take_from_others(core, unit, record);
        let mode = self.private(core).mode;
        let counters = self.counting(core);
        counters.upgrades += 1;
        counters.upgraded.count(farthest);
        if let Some(shared) = self.lines.sharing(*record) {
            shared.counts.get_mut(mode).upgrades += 1;
        }
        Served::Upgraded(farthest)
    }

    /// All other cores, and the L3s of other clusters, lose the line.
    fn take_from_others(&mut self, core: CoreId, unit: LineId, record: &mut LineRecord) {
        let losers = record.holders & !core.bit();
        let unit_log2 = self.line_log2;
        for (at, private) in self.cores.iter_mut().enumerate() {
            if losers & 1 << at != 0 {
                private.l2.remove(unit);
                private.l1i.remove(unit, unit_log2);
                private.l1d.remove(unit, unit_log2);
            }
        }
        if losers != 0 {
            let shared = self.lines.sharing_or_new(unit, record);
            shared.open &= !losers;
            for (at, foreign) in shared.foreign.iter_mut().enumerate() {
                if losers & 1 << at != 0 {
                    *foreign = LineParts::default();
                }
            }
        }
        record.lost |= losers;
        record.holders &= !losers;
        let own = self.cluster(core);
        for (cluster, last_level) in self.last_levels.iter_mut().enumerate() {
            if cluster != own {
                last_level.remove(unit);
            }
        }
    }

    /// The holders may only read from now on. What one of them wrote goes to its L3.
    fn share(&mut self, unit: LineId, record: &mut LineRecord) {
        let unit_log2 = self.line_log2;
        if let LineState::Exclusive | LineState::Modified = record.state {
            let holder = CoreId(record.holders.trailing_zeros() as u8);
            if record.state == LineState::Modified {
                self.write_back(holder, unit);
            }
            self.private_mut(holder).l1d.forget(unit, unit_log2);
        }
        record.state = LineState::Shared;
    }

    fn write_back(&mut self, core: CoreId, unit: LineId) {
        let cluster = self.cluster(core);
        if let Some(last_level) = self.last_levels.get_mut(cluster) {
            last_level.keep(unit);
        }
    }

    /// The core's L2 has given up the line.
    fn evict(&mut self, core: CoreId, unit: LineId) {
        let unit_log2 = self.line_log2;
        let private = self.private_mut(core);
        private.l1i.remove(unit, unit_log2);
        private.l1d.remove(unit, unit_log2);
        let mut record = *self.lines.record(unit);
        if record.state == LineState::Modified {
            self.publish(&mut record);
            self.write_back(core, unit);
        }
        record.holders &= !core.bit();
        if record.holders == 0 {
            record.state = LineState::Absent;
        }
        if let Some(shared) = self.lines.sharing(record) {
            shared.open &= !core.bit();
        }
        *self.lines.record(unit) = record;
    }

    /// Notes the parts that were used, and which uses change nothing from now on.
    fn remember(
        &mut self,
        core: CoreId,
        line: LineId,
        record: LineRecord,
        parts: LineParts,
        kind: AccessKind,
    ) {
        let at = usize::from(core.0);
        let modified = record.state == LineState::Modified;
        let mut recent = RecentLine { line, loads: LineParts::ALL, stores: LineParts::default() };
        if modified {
            recent.stores = record.written;
        }
        if let Some(shared) = self.lines.sharing(record) {
            match kind {
                AccessKind::Store => shared.stored[at].join(parts),
                AccessKind::Load | AccessKind::Fetch => shared.loaded[at].join(parts),
            }
            recent.loads = shared.loaded[at];
            recent.stores.0 &= shared.stored[at].0;
            // Any use may still turn the last miss into true sharing.
            if shared.open & core.bit() != 0 {
                (recent.loads, recent.stores) = (LineParts::default(), LineParts::default());
            }
        }
        let private = self.private_mut(core);
        let l1 = match kind {
            AccessKind::Fetch => &mut private.l1i,
            AccessKind::Load | AccessKind::Store => &mut private.l1d,
        };
        let set = l1.tags.set_of(line);
        l1.recent[set] = recent;
    }
}
