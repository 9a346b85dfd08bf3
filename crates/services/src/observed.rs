//! The meter of the page and of files for other tools: machines, chains of calls and the execution
//! over time, in one pass.
//!
//! Takes executions and the begin and end of services; gives their counts to each part.

use crate::annotations::ServiceKind;
use crate::binding::Binding;
use crate::caches::Machines;
use crate::calls::{CallStacks, CallTree, ChainSums};
use crate::ledger::{Invocation, Ledger, ServiceId, ServiceMachineCounts};
use crate::meter::{Booked, Meter};
use crate::slices::{FinishedSlices, ServiceOverTime, Slices};
use crate::slicing::Stretch;
use crate::symbols::KernelSymbols;
use crate::table;
use crate::timeline::{Timeline, TimelineMode};
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::data::DataWish;
use sim::MachineModel;
use trace::{CpuId, Task, Translation};

/// The smallest width of a bucket, in cycles or instructions.
const FINEST: f64 = 1000.0;

pub(super) struct ObservingMeter<'a> {
    machines: Machines,
    /// The first machine. The timeline counts its cycles.
    first: Option<MachineModel>,
    calls: CallStacks<'a>,
    timeline: Timeline,
    slices: Slices,
    /// By the recording's task number.
    pids: Vec<Option<u32>>,
    /// The slice in which the last booking ended.
    now: u32,
}

impl<'a> ObservingMeter<'a> {
    pub(super) fn new(
        symbols: &'a KernelSymbols,
        binding: &'a Binding,
        machines: &[MachineModel],
    ) -> ObservingMeter<'a> {
        ObservingMeter {
            machines: Machines::new(machines),
            first: machines.first().cloned(),
            calls: CallStacks::new(
                symbols,
                binding,
                machines.first().map(|machine| machine.time),
                ChainSums::default(),
            ),
            timeline: Timeline::new(FINEST),
            slices: Slices::default(),
            pids: Vec::new(),
            now: 0,
        }
    }

    pub(super) fn finish(self, ledger: &Ledger) -> (CallTree, Timeline) {
        let (tree, mut calls) = self.calls.finish(ledger);
        let FinishedSlices { mut ended, interrupts, starts } = self.slices.finish();
        let mut timeline = self.timeline.finish();
        (timeline.interrupts, timeline.starts) = (interrupts, starts);
        for (number, account) in ledger.accounts.iter().enumerate() {
            let service = ServiceId(number as u32);
            let (calls, ended) = (calls.remove(&service), ended.remove(&service));
            if calls.is_some() || ended.is_some() {
                timeline.services.push(ServiceOverTime {
                    kind: account.kind,
                    name: account.name.clone(),
                    calls: calls.unwrap_or_default(),
                    ended: ended.unwrap_or_default(),
                });
            }
        }
        timeline.services.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        (tree, timeline)
    }

    /// Adds a stretch with these instructions to the execution over time. Returns where it lies.
    fn passes(
        &mut self,
        mode: TimelineMode,
        instructions: u64,
        (busy, stall): (f64, f64),
    ) -> Stretch {
        let (stretch, halvings) = self.timeline.add(mode, busy, stall);
        for _ in 0..halvings {
            self.calls.halve();
            self.slices.halve();
        }
        self.slices.passed(stretch, instructions);
        self.now = stretch.last();
        stretch
    }

    fn goes_on(&mut self, task: usize) {
        self.timeline.switch_to(task);
        self.calls.switched(task);
    }
}

impl Meter for ObservingMeter<'_> {
    fn wish(&self) -> Option<DataWish> {
        Some(self.machines.wish())
    }

    fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> Result<()> {
        self.calls.define(translation);
        self.machines.define(translation, code)
    }

    fn machines(&mut self) -> Option<&mut Machines> {
        Some(&mut self.machines)
    }

    #[inline]
    fn executed(&mut self, translation: u32) {
        self.calls.executed(translation, None, || self.machines.so_far());
        self.machines.executed(translation);
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.calls.executed(translation, Some(instructions), || self.machines.so_far());
        self.machines.left(translation, instructions);
    }

    fn take(&mut self) -> &[ServiceMachineCounts] {
        self.machines.take()
    }

    #[inline]
    fn called(&mut self) {
        self.calls.called();
    }

    fn unwound(&mut self, calls: usize) {
        self.calls.unwound(calls);
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.pids.extend(tasks.iter().map(|task| task.pid));
    }

    fn switched(&mut self, task: usize) {
        self.goes_on(task);
    }

    fn named(&mut self, task: usize, id: usize, name: &str) {
        self.timeline.name(task, name, self.pids.get(id).copied().flatten());
    }

    fn turned_to(&mut self, cpu: CpuId, task: usize) {
        self.machines.turn_to(cpu);
        self.timeline.turn_to(cpu);
        self.goes_on(task);
    }

    fn opened(&mut self, calls: usize) {
        self.calls.opened(calls);
    }

    fn interrupted(&mut self, since: Option<u64>) {
        self.slices.interrupted(self.now, since);
    }

    fn settled(&mut self, task: usize, service: ServiceId, ended: &Invocation, _: &Ledger) {
        self.calls.settled(task, service);
        self.slices.ended(service, self.now, ended);
    }

    /// An instruction takes a nanosecond of the guest's clock. In cycles, a halt counts as many
    /// cycles as nanoseconds.
    fn halted(&mut self, nanoseconds: u64, _: usize) {
        self.passes(TimelineMode::Idle, 0, (nanoseconds as f64, 0.0));
    }

    fn booked(&mut self, instructions: u64, under: Booked) {
        let (mode, user) = match under {
            Booked::User(service) => (TimelineMode::User, Some(service)),
            Booked::Open(ServiceKind::Idle) => (TimelineMode::Idle, None),
            Booked::Open(_) => (TimelineMode::Kernel, None),
        };
        let busy = instructions as f64;
        let stall = match (&self.first, self.machines.taken()) {
            (Some(machine), [counts, ..]) => table::cycles(machine, instructions, counts) - busy,
            _ => 0.0,
        };
        let stretch = self.passes(mode, instructions, (busy, stall.max(0.0)));
        self.calls.booked(user, self.machines.so_far(), stretch);
    }
}
