//! Follows CPUs and tasks through lock functions.
//!
//! An attempt is the first atomic instruction of a lock function. When control goes on into a slow
//! path that uses the same lock, the attempt has failed. When this slow path returns, the lock is
//! acquired. CPUs hold spin locks and rwlocks; tasks hold mutexes and rwsems.
//!
//! Time is in cycles. A CPU's clock counts its instructions, and the stalls of its caches. A task's
//! clock counts the cycles of CPUs while they run the task, including interrupts in that time.
//!
//! Input: every execution and every access of a recording, and who served it. Output: a
//! [`LockBook`]. This module names no data.

use super::book::{AttemptResult, Hold, Holder, LockBook, LockPlace, Party, Waited};
use super::functions::{BlockFacts, FunctionRole, HoldMode, LockFunctions, LockKind, LockStep};
use crate::sharing::caches::{DataUse, Request, SharingObserver};
use crate::tasks::TaskNames;
use execution::executions::Executed;
use memory::misses::owners::DataOwners;
use memory::misses::uses::FrameUses;
use sim::coherent::{CoherenceDescription, CoherentAccess, Served};
use sim::{MemoryDescription, Requester};
use std::collections::HashMap;
use trace::{Accesses, Task, Translation};

/// The largest number of slow paths that a task is in at once.
const MOST_SLOW: usize = 16;

/// An attempt that failed, while the slow path goes on.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    physical: u64,
    hold: Hold,
    blocked_by: Option<Party>,
    switches: u64,
}

/// A slow path that a task is in.
#[derive(Clone, Copy, Debug, Default)]
struct SlowPath {
    /// Where its return address lies.
    slot: Option<u64>,
    /// The lock that it waits for.
    physical: Option<u64>,
}

/// What a task does, with the interrupts that come while it runs.
#[derive(Clone, Debug, Default)]
struct Context {
    /// The number of its name.
    task: u32,
    /// Cycles until it last left a CPU.
    ran: f64,
    /// The CPU that it runs on.
    on: Option<usize>,
    switches: u64,
    /// The lock functions that were entered and have not accessed their lock yet, with their
    /// callers.
    calls: Vec<(u16, u32)>,
    waiting: Vec<Waiting>,
    slow: Vec<SlowPath>,
}

/// A CPU.
#[derive(Clone, Debug, Default)]
struct CpuRun {
    /// Cycles until the current execution began, and its stalls so far.
    now: f64,
    instructions: u64,
    process: Option<Requester>,
    context: usize,
    /// The time at which it began to run the task.
    since: f64,
    /// The number of the current translation block.
    block: Option<usize>,
    /// Where the last call of a slow path put the return address.
    call_slot: Option<u64>,
    /// A sequence counter that it found within a write: the address, the time, the writer.
    reading: Option<(u64, f64, Party)>,
}

/// What coherence did to a line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LineEvents {
    pub misses: u64,
    pub upgrades: u64,
    pub cycles: f64,
}

/// Cycles of all CPUs, with stalls.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LockTime {
    pub kernel: f64,
    pub user: f64,
    /// In lock functions, by kind.
    pub kinds: [f64; LockKind::ALL.len()],
}

/// How often a lock function ran, and how often it reached its lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FunctionRuns {
    pub runs: u64,
    pub attempts: u64,
}

pub(super) struct LockFollower<'a> {
    pub functions: LockFunctions<'a>,
    facts: Vec<BlockFacts>,
    pub owners: DataOwners,
    frames: FrameUses,
    pub book: LockBook,
    memory: &'a MemoryDescription,
    cores: CoherenceDescription,
    line_log2: u32,
    cpu: usize,
    /// The lock and the kind of an attempt whose store has not been served.
    fresh: Option<(u64, LockKind)>,
    /// For how long the CPU waited before this execution until another CPU had stored what it
    /// loads.
    waited: f64,
    cpus: Vec<CpuRun>,
    contexts: Vec<Context>,
    numbers: HashMap<(Requester, Option<usize>), usize>,
    pub tasks: TaskNames,
    pub time: LockTime,
    pub runs: Vec<FunctionRuns>,
    pub lines: HashMap<u64, LineEvents>,
}

impl<'a> LockFollower<'a> {
    pub(super) fn new(
        functions: LockFunctions<'a>,
        owners: DataOwners,
        (memory, cores): (&'a MemoryDescription, CoherenceDescription),
        line_log2: u32,
        cpus: usize,
    ) -> LockFollower<'a> {
        LockFollower {
            runs: vec![FunctionRuns::default(); functions.functions.len()],
            functions,
            facts: Vec::new(),
            owners,
            frames: FrameUses::default(),
            book: LockBook::new(),
            memory,
            cores,
            line_log2,
            cpu: 0,
            fresh: None,
            waited: 0.0,
            cpus: vec![CpuRun::default(); cpus],
            contexts: Vec::new(),
            numbers: HashMap::new(),
            tasks: TaskNames::default(),
            time: LockTime::default(),
            lines: HashMap::new(),
        }
    }

    /// The recording is over. Returns the number of attempts that still waited.
    pub(super) fn finish(&mut self) -> u64 {
        for cpu in 0..self.cpus.len() {
            self.cpu = cpu;
            self.spend(self.cpus[cpu].instructions as f64);
        }
        self.book.finish();
        for frame in self.book.pending() {
            let id = self.owners.settle(frame);
            self.book.settle(frame, id);
        }
        self.contexts.iter().map(|context| context.waiting.len() as u64).sum()
    }

    /// Adds cycles to the CPU that executes.
    #[inline]
    fn spend(&mut self, cycles: f64) {
        let cpu = &mut self.cpus[self.cpu];
        cpu.now += cycles;
        let facts = cpu.block.map(|block| &self.facts[block]);
        match facts.filter(|facts| facts.is_kernel) {
            None => self.time.user += cycles,
            Some(facts) => {
                self.time.kernel += cycles;
                if let Some(kind) = facts.kind {
                    self.time.kinds[kind as usize] += cycles;
                }
            }
        }
    }

    /// The time on a holder's clock, when the clock of the executing CPU shows `now`.
    fn clock(&self, holder: Holder, now: f64) -> f64 {
        let time = |cpu: usize| if cpu == self.cpu { now } else { self.cpus[cpu].now };
        match holder {
            Holder::Cpu(cpu) => time(cpu.into()),
            Holder::Task(task) => {
                let context = &self.contexts[task as usize];
                let runs = context.on.map_or(0.0, |cpu| time(cpu) - self.cpus[cpu].since);
                context.ran + runs
            }
        }
    }

    fn holder(&self, kind: LockKind) -> Holder {
        match kind.sleeps() {
            true => Holder::Task(self.cpus[self.cpu].context as u32),
            false => Holder::Cpu(self.cpu as u8),
        }
    }

    fn context(&mut self) -> &mut Context {
        let context = self.cpus[self.cpu].context;
        &mut self.contexts[context]
    }

    /// The CPU that executes runs a task.
    fn runs(&mut self, process: Requester) {
        let cpu = &mut self.cpus[self.cpu];
        if cpu.process == Some(process) {
            return;
        }
        let (was, ran, now) = (cpu.context, cpu.now - cpu.since, cpu.now);
        if cpu.process.replace(process).is_some() {
            let before = &mut self.contexts[was];
            before.ran += ran;
            before.switches += 1;
            before.on = None;
        }
        let idle = self.tasks.is_idle(process);
        let key = (process, idle.then_some(self.cpu));
        let next = self.contexts.len();
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            let task = self.tasks.number(process);
            self.contexts.push(Context { task, ..Context::default() });
        }
        self.contexts[number].on = Some(self.cpu);
        let cpu = &mut self.cpus[self.cpu];
        (cpu.context, cpu.since) = (number, now);
    }

    /// The first translation block of a lock function begins.
    fn enters(&mut self, function: u16, before: Option<usize>, call_slot: Option<u64>) {
        let caller = before.map(|block| &self.facts[block]);
        let caller = caller.filter(|facts| facts.is_kernel && !facts.comes_back);
        let caller = caller.map_or(u32::MAX, |facts| facts.name);
        self.runs[function as usize].runs += 1;
        let of = &self.functions.functions[function as usize];
        let (kind, role) = (of.kind, of.role);
        let context = self.context();
        if matches!(role, FunctionRole::Release(_)) && !kind.sleeps() {
            return;
        }
        if role != FunctionRole::SlowPath {
            context.calls.retain(|(known, _)| *known != function);
            context.calls.push((function, caller));
            return;
        }
        // A slow path and the one that it jumps to count as one.
        if context.slow.last().is_some_and(|slow| slow.slot.is_none()) {
            return;
        }
        if context.slow.len() == MOST_SLOW {
            context.slow.remove(0);
        }
        context.slow.push(SlowPath { slot: call_slot, physical: None });
    }

    /// A lock function reaches its lock. Returns its caller and task; `None` when it has reached
    /// the lock already.
    fn reaches(&mut self, function: u16) -> Option<Party> {
        let context = self.context();
        let at = context.calls.iter().rposition(|(known, _)| *known == function)?;
        let (_, caller) = context.calls.remove(at);
        let task = context.task;
        self.runs[function as usize].attempts += 1;
        Some(Party { function: caller, task })
    }

    fn place(&mut self, kind: LockKind, used: &DataUse<'_>) -> LockPlace {
        let (addr, physical) = (used.addr(), used.physical.0);
        let frame = physical >> 12;
        let owner = self.owners.owner(addr, frame);
        LockPlace { kind, addr, physical, pages: self.owners.head(frame) << 12, owner }
    }

    fn step(&mut self, step: LockStep, used: &DataUse<'_>, now: f64) {
        let physical = used.physical.0;
        match step {
            LockStep::Attempt { function } => self.attempt(function, used, now),
            LockStep::Withdraw => {
                let holder = self.holder(LockKind::Rw);
                self.book.withdraw(physical, holder);
            }
            LockStep::Release { function } => self.release(function, used, now),
            LockStep::Atomic => {
                let holder = self.holder(LockKind::Rw);
                if self.book.kind_at(physical) == Some(LockKind::Rw)
                    && self.book.holds(physical, holder, HoldMode::Read)
                {
                    self.let_go(physical, holder, HoldMode::Read, now);
                }
            }
            LockStep::SequenceWrite => {
                let place = self.place(LockKind::Seq, used);
                let hold = self.hold(LockKind::Seq, HoldMode::Exclusive, self.here(), now);
                self.book.sequence(place, hold);
            }
            LockStep::SequenceRead => self.reads(used, now),
        }
    }

    /// The function and the task that run.
    fn here(&self) -> Party {
        let cpu = &self.cpus[self.cpu];
        let function = cpu.block.map_or(u32::MAX, |block| self.facts[block].name);
        Party { function, task: self.contexts[cpu.context].task }
    }

    /// A hold that begins now.
    fn hold(&self, kind: LockKind, mode: HoldMode, party: Party, now: f64) -> Hold {
        let holder = self.holder(kind);
        let began = self.clock(holder, now);
        Hold { holder, mode, certain: true, may_give_up: false, party, began, waited: None }
    }

    fn attempt(&mut self, function: u16, used: &DataUse<'_>, now: f64) {
        // An instruction that is repeated until it succeeds counts once.
        let Some(party) = self.reaches(function) else { return };
        let of = &self.functions.functions[function as usize];
        let (kind, role) = (of.kind, of.role);
        let (mode, tries, may_give_up) = match role {
            FunctionRole::Acquire(mode) => (mode, false, false),
            FunctionRole::Interruptible(mode) => (mode, false, true),
            FunctionRole::Try(mode) => (mode, true, false),
            _ => return,
        };
        let place = self.place(kind, used);
        let hold = Hold { may_give_up, ..self.hold(kind, mode, party, now) };
        let waited = std::mem::take(&mut self.waited);
        let result = self.book.attempt(place, hold, tries);
        if waited > 0.0 {
            self.book.awaited(place.physical, 1, waited);
        }
        self.fresh = (result != AttemptResult::GaveUp).then_some((place.physical, kind));
        if let AttemptResult::Blocked(by) = result {
            self.waits(place.physical, hold, Some(by));
        }
    }

    fn waits(&mut self, physical: u64, hold: Hold, blocked_by: Option<Party>) {
        let context = self.context();
        // An earlier wait for this lock ended unseen.
        context.waiting.retain(|it| it.physical != physical);
        let switches = context.switches;
        context.waiting.push(Waiting { physical, hold, blocked_by, switches });
    }

    fn release(&mut self, function: u16, used: &DataUse<'_>, now: f64) {
        if self.reaches(function).is_none() {
            return;
        }
        let of = &self.functions.functions[function as usize];
        let (kind, role) = (of.kind, of.role);
        let holder = self.holder(kind);
        let physical = used.physical.0;
        let known = match role {
            FunctionRole::Release(mode) => self.let_go(physical, holder, mode, now),
            _ => self.book.downgrade(physical, holder),
        };
        if !known {
            let place = self.place(kind, used);
            self.book.held_before(place);
        }
    }

    /// Releases a lock. Returns `false` when nobody held it.
    fn let_go(&mut self, physical: u64, holder: Holder, mode: HoldMode, now: f64) -> bool {
        // An attempt that seemed to fail had succeeded, because no slow path followed it.
        let context = self.context();
        let same = |it: &Waiting| it.physical == physical && it.hold.holder == holder;
        if let Some(at) = context.waiting.iter().position(same) {
            let waiting = context.waiting.remove(at);
            self.book.acquired(physical, waiting.hold);
        }
        let Some((uses, hold)) = self.book.release(physical, holder, mode) else { return false };
        let cycles = self.clock(hold.holder, now) - hold.began;
        self.book.count(uses, &hold, cycles);
        true
    }

    fn reads(&mut self, used: &DataUse<'_>, now: f64) {
        let place = self.place(LockKind::Seq, used);
        let holder = self.holder(LockKind::Seq);
        let writer = self.book.reads(place, holder);
        let here = self.here();
        let reading = &mut self.cpus[self.cpu].reading;
        match (writer, *reading) {
            (Some(_), Some((physical, ..))) if physical == place.physical => {}
            (Some(writer), _) => *reading = Some((place.physical, now, writer)),
            (None, Some((physical, began, writer))) if physical == place.physical => {
                *reading = None;
                self.book.read_waited(physical, here, writer, now - began);
            }
            (None, _) => {}
        }
    }

    /// An access while the task is in a slow path.
    fn in_slow_path(&mut self, used: &DataUse<'_>, now: f64) {
        let access = used.access;
        let block = used.executed.execution.translation.0 as usize;
        let BlockFacts { is_slow, first_push, returns, kind, .. } = self.facts[block];
        let last = used.executed.code.lengths.len().saturating_sub(1) as u16;
        let Some(slow) = self.context().slow.last().copied() else { return };
        if returns && !access.is_store && access.instruction == last {
            if slow.slot == Some(used.addr()) {
                self.context().slow.pop();
                if let Some(physical) = slow.physical {
                    self.slow_path_ends(physical, now);
                }
            }
            return;
        }
        let Some(kind) = kind.filter(|_| is_slow) else { return };
        if slow.slot.is_none() && access.is_store && Some(access.instruction) == first_push {
            let slot = used.addr().wrapping_add(8);
            self.context().slow.last_mut().into_iter().for_each(|slow| slow.slot = Some(slot));
            return;
        }
        if slow.physical.is_some() {
            return;
        }
        let physical = used.physical.0;
        let holder = self.holder(kind);
        let context = self.context();
        let waits = context.waiting.iter().any(|it| it.physical == physical);
        if !waits {
            if self.book.kind_at(physical) != Some(kind) {
                return;
            }
            let Some(hold) = self.book.take_back(physical, holder) else { return };
            self.waits(physical, hold, None);
        }
        self.context().slow.last_mut().into_iter().for_each(|it| it.physical = Some(physical));
    }

    fn slow_path_ends(&mut self, physical: u64, now: f64) {
        let context = self.context();
        let Some(at) = context.waiting.iter().position(|it| it.physical == physical) else {
            return;
        };
        let waiting = context.waiting.remove(at);
        let slept = context.switches != waiting.switches;
        let began = self.clock(waiting.hold.holder, now);
        let waited =
            Waited { cycles: began - waiting.hold.began, slept, holder: waiting.blocked_by };
        let certain = !waiting.hold.may_give_up;
        let hold = Hold { began, certain, waited: Some(waited), ..waiting.hold };
        self.book.acquired(physical, hold);
    }
}

impl SharingObserver for LockFollower<'_> {
    fn define(&mut self, translation: &Translation) {
        let facts = self.functions.facts(translation);
        self.facts.push(facts);
    }

    fn tasks(&mut self, tasks: &[Task]) {
        self.tasks.define(tasks);
    }

    fn stream(&mut self, accesses: &Accesses) {
        let book = &mut self.book;
        self.frames.stream(accesses, &mut self.owners, |frame, id| book.settle(frame, id));
    }

    fn executed(&mut self, executed: &Executed<'_>) {
        let book = &mut self.book;
        self.frames.executed(&mut self.owners, |frame, id| book.settle(frame, id));
        let execution = executed.execution;
        (self.fresh, self.waited) = (None, 0.0);
        // The reader refuses a CPU that the header does not count.
        self.cpu = usize::from(execution.cpu.0);
        let instructions = self.cpus[self.cpu].instructions;
        self.spend(instructions as f64);
        self.runs(execution.process);
        let block = execution.translation.0 as usize;
        let cpu = &mut self.cpus[self.cpu];
        cpu.instructions = executed.instructions();
        let (before, slot) = (cpu.block.replace(block), cpu.call_slot.take());
        if let Some(function) = self.facts[block].enters {
            self.enters(function, before, slot);
        }
    }

    fn waited(&mut self, cycles: f64) {
        self.waited = cycles;
        if let Some(physical) = self.context().slow.last().and_then(|slow| slow.physical) {
            self.book.awaited(physical, 0, cycles);
        }
    }

    fn walks(&mut self) {
        self.spend(self.memory.latencies.tlb_miss());
    }

    #[inline]
    fn uses(&mut self, used: &DataUse<'_>) {
        let facts = &self.facts[used.executed.execution.translation.0 as usize];
        if !facts.is_kernel {
            return;
        }
        let access = used.access;
        let cpu = &self.cpus[self.cpu];
        let now = cpu.now + f64::from(access.instruction) + 1.0;
        // A slow path of spin locks and rwlocks stores into a lock that it does not hold.
        let waits = facts.is_slow && !facts.kind.is_some_and(LockKind::sleeps);
        if facts.may_call_slow
            && access.is_store
            && usize::from(access.instruction) + 1 == used.executed.code.lengths.len()
        {
            self.cpus[self.cpu].call_slot = Some(used.addr());
        } else if !facts.steps.is_empty() {
            let step = facts.steps.iter().find(|(index, _)| *index == access.instruction);
            if let Some(&(_, step)) = step
                && access.is_store != matches!(step, LockStep::SequenceRead)
            {
                self.step(step, used, now);
            }
        }
        if !self.contexts[self.cpus[self.cpu].context].slow.is_empty() {
            self.in_slow_path(used, now);
        }
        if access.is_store && access.size == 1 && !waits {
            let physical = used.physical.0;
            if matches!(self.book.kind_at(physical), Some(LockKind::Spin | LockKind::Rw)) {
                let holder = self.holder(LockKind::Spin);
                self.let_go(physical, holder, HoldMode::Exclusive, now);
            }
        }
    }

    #[inline]
    fn served(&mut self, request: Request, by: CoherentAccess) {
        let cycles = by.cycles(self.memory, &self.cores);
        self.spend(cycles);
        if let Some((physical, kind)) = self.fresh.take() {
            let holder = self.holder(kind);
            self.book.delay(physical, holder, cycles);
            let waiting = self.context().waiting.iter_mut();
            let of = waiting.filter(|it| it.physical == physical);
            of.for_each(|it| it.hold.began += cycles);
        }
        let (misses, upgrades) = match by.served {
            Served::Missed(class, _) if class.is_coherence() => (1, 0),
            Served::Upgraded(_) => (0, 1),
            _ => return,
        };
        let line = self.lines.entry(request.physical.0 >> self.line_log2).or_default();
        line.misses += misses;
        line.upgrades += upgrades;
        line.cycles += cycles;
    }
}
