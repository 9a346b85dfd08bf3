//! What is counted besides instructions while services run: the caches of simulated machines.
//!
//! Takes the executions in their order; gives, whenever it is asked, what was counted since it was asked last. Knows no services.

use crate::replay::code::Code;
use crate::replay::data::{Access, DataFlow, Execution, Stream};
use crate::replay::numbering::{Numbering, Unit};
use crate::services::ledger::MachineCounts;
use anyhow::Result;
use sim::{Counters, Hierarchy, InstructionCache, Line, Machine, Party, PhysAddr};
use trace::{Event, Patterns, RunAddr, Task, Translation, TranslationId, events};

pub trait Meter {
    /// Whether it makes anything of data accesses.
    const TAKES_DATA: bool = false;
    /// Learns the next translation.
    fn define(&mut self, translation: &Translation) -> Result<()>;
    fn define_tasks(&mut self, _: &[Task]) {}
    /// What the words accessed that will be executed next.
    fn accesses(&mut self, _: &[u32], _: &mut Stream<'_>, _: &Patterns) -> Result<()> {
        Ok(())
    }
    /// The accesses of a chunk are done with.
    fn accesses_end(&mut self, _: Stream<'_>) {}
    fn executed(&mut self, translation: u32);
    fn left(&mut self, translation: u32, instructions: u32);
    /// What each machine counted since the last call.
    fn take(&mut self) -> &[MachineCounts];
}

/// Nothing but instructions.
pub struct NoMachine;

impl Meter for NoMachine {
    fn define(&mut self, _: &Translation) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn executed(&mut self, _: u32) {}

    fn left(&mut self, _: u32, _: u32) {}

    #[inline]
    fn take(&mut self) -> &[MachineCounts] {
        &[]
    }
}

/// Both count; what is taken, and what data was accessed, is the first's.
impl<A: Meter, B: Meter> Meter for (A, B) {
    const TAKES_DATA: bool = A::TAKES_DATA;

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.0.define_tasks(tasks);
    }

    fn accesses(&mut self, words: &[u32], stream: &mut Stream<'_>, patterns: &Patterns) -> Result<()> {
        self.0.accesses(words, stream, patterns)
    }

    fn accesses_end(&mut self, stream: Stream<'_>) {
        self.0.accesses_end(stream);
    }

    fn define(&mut self, translation: &Translation) -> Result<()> {
        self.0.define(translation)?;
        self.1.define(translation)
    }

    #[inline]
    fn executed(&mut self, translation: u32) {
        self.0.executed(translation);
        self.1.executed(translation);
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.0.left(translation, instructions);
        self.1.left(translation, instructions);
    }

    #[inline]
    fn take(&mut self) -> &[MachineCounts] {
        self.0.take()
    }
}

/// The caches of some machines: the L1I, and of a recording with data accesses all that a machine describes.
pub struct Machines {
    running: Vec<Running>,
    codes: Vec<Code>,
    /// Made when the first accesses come.
    data: Option<Data>,
    machines: Vec<Machine>,
    tasks: Vec<Task>,
    taken: Vec<MachineCounts>,
}

/// What the executions to come accessed.
struct Data {
    flow: DataFlow,
    /// The next of `flow`'s executions and accesses.
    execution: usize,
    access: usize,
    /// Translations whose lines' places are known.
    located: Vec<bool>,
}

struct Running {
    numbering: Numbering,
    line_bytes: u64,
    l1i: InstructionCache,
    /// Takes the place of `l1i`.
    hierarchy: Option<Hierarchy>,
    /// What the hierarchy had counted when it was asked last.
    before: Counters,
    /// Translation t lies in `lines[firsts[t]..firsts[t + 1]]`.
    firsts: Vec<u32>,
    lines: Vec<(Line, RunAddr)>,
    physical: Vec<PhysAddr>,
    l1i_misses: u64,
}

impl Machines {
    pub fn new(machines: &[Machine]) -> Machines {
        let running = machines.iter().map(|machine| Running {
            numbering: Numbering::new(Unit::Lines(machine.l1i_line), machine.l1i.sets()),
            line_bytes: machine.l1i_line.into(),
            l1i: InstructionCache::new(machine.l1i),
            hierarchy: None,
            before: Counters::default(),
            firsts: vec![0],
            lines: Vec::new(),
            physical: Vec::new(),
            l1i_misses: 0,
        });
        Machines {
            running: running.collect(),
            codes: Vec::new(),
            data: None,
            machines: machines.to_vec(),
            tasks: Vec::new(),
            taken: vec![MachineCounts::default(); machines.len()],
        }
    }

    /// The first `instructions` of a translation, or all.
    #[inline]
    fn run(&mut self, translation: u32, instructions: Option<u32>) {
        let Some(data) = &mut self.data else {
            let bytes = instructions.map(|count| self.codes[translation as usize].bytes_of(count));
            let start = self.codes[translation as usize].addr.0;
            for running in &mut self.running {
                let end = running.lines_of(translation, start, bytes);
                running.fetch(translation, end);
            }
            return;
        };
        let code = &self.codes[translation as usize];
        let nothing = Execution {
            loads: 0,
            stores: 0,
            accesses: 0,
            process: Party::KERNEL,
        };
        let execution = data.flow.executions.get(data.execution).copied().unwrap_or(nothing);
        let accesses = data.access..data.access + execution.accesses as usize;
        let accesses = data.flow.accesses.get(accesses).unwrap_or_default();
        data.execution += 1;
        data.access += accesses.len();
        let party = if code.addr.is_kernel() { Party::KERNEL } else { execution.process };
        let bytes = instructions.map(|count| code.bytes_of(count));
        let count = instructions.map_or(code.lengths.len() as u64, u64::from);
        for running in &mut self.running {
            let end = running.lines_of(translation, code.addr.0, bytes);
            match &mut running.hierarchy {
                None => running.fetch(translation, end),
                Some(hierarchy) => {
                    hierarchy.runs(party);
                    hierarchy.executed(count, execution.loads.into(), execution.stores.into());
                    let range = running.firsts[translation as usize] as usize..end;
                    for (&(line, _), &physical) in running.lines[range.clone()].iter().zip(&running.physical[range]) {
                        hierarchy.fetch(line, physical);
                    }
                    accesses.iter().for_each(|access| access_data(hierarchy, access));
                }
            }
        }
    }
}

fn access_data(hierarchy: &mut Hierarchy, access: &Access) {
    hierarchy.data_page(access.page);
    let log2 = hierarchy.data_line_log2();
    let last = (access.physical.0 + u64::from(access.size) - 1) >> log2;
    for line in access.physical.0 >> log2..=last {
        hierarchy.data(PhysAddr(line << log2));
    }
}

impl Running {
    /// The end of a translation's lines; of its first `bytes`, where given.
    #[inline]
    fn lines_of(&self, translation: u32, start: u64, bytes: Option<u64>) -> usize {
        let (first, end) = (self.firsts[translation as usize], self.firsts[translation as usize + 1]);
        match bytes {
            None => end as usize,
            Some(bytes) => {
                let lines = (start % self.line_bytes + bytes).div_ceil(self.line_bytes) as usize;
                (first as usize + lines).min(end as usize)
            }
        }
    }

    #[inline]
    fn fetch(&mut self, translation: u32, end: usize) {
        for &(line, _) in &self.lines[self.firsts[translation as usize] as usize..end] {
            self.l1i_misses += u64::from(self.l1i.fetch(line));
        }
    }
}

impl Meter for Machines {
    const TAKES_DATA: bool = true;

    fn define(&mut self, translation: &Translation) -> Result<()> {
        let mut units = Vec::new();
        for running in &mut self.running {
            units.clear();
            running
                .numbering
                .units(translation.addr, translation.code.len() as u32, &mut units)?;
            running.lines.extend_from_slice(&units);
            running.firsts.push(running.lines.len() as u32);
        }
        self.codes.push(Code::new(translation)?);
        Ok(())
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        match &mut self.data {
            Some(data) => data.flow.define_tasks(tasks),
            None => self.tasks.extend_from_slice(tasks),
        }
    }

    fn accesses(&mut self, words: &[u32], stream: &mut Stream<'_>, patterns: &Patterns) -> Result<()> {
        let (machines, tasks, running) = (&self.machines, &self.tasks, &mut self.running);
        let data = self.data.get_or_insert_with(|| {
            for (running, machine) in running.iter_mut().zip(machines) {
                running.hierarchy = Hierarchy::new(machine);
            }
            let mut flow = DataFlow::new(machines);
            flow.define_tasks(tasks);
            Data {
                flow,
                execution: 0,
                access: 0,
                located: Vec::new(),
            }
        });
        data.flow.forget(data.execution.min(data.flow.executions.len()));
        (data.execution, data.access) = (0, 0);
        data.flow.follow(words, stream);
        data.located.resize(self.codes.len(), false);
        for running in &mut self.running {
            running.physical.resize(running.lines.len(), PhysAddr::default());
        }
        for event in events(words) {
            let (Event::Executed(TranslationId(id))
            | Event::Left {
                translation: TranslationId(id),
                ..
            }) = event
            else {
                continue;
            };
            if std::mem::replace(&mut data.located[id as usize], true) {
                continue;
            }
            for running in &mut self.running {
                for at in running.firsts[id as usize] as usize..running.firsts[id as usize + 1] as usize {
                    let addr = running.lines[at].1;
                    running.physical[at] = data.flow.code(addr, &self.codes[id as usize], TranslationId(id), patterns);
                }
            }
        }
        Ok(())
    }

    fn accesses_end(&mut self, stream: Stream<'_>) {
        if let Some(data) = &mut self.data {
            data.flow.finish(stream);
        }
    }

    #[inline]
    fn executed(&mut self, translation: u32) {
        self.run(translation, None);
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.run(translation, Some(instructions));
    }

    fn take(&mut self) -> &[MachineCounts] {
        for (taken, running) in self.taken.iter_mut().zip(&mut self.running) {
            let memory = running.hierarchy.as_ref().map(|hierarchy| {
                let sides = hierarchy.counters();
                let mut now = sides.kernel;
                now += sides.user;
                now - std::mem::replace(&mut running.before, now)
            });
            *taken = MachineCounts {
                l1i_misses: std::mem::take(&mut running.l1i_misses) + memory.map_or(0, |counters| counters.l1i.total()),
                memory,
            };
        }
        &self.taken
    }
}
