//! Which invocation of a service each instruction belongs to.
//!
//! Takes what the automaton follows; reports stretches of instructions, each of one invocation, and
//! the name of each invocation when it ends. Stretches come in their order, without gaps, at the
//! latest when the recording ends. Keeps only open invocations.

use crate::annotations::ServiceKind;
use crate::automaton::Automaton;
use crate::binding::Binding;
use crate::ledger::{Invocation, Ledger, ServiceId, ServiceMachineCounts};
use crate::meter::{Booked, Meter};
use crate::symbols::KernelSymbols;
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::walk::{Observer, Piece, Wants};
use trace::{CpuId, RecordingHeader, Task, Translation};

/// Receives stretches and the ends of invocations.
pub trait StretchTrack {
    /// The instructions of the recording before `end` that no stretch had belong to this
    /// invocation; `None` for user mode.
    fn stretch(&mut self, end: u64, invocation: Option<u64>);
    /// An invocation ended; nothing more belongs to it.
    fn ended(&mut self, invocation: u64, kind: ServiceKind, name: &str);
}

/// The stretches of a recording, as an observer of it.
pub struct StretchesWalk<'a, T>(Automaton<'a, StretchMeter<T>>);

impl<'a, T: StretchTrack> StretchesWalk<'a, T> {
    /// Reports to `track`.
    pub fn new(symbols: &'a KernelSymbols, binding: &'a Binding, track: T) -> StretchesWalk<'a, T> {
        let meter = StretchMeter { track, booked: 0, next: 0, current: 0, open: vec![Vec::new()] };
        StretchesWalk(Automaton::new(binding, symbols, meter))
    }

    /// The receiver.
    pub fn track_mut(&mut self) -> &mut T {
        &mut self.0.meter_mut().track
    }

    /// Ends what is open at the recording's end.
    pub fn finish(self) -> T {
        self.0.finish().1.track
    }
}

impl<T: StretchTrack> Observer for StretchesWalk<'_, T> {
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
        self.0.piece(piece)
    }
}

struct StretchMeter<T> {
    track: T,
    booked: u64,
    next: u64,
    current: usize,
    /// By task: the numbers of its open invocations, outermost first.
    open: Vec<Vec<u64>>,
}

impl<T> StretchMeter<T> {
    fn goes_on(&mut self, task: usize) {
        if self.open.len() <= task {
            self.open.resize_with(task + 1, Vec::new);
        }
        self.current = task;
    }
}

impl<T: StretchTrack> Meter for StretchMeter<T> {
    fn define(&mut self, _: &Translation, _: &TranslatedCode) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn executed(&mut self, _: u32) {}

    fn left(&mut self, _: u32, _: u32) {}

    fn take(&mut self) -> &[ServiceMachineCounts] {
        &[]
    }

    fn switched(&mut self, task: usize) {
        self.goes_on(task);
    }

    fn turned_to(&mut self, _: CpuId, task: usize) {
        self.goes_on(task);
    }

    fn opened(&mut self, _: usize) {
        self.open[self.current].push(self.next);
        self.next += 1;
    }

    fn settled(&mut self, task: usize, service: ServiceId, _: &Invocation, ledger: &Ledger) {
        if let Some(ended) = self.open.get_mut(task).and_then(Vec::pop) {
            let account = &ledger.accounts[service.0 as usize];
            self.track.ended(ended, account.kind, &account.name);
        }
    }

    fn booked(&mut self, instructions: u64, under: Booked) {
        self.booked += instructions;
        let invocation = match under {
            Booked::User(_) => None,
            Booked::Open(_) => self.open[self.current].last().copied(),
        };
        self.track.stretch(self.booked, invocation);
    }
}
