//! Spans of time: every invocation of a service, every stay in user mode, every turn of a task on
//! the processor, and the misses in the meantime.
//!
//! Takes what the automaton follows; reports spans as they end, so that only open spans are in
//! memory. Times are in nanoseconds of the guest's clock since the recording began; an instruction
//! takes one. Several CPUs execute one at a time, and the clock counts the instructions of all of
//! them. Keeps no reported span.

use crate::annotations::ServiceKind;
use crate::caches::LevelMisses;
use crate::caches::Machines;
use crate::invocations::ServiceMachine;
use crate::ledger::{Invocation, Ledger, ServiceId, ServiceMachineCounts};
use crate::meter::{Booked, Meter};
pub use crate::tasks::TaskWake;
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::data::DataWish;
use sim::MachineModel;
use std::cmp::Reverse;
pub use trace::{CpuCount, CpuId};
use trace::{Task, Translation};

/// The largest number of ended invocations that wait for the end of their visit to the kernel, to
/// be reported in the order in which they began. If more wait, they are reported earlier.
const WAITING: usize = 4096;

/// An invocation of a service, or a stay in user mode.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceSpan {
    /// The kind of the service.
    pub kind: ServiceKind,
    /// The name of the service; for user mode, of the task.
    pub name: String,
    /// When it began, in nanoseconds.
    pub begin: u64,
    /// When it ended, in nanoseconds.
    pub end: u64,
    /// The number of open services of its task when it began.
    pub depth: usize,
    /// Its own instructions, without services that began while it was open.
    pub instructions: u64,
    /// The time in which its task did not run.
    pub off_cpu: u64,
    /// Its own counts on the first machine. `None` without a machine.
    pub machine: Option<ServiceMachine>,
}

/// A stretch in which a CPU executed one service, or user mode. It executes an instruction in each
/// nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceStretch {
    /// The CPU.
    pub cpu: CpuId,
    /// The kind of the service so far.
    pub kind: ServiceKind,
    /// When it began, in nanoseconds.
    pub begin: u64,
    /// When it ended, in nanoseconds.
    pub end: u64,
    /// The misses of the first machine; 0 without a machine.
    pub misses: LevelMisses,
}

/// A task goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskResumption {
    /// The task.
    pub task: usize,
    /// The CPU that executes it.
    pub cpu: CpuId,
    /// When it goes on, in nanoseconds.
    pub at: u64,
    /// What made it able to run. `None`: it was able to run, or the recording does not say.
    pub wake: Option<TaskWake>,
}

/// Receives spans as they end. Spans of one task are nested or disjoint. When two spans begin
/// together, the outer one usually comes first.
pub trait SpanTrack {
    /// A span of a task ended.
    fn span(&mut self, task: usize, span: &ServiceSpan);
    /// A task had a CPU from `begin` to `end`, and the CPU executed.
    fn turn(&mut self, cpu: CpuId, task: usize, name: &str, begin: u64, end: u64);
    /// A CPU executed. Stretches come in the order of their times.
    fn executed(&mut self, _stretch: &ServiceStretch) {}
    /// A task has this name and pid from now on.
    fn named(&mut self, _task: usize, _name: &str, _pid: Option<u32>) {}
    /// A task that did not run goes on. Its turn begins.
    fn resumed(&mut self, _resumption: &TaskResumption) {}
    /// The name and pid of a task, at the end of the recording.
    fn task(&mut self, task: usize, name: &str, pid: Option<u32>);
}

#[derive(Default)]
struct TaskSpans {
    name: String,
    pid: Option<u32>,
    /// Its name and pid before the last switch to it.
    before: (String, Option<u32>),
    /// When each open service began.
    begun: Vec<u64>,
    ended: Vec<ServiceSpan>,
}

/// The meter that reports spans.
pub(crate) struct SpanMeter<T> {
    track: T,
    machines: Machines,
    /// The first machine.
    machine: Option<MachineModel>,
    pids: Vec<Option<u32>>,
    tasks: Vec<TaskSpans>,
    /// The CPU that executes, and its task.
    cpu: CpuId,
    current: usize,
    clock: u64,
    turn_began: u64,
    reported_misses: LevelMisses,
}

impl<T: SpanTrack> SpanMeter<T> {
    pub(crate) fn new(machines: &[MachineModel], track: T) -> SpanMeter<T> {
        let unknown = TaskSpans { name: "(unknown)".to_owned(), ..TaskSpans::default() };
        SpanMeter {
            track,
            machines: Machines::new(machines),
            machine: machines.first().cloned(),
            pids: Vec::new(),
            tasks: vec![unknown],
            cpu: CpuId(0),
            current: 0,
            clock: 0,
            turn_began: 0,
            reported_misses: LevelMisses::default(),
        }
    }

    pub(crate) fn finish(mut self) -> T {
        self.end_turn();
        for number in 0..self.tasks.len() {
            self.report_ended(number);
            let task = &self.tasks[number];
            self.track.task(number, &task.name, task.pid);
        }
        self.track
    }

    fn end_turn(&mut self) {
        if self.clock > self.turn_began {
            self.track.turn(
                self.cpu,
                self.current,
                &self.tasks[self.current].name,
                self.turn_began,
                self.clock,
            );
        }
        self.turn_began = self.clock;
    }

    /// Ends the turn. This task executes next.
    fn goes_on(&mut self, task: usize) {
        self.end_turn();
        if self.tasks.len() <= task {
            self.tasks.resize_with(task + 1, TaskSpans::default);
        }
        self.current = task;
    }

    /// Reports a task's ended invocations, in the order in which they began.
    fn report_ended(&mut self, task: usize) {
        let mut ended = std::mem::take(&mut self.tasks[task].ended);
        ended.sort_by_key(|span| (span.begin, span.depth, Reverse(span.end)));
        ended.iter().for_each(|span| self.track.span(task, span));
    }
}

impl<T: SpanTrack> Meter for SpanMeter<T> {
    fn wish(&self) -> Option<DataWish> {
        Some(self.machines.wish())
    }

    fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> Result<()> {
        self.machines.define(translation, code)
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.pids.extend(tasks.iter().map(|task| task.pid));
    }

    fn machines(&mut self) -> Option<&mut Machines> {
        Some(&mut self.machines)
    }

    #[inline]
    fn executed(&mut self, translation: u32) {
        self.machines.executed(translation);
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.machines.left(translation, instructions);
    }

    fn take(&mut self) -> &[ServiceMachineCounts] {
        self.machines.take()
    }

    fn switched(&mut self, task: usize) {
        self.goes_on(task);
        let TaskSpans { name, pid, before, .. } = &mut self.tasks[task];
        *before = (name.clone(), *pid);
    }

    fn turned_to(&mut self, cpu: CpuId, task: usize) {
        self.goes_on(task);
        self.cpu = cpu;
        self.machines.turn_to(cpu);
    }

    /// The turn and the name that came with the switch belong to the new task.
    fn replaced(&mut self, task: usize) {
        let dead = &mut self.tasks[self.current];
        (dead.name, dead.pid) = std::mem::take(&mut dead.before);
        self.track.named(self.current, &dead.name, dead.pid);
        if self.tasks.len() <= task {
            self.tasks.resize_with(task + 1, TaskSpans::default);
        }
        self.current = task;
    }

    fn named(&mut self, task: usize, id: usize, name: &str) {
        let pid = self.pids.get(id).copied().flatten();
        if self.tasks[task].name != name || self.tasks[task].pid != pid {
            // Another program in the same task.
            self.end_turn();
            self.tasks[task].name = name.to_owned();
            self.tasks[task].pid = pid;
            self.track.named(task, name, pid);
        }
    }

    fn resumed(&mut self, task: usize, at: u64, wake: Option<TaskWake>) {
        self.track.resumed(&TaskResumption { task, cpu: self.cpu, at, wake });
    }

    fn opened(&mut self, _: usize) {
        self.tasks[self.current].begun.push(self.clock);
    }

    fn settled(
        &mut self,
        task: usize,
        service: ServiceId,
        invocation: &Invocation,
        ledger: &Ledger,
    ) {
        let Some(open) = self.tasks.get_mut(task) else { return };
        let Some(begin) = open.begun.pop() else { return };
        let account = &ledger.accounts[service.0 as usize];
        open.ended.push(ServiceSpan {
            kind: account.kind,
            name: account.name.clone(),
            begin,
            end: begin + invocation.times.latency,
            depth: open.begun.len(),
            instructions: invocation.instructions,
            off_cpu: invocation.times.blocked + invocation.times.waiting,
            machine: self.machine.as_ref().map(|machine| {
                ServiceMachine::of(machine, invocation.instructions, &invocation.machines)
            }),
        });
        if open.begun.is_empty() || open.ended.len() >= WAITING {
            self.report_ended(task);
        }
    }

    fn halted(&mut self, nanoseconds: u64, later: usize) {
        self.clock += nanoseconds;
        self.began_later(self.current, nanoseconds, later);
    }

    fn began_later(&mut self, task: usize, nanoseconds: u64, later: usize) {
        if let Some(task) = self.tasks.get_mut(task) {
            let begun = task.begun.iter_mut().rev();
            begun.take(later).for_each(|begun| *begun += nanoseconds);
        }
    }

    fn booked(&mut self, instructions: u64, under: Booked) {
        let begin = self.clock;
        self.clock += instructions;
        let kind = match under {
            Booked::User(_) => ServiceKind::User,
            Booked::Open(kind) => kind,
        };
        if kind == ServiceKind::User {
            let span = ServiceSpan {
                kind: ServiceKind::User,
                name: self.tasks[self.current].name.clone(),
                begin,
                end: self.clock,
                depth: 0,
                instructions,
                off_cpu: 0,
                machine: self.machine.as_ref().map(|machine| {
                    ServiceMachine::of(machine, instructions, self.machines.taken())
                }),
            };
            self.track.span(self.current, &span);
        }
        if instructions > 0 {
            let all = self.machines.misses();
            let misses = LevelMisses {
                l1i: all.l1i - self.reported_misses.l1i,
                l1d: all.l1d - self.reported_misses.l1d,
                l2: all.l2 - self.reported_misses.l2,
            };
            self.reported_misses = all;
            let (cpu, end) = (self.cpu, self.clock);
            self.track.executed(&ServiceStretch { cpu, kind, begin, end, misses });
        }
    }
}
