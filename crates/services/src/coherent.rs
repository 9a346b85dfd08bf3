//! The coherent caches of a multiprocessor while services run, with the parts of the time: work,
//! synchronization, coherence misses, upgrades, other stalls (Rosenblum 1995, table 5.4).
//!
//! Each CPU of the recording is a core of the machine. An instruction takes a cycle, and every miss
//! stops the core. As in the paper, instructions in the functions of spin locks and of locks for
//! readers and writers count as synchronization, with all their stalls.
//!
//! Takes the executions in the order of the recording, with their accesses; gives the cycles since
//! the last call of `take`. Knows no services.

use crate::ledger::{CoherentCycles, ServiceMachineCounts};
use crate::meter::Meter;
use crate::symbols::KernelSymbols;
use anyhow::{Result, ensure};
use execution::code::TranslatedCode;
use execution::coherent_step::{self, Asked};
use execution::data::DataWish;
use execution::executions::{Executed, ExecutedCode};
use execution::walk::{Piece, PieceData};
use image::address::LinkAddr;
use sim::coherent::{CoherenceDescription, CoherentCaches, CoreId, Served};
use sim::{MachineModel, MemoryDescription};
use trace::{CpuCount, Translation};

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
    caches: CoherentCaches,
    /// By CPU of the recording.
    cores: Vec<CoreId>,
    machine: &'a MachineModel,
    code: ExecutedCode,
    /// The cycles of the executions of a piece, and the number of executions that came.
    coming: Vec<CoherentCycles>,
    next: usize,
    /// By translation block.
    synchronizes: Vec<bool>,
    now: CoherentCycles,
    taken: [ServiceMachineCounts; 1],
}

impl<'a> CoherentMeter<'a> {
    /// # Errors
    /// The machine has no coherent caches, or fewer cores than the recording has CPUs.
    pub(super) fn new(
        machine: &'a MachineModel,
        symbols: &'a KernelSymbols,
        cpus: CpuCount,
    ) -> Result<CoherentMeter<'a>> {
        let parts = (CoherentCaches::new(machine), &machine.memory, machine.coherence);
        let (Some(caches), Some(memory), Some(coherence)) = parts else {
            anyhow::bail!(
                "the machine {} has no coherent caches: take one with [coherence], such as \
                 server-8 or simos-1994-8",
                machine.name
            );
        };
        let cores: Vec<CoreId> = caches.cores().take(cpus.get().into()).collect();
        ensure!(
            cores.len() == usize::from(cpus.get()),
            "{} has {} cores, and the recording has {cpus} CPUs: choose another machine",
            machine.name,
            caches.cores().count()
        );
        Ok(CoherentMeter {
            symbols,
            memory,
            coherence,
            caches,
            cores,
            machine,
            code: ExecutedCode::new(std::slice::from_ref(machine)),
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
}

/// The cycles of an execution on the core of its CPU.
fn run(
    caches: &mut CoherentCaches,
    cores: &[CoreId],
    memory: &MemoryDescription,
    coherence: &CoherenceDescription,
    executed: &Executed<'_>,
) -> CoherentCycles {
    let Some(&core) = cores.get(usize::from(executed.execution.cpu.0)) else {
        return CoherentCycles::default();
    };
    let work = executed.instructions() as f64;
    let mut cycles = CoherentCycles { work, ..CoherentCycles::default() };
    coherent_step::run(caches, core, executed, |asked, served| {
        let stall = served.cycles(memory, coherence);
        match (asked, served) {
            (_, Served::L1) => {}
            (_, Served::Missed(class, _)) if class.is_coherence() => {
                cycles.coherence += stall;
                cycles.coherence_misses += 1;
            }
            (_, Served::Upgraded(_)) => {
                cycles.upgrades += stall;
                cycles.upgrade_count += 1;
            }
            (Asked::Code, Served::L2 | Served::Missed(..)) => cycles.instruction += stall,
            (Asked::Data, Served::L2 | Served::Missed(..)) => cycles.data += stall,
        }
    });
    cycles
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
        self.code.define(translation)
    }

    fn piece(&mut self, piece: &Piece<'_>, data: Option<&PieceData<'_>>) -> Result<()> {
        let Some(data) = data else { return Ok(()) };
        self.code.locate(piece.codes, data)?;
        self.coming.clear();
        self.next = 0;
        for executed in data.executed() {
            let executed = self.code.executed(piece.codes, data.flow, executed);
            let cycles =
                run(&mut self.caches, &self.cores, self.memory, &self.coherence, &executed);
            self.coming.push(match self.synchronizes[executed.execution.translation.0 as usize] {
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
