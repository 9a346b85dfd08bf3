//! The caches of simulated machines while services run.
//!
//! Takes the executions in their order; gives the counts of each machine since the last call of
//! `take`. Knows no services. With data accesses, a piece of the stream is simulated ahead
//! ([`execution::hierarchy_run`]).

use crate::ledger::ServiceMachineCounts;
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::data::{DataWish, Execution};
use execution::fetched::FetchedUnits;
use execution::hierarchy_run::{HierarchyRun, RunStep};
use execution::numbering::FetchUnit;
use execution::per_cpu::PerCpu;
use execution::walk::PieceData;
use sim::{InstructionCache, MachineCounters, MachineModel, Mode, PerMode, Requester};
use trace::{CpuId, Translation};

/// The caches of the machines: the L1I, and with data accesses all caches and TLBs that a machine
/// describes.
pub(crate) struct Machines {
    running: Vec<RunningMachine>,
    codes: Vec<TranslatedCode>,
    shorts: Vec<ShortCode>,
    /// `None` until the first data accesses.
    data: Option<DataAhead>,
    machines: Vec<MachineModel>,
    taken: Vec<ServiceMachineCounts>,
}

/// Misses by level of the caches. Those of the L1D and the L2 are 0 without data accesses, or when
/// the machine describes no such cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelMisses {
    /// Misses of the L1I.
    pub l1i: u64,
    /// Misses of the L1D.
    pub l1d: u64,
    /// Misses of the L2 on instructions and data.
    pub l2: u64,
}

/// What the first machine has counted since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MachineSoFar {
    /// Its misses.
    pub misses: LevelMisses,
    /// The cycles in which it waits for memory; `None` without data accesses.
    pub stalls: Option<f64>,
}

/// The executions of a piece, which the caches have seen.
struct DataAhead {
    executions: Vec<Execution>,
    steps: Vec<RunStep>,
    /// How many of the executions ran, and how many were counted.
    ran: usize,
    counted: usize,
    /// Whether a machine describes no data cache.
    plain: bool,
}

/// The facts about a translation block that most executions need: the number of its instructions
/// and, in the highest bit, whether it is kernel code.
#[derive(Clone, Copy)]
struct ShortCode(u16);

impl ShortCode {
    const KERNEL: u16 = 1 << 15;

    fn of(code: &TranslatedCode) -> ShortCode {
        let kernel = if code.addr.is_kernel() { ShortCode::KERNEL } else { 0 };
        ShortCode(code.lengths.len() as u16 | kernel)
    }

    #[inline]
    fn instructions(self, left: u16) -> u16 {
        if left == 0 { self.0 & !ShortCode::KERNEL } else { left }
    }

    #[inline]
    fn mode(self) -> Mode {
        if self.0 & ShortCode::KERNEL != 0 { Mode::Kernel } else { Mode::User }
    }

    /// The requester of an execution while this process runs.
    #[inline]
    fn requester(self, process: Requester) -> Requester {
        match self.mode() {
            Mode::Kernel => Requester::KERNEL,
            Mode::User => process,
        }
    }
}

struct RunningMachine {
    lines: FetchedUnits,
    pages: Option<FetchedUnits>,
    /// Each CPU has an L1I of its own.
    l1i: PerCpu<InstructionCache>,
    /// Replaces `l1i` from the first data accesses on, if the machine describes a data cache.
    hierarchy: Option<HierarchyRun>,
    /// The hierarchy's counters at the last call of `take`.
    before: MachineCounters,
    /// Misses since the last call of `take`.
    l1i_misses: u64,
    l1i_taken: u64,
}

impl RunningMachine {
    fn new(machine: &MachineModel) -> RunningMachine {
        let pages = machine
            .itlb
            .as_ref()
            .map(|itlb| FetchedUnits::new(FetchUnit::of_pages(itlb), itlb.geometry().sets()));
        RunningMachine {
            lines: FetchedUnits::new(FetchUnit::Lines(machine.l1i_line), machine.l1i.sets()),
            pages,
            l1i: PerCpu::new(InstructionCache::new(machine.l1i)),
            hierarchy: None,
            before: MachineCounters::default(),
            l1i_misses: 0,
            l1i_taken: 0,
        }
    }
}

impl Machines {
    pub(crate) fn new(machines: &[MachineModel]) -> Machines {
        Machines {
            running: machines.iter().map(RunningMachine::new).collect(),
            codes: Vec::new(),
            shorts: Vec::new(),
            data: None,
            machines: machines.to_vec(),
            taken: vec![ServiceMachineCounts::default(); machines.len()],
        }
    }

    /// Which data accesses the caches simulate. Cores simulate none.
    pub(crate) fn wish(&self) -> DataWish {
        DataWish::of_caches(&self.machines)
    }

    /// This CPU executes from now on.
    pub(crate) fn turn_to(&mut self, cpu: CpuId) {
        for (running, machine) in self.running.iter_mut().zip(&self.machines) {
            running.l1i.turn_to(cpu, || InstructionCache::new(machine.l1i));
        }
    }

    /// Adds the next translation block.
    pub(crate) fn define(
        &mut self,
        translation: &Translation,
        code: &TranslatedCode,
    ) -> Result<()> {
        for running in &mut self.running {
            running.lines.push_recorded(translation, code)?;
            let mut pages = running.pages.iter_mut();
            pages.try_for_each(|pages| pages.push_recorded(translation, code))?;
        }
        self.shorts.push(ShortCode::of(code));
        self.codes.push(code.clone());
        Ok(())
    }

    /// Runs a translation block, or its first `instructions`.
    #[inline]
    pub(crate) fn run(&mut self, translation: u32, instructions: Option<u32>) {
        if let Some(data) = &mut self.data {
            data.ran += 1;
            if !data.plain {
                return;
            }
        }
        for running in self.running.iter_mut().filter(|running| running.hierarchy.is_none()) {
            let lines = match instructions {
                None => running.lines.span(translation).all(),
                Some(count) => {
                    let code = &self.codes[translation as usize];
                    running.lines.executed(translation, code, count)
                }
            };
            for &line in &running.lines.ids()[lines] {
                running.l1i_misses += u64::from(running.l1i.current.fetch(line));
            }
        }
    }

    /// Receives the accesses of the next executions. From the first call on, the machines simulate
    /// data caches.
    pub(crate) fn accesses(
        &mut self,
        codes: &[TranslatedCode],
        data: &PieceData<'_>,
    ) -> Result<()> {
        self.count();
        let (machines, running, shorts) = (&self.machines, &mut self.running, &self.shorts);
        let ahead = self.data.get_or_insert_with(|| {
            for (running, machine) in running.iter_mut().zip(machines) {
                running.hierarchy = HierarchyRun::new(machine);
            }
            DataAhead {
                executions: Vec::new(),
                steps: Vec::new(),
                ran: 0,
                counted: 0,
                plain: machines.iter().any(|machine| machine.memory.is_none()),
            }
        });
        ahead.executions.clear();
        ahead.executions.extend_from_slice(data.executions);
        (ahead.ran, ahead.counted) = (0, 0);
        ahead.steps.clear();
        ahead.steps.extend(data.executions.iter().map(|execution| {
            let id = execution.translation.0;
            RunStep {
                code: id,
                bytes: (execution.left != 0)
                    .then(|| codes[id as usize].bytes_of(execution.left.into()) as u16),
                requester: shorts[id as usize].requester(execution.process),
                accesses: execution.accesses,
            }
        }));
        for execution in data.executions {
            let (id, code) = (execution.translation, &codes[execution.translation.0 as usize]);
            if running.first().is_some_and(|first| first.lines.is_located(id.0)) {
                continue;
            }
            let lies = |addr| data.flow.code(addr, code, id, data.patterns);
            running.iter_mut().try_for_each(|running| running.lines.locate(id.0, lies))?;
        }
        for running in running {
            if let Some(hierarchy) = &mut running.hierarchy {
                let pages = running.pages.as_ref();
                hierarchy.look_ahead(&ahead.steps, &running.lines, pages, data.accesses);
            }
        }
        Ok(())
    }

    /// The counts of each machine since the last call.
    pub(crate) fn take(&mut self) -> &[ServiceMachineCounts] {
        self.count();
        for (taken, running) in self.taken.iter_mut().zip(&mut self.running) {
            let memory = running.hierarchy.as_ref().map(|hierarchy| {
                let modes = hierarchy.counters();
                let mut now = modes.kernel;
                now += modes.user;
                now - std::mem::replace(&mut running.before, now)
            });
            running.l1i_taken += running.l1i_misses;
            *taken = ServiceMachineCounts {
                l1i_misses: std::mem::take(&mut running.l1i_misses)
                    + memory.map_or(0, |counters| counters.l1i.total()),
                memory,
                ..ServiceMachineCounts::default()
            };
        }
        &self.taken
    }

    /// The misses of the first machine since the beginning; 0 without a machine.
    pub(crate) fn misses(&mut self) -> LevelMisses {
        self.so_far().misses
    }

    /// What the first machine has counted since the beginning; 0 without a machine.
    pub(crate) fn so_far(&mut self) -> MachineSoFar {
        self.count();
        let (Some(running), Some(machine)) = (self.running.first(), self.machines.first()) else {
            return MachineSoFar::default();
        };
        let l1i = running.l1i_taken + running.l1i_misses;
        let Some(modes) = running.hierarchy.as_ref().map(HierarchyRun::counters) else {
            let misses = LevelMisses { l1i, l1d: 0, l2: 0 };
            return MachineSoFar { misses, stalls: None };
        };
        let mut counters = modes.kernel;
        counters += modes.user;
        MachineSoFar {
            misses: LevelMisses {
                l1i: l1i + counters.l1i.total(),
                l1d: counters.l1d.total(),
                l2: counters.l2i.total() + counters.l2d.total(),
            },
            stalls: machine.cycles(&counters).map(|cycles| cycles - counters.instructions as f64),
        }
    }

    /// The result of the last call of `take`.
    pub(crate) fn taken(&self) -> &[ServiceMachineCounts] {
        &self.taken
    }

    /// Updates the hierarchies' counters to the last execution.
    fn count(&mut self) {
        let Some(data) = &mut self.data else { return };
        let amounts = data.amounts(&self.shorts);
        for hierarchy in self.running.iter_mut().filter_map(|running| running.hierarchy.as_mut()) {
            hierarchy.catch_up(data.ran as u32, |_| {});
            hierarchy.executed(Mode::Kernel, amounts.kernel);
            hierarchy.executed(Mode::User, amounts.user);
        }
    }
}

impl DataAhead {
    /// The amounts since the last call, by mode: instructions, loads, stores.
    fn amounts(&mut self, shorts: &[ShortCode]) -> PerMode<[u64; 3]> {
        let mut amounts = PerMode::<[u64; 3]>::default();
        for execution in &self.executions[self.counted..self.ran] {
            let short = shorts[execution.translation.0 as usize];
            let [instructions, loads, stores] = amounts.get_mut(short.mode());
            *instructions += u64::from(short.instructions(execution.left));
            *loads += u64::from(execution.loads);
            *stores += u64::from(execution.stores);
        }
        self.counted = self.ran;
        amounts
    }
}
