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
use crate::symbols::KernelSymbols;
use crate::table;
use crate::timeline::{Timeline, TimelineMode};
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::data::DataWish;
use sim::MachineModel;
use trace::{CpuId, Translation};

/// The smallest width of a bucket, in cycles or instructions.
const FINEST: f64 = 1000.0;

pub(super) struct ObservingMeter<'a> {
    machines: Machines,
    /// The first machine. The timeline counts its cycles.
    first: Option<MachineModel>,
    calls: CallStacks<'a>,
    timeline: Timeline,
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
            calls: CallStacks::new(symbols, binding, ChainSums::default()),
            timeline: Timeline::new(FINEST),
        }
    }

    pub(super) fn finish(self, ledger: &Ledger) -> (CallTree, Timeline) {
        (self.calls.finish(ledger), self.timeline.finish())
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
        self.calls.executed(translation, None, || self.machines.misses());
        self.machines.executed(translation);
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.calls.executed(translation, Some(instructions), || self.machines.misses());
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

    fn switched(&mut self, task: usize) {
        self.calls.switched(task);
    }

    fn turned_to(&mut self, cpu: CpuId, task: usize) {
        self.machines.turn_to(cpu);
        self.timeline.turn_to(cpu);
        self.switched(task);
    }

    fn opened(&mut self, calls: usize) {
        self.calls.opened(calls);
    }

    fn settled(&mut self, task: usize, service: ServiceId, _: &Invocation, _: &Ledger) {
        self.calls.settled(task, service);
    }

    /// An instruction takes a nanosecond of the guest's clock. In cycles, a halt counts as many
    /// cycles as nanoseconds.
    fn halted(&mut self, nanoseconds: u64, _: usize) {
        self.timeline.add(TimelineMode::Idle, nanoseconds as f64, 0.0);
    }

    fn booked(&mut self, instructions: u64, under: Booked) {
        let (mode, user) = match under {
            Booked::User(service) => (TimelineMode::User, Some(service)),
            Booked::Open(ServiceKind::Idle) => (TimelineMode::Idle, None),
            Booked::Open(_) => (TimelineMode::Kernel, None),
        };
        self.calls.booked(user, self.machines.misses());
        let busy = instructions as f64;
        let stall = match (&self.first, self.machines.taken()) {
            (Some(machine), [counts, ..]) => table::cycles(machine, instructions, counts) - busy,
            _ => 0.0,
        };
        self.timeline.add(mode, busy, stall.max(0.0));
    }
}
