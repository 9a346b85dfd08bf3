//! The open services of each task: how they begin, change their names and end.
//!
//! Takes what the automaton sees; changes the stacks of open services and adds their times to the
//! ledger. Never looks at translation blocks.

use super::{Automaton, thread_name};
use crate::annotations::{ServiceKind, fit};
use crate::code::TranslationWord;
use crate::ledger::{Invocation, InvocationTimes, ServiceId, add_machines};
use crate::meter::{Booked, Meter};
use crate::tasks::{ClosedBy, OpenService, TaskClocks, TaskState, TaskWake};

impl<M: Meter> Automaton<'_, M> {
    /// A new task runs its first instructions. Its earlier instructions under an unknown service
    /// count for `service`.
    pub(super) fn begin_task(&mut self, service: ServiceId) {
        let task = &mut self.tasks[self.cpu.current];
        match &mut task.open[..] {
            [base] if task.unknown && task.last.ran == 0 => {
                (base.kind, base.service) = (ServiceKind::Task, service);
                task.unknown = false;
            }
            _ => {
                self.replace_task();
                self.open(ServiceKind::Task, service, ClosedBy::UserMode);
            }
        }
    }

    /// A new task uses the address of a dead task. The new task begins with the last switch to this
    /// address.
    pub(super) fn replace_task(&mut self) {
        self.book();
        let dead = self.cpu.current;
        let last = self.tasks[dead].last;
        while let Some(open) = self.tasks[dead].open.pop() {
            self.settle(open, last);
        }
        self.forget();
        let task = &mut self.tasks[dead];
        let new = TaskState {
            name: task.name.clone(),
            user: task.user,
            since: task.since,
            switched: true,
            ..TaskState::default()
        };
        (task.ran, task.blocked, task.waiting, task.since) =
            (last.ran, last.blocked, last.waiting, last.clock);
        self.cpu.current = self.tasks.len();
        self.tasks.push(new);
        let of_dead = |at: &&mut usize| **at == dead;
        let known = self.task_of.iter_mut().map(|(at, _)| at).chain(self.by_pid.values_mut());
        known.filter(of_dead).for_each(|at| *at = self.cpu.current);
        self.meter.replaced(self.cpu.current);
        let name = self.tasks[self.cpu.current].name.clone();
        self.meter.named(self.cpu.current, self.cpu.running, &name);
    }

    pub(super) fn gate(&mut self, kind: ServiceKind, service: ServiceId) {
        self.cpu.callee = None;
        let interrupts = matches!(kind, ServiceKind::Interrupt | ServiceKind::Ipi);
        let now = self.executed();
        let before = if interrupts { self.cpu.last_interrupt.replace(now) } else { None };
        let since = before.map(|before| now - before);
        if kind == ServiceKind::SystemCall {
            // Only user mode makes system calls, so the task is not a kernel thread.
            self.tasks[self.cpu.current].unknown = false;
        }
        if self.tasks[self.cpu.current].open.is_empty() && self.tasks[self.cpu.current].unknown {
            self.open_base();
        }
        self.open(kind, service, ClosedBy::InterruptReturn);
        if interrupts {
            self.interrupts += 1;
            since.into_iter().for_each(|since| self.between_interrupts.add(since));
            self.meter.interrupted(since);
        }
    }

    /// Kernel code runs while no service is open.
    pub(super) fn begin_unseen(&mut self, from_user: bool, start: u64) {
        if from_user {
            let name = format!("entered at {}", self.codes.name_at(start));
            let service = self.ledger.service(ServiceKind::Other, &name);
            self.open(ServiceKind::Other, service, ClosedBy::InterruptReturn);
        } else {
            self.open_base();
        }
    }

    /// Opens the base service of a task: idle, or a kernel thread until user mode shows that the
    /// task is not one.
    pub(super) fn open_base(&mut self) {
        let task = &mut self.tasks[self.cpu.current];
        task.switched = false;
        let idle = self.binding.idle.iter().any(|pattern| fit(pattern, &task.name).is_some());
        let (kind, name) = match idle {
            true => (ServiceKind::Idle, "idle".to_owned()),
            false => (ServiceKind::KernelThread, thread_name(&task.name).to_owned()),
        };
        task.unknown &= !idle;
        let service = self.ledger.service(kind, &name);
        self.open(kind, service, ClosedBy::UserMode);
    }

    pub(super) fn open(&mut self, kind: ServiceKind, service: ServiceId, until: ClosedBy) {
        self.book();
        let began = self.now();
        let task = &mut self.tasks[self.cpu.current];
        task.open.push(OpenService {
            service,
            kind,
            until,
            calls: task.calls.len(),
            began,
            instructions: 0,
            machines: Vec::new(),
        });
        self.meter.opened(task.calls.len());
    }

    /// Closes the current task's innermost service.
    pub(super) fn close(&mut self) {
        self.book();
        let now = self.now();
        if let Some(open) = self.tasks[self.cpu.current].open.pop() {
            self.settle(open, now);
        }
    }

    pub(super) fn settle(&mut self, open: OpenService, now: TaskClocks) {
        let invocation = Invocation {
            instructions: open.instructions,
            machines: open.machines,
            times: InvocationTimes {
                // A service that began in the last steps of a dead task has no time of its own.
                latency: now.clock.saturating_sub(open.began.clock),
                ran: now.ran.saturating_sub(open.began.ran),
                blocked: now.blocked.saturating_sub(open.began.blocked),
                waiting: now.waiting.saturating_sub(open.began.waiting),
            },
        };
        self.ledger.add(open.service, &invocation);
        self.meter.settled(self.cpu.current, open.service, &invocation, &self.ledger);
    }

    /// The current task's clocks.
    pub(super) fn now(&self) -> TaskClocks {
        let task = &self.tasks[self.cpu.current];
        TaskClocks {
            clock: self.halts.time(self.clock),
            ran: task.ran + (self.executed() - self.cpu.runs_since),
            blocked: task.blocked,
            waiting: task.waiting,
        }
    }

    /// Renames the innermost open service of kind `of`; returns whether one could be renamed. An
    /// unknown task has been in that service since before the recording began.
    pub(super) fn rename(
        &mut self,
        of: ServiceKind,
        when: &[ServiceId],
        service: ServiceId,
    ) -> bool {
        let task = &mut self.tasks[self.cpu.current];
        if let Some(open) = task.open.iter_mut().rfind(|open| open.kind == of) {
            let may = when.is_empty() || when.contains(&open.service);
            if may {
                open.service = service;
            }
            return may;
        }
        match task.open.first_mut() {
            Some(base)
                if task.unknown
                    && of == ServiceKind::SystemCall
                    && base.kind == ServiceKind::KernelThread =>
            {
                (base.kind, base.service, task.unknown) = (of, service, false);
                true
            }
            _ => false,
        }
    }

    pub(super) fn enter_user_mode(&mut self) {
        self.book();
        let task = &mut self.tasks[self.cpu.current];
        if let Some(base) = task
            .open
            .first_mut()
            .filter(|base| task.unknown && base.kind == ServiceKind::KernelThread)
        {
            base.kind = ServiceKind::Other;
            base.service = self.ledger.service(ServiceKind::Other, "begun before the recording");
        }
        self.close_all(self.cpu.current);
        let task = &mut self.tasks[self.cpu.current];
        (task.unknown, task.switched) = (false, false);
        task.calls.clear();
        self.meter.unwound(0);
        self.cpu.in_user_mode = true;
        self.cpu.callee = None;
        self.cpu.usual = TranslationWord::USER;
    }

    /// Closes the open services of the current task, which has ended.
    pub(super) fn forget(&mut self) {
        self.book();
        self.close_all(self.cpu.current);
        let task = &mut self.tasks[self.cpu.current];
        task.unknown = false;
        task.calls.clear();
        self.meter.unwound(0);
    }

    pub(super) fn close_all(&mut self, at: usize) {
        let current = std::mem::replace(&mut self.cpu.current, at);
        let now = match at == current {
            true => self.now(),
            false => TaskClocks {
                // The time since the task last ran does not count, because the task may be dead.
                clock: self.tasks[at].since,
                ran: self.tasks[at].ran,
                blocked: self.tasks[at].blocked,
                waiting: self.tasks[at].waiting,
            },
        };
        while let Some(open) = self.tasks[at].open.pop() {
            self.settle(open, now);
        }
        self.cpu.current = current;
    }

    /// Another task runs, or the running task has another name.
    pub(super) fn switch(&mut self, id: usize) {
        let (to, name) = &self.task_of[id];
        let (to, name) = (*to, name.clone());
        self.cpu.running = id;
        self.book();
        let before = self.cpu.current;
        if to != self.cpu.current {
            self.halts.forget();
            let now = self.halts.time(self.clock);
            self.context_switches += u64::from(self.cpu.current != 0);
            let executed = self.executed();
            let from = &mut self.tasks[self.cpu.current];
            from.ran += executed - std::mem::replace(&mut self.cpu.runs_since, executed);
            (from.since, from.woken) = (now, None);
            let task = &mut self.tasks[to];
            task.last = TaskClocks {
                clock: task.since,
                ran: task.ran,
                blocked: task.blocked,
                waiting: task.waiting,
            };
            let wake = task.woken.take();
            let woken = wake.map_or(task.since, |wake| wake.at.max(task.since));
            task.blocked += woken - task.since;
            task.waiting += now - woken;
            (task.since, task.switched) = (now, true);
            self.cpu.current = to;
            self.meter.switched(to);
            self.meter.resumed(to, now, wake);
        }
        self.tasks[to].user = Some(self.ledger.service(ServiceKind::User, &name));
        self.meter.named(to, id, &name);
        if to != before {
            self.meter.switches((before != 0).then_some(before), id);
        }
        self.tasks[to].name = name;
        if !self.cpu.in_user_mode && self.tasks[to].open.is_empty() {
            // The next execution shows what it does.
            self.cpu.usual = TranslationWord::AWAITED;
        }
    }

    /// A task that does not run becomes able to run.
    pub(super) fn wake(&mut self, id: usize) {
        let (at, _) = self.task_of[id];
        self.wakes_seen = true;
        if !self.runs(at) {
            let wake = TaskWake { at: self.halts.time(self.clock), by: self.cpu.current };
            self.tasks[at].woken.get_or_insert(wake);
        }
    }

    /// The kernel has read the clock. Moves the begin of services that began since a halt by the
    /// halted time.
    pub(super) fn clock_read(&mut self, ticks: u32) {
        let Some(halt) = self.halts.read(self.clock, ticks) else { return };
        self.book();
        let open = self.tasks[self.cpu.current].open.iter_mut().rev();
        let mut later = 0;
        for open in open.take_while(|open| open.began.clock >= halt.at) {
            open.began.clock += halt.nanoseconds;
            later += 1;
        }
        let woken = self.tasks.iter_mut().filter_map(|task| task.woken.as_mut());
        woken.filter(|wake| wake.at >= halt.at).for_each(|wake| wake.at += halt.nanoseconds);
        for task in self.tasks_elsewhere() {
            let open = self.tasks[task].open.iter_mut().rev();
            let mut later = 0;
            for open in open.take_while(|open| open.began.clock >= halt.at) {
                open.began.clock += halt.nanoseconds;
                later += 1;
            }
            self.meter.began_later(task, halt.nanoseconds, later);
        }
        self.meter.halted(halt.nanoseconds, later);
    }

    /// Books what ran since the last call under the running service.
    pub(super) fn book(&mut self) {
        if let Some((user, stay)) = self.book_open() {
            self.ledger.add(user, &stay);
            self.meter.stayed();
        }
    }

    /// As [`Automaton::book`], when another CPU executes next. A stay in user mode goes on.
    pub(super) fn book_turn(&mut self) {
        if let Some((_, stay)) = self.book_open() {
            self.cpu.stay = stay;
        }
    }

    /// Books what ran since the last call under the open service. In user mode, returns the stay
    /// with all that ran in it.
    fn book_open(&mut self) -> Option<(ServiceId, Invocation)> {
        let instructions = self.clock - std::mem::replace(&mut self.booked, self.clock);
        let machines = self.meter.take();
        match self.tasks[self.cpu.current].open.last_mut() {
            Some(open) if !self.cpu.in_user_mode => {
                open.instructions += instructions;
                add_machines(&mut open.machines, machines);
                self.meter.booked(instructions, Booked::Open(open.kind));
                None
            }
            _ if instructions > 0 || self.cpu.stay.instructions > 0 => {
                let mut stay = std::mem::take(&mut self.cpu.stay);
                stay.instructions += instructions;
                stay.times.latency += instructions;
                stay.times.ran += instructions;
                add_machines(&mut stay.machines, machines);
                let user = self.tasks[self.cpu.current].user.unwrap_or(self.nobody);
                self.meter.booked(instructions, Booked::User(user));
                Some((user, stay))
            }
            // A core lags behind: the slots that it lost with the last instructions are known only
            // after those instructions were booked.
            _ => {
                let user = self.tasks[self.cpu.current].user.unwrap_or(self.nobody);
                self.ledger.add_counts(user, machines);
                self.meter.lagged(user);
                None
            }
        }
    }
}
