//! Every invocation of a function and of a service, with its place in the recording.
//!
//! Takes what the automaton follows; reports invocations as they end, so that only open ones are in
//! memory. Calls are those of [`crate::calls`]: a chain begins where a service begins, a function
//! replaces the function that jumped to it, thunks belong to the function that goes through them,
//! and a return that matches no call changes nothing. Keeps no reported invocation.
//!
//! Positions count the instructions of the recording, those of all CPUs, from 0.

mod track;

pub use crate::invocations::track::{
    FunctionCall, InvocationTrack, ServiceCall, ServiceMachine, TaskSwitch,
};

use crate::annotations::ServiceKind;
use crate::automaton::Automaton;
use crate::binding::{Binding, in_range};
use crate::caches::Machines;
use crate::functions::{NAMELESS, TranslationFunction, function_name};
use crate::ledger::{Invocation, InvocationTimes, Ledger, ServiceId, ServiceMachineCounts};
use crate::meter::{Booked, Meter};
use crate::symbols::KernelSymbols;
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::data::DataWish;
use execution::per_cpu::PerCpu;
use execution::walk::{Observer, Piece, Wants};
use image::address::LinkAddr;
use sim::MachineModel;
use std::collections::HashMap;
use trace::{CpuId, RecordingHeader, Task, Translation};

/// The invocations of a recording, as an observer of it.
pub struct InvocationsWalk<'a, T>(Automaton<'a, InvocationMeter<'a, T>>);

impl<'a, T: InvocationTrack> InvocationsWalk<'a, T> {
    /// `machine`: what to simulate for the counts of services.
    pub fn new(
        symbols: &'a KernelSymbols,
        binding: &'a Binding,
        machine: Option<&MachineModel>,
        track: T,
    ) -> InvocationsWalk<'a, T> {
        let meter = InvocationMeter::new(symbols, binding, machine, track);
        let automaton = Automaton::new(binding, symbols, meter);
        InvocationsWalk(if machine.is_none() { automaton.without_data() } else { automaton })
    }

    /// Ends what is open at the recording's end.
    pub fn finish(self) -> T {
        self.0.finish().1.into_track()
    }
}

impl<T: InvocationTrack> Observer for InvocationsWalk<'_, T> {
    fn begin(&mut self, header: &RecordingHeader, has_data: bool) -> Result<Wants> {
        self.0.begin(header, has_data)
    }

    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()> {
        self.0.define(translations, codes)
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.0.define_tasks(tasks);
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        self.0.piece(piece)?;
        self.0.meter_mut().passes();
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.0.meter_ref().track.has_ended()
    }
}

/// An open invocation of a function.
#[derive(Clone, Copy, Debug)]
struct OpenCall {
    id: u64,
    function: u32,
    address: u64,
    entered: bool,
    cpu: CpuId,
    task: Option<u32>,
    start: u64,
    own: u64,
    /// Instructions of invocations that it called.
    called: u64,
}

/// A call that has not returned.
#[derive(Clone, Copy, Debug)]
struct OpenReturn {
    /// The number of functions that wait for the return.
    waiting: usize,
    /// The number of functions that are open behind the return.
    left: usize,
}

/// An open service.
#[derive(Clone, Copy, Debug)]
struct OpenInvocation {
    id: u64,
    cpu: CpuId,
    /// The task's number then: the kernel may give the address of a dead task to another one.
    task: Option<u32>,
    start: u64,
    /// The numbers of open functions and of open calls when it began.
    functions: usize,
    calls: usize,
}

/// No service.
const OUTSIDE: OpenInvocation =
    OpenInvocation { id: 0, cpu: CpuId(0), task: None, start: 0, functions: 0, calls: 0 };

#[derive(Debug, Default)]
struct TaskInvocations {
    /// Its number in the recording.
    id: Option<u32>,
    /// Outermost first.
    functions: Vec<OpenCall>,
    calls: Vec<OpenReturn>,
    services: Vec<OpenInvocation>,
}

impl TaskInvocations {
    fn service(&self) -> OpenInvocation {
        self.services.last().copied().unwrap_or(OUTSIDE)
    }

    /// The number of functions that wait for the return of a call, or for the end of a service.
    #[inline]
    fn waiting(&self) -> usize {
        let service = self.service();
        // Calls from before the service belong to another one.
        let calls = self.calls.get(service.calls..).and_then(|calls| calls.last());
        let waiting = calls.map_or(service.functions, |call| call.waiting.max(service.functions));
        waiting.min(self.functions.len())
    }
}

/// A CPU.
#[derive(Clone, Debug, Default)]
struct CpuInvocations {
    task: usize,
    /// The task's last event was a call.
    has_called: bool,
    /// The stay in user mode so far.
    stay: Option<ServiceCall>,
}

/// The meter that reports invocations.
pub(crate) struct InvocationMeter<'a, T> {
    track: T,
    wants_calls: bool,
    wants_services: bool,
    machines: Machines,
    machine: Option<MachineModel>,
    symbols: &'a KernelSymbols,
    binding: &'a Binding,
    numbers: HashMap<&'a str, u32>,
    /// By translation block. User code and thunks have no function: they change no chain.
    parts: Vec<TranslationFunction>,
    addresses: Vec<u64>,
    tasks: Vec<TaskInvocations>,
    cpus: PerCpu<CpuInvocations>,
    /// Executed instructions, and how many of them the automaton has booked.
    clock: u64,
    booked: u64,
    next_call: u64,
    next_service: u64,
    /// The recording has ended.
    is_over: bool,
}

impl<'a, T: InvocationTrack> InvocationMeter<'a, T> {
    fn new(
        symbols: &'a KernelSymbols,
        binding: &'a Binding,
        machine: Option<&MachineModel>,
        track: T,
    ) -> InvocationMeter<'a, T> {
        InvocationMeter {
            wants_calls: track.wants_calls(),
            wants_services: track.wants_services(),
            track,
            machines: Machines::new(machine.map_or(&[], std::slice::from_ref)),
            machine: machine.cloned(),
            symbols,
            binding,
            numbers: HashMap::new(),
            parts: Vec::new(),
            addresses: Vec::new(),
            tasks: vec![TaskInvocations::default()],
            cpus: PerCpu::default(),
            clock: 0,
            booked: 0,
            next_call: 0,
            next_service: 0,
            is_over: false,
        }
    }

    fn into_track(mut self) -> T {
        for task in 0..self.tasks.len() {
            self.end_functions(task, 0);
        }
        self.track
    }

    /// Everything up to here has been followed.
    fn passes(&mut self) {
        self.track.passes(self.clock);
    }

    #[inline]
    fn ran(&mut self, translation: u32, reached: Option<u32>) {
        let part = self.parts[translation as usize];
        let instructions = u64::from(reached.unwrap_or(part.instructions));
        if self.wants_calls {
            let task = &mut self.tasks[self.cpus.current.task];
            if let Some(function) = part.function {
                let waiting = task.waiting();
                let goes_on = !part.is_entry
                    && task.functions.len() > waiting
                    && task.functions.last().is_some_and(|open| open.function == function);
                if !goes_on {
                    self.enter(translation, function, part.is_entry, waiting);
                }
                if let Some(open) = self.tasks[self.cpus.current.task].functions.last_mut() {
                    open.own += instructions;
                }
            } else if task.functions.len() > task.service().functions
                && let Some(open) = task.functions.last_mut()
            {
                // A thunk of the function that goes through it.
                open.own += instructions;
            }
        }
        self.clock += instructions;
    }

    /// Another function executes, or the same function was called again. `waiting`: the number of
    /// functions below it.
    fn enter(&mut self, translation: u32, function: u32, is_entry: bool, waiting: usize) {
        let has_called = std::mem::take(&mut self.cpus.current.has_called);
        let task = self.cpus.current.task;
        let open = &mut self.tasks[task];
        let service = open.service().functions;
        // A call to code inside its own function is not a call: it fills the return stack buffer,
        // or reads the instruction pointer.
        if has_called
            && !is_entry
            && open.functions.len() == waiting
            && waiting > service
            && open.functions[waiting - 1].function == function
            && let Some(call) = open.calls.last_mut()
        {
            call.waiting = waiting - 1;
            return;
        }
        self.end_functions(task, waiting);
        let id = self.next_call;
        self.next_call += 1;
        let open = &mut self.tasks[task];
        open.functions.push(OpenCall {
            id,
            function,
            address: self.addresses[translation as usize],
            entered: is_entry,
            cpu: self.cpus.cpu(),
            task: open.id,
            start: self.clock,
            own: 0,
            called: 0,
        });
    }

    /// Ends the innermost functions of a task, until only `left` are open.
    fn end_functions(&mut self, task: usize, left: usize) {
        let open = &mut self.tasks[task];
        while open.functions.len() > left {
            let Some(ended) = open.functions.pop() else { return };
            let base = open.functions.len();
            // The service in which it ran: the innermost one that began below it.
            let service = open.services.iter().rfind(|service| service.functions <= base);
            let first = service.map_or(0, |service| service.functions);
            let inclusive = ended.own + ended.called;
            let caller = (base > first).then(|| {
                let caller = &mut open.functions[base - 1];
                caller.called += inclusive;
                (caller.id, caller.function)
            });
            let call = FunctionCall {
                id: ended.id,
                caller,
                function: ended.function,
                address: ended.address,
                entered: ended.entered,
                depth: (base - first) as u32,
                service: service.map(|service| service.id),
                cpu: ended.cpu,
                task: ended.task,
                start: ended.start,
                end: (!self.is_over).then_some(self.clock),
                own: ended.own,
                inclusive,
            };
            self.track.call(&call);
        }
    }

    /// Reports the CPU's stay in user mode.
    fn end_stay(&mut self) {
        if let Some(stay) = self.cpus.current.stay.take() {
            self.track.service(&stay);
        }
    }

    fn goes_on(&mut self, task: usize) {
        if self.tasks.len() <= task {
            self.tasks.resize_with(task + 1, TaskInvocations::default);
        }
        self.cpus.current.task = task;
        self.cpus.current.has_called = false;
    }

    /// The counts on the machine.
    fn on_machine(
        &self,
        instructions: u64,
        counts: &[ServiceMachineCounts],
    ) -> Option<ServiceMachine> {
        Some(ServiceMachine::of(self.machine.as_ref()?, instructions, counts))
    }
}

impl<T: InvocationTrack> Meter for InvocationMeter<'_, T> {
    fn wish(&self) -> Option<DataWish> {
        self.machine.as_ref().map(|_| self.machines.wish())
    }

    fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> Result<()> {
        let start = translation.addr.0;
        let is_thunk = in_range(&self.binding.thunks, start).is_some();
        let symbol = self.symbols.containing(LinkAddr(start));
        let name = symbol.map_or(NAMELESS, function_name);
        let function = (translation.is_kernel() && !is_thunk).then(|| {
            let next = self.numbers.len() as u32;
            *self.numbers.entry(name).or_insert_with(|| {
                self.track.function(name);
                next
            })
        });
        self.parts.push(TranslationFunction::new(translation, function, symbol));
        self.addresses.push(start);
        self.machines.define(translation, code)
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.track.tasks(tasks);
    }

    fn machines(&mut self) -> Option<&mut Machines> {
        Some(&mut self.machines)
    }

    #[inline]
    fn executed(&mut self, translation: u32) {
        self.ran(translation, None);
        self.machines.run(translation, None);
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.ran(translation, Some(instructions));
        self.machines.run(translation, Some(instructions));
    }

    fn finish(&mut self) {
        self.is_over = true;
    }

    fn take(&mut self) -> &[ServiceMachineCounts] {
        self.machines.take()
    }

    #[inline]
    fn called(&mut self) {
        if self.wants_calls {
            let task = &mut self.tasks[self.cpus.current.task];
            let functions = task.functions.len();
            task.calls.push(OpenReturn { waiting: functions, left: functions });
            self.cpus.current.has_called = true;
        }
    }

    fn unwound(&mut self, calls: usize) {
        self.cpus.current.has_called = false;
        let task = self.cpus.current.task;
        let open = &mut self.tasks[task];
        if let Some(&OpenReturn { left, .. }) = open.calls.get(calls) {
            open.calls.truncate(calls);
            let service = open.service();
            let left = if calls >= service.calls { left } else { 0 };
            self.end_functions(task, left.max(service.functions));
        }
    }

    fn switched(&mut self, task: usize) {
        self.goes_on(task);
    }

    fn turned_to(&mut self, cpu: CpuId, task: usize) {
        self.cpus.turn_to(cpu, CpuInvocations::default);
        self.machines.turn_to(cpu);
        if self.tasks.len() <= task {
            self.tasks.resize_with(task + 1, TaskInvocations::default);
        }
        self.cpus.current.task = task;
    }

    fn replaced(&mut self, task: usize) {
        let dead = self.cpus.current.task;
        self.end_functions(dead, 0);
        self.tasks[dead].calls.clear();
        self.goes_on(task);
    }

    fn named(&mut self, task: usize, id: usize, _: &str) {
        self.tasks[task].id = Some(id as u32);
    }

    fn switches(&mut self, from: Option<usize>, to: usize) {
        let switch = TaskSwitch {
            position: self.clock,
            cpu: self.cpus.cpu(),
            from: from.and_then(|task| self.tasks.get(task)?.id),
            to: to as u32,
        };
        self.track.switched(&switch);
    }

    fn opened(&mut self, calls: usize) {
        let id = self.next_service;
        self.next_service += 1;
        let cpu = self.cpus.cpu();
        self.cpus.current.has_called = false;
        let task = &mut self.tasks[self.cpus.current.task];
        let functions = task.functions.len();
        let (task_id, start) = (task.id, self.booked);
        task.services.push(OpenInvocation { id, cpu, task: task_id, start, functions, calls });
    }

    fn settled(
        &mut self,
        task: usize,
        service: ServiceId,
        invocation: &Invocation,
        ledger: &Ledger,
    ) {
        let Some(open) = self.tasks.get(task).and_then(|task| task.services.last().copied()) else {
            return;
        };
        self.end_functions(task, open.functions);
        let of = &mut self.tasks[task];
        of.services.pop();
        if task == self.cpus.current.task {
            self.cpus.current.has_called = false;
        }
        if self.wants_services {
            let account = &ledger.accounts[service.0 as usize];
            let call = ServiceCall {
                id: open.id,
                parent: of.services.last().map(|outer| outer.id),
                kind: account.kind,
                name: account.name.clone(),
                depth: of.services.len() as u32,
                cpu: open.cpu,
                task: open.task.or(of.id),
                start: open.start,
                end: (!self.is_over).then_some(self.booked),
                instructions: invocation.instructions,
                times: invocation.times,
                machine: self.on_machine(invocation.instructions, &invocation.machines),
            };
            self.track.service(&call);
        }
    }

    fn booked(&mut self, instructions: u64, under: Booked) {
        let start = self.booked;
        self.booked += instructions;
        let Booked::User(_) = under else { return };
        if !self.wants_services {
            return;
        }
        let cpu = self.cpus.cpu();
        let taken = self.on_machine(instructions, self.machines.taken());
        let task = self.tasks[self.cpus.current.task].id;
        let end = self.booked;
        let next = self.next_service;
        let call = self.cpus.current.stay.get_or_insert_with(|| ServiceCall {
            id: next,
            parent: None,
            kind: ServiceKind::User,
            name: String::new(),
            depth: 0,
            cpu,
            task,
            start,
            end: None,
            instructions: 0,
            times: InvocationTimes::default(),
            machine: None,
        });
        self.next_service += u64::from(call.id == next);
        call.end = Some(end);
        call.instructions += instructions;
        call.times.latency += instructions;
        call.times.ran += instructions;
        call.machine = match (call.machine, taken) {
            (Some(before), Some(now)) => Some(before.and(now)),
            (before, now) => before.or(now),
        };
    }

    fn stayed(&mut self) {
        self.end_stay();
    }
}
