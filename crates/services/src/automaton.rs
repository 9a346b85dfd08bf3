//! Finds the running service: SimOS' automata (Rosenblum 1995, section 2.1.1) over a recorded
//! execution.
//!
//! Takes translation blocks and events in their order; gives a ledger. It follows two things:
//!
//! * Per task, the stack of open services, innermost last. A gate opens a service that the return
//!   from the interruption closes. A function that is a service opens a service that its return
//!   closes. An interrupt always finds a task running, and ends before another task runs, unless
//!   the kernel pre-empts the task within the interrupt. So the stack of a task is also the
//!   processor's pushdown automaton. Open services stay with their task at a context switch. User
//!   mode closes all open services.
//! * Per task, the return addresses of the kernel's open calls, to recognize returns. A return to
//!   an address below the top drops the addresses above it. So calls without a return (retpolines,
//!   the filling of return stack buffers) leave nothing behind.
//!
//! Several CPUs execute in turns, one at a time. Each CPU has its own state; tasks move between
//! CPUs with their stacks.
//!
//! Every instruction belongs to the innermost open service. What a task was doing when the
//! recording began is unknown until its code shows it.

mod cpus;
mod open_services;

use crate::annotations::ServiceKind;
use crate::binding::{Binding, CalleeMeaning};
use crate::code::{Action, CalleeId, Codes, TranslationWord};
use crate::halts::Halts;
use crate::ledger::{Distribution, Ledger, ServiceId};
use crate::meter::Meter;
use crate::symbols::{KernelSymbols, check};
use crate::tasks::{ClosedBy, TaskState};
use anyhow::Result;
use cpus::{Awaited, CpuState, ParkedCpus};
use execution::code::TranslatedCode;
use execution::sampling::groups::SampledGroups;
use execution::walk::{Observer, Piece, Wants};
use std::collections::HashMap;
use trace::{
    CpuCount, RecordingHeader, StreamEvent, Task as TaskRecord, TaskPointer, Translation, events,
};

/// More open calls than the kernel's stacks can hold (16 KB and the interrupt stacks). At this
/// depth, the automaton drops all open calls.
const DEEPEST: usize = 4096;
/// The largest number of translation blocks between a call through a pointer and the callee's first
/// instruction.
const LONGEST_THUNK: u32 = 8;

/// The results of a whole recording.
#[derive(Debug)]
pub struct Attributed {
    /// The totals of each service.
    pub ledger: Ledger,
    /// All executed instructions.
    pub instructions: u64,
    /// The annotations' counters: name, count.
    pub counters: Vec<(String, u64)>,
    /// Switches from one known task to another.
    pub context_switches: u64,
    /// Interrupts that began, including those between processors.
    pub interrupts: u64,
    /// Instructions between the beginnings of interrupts.
    pub between_interrupts: Distribution,
    /// Whether the recording says when tasks became able to run, so that blocked and waiting time
    /// can be separated.
    pub wakes_seen: bool,
    /// Nanoseconds in which the processor was halted. `None` when the recording has no clock;
    /// latencies then leave out halted time.
    pub halted: Option<u64>,
    /// By machine: how far the slots of services may be off, by their [`ServiceId`]. Nothing for a
    /// machine that was not simulated by samples.
    pub sampled: Vec<Option<SampledGroups>>,
}

impl Attributed {
    /// The samples of a machine's core.
    pub(crate) fn sampled_on(&self, machine: usize) -> Option<&SampledGroups> {
        self.sampled.get(machine)?.as_ref()
    }
}

pub(super) struct Automaton<'a, M> {
    codes: Codes<'a>,
    binding: &'a Binding,
    ledger: Ledger,
    meter: M,
    tasks: Vec<TaskState>,
    /// By the recording's task number: index into `tasks`, and name.
    task_of: Vec<(usize, String)>,
    by_pid: HashMap<(TaskPointer, Option<u32>), usize>,
    /// The CPU that executes.
    cpu: CpuState,
    cpus: ParkedCpus,
    /// Executed instructions, and how many of them are in the ledger.
    clock: u64,
    booked: u64,
    halts: Halts,
    /// The service for the user mode of an unknown task.
    nobody: ServiceId,
    counts: Vec<u64>,
    context_switches: u64,
    interrupts: u64,
    between_interrupts: Distribution,
    wakes_seen: bool,
    takes_data: bool,
    leaves_data: bool,
}

impl<M: Meter> Observer for Automaton<'_, M> {
    fn begin(&mut self, header: &RecordingHeader, _has_data: bool) -> Result<Wants> {
        check(header, self.codes.symbols)?;
        // Most meters simulate only the L1Is of several CPUs.
        self.takes_data =
            !self.leaves_data && (M::DATA_OF_SEVERAL_CPUS || header.cpus == CpuCount::ONE);
        let data = self.meter.wish().filter(|_| self.takes_data);
        Ok(Wants { control: M::NEEDS_CONTROL, ended: M::NEEDS_CONTROL, data, ..Wants::default() })
    }

    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()> {
        for (translation, code) in translations.iter().zip(codes) {
            self.codes.define(translation, code, &mut self.ledger);
            self.meter.define(translation, code)?;
        }
        Ok(())
    }

    fn define_tasks(&mut self, tasks: &[TaskRecord]) {
        self.meter.define_tasks(tasks);
        for task in tasks {
            let next = self.tasks.len();
            let at = *self.by_pid.entry((task.pointer, task.pid)).or_insert(next);
            if at == next {
                self.tasks.push(TaskState { unknown: true, ..TaskState::default() });
            }
            self.task_of.push((at, task.name().into_owned()));
        }
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        self.meter.piece(piece, piece.data.as_ref().filter(|_| self.takes_data))?;
        self.stream(piece.words);
        self.meter.failure()
    }
}

impl<'a, M: Meter> Automaton<'a, M> {
    pub(super) fn new(
        binding: &'a Binding,
        symbols: &'a KernelSymbols,
        meter: M,
    ) -> Automaton<'a, M> {
        let mut ledger = Ledger::default();
        let unknown =
            TaskState { name: "(unknown)".to_owned(), unknown: true, ..TaskState::default() };
        Automaton {
            codes: Codes::new(binding, symbols),
            binding,
            nobody: ledger.service(ServiceKind::User, &unknown.name),
            ledger,
            meter,
            tasks: vec![unknown],
            task_of: Vec::new(),
            by_pid: HashMap::new(),
            cpu: CpuState::default(),
            cpus: ParkedCpus::default(),
            clock: 0,
            booked: 0,
            halts: Halts::default(),
            counts: vec![0; binding.counters.len()],
            context_switches: 0,
            interrupts: 0,
            between_interrupts: Distribution::default(),
            wakes_seen: false,
            takes_data: false,
            leaves_data: false,
        }
    }

    /// Ignores data accesses.
    pub(super) fn without_data(self) -> Automaton<'a, M> {
        Automaton { leaves_data: true, ..self }
    }

    /// What counts.
    pub(super) fn meter_ref(&self) -> &M {
        &self.meter
    }

    /// What counts, to change it.
    pub(super) fn meter_mut(&mut self) -> &mut M {
        &mut self.meter
    }

    fn stream(&mut self, words: &[u32]) {
        for event in events(words) {
            match event {
                StreamEvent::Executed(id) => {
                    let word = self.codes.words[id.0 as usize];
                    match word.flags() ^ self.cpu.usual {
                        0 => {
                            self.clock += word.instructions();
                            self.meter.executed(id.0);
                        }
                        TranslationWord::CALL if !self.cpu.in_user_mode => {
                            self.clock += word.instructions();
                            self.meter.executed(id.0);
                            self.call(id.0);
                        }
                        _ => self.attend(id.0, word, None),
                    }
                }
                StreamEvent::Left { translation, instructions } => {
                    let word = self.codes.words[translation.0 as usize];
                    self.attend(translation.0, word, Some(instructions));
                }
                StreamEvent::Task(id) => self.switch(id.0 as usize),
                StreamEvent::Woken(id) => self.wake(id.0 as usize),
                StreamEvent::Clock(ticks) => self.clock_read(ticks),
                StreamEvent::Cpu(cpu) => self.turn_to(cpu),
                StreamEvent::Marker(_) => {}
            }
        }
    }

    /// Ends the recording. Open services count up to here.
    pub(super) fn finish(mut self) -> (Attributed, M) {
        self.meter.finish();
        self.book();
        self.close_on_other_cpus();
        for at in 0..self.tasks.len() {
            self.close_all(at);
        }
        let sampled = self.meter.estimate(&mut self.ledger.accounts);
        let names = self.binding.counters.iter().cloned();
        let attributed = Attributed {
            ledger: self.ledger,
            instructions: self.clock,
            counters: names.zip(self.counts).collect(),
            context_switches: self.context_switches,
            interrupts: self.interrupts,
            between_interrupts: self.between_interrupts,
            wakes_seen: self.wakes_seen,
            halted: self.halts.total(),
            sampled,
        };
        (attributed, self.meter)
    }

    /// An execution that needs attention. `reached`: the number of instructions that ran, when it
    /// was left midway.
    fn attend(&mut self, id: u32, word: TranslationWord, reached: Option<u32>) {
        self.meter.comes(id, reached);
        self.not_halted();
        let instructions = reached.map_or(word.instructions(), u64::from);
        if word.flags() & TranslationWord::USER != 0 {
            self.cpu.awaited = Awaited::Nothing;
            if !self.cpu.in_user_mode {
                self.enter_user_mode();
            }
            self.clock += instructions;
            self.meter(id, reached);
            return;
        }
        let start = self.codes.places[id as usize].start;
        let from_user = self.cpu.in_user_mode;
        if from_user {
            self.book();
            self.cpu.in_user_mode = false;
        }
        match std::mem::replace(&mut self.cpu.awaited, Awaited::Nothing) {
            Awaited::Nothing => {}
            Awaited::Return => self.returned(id, start),
            Awaited::InterruptReturn(behind) if behind == start => {}
            Awaited::InterruptReturn(_) => {
                self.interruption_ended();
                // The interrupted code may have been about to return.
                self.returned(id, start);
            }
        }
        if self.cpu.callee.is_some() {
            self.look_for_callee(id);
        }
        let base = self.clock;
        if word.flags() & TranslationWord::NOTED != 0 {
            self.act(id, instructions);
        }
        if self.tasks[self.cpu.current].open.is_empty() {
            self.begin_unseen(from_user, start);
        }
        self.clock = base + instructions;
        self.meter(id, reached);
        if reached.is_none() {
            self.leave(id, word);
        }
        self.cpu.usual = match (self.cpu.awaited, &self.cpu.callee) {
            (Awaited::Nothing, None) => 0,
            _ => TranslationWord::AWAITED,
        };
    }

    #[inline]
    fn meter(&mut self, id: u32, reached: Option<u32>) {
        match reached {
            None => self.meter.executed(id),
            Some(instructions) => self.meter.left(id, instructions),
        }
    }

    /// Handles the last instruction of a translation block of the kernel.
    fn leave(&mut self, id: u32, word: TranslationWord) {
        let flags = word.flags();
        if flags & TranslationWord::CALL != 0 {
            self.call(id);
        } else if flags & TranslationWord::RETURN != 0 {
            self.cpu.awaited = Awaited::Return;
        } else if flags & TranslationWord::INTERRUPT_RETURN != 0 {
            self.cpu.awaited = Awaited::InterruptReturn(self.codes.places[id as usize].end);
        } else if flags & TranslationWord::HALT != 0 {
            self.halt();
        }
        if flags & TranslationWord::NOTED != 0
            && let Some(calls) = &self.codes.notes(id).calls
        {
            self.cpu.callee = Some((calls.clone(), LONGEST_THUNK));
        }
    }

    #[inline]
    fn call(&mut self, id: u32) {
        let task = &mut self.tasks[self.cpu.current];
        if task.calls.len() >= DEEPEST {
            task.calls.clear();
            task.open.iter_mut().for_each(|open| open.calls = 0);
            self.meter.unwound(0);
        }
        task.calls.push(self.codes.places[id as usize].end);
        self.meter.called();
    }

    /// A function returned to `start`.
    fn returned(&mut self, id: u32, start: u64) {
        let task = &mut self.tasks[self.cpu.current];
        if task.calls.last() == Some(&start) {
            task.calls.pop();
        } else if self.codes.places[id as usize].function.is_some() {
            // This return calls a function whose address was put on the stack.
            return;
        } else {
            let gate = task.open.iter().rfind(|open| open.until == ClosedBy::InterruptReturn);
            let floor = gate.map_or(0, |gate| gate.calls).min(task.calls.len());
            match task.calls[floor..].iter().rposition(|&addr| addr == start) {
                Some(at) => task.calls.truncate(floor + at),
                None => return,
            }
        }
        self.meter.unwound(task.calls.len());
        while let Some(open) = self.tasks[self.cpu.current].open.last()
            && open.until == ClosedBy::Return
            && self.tasks[self.cpu.current].calls.len() < open.calls
        {
            self.close();
        }
        self.resume_base();
    }

    /// The return from an interruption to the kernel.
    fn interruption_ended(&mut self) {
        let open = &self.tasks[self.cpu.current].open;
        let Some(gate) = open.iter().rposition(|open| open.until == ClosedBy::InterruptReturn)
        else {
            return;
        };
        let calls = open[gate].calls;
        while self.tasks[self.cpu.current].open.len() > gate {
            self.close();
        }
        let left = &mut self.tasks[self.cpu.current].calls;
        left.truncate(calls);
        self.meter.unwound(left.len());
        self.resume_base();
    }

    /// A kernel thread or the idle task begins a new invocation when it continues after another
    /// task ran.
    fn resume_base(&mut self) {
        let task = &mut self.tasks[self.cpu.current];
        if let [base] = &task.open[..]
            && task.switched
            && !task.unknown
            && base.until == ClosedBy::UserMode
            && matches!(base.kind, ServiceKind::KernelThread | ServiceKind::Idle)
        {
            self.close();
        }
    }

    fn look_for_callee(&mut self, id: u32) {
        let Some((meaning, left)) = self.cpu.callee.take() else { return };
        let place = &self.codes.places[id as usize];
        let Some(function) = place.function.filter(|_| !place.thunk) else {
            self.cpu.callee = left.checked_sub(1).map(|left| (meaning, left));
            return;
        };
        let named = |name: &str, function: CalleeId| {
            name.replace('*', self.codes.function_names[function.0 as usize])
        };
        match meaning {
            CalleeMeaning::Enter { kind, name } => {
                let service = self.ledger.service(kind, &named(&name, function));
                self.open(kind, service, ClosedBy::Return);
            }
            CalleeMeaning::Name { of, name } => {
                let service = self.ledger.service(of, &named(&name, function));
                self.rename(of, &[], service);
            }
        }
    }

    /// Applies the events of the first `instructions` of the translation block.
    fn act(&mut self, id: u32, instructions: u64) {
        let base = self.clock;
        let notes = self.codes.notes(id);
        if self.tasks[self.cpu.current].unknown {
            match &notes.body {
                Some(Action::Name { of, service, .. }) => drop(self.rename(*of, &[], *service)),
                Some(Action::Thread) => self.tasks[self.cpu.current].unknown = false,
                _ => {}
            }
        }
        for (number, actions) in
            notes.events.iter().filter(|(number, _)| u64::from(*number) < instructions)
        {
            self.clock = base + u64::from(*number);
            let mut named = None;
            for action in actions {
                match action {
                    Action::Gate(kind, service) => self.gate(*kind, *service),
                    Action::Enter(kind, service) => self.open(*kind, *service, ClosedBy::Return),
                    Action::Name { of, when, service } => {
                        if named != Some(*of) && self.rename(*of, when, *service) {
                            named = Some(*of);
                        }
                    }
                    Action::Task(service) => self.begin_task(*service),
                    Action::Thread => {
                        self.forget();
                        self.open_base();
                    }
                    Action::Count(number) => self.counts[*number] += 1,
                }
            }
        }
    }
}

/// `kworker` for `kworker/0:1-events`.
fn thread_name(comm: &str) -> &str {
    comm.split('/').next().unwrap_or(comm)
}
