//! The back end: dispatch, schedulers, ports, and retirement.
//!
//! Input: slots in program order, with the cycle in which the front end delivered each. Output: the
//! cycles in which they are dispatched, executed and retired. No cycle is simulated: each slot
//! finds its cycles from those of earlier slots.
//!
//! * A slot is dispatched when the front end has delivered it and all queues have room: the reorder
//!   buffer, the scheduler, and the load or store queue.
//! * A uop begins when its operands are there and one of its ports is free.
//! * Slots retire in program order.
//!
//! What determined a cycle is known at the same time. So each slot of each cycle is counted as
//! used, or as lost to one cause (`slots.rs`).

use super::counters::CoreCounters;
use super::data_side::{DataReady, DataSide, Load, SharedMemory};
use super::description::{PortBinding, WindowDescription};
use super::ports::Ports;
use super::register_file::{RegisterFile, RegisterFiles};
use super::ring::Ring;
use super::scheduler::Scheduler;
use super::serialising::Serialising;
use super::slots::SlotMeter;
use super::stores::StoreData;
use super::uop::{AddressForm, DataAccess, REGISTERS, Uop, UopKind};
use super::when::When;

/// What a uop needs besides the window.
pub(crate) struct Surroundings<'a> {
    pub data: &'a mut DataSide,
    pub shared: &'a mut SharedMemory,
    pub counters: &'a mut CoreCounters,
    pub costs: &'a [u32; Serialising::ALL.len()],
    /// Identifies the instruction for prefetchers.
    pub site: u32,
    /// The stream has no data accesses.
    pub fixed_data: bool,
}

/// The slot that was dispatched last. Its uops are still to come.
/// The first uops of a slot, whose ports are remembered. The others are bound once more.
const SLOT_UOPS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct OpenSlot {
    dispatched: u64,
    /// When all its uops are complete.
    complete: When,
    /// A load of the slot missed the L1D.
    missed: bool,
    waited_for_line: bool,
    loads: u32,
    /// Whether `store` holds.
    stores: bool,
    store: OpenStore,
    /// For each file, the results that took a register.
    results: [u8; RegisterFile::ALL.len()],
    /// The ports that its uops are bound to, in turn, and how many of them were executed.
    ports: [u16; SLOT_UOPS],
    executed: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct OpenStore {
    /// Address and bytes, if known.
    at: Option<(u64, u8)>,
    /// How the instruction named the address.
    key: u64,
    /// The cycle in which its line is there.
    line: u64,
    /// The cycle in which its data are known.
    data: u64,
    /// The cycle in which its data's register is known.
    value: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Window {
    dispatch: SlotMeter,
    retire: SlotMeter,
    retire_stages: u64,
    reorder_buffer: Ring<When>,
    loads: Ring<When>,
    /// The loads that wait for their addresses or a port.
    waiting_loads: Option<Scheduler>,
    results: [Option<Ring<When>>; RegisterFile::ALL.len()],
    /// The files with a limit in `results`.
    limited: RegisterFiles,
    schedulers: Vec<Scheduler>,
    /// For the lowest port of a uop: the cycles from its dispatch to its execution, at least.
    stages: [u32; 16],
    /// By port, the cycle in which the port has begun all uops that are bound to it, if none of
    /// them waits. `None`: uops are not bound to ports when they are dispatched.
    bound: Option<[u64; 16]>,
    /// For the lowest port of a uop: its scheduler.
    scheduler_of: [u8; 16],
    ports: Ports,
    registers: [When; REGISTERS],
    /// No slot is dispatched before.
    barrier: When,
    /// Until this cycle the front end follows a wrong path.
    pub resolved: u64,
    last_retired: When,
    /// Whether there is a slot that was dispatched and not retired: `slot`.
    open: bool,
    slot: OpenSlot,
}

impl Window {
    pub(super) fn new(window: &WindowDescription) -> Window {
        let (mut scheduler_of, mut stages) = ([0; 16], [1; 16]);
        for (number, scheduler) in window.schedulers.iter().enumerate() {
            for port in (0..16).filter(|port| scheduler.ports >> port & 1 != 0) {
                (scheduler_of[port], stages[port]) = (number as u8, scheduler.stages);
            }
        }
        Window {
            dispatch: SlotMeter::new(window.dispatch),
            retire: SlotMeter::new(window.retire),
            retire_stages: window.retire_stages.into(),
            reorder_buffer: Ring::new(window.reorder_buffer, When::START),
            loads: Ring::new(window.loads, When::START),
            waiting_loads: window.waiting_loads.map(Scheduler::new),
            limited: RegisterFile::ALL
                .into_iter()
                .filter(|file| window.results[file.index()].is_some())
                .fold(RegisterFiles::NONE, RegisterFiles::with),
            results: window.results.map(|entries| entries.map(|it| Ring::new(it, When::START))),
            stages,
            bound: (window.bound_ports == Some(PortBinding::Fewest)).then_some([0; 16]),
            schedulers: window.schedulers.iter().map(|it| Scheduler::new(it.entries)).collect(),
            scheduler_of,
            ports: Ports::new(window.bound_ports),
            registers: [When::START; REGISTERS],
            barrier: When::START,
            resolved: 0,
            last_retired: When::START,
            open: false,
            slot: OpenSlot::default(),
        }
    }

    /// Dispatches the next slot, whose uops are `uops`. The front end delivered it in `delivered`.
    /// Returns the cycle.
    #[inline]
    pub(super) fn dispatch(
        &mut self,
        uops: &[Uop],
        delivered: u64,
        waited_for_line: bool,
        around: &mut Surroundings<'_>,
    ) -> u64 {
        self.close(around);
        let mut room = self.reorder_buffer.oldest().max(self.barrier);
        let mut files = RegisterFiles::default();
        for (place, uop) in uops.iter().enumerate() {
            if uop.ports != 0 {
                let ports = self.bind(uop.ports);
                if let Some(bound) = self.slot.ports.get_mut(place) {
                    *bound = ports;
                }
                room = room.max(self.schedulers[self.scheduler(ports)].free());
            }
            files = files.and(uop.files);
            match uop.kind {
                UopKind::Load => {
                    room = room.max(self.loads.oldest());
                    if let Some(waiting) = &self.waiting_loads {
                        room = room.max(waiting.free());
                    }
                }
                UopKind::StoreAddress => {
                    room = room.max(When::new(around.data.stores.free(), true));
                }
                UopKind::Serialising(_) => room = room.max(self.last_retired),
                UopKind::Compute
                | UopKind::StoreData
                | UopKind::Eliminated
                | UopKind::Microcode => {}
            }
        }
        let files = files.common(self.limited);
        if files != RegisterFiles::NONE {
            room = room.max(self.register(files));
        }
        self.lose_until(room, delivered + 1, around.counters);
        let cycle = self.dispatch.cycle();
        self.dispatch.use_one();
        around.counters.slots.retiring += 1;
        self.open = true;
        self.slot.dispatched = cycle;
        self.slot.complete = When::new(cycle + 1, false);
        self.slot.waited_for_line = waited_for_line;
        (self.slot.missed, self.slot.loads, self.slot.stores) = (false, 0, false);
        (self.slot.results, self.slot.executed) = Default::default();
        cycle
    }

    /// When each of `files` has a register.
    #[inline]
    fn register(&self, files: RegisterFiles) -> When {
        let of = RegisterFile::ALL.into_iter().filter(|file| files.has(*file));
        let oldest = of.filter_map(|file| self.results[file.index()].as_ref()).map(Ring::oldest);
        oldest.fold(When::START, When::max)
    }

    /// Counts the slots that are lost until the back end has `room` and the front end has
    /// `delivered`.
    #[inline]
    fn lose_until(&mut self, room: When, delivered: u64, counters: &mut CoreCounters) {
        let slots = &mut counters.slots;
        let (lost, _) = self.dispatch.skip_to(room.cycle());
        *if room.of_memory() { &mut slots.memory } else { &mut slots.core } += lost;
        if delivered > self.dispatch.cycle() {
            let (lost, _) = self.dispatch.skip_to(self.resolved.min(delivered));
            slots.bad_speculation += lost;
            let (lost, whole) = self.dispatch.skip_to(delivered);
            slots.front_end_latency += whole;
            slots.front_end_bandwidth += lost - whole;
        }
    }

    /// The port of `ports` to which the fewest uops were bound lately, if uops are bound to ports.
    /// The choice does not know which uops wait for their operands.
    #[inline]
    fn bind(&mut self, ports: u16) -> u16 {
        let Some(bound) = &mut self.bound else { return ports };
        let (now, mut left) = (self.dispatch.cycle(), ports);
        let (mut port, mut free) = (0, u64::MAX);
        while left != 0 {
            let other = left.trailing_zeros() as usize & 15;
            // Of several that have been free since before, the last.
            if bound[other] < free {
                (port, free) = (other, bound[other].max(now));
            }
            left &= left - 1;
        }
        bound[port] = free + 1;
        1 << port
    }

    /// The scheduler of `ports`, of which there is at least one.
    #[inline]
    fn scheduler(&self, ports: u16) -> usize {
        self.scheduler_of[ports.trailing_zeros() as usize & 15].into()
    }

    /// Executes a uop of the slot that was dispatched last. `access`: what a load or store
    /// accesses, if known. Returns the cycle in which it is complete.
    #[inline]
    pub(super) fn execute(
        &mut self,
        uop: &Uop,
        access: Option<&DataAccess>,
        around: &mut Surroundings<'_>,
    ) -> u64 {
        around.counters.uops += 1;
        let first = match uop.waits_for_stores {
            // It runs when nothing older is left.
            true => When::new(around.data.stores.all_written(), true).max(self.last_retired),
            false => When::START,
        };
        let operands = uop
            .reads
            .iter()
            .fold(first, |last, register| last.max(self.registers[register.index()]));
        let mut begins = self.begin(uop, operands);
        if uop.kind == UopKind::Load && access.is_some_and(DataAccess::crosses_line) {
            begins = self.reads_again(uop, begins);
        }
        let slot = &mut self.slot;
        let files = uop.files.common(self.limited);
        if files != RegisterFiles::NONE {
            for file in RegisterFile::ALL {
                slot.results[file.index()] += u8::from(files.has(file));
            }
        }
        let complete = match uop.kind {
            UopKind::Compute => begins.after(uop.latency.into()),
            // Renaming alone gives it its value.
            UopKind::Eliminated | UopKind::Microcode => operands.delayed_to(slot.dispatched),
            UopKind::Load => {
                let address = NamedAddress { form: uop.form, key: key(&self.registers, uop) };
                let ready = load(access, address, begins.cycle(), slot.dispatched, around);
                slot.loads += 1;
                slot.missed |= ready.missed;
                let complete = When::new(ready.cycle, ready.missed || begins.of_memory());
                complete.after(uop.latency.into())
            }
            UopKind::StoreAddress => {
                around.counters.stores += 1;
                let known = begins.cycle() + 1;
                let line = access.map_or(known, |access| {
                    around.data.store_line(access, known, around.shared, around.counters)
                });
                let at = access.map(|access| (access.physical.0, access.size));
                slot.stores = true;
                let key = key(&self.registers, uop);
                slot.store = OpenStore { at, key, line, data: known, value: 0 };
                When::new(known, begins.of_memory())
            }
            UopKind::StoreData => {
                slot.store.data = slot.store.data.max(begins.cycle() + 1);
                slot.store.value = operands.cycle();
                begins.after(1)
            }
            UopKind::Serialising(class) => {
                around.counters.serialising += 1;
                let ends = slot.dispatched + u64::from(around.costs[class.index()]);
                self.barrier = self.barrier.max(When::new(ends, false));
                When::new(ends, false)
            }
        };
        for register in uop.writes {
            self.registers[register.index()] = complete;
        }
        slot.complete = slot.complete.max(complete);
        complete.cycle()
    }

    /// The cycle in which a load reads its second line, on any port.
    fn reads_again(&mut self, uop: &Uop, first: When) -> When {
        match uop.ports {
            0 => first,
            ports => first.delayed_to(self.ports.begin(ports, first.cycle() + 1)),
        }
    }

    /// The cycle in which a uop begins on one of its ports.
    #[inline]
    fn begin(&mut self, uop: &Uop, operands: When) -> When {
        let (dispatched, place) = (self.slot.dispatched, self.slot.executed);
        self.slot.executed += 1;
        if uop.ports == 0 {
            return operands.delayed_to(dispatched + 1);
        }
        let remembered = self.slot.ports.get(place).copied();
        let ports = remembered.unwrap_or_else(|| self.bind(uop.ports));
        let stages = self.stages[ports.trailing_zeros() as usize & 15];
        let begins = operands.delayed_to(dispatched + u64::from(stages));
        let cycle = match uop.unit_cycles {
            0 => self.ports.begin(ports, begins.cycle()),
            cycles => self.ports.begin_on_unit(ports, begins.cycle(), uop.unit, cycles),
        };
        let begins = begins.delayed_to(cycle);
        let scheduler = self.scheduler(ports);
        self.schedulers[scheduler].enter(begins);
        if let (UopKind::Load, Some(waiting)) = (uop.kind, &mut self.waiting_loads) {
            waiting.enter(begins);
        }
        begins
    }

    /// Stops the dispatch until all dispatched slots have retired, and for `cycles` more. Returns
    /// the cycle from which slots can be dispatched.
    pub(super) fn drain(&mut self, cycles: u32, around: &mut Surroundings<'_>) -> u64 {
        self.close(around);
        let ends = self.last_retired.cycle().max(self.dispatch.cycle()) + u64::from(cycles);
        self.barrier = self.barrier.max(When::new(ends, false));
        ends
    }

    /// Retires the slot that was dispatched last.
    #[inline]
    fn close(&mut self, around: &mut Surroundings<'_>) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let slot = &self.slot;
        let lost = &mut around.counters.graduation;
        let complete = slot.complete.after(self.retire_stages);
        if complete.cycle() > self.retire.cycle() {
            if slot.waited_for_line {
                lost.instruction += self.retire.skip_to(slot.dispatched).0;
            }
            let (waits, _) = self.retire.skip_to(complete.cycle());
            *if slot.missed { &mut lost.data } else { &mut lost.pipeline } += waits;
            self.last_retired = complete;
        } else {
            // It was ready no earlier than its predecessors.
            self.last_retired = When::new(self.retire.cycle(), self.last_retired.of_memory());
        }
        lost.busy += 1;
        self.retire.use_one();
        self.reorder_buffer.push(self.last_retired);
        for _ in 0..slot.loads {
            self.loads.push(self.last_retired);
        }
        if slot.results != [0; RegisterFile::ALL.len()] {
            for (results, taken) in self.results.iter_mut().zip(slot.results) {
                let results = results.iter_mut();
                results.for_each(|it| (0..taken).for_each(|_| it.push(self.last_retired)));
            }
        }
        if slot.stores {
            let (store, retired) = (&slot.store, self.last_retired.cycle());
            let data = StoreData { known: store.data, value: store.value };
            around.data.stores.store(store.at, store.key, data, retired, store.line);
        }
    }

    /// Ends the run: everything retires. Returns the cycles from the start.
    pub(super) fn finish(&mut self, around: &mut Surroundings<'_>) -> u64 {
        self.close(around);
        let end = self.retire.skip_to_end(self.dispatch.cycle());
        let when = When::new(end.0, self.last_retired.of_memory());
        around.counters.graduation.pipeline += end.1;
        let (lost, _) = self.dispatch.skip_to(end.0);
        let slots = &mut around.counters.slots;
        *if when.of_memory() { &mut slots.memory } else { &mut slots.core } += lost;
        end.0
    }

    /// The cycle in which the slot that was dispatched last is complete.
    pub(super) fn complete(&self) -> u64 {
        if self.open { self.slot.complete.cycle() } else { self.dispatch.cycle() }
    }
}

/// How an instruction names an address.
#[derive(Clone, Copy)]
struct NamedAddress {
    form: AddressForm,
    key: u64,
}

/// Identifies the address of a load or store by its registers.
#[inline]
fn key(registers: &[When; REGISTERS], uop: &Uop) -> u64 {
    let known = |n: usize| registers[uop.reads[n].index()].cycle();
    uop.form.key(known(0), known(1))
}

#[inline]
fn load(
    access: Option<&DataAccess>,
    NamedAddress { form, key }: NamedAddress,
    now: u64,
    dispatched: u64,
    around: &mut Surroundings<'_>,
) -> DataReady {
    match access {
        Some(access) => {
            let load = Load { access, site: around.site, form, key, now, dispatched };
            around.data.load(&load, around.shared, around.counters)
        }
        None => around.data.load_unknown(around.fixed_data, now, around.counters),
    }
}
