//! What ran from when to when: every invocation of a service, every stay in user mode, every turn
//! of a task on the processor, and the misses meanwhile.
//!
//! Takes what the automaton follows; tells of it as it ends, so that only what is open is held in
//! memory. Times are in nanoseconds of the guest's clock, of which an instruction takes one, since
//! the recording began. Keeps nothing that was told.

use crate::services::annotations::Kind;
use crate::services::ledger::{Invocation, Ledger, MachineCounts, ServiceId};
use crate::services::machines::LevelMisses;
use crate::services::machines::Machines;
use crate::services::meter::{Booked, Meter};
use anyhow::Result;
use sim::MachineModel;
use std::cmp::Reverse;
use trace::{Task, Translation};

/// Invocations of one visit to the kernel that wait for its end, to be told in the order in which
/// they began; of longer visits they are told sooner.
const WAITING: usize = 4096;

/// An invocation of a service, or a stay in user mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub kind: Kind,
    pub name: String,
    pub begin: u64,
    pub end: u64,
    /// How many others of its task it began in.
    pub depth: usize,
    /// Its own, without what began while it was open.
    pub instructions: u64,
    /// Of its time: its task did not run.
    pub off_cpu: u64,
}

/// Is told what ended. Spans of one task lie in one another or side by side; of those that begin
/// together the outer one mostly is told first.
pub trait Track {
    fn span(&mut self, task: usize, span: &Span);
    /// A task had the processor.
    fn turn(&mut self, task: usize, name: &str, begin: u64, end: u64);
    /// So many misses of the first machine from `begin` to `end`.
    fn missed(&mut self, begin: u64, end: u64, misses: LevelMisses);
    /// What a task is called, at the end.
    fn task(&mut self, task: usize, name: &str, pid: Option<u32>);
}

#[derive(Default)]
struct Open {
    name: String,
    pid: Option<u32>,
    /// When each open service began.
    begun: Vec<u64>,
    ended: Vec<Span>,
}

/// The meter that tells.
pub struct Spans<T> {
    track: T,
    machines: Machines,
    has_machine: bool,
    pids: Vec<Option<u32>>,
    tasks: Vec<Open>,
    current: usize,
    /// What the current task was called, and its pid, before it was switched to.
    before: (String, Option<u32>),
    clock: u64,
    turn_began: u64,
    told: LevelMisses,
}

impl<T: Track> Spans<T> {
    pub fn new(machines: &[MachineModel], track: T) -> Spans<T> {
        let unknown = Open { name: "(unknown)".to_owned(), ..Open::default() };
        Spans {
            track,
            machines: Machines::new(machines),
            has_machine: !machines.is_empty(),
            pids: Vec::new(),
            tasks: vec![unknown],
            current: 0,
            before: (String::new(), None),
            clock: 0,
            turn_began: 0,
            told: LevelMisses::default(),
        }
    }

    pub fn finish(mut self) -> T {
        self.end_turn();
        for number in 0..self.tasks.len() {
            self.tell(number);
            let task = &self.tasks[number];
            self.track.task(number, &task.name, task.pid);
        }
        self.track
    }

    fn end_turn(&mut self) {
        if self.clock > self.turn_began {
            self.track.turn(
                self.current,
                &self.tasks[self.current].name,
                self.turn_began,
                self.clock,
            );
        }
        self.turn_began = self.clock;
    }

    /// Tells of a task's ended invocations, in the order in which they began.
    fn tell(&mut self, task: usize) {
        let mut ended = std::mem::take(&mut self.tasks[task].ended);
        ended.sort_by_key(|span| (span.begin, span.depth, Reverse(span.end)));
        ended.iter().for_each(|span| self.track.span(task, span));
    }
}

impl<T: Track> Meter for Spans<T> {
    const TAKES_DATA: bool = true;

    fn define(&mut self, translation: &Translation) -> Result<()> {
        self.machines.define(translation)
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.machines.define_tasks(tasks);
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

    fn take(&mut self) -> &[MachineCounts] {
        self.machines.take()
    }

    fn switched(&mut self, task: usize) {
        self.end_turn();
        if self.tasks.len() <= task {
            self.tasks.resize_with(task + 1, Open::default);
        }
        let Open { name, pid, .. } = &self.tasks[task];
        self.before = (name.clone(), *pid);
        self.current = task;
    }

    /// The turn, and the name that came with the switch, are the new task's.
    fn replaced(&mut self, task: usize) {
        let dead = &mut self.tasks[self.current];
        (dead.name, dead.pid) = std::mem::take(&mut self.before);
        if self.tasks.len() <= task {
            self.tasks.resize_with(task + 1, Open::default);
        }
        self.current = task;
    }

    fn named(&mut self, task: usize, id: usize, name: &str) {
        if self.tasks[task].name != name {
            // Another program in the same task.
            self.end_turn();
            self.tasks[task].name = name.to_owned();
        }
        self.tasks[task].pid = self.pids.get(id).copied().flatten();
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
        open.ended.push(Span {
            kind: account.kind,
            name: account.name.clone(),
            begin,
            end: begin + invocation.times.latency,
            depth: open.begun.len(),
            instructions: invocation.instructions,
            off_cpu: invocation.times.blocked + invocation.times.waiting,
        });
        if open.begun.is_empty() || open.ended.len() >= WAITING {
            self.tell(task);
        }
    }

    fn halted(&mut self, nanoseconds: u64, later: usize) {
        self.clock += nanoseconds;
        let begun = self.tasks[self.current].begun.iter_mut().rev();
        begun.take(later).for_each(|begun| *begun += nanoseconds);
    }

    fn booked(&mut self, instructions: u64, under: Booked) {
        let begin = self.clock;
        self.clock += instructions;
        if let Booked::User(_) = under {
            let span = Span {
                kind: Kind::User,
                name: self.tasks[self.current].name.clone(),
                begin,
                end: self.clock,
                depth: 0,
                instructions,
                off_cpu: 0,
            };
            self.track.span(self.current, &span);
        }
        if self.has_machine && instructions > 0 {
            let all = self.machines.misses();
            let since = LevelMisses {
                l1i: all.l1i - self.told.l1i,
                l1d: all.l1d - self.told.l1d,
                l2: all.l2 - self.told.l2,
            };
            self.told = all;
            self.track.missed(begin, self.clock, since);
        }
    }
}
