//! The caches of simulated machines while services run.
//!
//! Takes the executions in their order; gives the counts of each machine since the last call of
//! `take`. Knows no services.
//!
//! With data accesses, upcoming executions are simulated ahead, a piece of the stream at a time.
//! First every L1 and TLB runs by itself, in flat loops that mostly just see that a line is the one
//! its set used last. Their misses are kept. When the counts are needed, the misses up to that
//! point go to the levels behind: an execution's fetch misses before its data misses.

mod pages;

use crate::services::ledger::ServiceMachineCounts;
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::code_lines::of_first_instructions;
use execution::data::{DataWish, Execution};
use execution::numbering::{FetchUnit, Numbering};
use execution::per_cpu::PerCpu;
use execution::walk::PieceData;
use pages::InstructionPages;
use sim::{
    Hierarchy, InstructionCache, LineId, MachineCounters, MachineModel, MissCause, Mode, PerMode,
    PhysAddr, Requester,
};
use trace::{CpuId, RunAddr, Translation, TranslationId};

/// The caches of the machines: the L1I, and with data accesses all caches and TLBs that a machine
/// describes.
pub(crate) struct Machines {
    running: Vec<RunningMachine>,
    codes: Vec<TranslatedCode>,
    shorts: Vec<ShortCode>,
    /// Made at the first accesses.
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

/// The upcoming executions and their accesses.
struct DataAhead {
    executions: Vec<Execution>,
    /// How many of the executions ran, and how many were counted.
    ran: usize,
    counted: usize,
    /// Translation blocks with known physical addresses.
    located: Vec<bool>,
    /// Some machine describes no data cache.
    plain: bool,
}

/// What most executions need to know about a translation block: the number of its instructions and,
/// in the highest bit, whether it is kernel code.
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

    /// The requester of the execution, on behalf of this process.
    #[inline]
    fn requester(self, process: Requester) -> Requester {
        match self.mode() {
            Mode::Kernel => Requester::KERNEL,
            Mode::User => process,
        }
    }
}

struct RunningMachine {
    numbering: Numbering,
    line_bytes: u64,
    l1i: PerCpu<InstructionCache>,
    /// Replaces `l1i`.
    hierarchy: Option<Hierarchy>,
    /// The hierarchy's counters at the last call of `take`.
    before: MachineCounters,
    /// The lines of each translation block.
    spans: Vec<LineSpan>,
    lines: Vec<LineId>,
    /// For each of `lines`, the first fetched address.
    addrs: Vec<RunAddr>,
    physical: Vec<PhysAddr>,
    pages: Option<InstructionPages>,
    /// Misses since the last call of `take`.
    l1i_misses: u64,
    l1i_taken: u64,
    ahead: MissesAhead,
}

/// The lines of a translation block: `count` lines from index `at`.
#[derive(Clone, Copy)]
struct LineSpan {
    first: LineId,
    last: LineId,
    at: u32,
    count: u32,
}

/// Misses of upcoming executions, in order, and how many of them the levels behind have seen.
#[derive(Default)]
struct MissesAhead {
    fetches: Vec<MissAhead>,
    data: Vec<MissAhead>,
    fetches_done: usize,
    data_done: usize,
}

#[derive(Clone, Copy)]
struct MissAhead {
    execution: u32,
    requester: Requester,
    /// `None` for a TLB miss.
    cause: Option<MissCause>,
    physical: PhysAddr,
}

impl Machines {
    pub(crate) fn new(machines: &[MachineModel]) -> Machines {
        let running = machines.iter().map(|machine| RunningMachine {
            numbering: Numbering::new(FetchUnit::Lines(machine.l1i_line), machine.l1i.sets()),
            line_bytes: machine.l1i_line.into(),
            l1i: PerCpu::new(InstructionCache::new(machine.l1i)),
            hierarchy: None,
            before: MachineCounters::default(),
            spans: Vec::new(),
            lines: Vec::new(),
            addrs: Vec::new(),
            physical: Vec::new(),
            pages: machine.itlb.as_ref().map(InstructionPages::new),
            l1i_misses: 0,
            l1i_taken: 0,
            ahead: MissesAhead::default(),
        });
        Machines {
            running: running.collect(),
            codes: Vec::new(),
            shorts: Vec::new(),
            data: None,
            machines: machines.to_vec(),
            taken: vec![ServiceMachineCounts::default(); machines.len()],
        }
    }

    /// Which data accesses the caches want. Cores take none.
    pub(crate) fn wish(&self) -> DataWish {
        DataWish::of_caches(&self.machines)
    }

    /// This CPU executes from now on. Each has an L1I of its own.
    pub(crate) fn turn_to(&mut self, cpu: CpuId) {
        for (running, machine) in self.running.iter_mut().zip(&self.machines) {
            running.l1i.turn_to(cpu, || InstructionCache::new(machine.l1i));
        }
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
            running.fetch(
                translation,
                instructions.map(|count| (&self.codes[translation as usize], count)),
            );
        }
    }
}

impl RunningMachine {
    /// Gives the lines of a translation block their physical addresses, and the numbers that these
    /// have.
    #[cold]
    fn locate(
        &mut self,
        id: TranslationId,
        code: &TranslatedCode,
        data: &PieceData<'_>,
    ) -> Result<()> {
        let span = &mut self.spans[id.0 as usize];
        let lines = span.at as usize..(span.at + span.count) as usize;
        for at in lines.clone() {
            let physical = data.flow.code(self.addrs[at], code, id, data.patterns);
            self.lines[at] = self.numbering.number(self.addrs[at], Some(physical))?;
            self.physical[at] = physical;
        }
        if let [first, .., last] | [first @ last] = self.lines[lines] {
            (span.first, span.last) = (first, last);
        }
        Ok(())
    }

    /// The indices of a translation block's lines; only of its first instructions when given.
    #[inline]
    fn lines_of(
        &self,
        translation: u32,
        first: Option<(&TranslatedCode, u32)>,
    ) -> std::ops::Range<usize> {
        let span = self.spans[translation as usize];
        let all = span.at as usize..(span.at + span.count) as usize;
        match first {
            None => all,
            Some((code, instructions)) => {
                of_first_instructions(all, code, instructions, self.line_bytes)
            }
        }
    }

    #[inline]
    fn fetch(&mut self, translation: u32, first: Option<(&TranslatedCode, u32)>) {
        for &line in &self.lines[self.lines_of(translation, first)] {
            self.l1i_misses += u64::from(self.l1i.current.fetch(line));
        }
    }

    /// Simulates the L1s and the TLBs for all upcoming executions.
    fn look_ahead(&mut self, shorts: &[ShortCode], codes: &[TranslatedCode], data: &PieceData<'_>) {
        let Some(mut hierarchy) = self.hierarchy.take() else { return };
        self.ahead.fetches.clear();
        self.ahead.data.clear();
        (self.ahead.fetches_done, self.ahead.data_done) = (0, 0);
        for (number, execution) in data.executions.iter().enumerate() {
            self.translate(&mut hierarchy, number as u32, execution, shorts, codes);
            let span = self.spans[execution.translation.0 as usize];
            if span.count > 2
                || !hierarchy.fetched_last(span.first)
                || !hierarchy.fetched_last(span.last)
            {
                self.fetch_ahead(&mut hierarchy, number as u32, execution, shorts, codes);
            }
        }
        self.ahead.access(&mut hierarchy, shorts, data);
        self.hierarchy = Some(hierarchy);
    }

    /// The instruction TLB's part of [`RunningMachine::fetch_ahead`].
    #[inline]
    fn translate(
        &mut self,
        hierarchy: &mut Hierarchy,
        number: u32,
        execution: &Execution,
        shorts: &[ShortCode],
        codes: &[TranslatedCode],
    ) {
        let Some(pages) = &mut self.pages else { return };
        let id = execution.translation.0;
        let bytes =
            || (execution.left != 0).then(|| codes[id as usize].bytes_of(execution.left.into()));
        for _ in 0..pages.fetch(id, bytes, hierarchy) {
            self.ahead.fetches.push(MissAhead {
                execution: number,
                requester: shorts[id as usize].requester(execution.process),
                cause: None,
                physical: PhysAddr::default(),
            });
        }
    }

    fn fetch_ahead(
        &mut self,
        hierarchy: &mut Hierarchy,
        number: u32,
        execution: &Execution,
        shorts: &[ShortCode],
        codes: &[TranslatedCode],
    ) {
        let id = execution.translation.0;
        let requester = shorts[id as usize].requester(execution.process);
        let left = (execution.left != 0).then(|| (&codes[id as usize], execution.left.into()));
        for at in self.lines_of(id, left) {
            if let Some(cause) = hierarchy.fetch_ahead(self.lines[at], requester) {
                self.ahead.fetches.push(MissAhead {
                    execution: number,
                    requester,
                    cause: Some(cause),
                    physical: self.physical[at],
                });
            }
        }
    }

    /// Passes the misses before this execution to the levels behind the L1s.
    fn catch_up(&mut self, execution: u32) {
        let (Some(hierarchy), ahead) = (&mut self.hierarchy, &mut self.ahead) else {
            return;
        };
        loop {
            let fetch =
                ahead.fetches.get(ahead.fetches_done).filter(|missed| missed.execution < execution);
            let data =
                ahead.data.get(ahead.data_done).filter(|missed| missed.execution < execution);
            let fetch_first = match (fetch, data) {
                (None, None) => return,
                (fetch, None) => fetch,
                (None, Some(_)) => None,
                (Some(fetch), Some(data)) => (fetch.execution <= data.execution).then_some(fetch),
            };
            match (fetch_first, data) {
                (Some(fetch), _) => {
                    ahead.fetches_done += 1;
                    hierarchy.runs(fetch.requester);
                    match fetch.cause {
                        Some(cause) => drop(hierarchy.fetch_missed(cause, fetch.physical)),
                        None => hierarchy.fetch_page_missed(),
                    }
                }
                (None, Some(data)) => {
                    ahead.data_done += 1;
                    hierarchy.runs(data.requester);
                    match data.cause {
                        Some(cause) => drop(hierarchy.data_missed(cause, data.physical)),
                        None => hierarchy.data_page_missed(),
                    }
                }
                (None, None) => return,
            }
        }
    }
}

impl MissesAhead {
    fn access(&mut self, hierarchy: &mut Hierarchy, shorts: &[ShortCode], data: &PieceData<'_>) {
        let log2 = hierarchy.data_line_log2();
        // The execution of the current access, and the index of the first access behind it.
        let (mut number, mut end) =
            (0, data.executions.first().map_or(0, |first| first.accesses as usize));
        for (at, access) in data.accesses.iter().enumerate() {
            let first = access.physical.0 >> log2;
            let last = (access.physical.0 + u64::from(access.size) - 1) >> log2;
            let page_missed = hierarchy.data_page_ahead(access.page);
            if !page_missed && first == last && hierarchy.accessed_last(access.physical) {
                continue;
            }
            while at >= end {
                number += 1;
                end += data.executions[number].accesses as usize;
            }
            let execution = &data.executions[number];
            let missed = MissAhead {
                execution: number as u32,
                requester: shorts[execution.translation.0 as usize].requester(execution.process),
                cause: None,
                physical: access.physical,
            };
            self.data.extend(page_missed.then_some(missed));
            for line in first..=last {
                let physical = PhysAddr(line << log2);
                if let Some(cause) = hierarchy.data_ahead(physical, missed.requester) {
                    self.data.push(MissAhead { cause: Some(cause), physical, ..missed });
                }
            }
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

    /// Finds the physical addresses of translation blocks that run for the first time.
    fn locate(
        &mut self,
        running: &mut [RunningMachine],
        codes: &[TranslatedCode],
        data: &PieceData<'_>,
    ) -> Result<()> {
        self.located.resize(codes.len(), false);
        for running in running.iter_mut() {
            running.physical.resize(running.lines.len(), PhysAddr::default());
        }
        for execution in data.executions {
            let id = execution.translation;
            if !self.located[id.0 as usize] {
                self.located[id.0 as usize] = true;
                for running in running.iter_mut() {
                    running.locate(id, &codes[id.0 as usize], data)?;
                }
            }
        }
        Ok(())
    }
}

impl Machines {
    /// Adds the next translation block.
    pub(crate) fn define(
        &mut self,
        translation: &Translation,
        code: &TranslatedCode,
    ) -> Result<()> {
        let (start, bytes) = (translation.addr, translation.code.len() as u32);
        let mut units = Vec::new();
        for running in &mut self.running {
            units.clear();
            running.numbering.units(start, bytes, &mut |_| None, &mut units)?;
            let at = running.lines.len() as u32;
            running.lines.extend(units.iter().map(|unit| unit.id));
            running.addrs.extend(units.iter().map(|unit| unit.addr));
            if let (Some(first), Some(last)) = (units.first(), units.last()) {
                let count = units.len() as u32;
                running.spans.push(LineSpan { first: first.id, last: last.id, at, count });
            }
            if let Some(pages) = &mut running.pages {
                pages.define(translation)?;
            }
        }
        self.shorts.push(ShortCode::of(code));
        self.codes.push(code.clone());
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
                slots: None,
                branches: None,
                coherent: None,
            };
        }
        &self.taken
    }

    /// The accesses of the executions that come next. From the first call on, the machines have
    /// data caches.
    pub(crate) fn accesses(
        &mut self,
        codes: &[TranslatedCode],
        data: &PieceData<'_>,
    ) -> Result<()> {
        self.count();
        let (machines, running) = (&self.machines, &mut self.running);
        let ahead = self.data.get_or_insert_with(|| {
            for (running, machine) in running.iter_mut().zip(machines) {
                running.hierarchy = Hierarchy::new(machine);
            }
            DataAhead {
                executions: Vec::new(),
                ran: 0,
                counted: 0,
                located: Vec::new(),
                plain: machines.iter().any(|machine| machine.memory.is_none()),
            }
        });
        ahead.executions.clear();
        ahead.executions.extend_from_slice(data.executions);
        (ahead.ran, ahead.counted) = (0, 0);
        ahead.locate(running, codes, data)?;
        for running in running {
            running.look_ahead(&self.shorts, codes, data);
        }
        Ok(())
    }

    /// The misses of the first machine since the beginning; 0 without a machine.
    pub(crate) fn misses(&mut self) -> LevelMisses {
        self.count();
        let Some(running) = self.running.first() else {
            return LevelMisses::default();
        };
        let l1i = running.l1i_taken + running.l1i_misses;
        match running.hierarchy.as_ref().map(Hierarchy::counters) {
            None => LevelMisses { l1i, l1d: 0, l2: 0 },
            Some(modes) => {
                let sum = |of: fn(&MachineCounters) -> u64| of(&modes.kernel) + of(&modes.user);
                LevelMisses {
                    l1i: l1i + sum(|counters| counters.l1i.total()),
                    l1d: sum(|counters| counters.l1d.total()),
                    l2: sum(|counters| counters.l2i.total() + counters.l2d.total()),
                }
            }
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
        for running in &mut self.running {
            running.catch_up(data.ran as u32);
            if let Some(hierarchy) = &mut running.hierarchy {
                for (requester, [instructions, loads, stores]) in
                    [(Requester::KERNEL, amounts.kernel), (Requester::process(0), amounts.user)]
                {
                    hierarchy.runs(requester);
                    hierarchy.executed(instructions, loads, stores);
                }
            }
        }
    }
}
