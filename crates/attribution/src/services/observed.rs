//! What is kept of a recording for the page and for other tools' files: machines, chains of calls,
//! and what went on over time, in one reading.

use crate::services::annotations::Kind;
use crate::services::binding::Binding;
use crate::services::calls::{CallStacks, CallTree};
use crate::services::ledger::{Invocation, Ledger, MachineCounts, ServiceId};
use crate::services::machines::Machines;
use crate::services::meter::{Booked, Meter};
use crate::services::symbols::Symbols;
use crate::services::table;
use crate::services::timeline::{Mode, Timeline};
use anyhow::Result;
use sim::MachineModel;
use trace::Translation;

/// Cycles or instructions that are worth a bucket of their own.
const FINEST: f64 = 1000.0;

pub struct Observed<'a> {
    machines: Machines,
    /// Whose cycles the timeline is in.
    first: Option<MachineModel>,
    calls: CallStacks<'a>,
    timeline: Timeline,
}

impl<'a> Observed<'a> {
    pub fn new(
        symbols: &'a Symbols,
        binding: &'a Binding,
        machines: &[MachineModel],
    ) -> Observed<'a> {
        Observed {
            machines: Machines::new(machines),
            first: machines.first().cloned(),
            calls: CallStacks::new(symbols, binding),
            timeline: Timeline::new(FINEST),
        }
    }

    pub fn finish(self, ledger: &Ledger) -> (CallTree, Timeline) {
        (self.calls.finish(ledger), self.timeline.finish())
    }
}

impl Meter for Observed<'_> {
    const TAKES_DATA: bool = true;

    fn define(&mut self, translation: &Translation) -> Result<()> {
        self.calls.define(translation);
        self.machines.define(translation)
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

    fn take(&mut self) -> &[MachineCounts] {
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

    fn opened(&mut self, calls: usize) {
        self.calls.opened(calls);
    }

    fn settled(&mut self, task: usize, service: ServiceId, _: &Invocation, _: &Ledger) {
        self.calls.settled(task, service);
    }

    /// An instruction takes a nanosecond of the guest's clock: in cycles, the machine has as many.
    fn halted(&mut self, nanoseconds: u64, _: usize) {
        self.timeline.add(Mode::Idle, nanoseconds as f64, 0.0);
    }

    fn booked(&mut self, instructions: u64, under: Booked) {
        let (mode, user) = match under {
            Booked::User(service) => (Mode::User, Some(service)),
            Booked::Open(Kind::Idle) => (Mode::Idle, None),
            Booked::Open(_) => (Mode::Kernel, None),
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
