//! The coherent caches of a multiprocessor while services run, with the parts of the time: work,
//! synchronization, coherence misses, upgrades, other stalls (Rosenblum 1995, table 5.4).
//!
//! Each CPU of the recording is a core of the machine. An instruction takes a cycle, and every miss
//! stops the core. As in the paper, instructions in the functions of spin locks and of locks for
//! readers and writers count as synchronization, with all their stalls.
//!
//! Takes the executions in the order of the recording, and the log of what they asked for on the
//! machine; gives the cycles since the last call of `take`. Simulates nothing, knows no services.

use crate::ledger::{CoherentCycles, ServiceMachineCounts};
use crate::meter::Meter;
use crate::symbols::KernelSymbols;
use anyhow::{Context, Result};
use execution::code::TranslatedCode;
use execution::coherent_step::Asked;
use execution::data::DataWish;
use execution::served_log::{ServedEvent, ServedLog, ServedReader};
use execution::walk::{Piece, PieceData};
use image::address::LinkAddr;
use sim::coherent::{CoherenceDescription, Served};
use sim::{MachineModel, MemoryDescription};
use trace::{CpuId, Translation};

/// The beginnings of the names of functions that take and release spin locks and locks for readers
/// and writers.
const LOCKS: [&str; 3] = ["_raw_spin_", "_raw_read_", "_raw_write_"];
/// The endings of the names of functions that wait for these locks.
const WAITS: [&str; 3] =
    ["queued_spin_lock_slowpath", "queued_read_lock_slowpath", "queued_write_lock_slowpath"];

/// Whether a function takes, releases or waits for a spin lock or a lock for readers and writers.
pub fn synchronizes(function: &str) -> bool {
    LOCKS.iter().any(|begin| function.starts_with(begin))
        || WAITS.iter().any(|end| function.ends_with(end))
}

/// The meter of one machine.
pub(super) struct CoherentMeter<'a> {
    symbols: &'a KernelSymbols,
    memory: &'a MemoryDescription,
    coherence: CoherenceDescription,
    machine: &'a MachineModel,
    log: ServedReader<'a>,
    /// The cycles of the executions of a piece, and the number of executions that came.
    coming: Vec<CoherentCycles>,
    next: usize,
    /// By translation block.
    synchronizes: Vec<bool>,
    now: CoherentCycles,
    taken: [ServiceMachineCounts; 1],
}

impl<'a> CoherentMeter<'a> {
    /// `log`: of a run of the same recording on the machine.
    ///
    /// # Errors
    /// The machine has no coherent caches.
    pub(super) fn new(
        machine: &'a MachineModel,
        symbols: &'a KernelSymbols,
        log: &'a ServedLog,
    ) -> Result<CoherentMeter<'a>> {
        let described = machine.memory.as_ref().zip(machine.coherence);
        let (memory, coherence) = described
            .with_context(|| format!("the machine {} has no coherent caches", machine.name))?;
        Ok(CoherentMeter {
            symbols,
            memory,
            coherence,
            machine,
            log: log.reader(),
            coming: Vec::new(),
            next: 0,
            synchronizes: Vec::new(),
            now: CoherentCycles::default(),
            taken: Default::default(),
        })
    }

    fn count(&mut self) {
        if let Some(cycles) = self.coming.get(self.next) {
            self.now += *cycles;
            self.next += 1;
        }
    }

    /// The cycles of the CPU's next execution.
    fn cycles(&mut self, cpu: CpuId, instructions: u64) -> CoherentCycles {
        let CoherentMeter { memory, coherence, log, .. } = self;
        let mut cycles = CoherentCycles { work: instructions as f64, ..CoherentCycles::default() };
        log.execution(cpu, |event| {
            let (asked, by) = match event {
                ServedEvent::Waited(_) => return,
                ServedEvent::Walked(Asked::Code) => {
                    cycles.instruction += memory.latencies.tlb_miss();
                    return;
                }
                ServedEvent::Walked(Asked::Data) => {
                    cycles.data += memory.latencies.tlb_miss();
                    return;
                }
                ServedEvent::Code(_, by) => (Asked::Code, by),
                ServedEvent::Data(_, _, by) => (Asked::Data, by),
            };
            let (stall, l2) = (by.cycles(memory, coherence), by.l2(memory));
            match (asked, by.served) {
                (_, Served::L1) => {}
                (_, Served::Missed(class, _)) if class.is_coherence() => {
                    cycles.coherence += stall;
                    cycles.coherence_misses += 1;
                }
                (_, Served::Upgraded(_)) => {
                    cycles.upgrades += stall - l2;
                    cycles.data += l2;
                    cycles.upgrade_count += 1;
                }
                (Asked::Code, Served::L2 | Served::Missed(..)) => cycles.instruction += stall,
                (Asked::Data, Served::L2 | Served::Missed(..)) => cycles.data += stall,
            }
        });
        cycles
    }
}

impl Meter for CoherentMeter<'_> {
    const DATA_OF_SEVERAL_CPUS: bool = true;

    fn wish(&self) -> Option<DataWish> {
        Some(DataWish::of(std::slice::from_ref(self.machine)))
    }

    fn define(&mut self, translation: &Translation, _: &TranslatedCode) -> Result<()> {
        let addr = translation.addr;
        let function =
            addr.is_kernel().then(|| self.symbols.containing(LinkAddr(addr.0))).flatten();
        self.synchronizes.push(function.is_some_and(|function| synchronizes(&function.name)));
        Ok(())
    }

    fn piece(&mut self, piece: &Piece<'_>, data: Option<&PieceData<'_>>) -> Result<()> {
        let Some(data) = data else { return Ok(()) };
        self.coming.clear();
        self.next = 0;
        for execution in data.executions {
            let at = execution.translation.0 as usize;
            let instructions = match execution.left {
                0 => piece.codes[at].lengths.len() as u64,
                left => left.into(),
            };
            let cycles = self.cycles(execution.cpu, instructions);
            self.coming.push(match self.synchronizes[at] {
                false => cycles,
                true => {
                    CoherentCycles { synchronization: cycles.total(), ..CoherentCycles::default() }
                }
            });
        }
        Ok(())
    }

    fn executed(&mut self, _: u32) {
        self.count();
    }

    fn left(&mut self, _: u32, _: u32) {
        self.count();
    }

    fn take(&mut self) -> &[ServiceMachineCounts] {
        self.taken[0].coherent = Some(std::mem::take(&mut self.now));
        &self.taken
    }
}
