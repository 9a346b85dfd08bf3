//! Invocations of functions and services, interrupts, and switches of tasks.

use crate::batch::{Cell, Names, Rows, TableRequest, TextId};
use crate::recording::AskedRecording;
use crate::schema::TableId;
use services::annotations::ServiceKind;
use services::functions::NAMELESS;
use services::invocations::{FunctionCall, InvocationTrack, ServiceCall, TaskSwitch};
use trace::Task;

/// The tasks of a recording by their number, with their names and pids.
#[derive(Default)]
pub(super) struct KnownTasks(Vec<(TextId, Option<u32>)>);

impl KnownTasks {
    pub(super) fn define(&mut self, names: &mut Names, tasks: &[Task]) {
        self.0.extend(tasks.iter().map(|task| (names.id(&task.name()), task.pid)));
    }

    /// The name and the pid of a task that is known.
    pub(super) fn of(&self, task: usize) -> (TextId, Option<u32>) {
        self.0[task]
    }

    /// The name and the pid of a task.
    #[inline]
    pub(super) fn cells(&self, task: Option<u32>) -> [Cell; 2] {
        match task.and_then(|task| self.0.get(task as usize)) {
            None => [Cell::Null; 2],
            Some((name, pid)) => [(*name).into(), (*pid).into()],
        }
    }
}

/// The tables that are made from invocations.
pub(super) struct InvocationTables<'a> {
    recording: &'a AskedRecording,
    names: Names,
    functions: Vec<TextId>,
    tasks: KnownTasks,
    wants_module: bool,
    calls: Option<Rows>,
    services: Option<Rows>,
    interrupts: Option<Rows>,
    switches: Option<Rows>,
}

impl<'a> InvocationTables<'a> {
    pub(super) fn new(recording: &'a AskedRecording, requests: Vec<TableRequest>) -> Self {
        let mut tables = InvocationTables {
            recording,
            names: Names::default(),
            functions: Vec::new(),
            tasks: KnownTasks::default(),
            wants_module: false,
            calls: None,
            services: None,
            interrupts: None,
            switches: None,
        };
        for request in requests {
            let table = match request.table {
                TableId::Calls => &mut tables.calls,
                TableId::Interrupts => &mut tables.interrupts,
                TableId::Switches => &mut tables.switches,
                _ => &mut tables.services,
            };
            *table = Some(Rows::new(request));
        }
        tables.wants_module = tables.calls.as_ref().is_some_and(|calls| calls.wants("module"));
        tables
    }

    /// Whether a machine has to be simulated.
    pub(super) fn wants_machine(&self) -> bool {
        let columns = ["cycles", "l1i_misses", "l1d_misses", "l2_misses"];
        let wants = |rows: &Rows| columns.iter().any(|column| rows.wants(column));
        self.services.as_ref().is_some_and(wants)
    }

    fn rows(&mut self) -> impl Iterator<Item = &mut Rows> {
        let InvocationTables { calls, services, interrupts, switches, .. } = self;
        [calls, services, interrupts, switches].into_iter().flatten()
    }

    pub(super) fn finish(mut self) {
        let mut names = std::mem::take(&mut self.names);
        self.rows().for_each(|rows| rows.finish(&mut names));
    }
}

impl InvocationTrack for InvocationTables<'_> {
    fn wants_calls(&self) -> bool {
        self.calls.is_some()
    }

    fn wants_services(&self) -> bool {
        self.services.is_some() || self.interrupts.is_some()
    }

    fn function(&mut self, name: &str) {
        self.functions.push(self.names.id(name));
    }

    fn tasks(&mut self, tasks: &[Task]) {
        self.tasks.define(&mut self.names, tasks);
    }

    #[inline]
    fn call(&mut self, call: &FunctionCall) {
        let Some(rows) = &mut self.calls else { return };
        let function = self.functions[call.function as usize];
        let module = match self.wants_module {
            false => Cell::Null,
            true => {
                let module = self.recording.module(call.address);
                let nameless = module == "vmlinux" && function == self.names.id(NAMELESS);
                (!nameless).then(|| self.names.id(module)).into()
            }
        };
        let [task, pid] = self.tasks.cells(call.task);
        let caller = call.caller.map(|(_, function)| self.functions[function as usize]);
        let cells = [
            call.id.into(),
            call.caller.map(|(id, _)| id).into(),
            function.into(),
            module,
            call.address.into(),
            caller.into(),
            call.service.into(),
            task,
            pid,
            call.cpu.0.into(),
            call.start.into(),
            call.end.into(),
            call.depth.into(),
            call.entered.into(),
            call.own.into(),
            call.inclusive.into(),
        ];
        rows.push(&mut self.names, cells);
    }

    fn service(&mut self, service: &ServiceCall) {
        let [task, pid] = self.tasks.cells(service.task);
        let kind = self.names.id(service.kind.title());
        let name: Cell = match service.kind {
            // A stay in user mode has the name of its task.
            ServiceKind::User if task == Cell::Null => self.names.id("(unknown)").into(),
            ServiceKind::User => task,
            _ => self.names.id(&service.name).into(),
        };
        let ServiceCall { id, cpu, start, end, instructions, .. } = *service;
        if let Some(rows) = &mut self.interrupts
            && matches!(service.kind, ServiceKind::Interrupt | ServiceKind::Ipi)
        {
            let cells = [
                id.into(),
                name,
                kind.into(),
                task,
                pid,
                cpu.0.into(),
                start.into(),
                end.into(),
                instructions.into(),
                service.times.latency.into(),
            ];
            rows.push(&mut self.names, cells);
        }
        let Some(rows) = &mut self.services else { return };
        let machine = service.machine;
        let data = machine.and_then(|machine| machine.data);
        let cells = [
            id.into(),
            service.parent.into(),
            kind.into(),
            name,
            task,
            pid,
            cpu.0.into(),
            start.into(),
            end.into(),
            service.depth.into(),
            instructions.into(),
            service.times.latency.into(),
            service.times.ran.into(),
            service.times.blocked.into(),
            service.times.waiting.into(),
            machine.map(|machine| machine.cycles).into(),
            machine.map(|machine| machine.l1i).into(),
            data.map(|(l1d, _)| l1d).into(),
            data.map(|(_, l2)| l2).into(),
        ];
        rows.push(&mut self.names, cells);
    }

    fn switched(&mut self, switch: &TaskSwitch) {
        let Some(rows) = &mut self.switches else { return };
        let [from, from_pid] = self.tasks.cells(switch.from);
        let [to, to_pid] = self.tasks.cells(Some(switch.to));
        let cells = [switch.position.into(), switch.cpu.0.into(), from, from_pid, to, to_pid];
        rows.push(&mut self.names, cells);
    }

    fn passes(&mut self, position: u64) {
        // Services and functions that begin early may end late.
        if let Some(rows) = &mut self.switches {
            rows.passes(position);
        }
    }

    fn has_ended(&self) -> bool {
        let InvocationTables { calls, services, interrupts, switches, .. } = self;
        [calls, services, interrupts, switches].into_iter().flatten().all(Rows::has_ended)
    }
}
