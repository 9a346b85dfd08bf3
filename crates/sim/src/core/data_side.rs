//! The data side: L1D, its outstanding misses and prefetchers, the TLB of data, and the store
//! queue.
//!
//! Input: loads and stores with the cycle in which their address is known. Output: the cycle in
//! which their data can be used. A stream without data accesses gives no addresses; its loads
//! behave as [`FixedData`] says.

use super::counters::CoreCounters;
use super::description::{CoreDescription, FixedData};
use super::in_flight::InFlight;
use super::levels::{Levels, Source};
use super::ports::Ports;
use super::prefetch::Strides;
use super::stores::{ForwardedData, PredictedLoads, StoredData, Stores};
use super::translation::{FirstTlb, SecondTlb, Translated};
use super::uop::{AddressForm, DataAccess};
use crate::access::CacheAccess;
use crate::cache::Cache;
use crate::line::{LineId, PhysAddr};
use crate::machine::MemoryDescription;

/// What code and data share.
#[derive(Clone, Debug)]
pub(crate) struct SharedMemory {
    pub levels: Levels,
    pub tlb: SecondTlb,
}

/// The data of a load, or the line of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataReady {
    pub cycle: u64,
    /// The L1D lacked it.
    pub missed: bool,
}

/// A load whose address the stream gives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load<'a> {
    pub access: &'a DataAccess,
    /// The instruction.
    pub site: u32,
    /// How the instruction names its address.
    pub form: AddressForm,
    /// The same, in the form that stores keep.
    pub key: u64,
    /// The cycle in which the address is known.
    pub now: u64,
    pub dispatched: u64,
}

/// Spreads the loads of a stream without data accesses over the levels.
#[derive(Clone, Debug)]
struct FixedLoads {
    latencies: [u64; 3],
    /// Loads in a million.
    shares: [u32; 3],
    /// When one of them reaches a million, a load of its kind is due.
    due: [u32; 3],
}

impl FixedLoads {
    fn new(fixed: &FixedData, memory: &MemoryDescription) -> FixedLoads {
        let latencies = &memory.latencies;
        FixedLoads {
            latencies: [latencies.memory, latencies.l3, latencies.l2].map(|cycles| cycles as u64),
            shares: [fixed.memory, fixed.l3, fixed.l2],
            due: [0; 3],
        }
    }

    /// The latency and the source of the next load, unless it hits the L1D.
    #[inline]
    fn next(&mut self) -> Option<(u64, Source)> {
        for (due, share) in self.due.iter_mut().zip(self.shares) {
            *due += share;
        }
        let kind = self.due.iter().position(|&due| due >= 1_000_000)?;
        self.due[kind] -= 1_000_000;
        Some((self.latencies[kind], [Source::Memory, Source::L3, Source::L2][kind]))
    }
}

/// The way of lines into the L1D, which takes one in `interval` cycles.
#[derive(Clone, Debug)]
struct Fills {
    interval: u64,
    /// The one port is busy for an interval.
    way: Ports,
}

impl Fills {
    fn new(interval: u32) -> Fills {
        Fills { interval: interval.into(), way: Ports::new(None) }
    }

    /// The cycle in which a line comes that could come in `earliest`.
    #[inline]
    fn next(&mut self, earliest: u64) -> u64 {
        if self.interval == 0 {
            return earliest;
        }
        let begins = self.way.begin(1, earliest / self.interval);
        earliest.max(begins * self.interval)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct DataSide {
    l1d: Cache,
    line_log2: u32,
    coming: InFlight,
    fills: Fills,
    latency: u64,
    forward: u64,
    /// Cycles that a load waits behind the stores that hold parts of its data.
    blocked: u64,
    /// Cycles that a load waits behind the data of a store of other bytes with the same low 12 bits
    /// of the address, if the core confuses them.
    alias_penalty: u64,
    /// Loads that name their address as their store did are renamed.
    renamed_addresses: bool,
    predicted: PredictedLoads,
    tlb: Option<FirstTlb>,
    strides: Strides,
    next_line: bool,
    fixed: FixedLoads,
    pub stores: Stores,
}

impl DataSide {
    pub(super) fn new(core: &CoreDescription, memory: &MemoryDescription) -> DataSide {
        DataSide {
            l1d: Cache::new(memory.l1d.geometry),
            line_log2: memory.l1d.line.trailing_zeros(),
            coming: InFlight::new(core.memory.l1d_misses),
            fills: Fills::new(core.memory.l1d_fill),
            latency: core.memory.l1d_latency.into(),
            forward: core.memory.forward_latency.into(),
            blocked: core.memory.blocked_penalty.into(),
            alias_penalty: core.memory.alias_penalty.unwrap_or(0).into(),
            renamed_addresses: core.memory.renamed_addresses,
            predicted: PredictedLoads::new(core.memory.predicted_loads),
            tlb: memory.dtlb.map(|geometry| FirstTlb::new(geometry, false)),
            strides: Strides::new(core.memory.stride_entries),
            next_line: core.memory.next_line,
            fixed: FixedLoads::new(&core.fixed_data, memory),
            stores: Stores::new(
                core.window.stores,
                core.memory.stores_to_a_line,
                core.memory.stores_in_a_cycle,
                core.memory.alias_penalty.is_some(),
            ),
        }
    }

    /// A load whose address the stream does not give. `fixed`: the stream has no data accesses.
    /// Otherwise the load was to a device or had no effect, and takes as long as a hit.
    pub(super) fn load_unknown(
        &mut self,
        fixed: bool,
        now: u64,
        counters: &mut CoreCounters,
    ) -> DataReady {
        counters.loads += 1;
        let missed = if fixed { self.fixed.next() } else { None };
        let Some((latency, source)) = missed else {
            return DataReady { cycle: now + self.latency, missed: false };
        };
        count_source(source, counters);
        let cycle = self.coming.free(now) + latency;
        self.coming.begin(LineId::NONE, cycle);
        DataReady { cycle, missed: true }
    }

    /// When the data of a load can be used.
    pub(super) fn load(
        &mut self,
        load: &Load<'_>,
        shared: &mut SharedMemory,
        counters: &mut CoreCounters,
    ) -> DataReady {
        let Load { access, site, now, .. } = *load;
        counters.loads += 1;
        let (mut start, walked) = self.translate(access.page, now, shared, counters);
        match self.stores.load(access.physical.0, access.size, start) {
            StoredData::Absent => {}
            StoredData::Alias(known) => start = start.max(known) + self.alias_penalty,
            StoredData::Forwarded(from) => {
                counters.forwarded += 1;
                let cycle = match self.renames(load, &from) {
                    true => from.data.value.max(load.dispatched),
                    false => start.max(from.data.known) + self.forward,
                };
                return DataReady { cycle, missed: false };
            }
            StoredData::Blocked(written) => start = start.max(written + self.blocked),
        }
        let mut ready = self.lines(access, start, shared, counters);
        ready.missed |= walked;
        if let Some(ahead) = self.strides.access(site, access.physical.0) {
            self.prefetch(PhysAddr(ahead), start, shared, counters);
        }
        ready
    }

    /// Whether a load gets its register's value from the store by renaming.
    #[inline]
    fn renames(&mut self, load: &Load<'_>, from: &ForwardedData) -> bool {
        if !from.from_start || load.form == AddressForm::NONE {
            return false;
        }
        let same_name = self.renamed_addresses && load.key != 0 && load.key == from.key;
        same_name || self.predicted.predicts(load.site, from.between)
    }

    /// The address of a store is known in `now`, so its line is requested. Returns the cycle in
    /// which the line is there.
    pub(super) fn store_line(
        &mut self,
        access: &DataAccess,
        now: u64,
        shared: &mut SharedMemory,
        counters: &mut CoreCounters,
    ) -> u64 {
        let (start, _) = self.translate(access.page, now, shared, counters);
        self.lines(access, start, shared, counters).cycle
    }

    /// The cycle in which the page is known, and whether a walk was needed.
    #[inline]
    fn translate(
        &mut self,
        page: LineId,
        now: u64,
        shared: &mut SharedMemory,
        counters: &mut CoreCounters,
    ) -> (u64, bool) {
        let Some(tlb) = &mut self.tlb else { return (now, false) };
        let (known, how) = tlb.translate(page, now, &mut shared.tlb);
        counters.dtlb_misses += u64::from(how != Translated::First);
        counters.dtlb_walks += u64::from(how == Translated::Walked);
        (known, how == Translated::Walked)
    }

    /// All lines of an access.
    #[inline]
    fn lines(
        &mut self,
        access: &DataAccess,
        start: u64,
        shared: &mut SharedMemory,
        counters: &mut CoreCounters,
    ) -> DataReady {
        let end = access.physical.0.saturating_add(u64::from(access.size.max(1)) - 1);
        let (first, last) = (access.physical.0 >> self.line_log2, end >> self.line_log2);
        let mut ready = self.line(first, start, shared, counters);
        if last != first {
            let other = self.line(last, start, shared, counters);
            ready.cycle = ready.cycle.max(other.cycle);
            ready.missed |= other.missed;
        }
        ready
    }

    #[inline]
    fn line(
        &mut self,
        number: u64,
        start: u64,
        shared: &mut SharedMemory,
        counters: &mut CoreCounters,
    ) -> DataReady {
        let line = LineId::physical(number);
        if self.l1d.access(line) == CacheAccess::Hit {
            let (hit, there) = (start + self.latency, self.coming.there(line, start));
            return DataReady { cycle: hit.max(there), missed: there > hit };
        }
        let addr = PhysAddr(number << self.line_log2);
        let asks = self.coming.free(start);
        let (arrives, source) = shared.levels.request(addr, asks);
        let arrives = self.fills.next(arrives);
        self.coming.begin(line, arrives);
        count_source(source, counters);
        shared.levels.train(addr, asks);
        if self.next_line {
            let next = PhysAddr((number + 1) << self.line_log2);
            if next.0 >> 12 == addr.0 >> 12 {
                self.prefetch(next, asks, shared, counters);
            }
        }
        DataReady { cycle: arrives, missed: true }
    }

    /// A load or store, whenever that is: caches, TLBs and prefetchers are as if it had been
    /// executed, and no store had held its data. `site`: the instruction; `None`: a repeated string
    /// instruction goes on, whose misses keep all registers, so that nothing is prefetched.
    #[inline]
    pub(super) fn warm(
        &mut self,
        access: &DataAccess,
        site: Option<u32>,
        shared: &mut SharedMemory,
        counters: &mut CoreCounters,
    ) {
        if let Some(tlb) = &mut self.tlb {
            let how = tlb.warm(access.page, &mut shared.tlb);
            counters.dtlb_misses += u64::from(how != Translated::First);
            counters.dtlb_walks += u64::from(how == Translated::Walked);
        }
        let end = access.physical.0.saturating_add(u64::from(access.size.max(1)) - 1);
        let (first, last) = (access.physical.0 >> self.line_log2, end >> self.line_log2);
        let free = site.is_some();
        self.warm_line(first, free, shared, counters);
        if last != first {
            self.warm_line(last, free, shared, counters);
        }
        if let Some(site) = site.filter(|_| !access.is_store)
            && let Some(ahead) = self.strides.access(site, access.physical.0)
        {
            self.warm_prefetch(PhysAddr(ahead), shared);
        }
    }

    /// `free`: a register is free for prefetches.
    #[inline]
    fn warm_line(
        &mut self,
        number: u64,
        free: bool,
        shared: &mut SharedMemory,
        counters: &mut CoreCounters,
    ) {
        if self.l1d.access(LineId::physical(number)) == CacheAccess::Hit {
            return;
        }
        let addr = PhysAddr(number << self.line_log2);
        count_source(shared.levels.warm(addr), counters);
        shared.levels.train_warm(addr);
        let next = PhysAddr((number + 1) << self.line_log2);
        if free && self.next_line && next.0 >> 12 == addr.0 >> 12 {
            self.warm_prefetch(next, shared);
        }
    }

    fn warm_prefetch(&mut self, addr: PhysAddr, shared: &mut SharedMemory) {
        let line = LineId::physical(addr.0 >> self.line_log2);
        if self.l1d.access(line) != CacheAccess::Hit {
            shared.levels.warm(addr);
        }
    }

    /// Brings a line into the L1D if a register is free.
    fn prefetch(
        &mut self,
        addr: PhysAddr,
        now: u64,
        shared: &mut SharedMemory,
        counters: &mut CoreCounters,
    ) {
        let line = LineId::physical(addr.0 >> self.line_log2);
        if self.coming.free(now) > now || self.l1d.access(line) == CacheAccess::Hit {
            return;
        }
        let (arrives, _) = shared.levels.request(addr, now);
        self.coming.begin(line, self.fills.next(arrives));
        counters.l1d_prefetches += 1;
    }
}

fn count_source(source: Source, counters: &mut CoreCounters) {
    counters.l1d_misses += 1;
    counters.l2_data_misses += u64::from(source >= Source::L3);
    counters.l3_data_misses += u64::from(source == Source::Memory);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::examples;
    use crate::core::stores::StoreData;
    use crate::line::Mode;

    fn sides(core: &CoreDescription) -> (DataSide, SharedMemory) {
        let memory = examples::machine().memory.unwrap();
        (
            DataSide::new(core, &memory),
            SharedMemory {
                levels: Levels::new(&memory, &core.memory),
                tlb: SecondTlb::new(&core.memory),
            },
        )
    }

    fn at(addr: u64) -> DataAccess {
        DataAccess {
            physical: PhysAddr(addr),
            page: LineId::new(Mode::Kernel, (addr >> 12) as u32).unwrap(),
            instruction: 0,
            size: 8,
            is_store: false,
        }
    }

    fn load(
        side: &mut DataSide,
        addr: u64,
        now: u64,
        shared: &mut SharedMemory,
        counters: &mut CoreCounters,
    ) -> DataReady {
        let (access, form) = (&at(addr), AddressForm::NONE);
        let load = Load { access, site: 1, form, key: 0, now, dispatched: now };
        side.load(&load, shared, counters)
    }

    /// Latencies of the example: L1D 5, L2 15, memory 100; TLB 7, walk 20; two misses at once.
    #[test]
    fn each_level_has_its_latency() {
        let (mut side, mut shared) = sides(&examples::core());
        let mut counters = CoreCounters::default();
        let mut latency = |addr, now| {
            let ready = load(&mut side, addr, now, &mut shared, &mut counters);
            (ready.cycle - now, ready.missed)
        };
        // The walk takes 27, then memory 100.
        assert_eq!(latency(0, 0), (127, true));
        // The line is on its way.
        assert_eq!(latency(8, 20), (107, true));
        assert_eq!(latency(8, 200), (5, false));
        assert_eq!(latency(64, 300), (100, true));
        // Two misses are on their way until 400 and 402. The third waits for the first.
        assert_eq!(latency(128, 302), (100, true));
        assert_eq!(latency(192, 304), (400 - 304 + 100, true));
        assert_eq!((counters.loads, counters.l1d_misses, counters.dtlb_walks), (6, 4, 1));
    }

    /// Lines of the L2, two at once: one comes after 15 cycles, the other an interval later.
    #[test]
    fn lines_come_one_after_the_other() {
        let mut core = examples::core();
        (core.memory.l1d_fill, core.memory.l1d_misses) = (4, 8);
        let (mut side, mut shared) = sides(&core);
        let mut counters = CoreCounters::default();
        let lines = [0, 128, 256, 384];
        for (step, addr) in lines.into_iter().enumerate() {
            load(&mut side, addr, 1000 * step as u64, &mut shared, &mut counters);
        }
        let mut latency =
            |addr| load(&mut side, addr, 9001, &mut shared, &mut counters).cycle - 9001;
        assert_eq!([latency(0), latency(128)], [15, 19]);
    }

    /// The L1D of the example has two sets of two ways, its L2 has room for all.
    #[test]
    fn what_left_the_l1d_is_in_the_l2() {
        let (mut side, mut shared) = sides(&examples::core());
        let mut counters = CoreCounters::default();
        for (step, addr) in [0, 128, 256].into_iter().enumerate() {
            load(&mut side, addr, 1000 * step as u64, &mut shared, &mut counters);
        }
        let ready = load(&mut side, 0, 9000, &mut shared, &mut counters);
        assert_eq!((ready.cycle, ready.missed), (9015, true));
        assert_eq!((counters.l1d_misses, counters.l2_data_misses), (4, 3));
    }

    #[test]
    fn loads_take_the_data_of_stores() {
        let (mut side, mut shared) = sides(&examples::core());
        let mut counters = CoreCounters::default();
        load(&mut side, 0, 0, &mut shared, &mut counters);
        side.stores.store(Some((0, 8)), 0, StoreData { known: 205, value: 203 }, 220, 0);
        let ready = load(&mut side, 0, 202, &mut shared, &mut counters);
        // Forwarding takes 4 cycles.
        assert_eq!((ready.cycle, counters.forwarded), (209, 1));
    }

    /// The cycles that a load takes after each of five equal stores. The store's register is known
    /// in cycle 11, its data in 12. `named`: as the store named its address.
    fn after_stores(core: &CoreDescription, form: AddressForm, named: bool) -> Vec<u64> {
        let (mut side, mut shared) = sides(core);
        let mut counters = CoreCounters::default();
        load(&mut side, 0, 0, &mut shared, &mut counters);
        (1..6)
            .map(|round| {
                let now = 1000 * round;
                let data = StoreData { known: now + 12, value: now + 11 };
                side.stores.store(Some((0, 8)), 77, data, now + 20, 0);
                let access = &at(0);
                let key = if named { 77 } else { 78 };
                let load = Load { access, site: 1, form, key, now: now + 2, dispatched: 0 };
                side.load(&load, &mut shared, &mut counters).cycle - now
            })
            .collect()
    }

    #[test]
    fn a_predicted_load_has_the_register_of_the_store() {
        let mut core = examples::core();
        core.memory.predicted_loads = 16;
        let form = AddressForm::NO_REGISTER;
        assert_eq!(after_stores(&core, form, false), [16, 16, 16, 16, 11]);
        assert_eq!(after_stores(&core, AddressForm::NONE, true), [16; 5]);
    }

    #[test]
    fn a_load_that_names_its_address_as_its_store_did_is_renamed() {
        let mut core = examples::core();
        let form = AddressForm::by_registers(77);
        assert_eq!(after_stores(&core, form, true), [16; 5]);
        core.memory.renamed_addresses = true;
        assert_eq!(after_stores(&core, form, true), [11; 5]);
        assert_eq!(after_stores(&core, form, false), [16; 5]);
    }

    #[test]
    fn a_load_of_more_than_the_store_waits() {
        let mut core = examples::core();
        core.memory.blocked_penalty = 10;
        let (mut side, mut shared) = sides(&core);
        let mut counters = CoreCounters::default();
        load(&mut side, 0, 0, &mut shared, &mut counters);
        side.stores.store(Some((0, 4)), 0, StoreData { known: 205, value: 204 }, 220, 0);
        // Written in 221.
        assert_eq!(load(&mut side, 0, 202, &mut shared, &mut counters).cycle, 221 + 10 + 5);
    }

    #[test]
    fn a_load_waits_for_a_store_with_the_same_low_bits_where_cores_confuse_them() {
        let after = |alias_penalty, addr| {
            let mut core = examples::core();
            core.memory.alias_penalty = alias_penalty;
            let (mut side, mut shared) = sides(&core);
            let mut counters = CoreCounters::default();
            load(&mut side, addr, 0, &mut shared, &mut counters);
            side.stores.store(Some((0, 4)), 0, StoreData { known: 305, value: 304 }, 320, 0);
            load(&mut side, addr, 302, &mut shared, &mut counters).cycle
        };
        // A page further, the store's data are known in 305. The L1D takes 5 cycles.
        assert_eq!(after(Some(3), 0x1000), 305 + 3 + 5);
        assert_eq!(after(None, 0x1000), 302 + 5);
        // Other bytes of the piece.
        assert_eq!(after(Some(3), 0x1008), 302 + 5);
        // The store's own bytes are forwarded, unless the load is of more than they are.
        assert_ne!(after(Some(3), 0x0), 305 + 3 + 5);
    }

    /// One load in 4 from the L2, one in 8 from memory: in 8 loads, two and one.
    #[test]
    fn fixed_loads_come_at_equal_distances() {
        let fixed = FixedData { l2: 250_000, l3: 0, memory: 125_000 };
        let (mut side, _) = sides(&CoreDescription { fixed_data: fixed, ..examples::core() });
        let mut counters = CoreCounters::default();
        let latencies: Vec<u64> = (0..10)
            .map(|load| {
                let now = load * 1000;
                side.load_unknown(true, now, &mut counters).cycle - now
            })
            .collect();
        assert_eq!(latencies, [5, 5, 5, 15, 5, 5, 5, 100, 15, 5]);
        assert_eq!(side.load_unknown(false, 0, &mut counters).cycle, 5);
    }

    #[test]
    fn the_next_line_comes_with_a_miss() {
        let mut core = examples::core();
        core.memory.next_line = true;
        let (mut side, mut shared) = sides(&core);
        let mut counters = CoreCounters::default();
        load(&mut side, 0, 0, &mut shared, &mut counters);
        let ready = load(&mut side, 64, 500, &mut shared, &mut counters);
        assert_eq!((ready.cycle, ready.missed, counters.l1d_prefetches), (505, false, 1));
    }
}
