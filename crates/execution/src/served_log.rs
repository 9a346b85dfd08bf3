//! What the executions of a recording asked for outside of the L1s, kept in the order of each CPU.
//!
//! CPUs that run side by side make their steps in another order than that of the recording, but
//! each CPU keeps its own order. So a run on coherent caches writes this log, and an analysis that
//! needs the order of the recording (who runs, what a page holds) reads it beside a second walk.
//!
//! ```text
//! walk → coherent_walk: caches, side by side → log of each CPU
//! walk → executions, as recorded ← log of each CPU ─→ analysis
//! ```
//!
//! Input: the requests of a run. Output: the events of each execution. An event takes 4 bytes on
//! the average, 7 bytes for a fetch. This module simulates and counts nothing.

use crate::coherent_run::{StepRequest, StepWatcher};
use crate::coherent_step::Asked;
use crate::cpu_order::Step;
use sim::coherent::{CoherentAccess, MissClass, Served, Supplier};
use sim::{Mode, PhysAddr};
use trace::{CpuCount, CpuId};

/// What happened in an execution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ServedEvent {
    /// The CPU waited these cycles before it began, until another CPU had stored what it loads.
    Waited(f64),
    /// A TLB lacked a page.
    Walked(Asked),
    /// A fetch of the line at this address.
    Code(PhysAddr, CoherentAccess),
    /// A load or store: the number of the access in the execution, and of its part (as in
    /// [`StepRequest`]).
    Data(u32, u32, CoherentAccess),
}

/// The events of all CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServedLog {
    /// By CPU.
    cpus: Vec<CpuLog>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CpuLog {
    bytes: Vec<u8>,
    /// The executions so far, and those at the last event.
    executions: u64,
    logged: u64,
}

const CLASSES: [MissClass; 4] =
    [MissClass::Cold, MissClass::Capacity, MissClass::TrueSharing, MissClass::FalseSharing];
const SUPPLIERS: [Supplier; 4] =
    [Supplier::LastLevel, Supplier::Core, Supplier::Cluster, Supplier::Memory];

/// Kinds of events. Below `WAITED` stands who served a request: the L1, the L2, a supplier of a
/// miss by class, a supplier of an upgrade.
const MISSED: u8 = 2;
const UPGRADED: u8 = 18;
const WAITED: u8 = 22;
const WALKED: u8 = 23;
/// These are added to the kind.
const CODE: u8 = 32;
const WAS_TRUE: u8 = 64;
const L1_MISSED: u8 = 128;
/// log2 of a number of parts that no access has: one of 128 bytes has 9 in the shortest lines.
const PART_BITS: u32 = 4;
/// log2 of the bytes in the shortest line.
const LINE_BITS: u32 = 4;

fn place<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|it| it == one).unwrap_or_default() as u8
}

fn number(served: Served) -> u8 {
    match served {
        Served::L1 => 0,
        Served::L2 => 1,
        Served::Missed(class, from) => {
            MISSED + 4 * place(&CLASSES, &class) + place(&SUPPLIERS, &from)
        }
        Served::Upgraded(from) => UPGRADED + place(&SUPPLIERS, &from),
    }
}

fn served(number: u8) -> Served {
    let supplier = |number: u8| SUPPLIERS[usize::from(number % 4)];
    match number {
        0 => Served::L1,
        1 => Served::L2,
        MISSED..UPGRADED => {
            let number = number - MISSED;
            Served::Missed(CLASSES[usize::from(number / 4)], supplier(number))
        }
        _ => Served::Upgraded(supplier(number.wrapping_sub(UPGRADED))),
    }
}

impl CpuLog {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    fn event(&mut self, kind: u8) {
        self.number(self.executions - self.logged);
        self.logged = self.executions;
        self.bytes.push(kind);
    }
}

impl ServedLog {
    /// An empty log.
    pub fn new(cpus: CpuCount) -> ServedLog {
        ServedLog { cpus: vec![CpuLog::default(); cpus.get().into()] }
    }

    /// Reads the log, from the first execution of each CPU on.
    pub fn reader(&self) -> ServedReader<'_> {
        let reader = |log| CpuReader::new(log);
        ServedReader { cpus: self.cpus.iter().map(reader).collect() }
    }
}

impl StepWatcher for ServedLog {
    #[inline]
    fn begins(&mut self, cpu: CpuId, step: &Step, waited: f64) {
        let Some(log) = self.cpus.get_mut(usize::from(cpu.0)) else { return };
        log.executions += u64::from(step.is_execution);
        if waited > 0.0 {
            log.event(WAITED);
            log.bytes.extend(waited.to_le_bytes());
        }
    }

    fn walks(&mut self, cpu: CpuId, _: Mode, asked: Asked) {
        let Some(log) = self.cpus.get_mut(usize::from(cpu.0)) else { return };
        log.event(if asked == Asked::Code { WALKED + CODE } else { WALKED });
    }

    fn served(&mut self, request: StepRequest, by: CoherentAccess) {
        let Some(log) = self.cpus.get_mut(usize::from(request.cpu.0)) else { return };
        let flag = |is: bool, flag| if is { flag } else { 0 };
        let kind = number(by.served) + flag(by.was_true, WAS_TRUE) + flag(by.l1_missed, L1_MISSED);
        match request.asked {
            Asked::Code => {
                log.event(kind + CODE);
                log.number(request.physical.0 >> LINE_BITS);
            }
            Asked::Data => {
                log.event(kind);
                log.number(u64::from(request.access) << PART_BITS | u64::from(request.part));
            }
        }
    }
}

/// Reads the events, execution by execution.
pub struct ServedReader<'l> {
    /// By CPU.
    cpus: Vec<CpuReader<'l>>,
}

struct CpuReader<'l> {
    bytes: &'l [u8],
    executions: u64,
    /// The execution of the next event, from 1; `u64::MAX`: there is none.
    next: u64,
}

impl<'l> CpuReader<'l> {
    fn new(log: &'l CpuLog) -> CpuReader<'l> {
        let mut reader = CpuReader { bytes: &log.bytes, executions: 0, next: 0 };
        reader.find_next();
        reader
    }

    fn number(&mut self) -> u64 {
        let (mut number, mut bits) = (0, 0);
        while let Some((&byte, rest)) = self.bytes.split_first() {
            self.bytes = rest;
            number |= u64::from(byte & 0x7f) << bits;
            bits += 7;
            if byte < 0x80 {
                break;
            }
        }
        number
    }

    fn find_next(&mut self) {
        match self.bytes.is_empty() {
            true => self.next = u64::MAX,
            false => self.next += self.number(),
        }
    }

    fn event(&mut self) -> Option<ServedEvent> {
        let (&kind, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        let asked = if kind & CODE != 0 { Asked::Code } else { Asked::Data };
        let by = || CoherentAccess {
            served: served(kind % CODE),
            l1_missed: kind & L1_MISSED != 0,
            was_true: kind & WAS_TRUE != 0,
        };
        let event = match (kind % CODE, asked) {
            (WAITED, _) => {
                let (cycles, rest) = self.bytes.split_first_chunk()?;
                self.bytes = rest;
                ServedEvent::Waited(f64::from_le_bytes(*cycles))
            }
            (WALKED, _) => ServedEvent::Walked(asked),
            (_, Asked::Code) => ServedEvent::Code(PhysAddr(self.number() << LINE_BITS), by()),
            (_, Asked::Data) => {
                let at = self.number() as u32;
                ServedEvent::Data(at >> PART_BITS, at & ((1 << PART_BITS) - 1), by())
            }
        };
        self.find_next();
        Some(event)
    }
}

impl ServedReader<'_> {
    /// The CPU's next execution, in the order of the recording. `each` takes its events: those of
    /// its loads and stores ascending, with their fetches before or behind them.
    #[inline]
    pub fn execution(&mut self, cpu: CpuId, mut each: impl FnMut(ServedEvent)) {
        let Some(reader) = self.cpus.get_mut(usize::from(cpu.0)) else { return };
        reader.executions += 1;
        // Events before the first execution belong to it.
        while reader.next <= reader.executions
            && let Some(event) = reader.event()
        {
            each(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(is_execution: bool) -> Step {
        let mode = Mode::User;
        Step { fragment: None, is_execution, mode, loads: 0, stores: 0, accesses: 0 }
    }

    #[test]
    fn every_event_is_read_as_it_was_written() {
        let mut log = ServedLog::new(CpuCount::new(2).unwrap());
        let mut expected = Vec::new();
        let mut all: Vec<Served> = vec![Served::L1, Served::L2];
        for supplier in SUPPLIERS {
            all.push(Served::Upgraded(supplier));
            all.extend(CLASSES.map(|class| Served::Missed(class, supplier)));
        }
        let request = StepRequest {
            cpu: CpuId(1),
            mode: Mode::User,
            asked: Asked::Code,
            physical: PhysAddr(0xf_ffff_ffff_fff0),
            access: 0,
            part: 0,
        };
        let data = StepRequest { asked: Asked::Data, access: 70_000, part: 5, ..request };
        for (number, served) in all.into_iter().enumerate() {
            // The first execution of each ten has events.
            (0..10).for_each(|_| log.begins(CpuId(1), &step(true), 0.0));
            let (was_true, l1_missed) = (number % 3 == 0, number % 2 == 0);
            let by = CoherentAccess { served, l1_missed, was_true };
            log.served(request, by);
            log.served(data, by);
            log.walks(CpuId(1), Mode::User, Asked::Data);
            // The fetches of an execution that began before.
            log.begins(CpuId(1), &step(false), 0.25);
            log.walks(CpuId(1), Mode::User, Asked::Code);
            expected.push(vec![
                ServedEvent::Code(request.physical, by),
                ServedEvent::Data(70_000, 5, by),
                ServedEvent::Walked(Asked::Data),
                ServedEvent::Waited(0.25),
                ServedEvent::Walked(Asked::Code),
            ]);
        }
        let mut reader = log.reader();
        for expected in expected {
            for execution in 1..=10 {
                let mut events = Vec::new();
                reader.execution(CpuId(1), |event| events.push(event));
                assert_eq!(events, if execution == 10 { expected.clone() } else { Vec::new() });
            }
        }
        reader.execution(CpuId(1), |event| panic!("{event:?}"));
        reader.execution(CpuId(0), |event| panic!("{event:?}"));
    }
}
