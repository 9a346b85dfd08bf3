//! The caches of simulated machines while services run.
//!
//! Takes the executions in their order; gives what each machine counted since it was asked last.
//! Knows no services.
//!
//! Of a recording with data accesses, what is to come is simulated ahead, some thousand executions
//! at a time: first every L1 and TLB by itself, in flat loops that most often do no more than see
//! that a line is the one its set used last; what missed is kept. When the counts are asked for,
//! the misses up to there go to the levels behind, those of an execution's fetches before those of
//! its data.

use crate::services::ledger::MachineCounts;
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::data::{AccessStream, DataFlow, Execution};
use execution::numbering::{FetchUnit, Numbering};
use sim::{
    Hierarchy, InstructionCache, ItlbDescription, LineId, MachineCounters, MachineModel, MissCause,
    Mode, PerMode, PhysAddr, Requester,
};
use trace::{AccessPatterns, RunAddr, Task, Translation, TranslationId};

/// The caches of some machines: the L1I, and of a recording with data accesses all that a machine
/// describes.
pub struct Machines {
    running: Vec<Running>,
    codes: Vec<TranslatedCode>,
    shorts: Vec<Short>,
    /// Made when the first accesses come.
    data: Option<Data>,
    machines: Vec<MachineModel>,
    tasks: Vec<Task>,
    taken: Vec<MachineCounts>,
}

/// Misses by level of the caches. Data and the L2 have none where data accesses were not recorded,
/// or the machine describes no such cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelMisses {
    pub l1i: u64,
    pub l1d: u64,
    /// For instructions and for data.
    pub l2: u64,
}

/// The executions to come, and what they access.
struct Data {
    flow: DataFlow,
    /// Of the flow's executions: those that ran, and those that were counted.
    ran: usize,
    counted: usize,
    /// Translations whose lines' places are known.
    located: Vec<bool>,
    /// Some machine describes no data cache.
    plain: bool,
}

/// What most executions want to know of a translation: the number of its instructions, and in the
/// highest bit whether it is the kernel's.
#[derive(Clone, Copy)]
struct Short(u16);

impl Short {
    const KERNEL: u16 = 1 << 15;

    fn of(code: &TranslatedCode) -> Short {
        let kernel = if code.addr.is_kernel() { Short::KERNEL } else { 0 };
        Short(code.lengths.len() as u16 | kernel)
    }

    #[inline]
    fn instructions(self, left: u16) -> u16 {
        if left == 0 { self.0 & !Short::KERNEL } else { left }
    }

    #[inline]
    fn mode(self) -> Mode {
        if self.0 & Short::KERNEL != 0 { Mode::Kernel } else { Mode::User }
    }

    /// Who executes, on behalf of this process.
    #[inline]
    fn requester(self, process: Requester) -> Requester {
        match self.mode() {
            Mode::Kernel => Requester::KERNEL,
            Mode::User => process,
        }
    }
}

struct Running {
    numbering: Numbering,
    line_bytes: u64,
    l1i: InstructionCache,
    /// Takes the place of `l1i`.
    hierarchy: Option<Hierarchy>,
    /// What the hierarchy had counted when it was asked last.
    before: MachineCounters,
    /// Where each translation lies.
    spans: Vec<Span>,
    lines: Vec<LineId>,
    /// The first address in each of `lines` that is fetched.
    addrs: Vec<RunAddr>,
    physical: Vec<PhysAddr>,
    pages: Option<Pages>,
    /// Since they were taken last, and before.
    l1i_misses: u64,
    l1i_taken: u64,
    ahead: Ahead,
}

/// The pages that the instruction TLB translates.
struct Pages {
    numbering: Numbering,
    /// Of each translation: the first and the last, and how many bytes lie in the first.
    of: Vec<(LineId, LineId, u32)>,
    /// Where the last execution ended: while fetches stay there, the TLB has nothing to do.
    current: Option<LineId>,
}

impl Pages {
    fn new(itlb: &ItlbDescription) -> Pages {
        Pages {
            numbering: Numbering::new(FetchUnit::of_pages(itlb), itlb.geometry().sets()),
            of: Vec::new(),
            current: None,
        }
    }

    fn define(&mut self, translation: &Translation) -> Result<()> {
        let mut units = Vec::new();
        self.numbering.units(translation.addr, translation.code.len() as u32, &mut units)?;
        if let (Some(&(first, _)), Some(&(last, behind))) = (units.first(), units.last()) {
            self.of.push((first, last, behind.0.wrapping_sub(translation.addr.0) as u32));
        }
        Ok(())
    }

    /// Translates what an execution fetches, all of it or as many bytes as are given; gives the
    /// number of misses.
    #[inline]
    fn fetch(
        &mut self,
        translation: u32,
        bytes: impl FnOnce() -> Option<u64>,
        hierarchy: &mut Hierarchy,
    ) -> u32 {
        let (first, last, in_first) = self.of[translation as usize];
        if first == last && self.current == Some(first) {
            return 0;
        }
        let reaches_last = first != last && bytes().is_none_or(|bytes| bytes > in_first.into());
        let last = if reaches_last { last } else { first };
        let misses = u32::from(self.current != Some(first) && hierarchy.fetch_page_ahead(first))
            + u32::from(reaches_last && hierarchy.fetch_page_ahead(last));
        self.current = Some(last);
        misses
    }
}

/// The lines of a translation: `count` from `at` on.
#[derive(Clone, Copy)]
struct Span {
    first: LineId,
    last: LineId,
    at: u32,
    count: u32,
}

/// Misses of executions to come, in their order, and how many of them the levels behind already
/// know.
#[derive(Default)]
struct Ahead {
    fetches: Vec<Missed>,
    data: Vec<Missed>,
    fetches_done: usize,
    data_done: usize,
}

#[derive(Clone, Copy)]
struct Missed {
    execution: u32,
    requester: Requester,
    /// `None`: the TLB missed.
    cause: Option<MissCause>,
    physical: PhysAddr,
}

impl Machines {
    pub fn new(machines: &[MachineModel]) -> Machines {
        let running = machines.iter().map(|machine| Running {
            numbering: Numbering::new(FetchUnit::Lines(machine.l1i_line), machine.l1i.sets()),
            line_bytes: machine.l1i_line.into(),
            l1i: InstructionCache::new(machine.l1i),
            hierarchy: None,
            before: MachineCounters::default(),
            spans: Vec::new(),
            lines: Vec::new(),
            addrs: Vec::new(),
            physical: Vec::new(),
            pages: machine.itlb.as_ref().map(Pages::new),
            l1i_misses: 0,
            l1i_taken: 0,
            ahead: Ahead::default(),
        });
        Machines {
            running: running.collect(),
            codes: Vec::new(),
            shorts: Vec::new(),
            data: None,
            machines: machines.to_vec(),
            tasks: Vec::new(),
            taken: vec![MachineCounts::default(); machines.len()],
        }
    }

    /// The first `instructions` of a translation, or all.
    #[inline]
    pub fn run(&mut self, translation: u32, instructions: Option<u32>) {
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

impl Running {
    #[cold]
    fn locate(
        &mut self,
        id: TranslationId,
        code: &TranslatedCode,
        flow: &mut DataFlow,
        patterns: &AccessPatterns,
    ) {
        let span = self.spans[id.0 as usize];
        for at in span.at as usize..(span.at + span.count) as usize {
            self.physical[at] = flow.code(self.addrs[at], code, id, patterns);
        }
    }

    /// The indices of a translation's lines; of its first instructions, where given.
    #[inline]
    fn lines_of(
        &self,
        translation: u32,
        first: Option<(&TranslatedCode, u32)>,
    ) -> std::ops::Range<usize> {
        let span = self.spans[translation as usize];
        let count = match first {
            None => span.count,
            Some((code, instructions)) => {
                let lines = (code.addr.0 % self.line_bytes + code.bytes_of(instructions))
                    .div_ceil(self.line_bytes);
                span.count.min(lines as u32)
            }
        };
        span.at as usize..(span.at + count) as usize
    }

    #[inline]
    fn fetch(&mut self, translation: u32, first: Option<(&TranslatedCode, u32)>) {
        for &line in &self.lines[self.lines_of(translation, first)] {
            self.l1i_misses += u64::from(self.l1i.fetch(line));
        }
    }

    /// Asks the L1s and the TLBs for all that is to come.
    fn look_ahead(&mut self, shorts: &[Short], codes: &[TranslatedCode], flow: &DataFlow) {
        let Some(mut hierarchy) = self.hierarchy.take() else { return };
        self.ahead.fetches.clear();
        self.ahead.data.clear();
        (self.ahead.fetches_done, self.ahead.data_done) = (0, 0);
        for (number, execution) in flow.executions.iter().enumerate() {
            self.translate(&mut hierarchy, number as u32, execution, shorts, codes);
            let span = self.spans[execution.translation.0 as usize];
            if span.count > 2
                || !hierarchy.fetched_last(span.first)
                || !hierarchy.fetched_last(span.last)
            {
                self.fetch_ahead(&mut hierarchy, number as u32, execution, shorts, codes);
            }
        }
        self.ahead.access(&mut hierarchy, shorts, flow);
        self.hierarchy = Some(hierarchy);
    }

    /// The instruction TLB's part of [`Running::fetch_ahead`].
    #[inline]
    fn translate(
        &mut self,
        hierarchy: &mut Hierarchy,
        number: u32,
        execution: &Execution,
        shorts: &[Short],
        codes: &[TranslatedCode],
    ) {
        let Some(pages) = &mut self.pages else { return };
        let id = execution.translation.0;
        let bytes =
            || (execution.left != 0).then(|| codes[id as usize].bytes_of(execution.left.into()));
        for _ in 0..pages.fetch(id, bytes, hierarchy) {
            self.ahead.fetches.push(Missed {
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
        shorts: &[Short],
        codes: &[TranslatedCode],
    ) {
        let id = execution.translation.0;
        let requester = shorts[id as usize].requester(execution.process);
        let left = (execution.left != 0).then(|| (&codes[id as usize], execution.left.into()));
        for at in self.lines_of(id, left) {
            if let Some(cause) = hierarchy.fetch_ahead(self.lines[at], requester) {
                self.ahead.fetches.push(Missed {
                    execution: number,
                    requester,
                    cause: Some(cause),
                    physical: self.physical[at],
                });
            }
        }
    }

    /// Tells the levels behind the L1s of the misses before this execution.
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

impl Ahead {
    fn access(&mut self, hierarchy: &mut Hierarchy, shorts: &[Short], flow: &DataFlow) {
        let log2 = hierarchy.data_line_log2();
        // The execution that makes the access at hand, and the number of the first access that is
        // not its.
        let (mut number, mut end) =
            (0, flow.executions.first().map_or(0, |first| first.accesses as usize));
        for (at, access) in flow.accesses().iter().enumerate() {
            let first = access.physical.0 >> log2;
            let last = (access.physical.0 + u64::from(access.size) - 1) >> log2;
            let page_missed = hierarchy.data_page_ahead(access.page);
            if !page_missed && first == last && hierarchy.accessed_last(access.physical) {
                continue;
            }
            while at >= end {
                number += 1;
                end += flow.executions[number].accesses as usize;
            }
            let execution = &flow.executions[number];
            let missed = Missed {
                execution: number as u32,
                requester: shorts[execution.translation.0 as usize].requester(execution.process),
                cause: None,
                physical: access.physical,
            };
            self.data.extend(page_missed.then_some(missed));
            for line in first..=last {
                let physical = PhysAddr(line << log2);
                if let Some(cause) = hierarchy.data_ahead(physical, missed.requester) {
                    self.data.push(Missed { cause: Some(cause), physical, ..missed });
                }
            }
        }
    }
}

impl Data {
    /// What ran since the last time, by mode: instructions, loads, stores.
    fn amounts(&mut self, shorts: &[Short]) -> PerMode<[u64; 3]> {
        let mut amounts = PerMode::<[u64; 3]>::default();
        for execution in &self.flow.executions[self.counted..self.ran] {
            let short = shorts[execution.translation.0 as usize];
            let [instructions, loads, stores] = amounts.get_mut(short.mode());
            *instructions += u64::from(short.instructions(execution.left));
            *loads += u64::from(execution.loads);
            *stores += u64::from(execution.stores);
        }
        self.counted = self.ran;
        amounts
    }

    /// Finds where the lines of translations lie that run for the first time.
    fn locate(
        &mut self,
        running: &mut [Running],
        codes: &[TranslatedCode],
        patterns: &AccessPatterns,
    ) {
        self.located.resize(codes.len(), false);
        for running in running.iter_mut() {
            running.physical.resize(running.lines.len(), PhysAddr::default());
        }
        for at in 0..self.flow.executions.len() {
            let id = self.flow.executions[at].translation;
            if !self.located[id.0 as usize] {
                self.located[id.0 as usize] = true;
                for running in running.iter_mut() {
                    running.locate(id, &codes[id.0 as usize], &mut self.flow, patterns);
                }
            }
        }
    }
}

impl Machines {
    /// Learns the next translation.
    pub fn define(&mut self, translation: &Translation) -> Result<()> {
        let mut units = Vec::new();
        for running in &mut self.running {
            units.clear();
            running.numbering.units(translation.addr, translation.code.len() as u32, &mut units)?;
            let at = running.lines.len() as u32;
            running.lines.extend(units.iter().map(|&(line, _)| line));
            running.addrs.extend(units.iter().map(|&(_, addr)| addr));
            if let (Some(&(first, _)), Some(&(last, _))) = (units.first(), units.last()) {
                let count = units.len() as u32;
                running.spans.push(Span { first, last, at, count });
            }
            if let Some(pages) = &mut running.pages {
                pages.define(translation)?;
            }
        }
        let code = TranslatedCode::new(translation)?;
        self.shorts.push(Short::of(&code));
        self.codes.push(code);
        Ok(())
    }

    /// What each machine counted since the last call.
    pub fn take(&mut self) -> &[MachineCounts] {
        self.count();
        for (taken, running) in self.taken.iter_mut().zip(&mut self.running) {
            let memory = running.hierarchy.as_ref().map(|hierarchy| {
                let modes = hierarchy.counters();
                let mut now = modes.kernel;
                now += modes.user;
                now - std::mem::replace(&mut running.before, now)
            });
            running.l1i_taken += running.l1i_misses;
            *taken = MachineCounts {
                l1i_misses: std::mem::take(&mut running.l1i_misses)
                    + memory.map_or(0, |counters| counters.l1i.total()),
                memory,
                branches: None,
            };
        }
        &self.taken
    }

    /// Learns the next tasks.
    pub fn define_tasks(&mut self, tasks: &[Task]) {
        match &mut self.data {
            Some(data) => data.flow.define_tasks(tasks),
            None => self.tasks.extend_from_slice(tasks),
        }
    }

    /// What the words accessed that will be executed next; from the first time on the machines have
    /// caches for data.
    pub fn accesses(
        &mut self,
        words: &[u32],
        stream: &mut AccessStream<'_>,
        patterns: &AccessPatterns,
    ) -> Result<()> {
        self.count();
        let (machines, tasks, running) = (&self.machines, &self.tasks, &mut self.running);
        let data = self.data.get_or_insert_with(|| {
            for (running, machine) in running.iter_mut().zip(machines) {
                running.hierarchy = Hierarchy::new(machine);
            }
            let mut flow = DataFlow::new(machines);
            flow.define_tasks(tasks);
            Data {
                flow,
                ran: 0,
                counted: 0,
                located: Vec::new(),
                plain: machines.iter().any(|machine| machine.memory.is_none()),
            }
        });
        data.flow.forget(data.flow.executions.len());
        (data.ran, data.counted) = (0, 0);
        data.flow.follow(words, stream);
        data.locate(running, &self.codes, patterns);
        for running in running {
            running.look_ahead(&self.shorts, &self.codes, &data.flow);
        }
        Ok(())
    }

    /// The accesses of a chunk are done with.
    pub fn accesses_end(&mut self, stream: AccessStream<'_>) {
        if let Some(data) = &mut self.data {
            data.flow.finish(stream);
        }
    }

    /// What the first machine has counted since the beginning; nothing where there is none.
    pub fn misses(&mut self) -> LevelMisses {
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

    /// What `take` gave last.
    pub fn taken(&self) -> &[MachineCounts] {
        &self.taken
    }

    /// Brings the hierarchies' counters up to what ran.
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
