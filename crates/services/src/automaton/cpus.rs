//! The state of each CPU of the guest: what it executes, and what its next execution shows.
//!
//! Takes the turns of the CPUs; gives the automaton the state of the one that executes. The clock
//! is that of the guest, which counts the instructions of all CPUs.

use super::Automaton;
use crate::binding::CalleeMeaning;
use crate::ledger::Invocation;
use crate::meter::Meter;
use trace::CpuId;

/// What the next translation block will show about the end of the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Awaited {
    #[default]
    Nothing,
    Return,
    /// Holds the address behind the returning instruction. `sync_core` returns to it to serialise,
    /// without an interruption.
    InterruptReturn(u64),
}

/// What the automaton knows about a CPU.
#[derive(Clone, Debug)]
pub(super) struct CpuState {
    /// Index of the running task.
    pub current: usize,
    /// The recording's number of the running task.
    pub running: usize,
    pub in_user_mode: bool,
    /// Flags that need no attention in the current state; see `TranslationWord`.
    pub usual: u32,
    pub awaited: Awaited,
    pub callee: Option<(CalleeMeaning, u32)>,
    /// Its own executed instructions when the last interrupt began.
    pub last_interrupt: Option<u64>,
    /// Its own executed instructions when the running task was switched to.
    pub runs_since: u64,
    /// The stay in user mode so far, in earlier turns.
    pub stay: Invocation,
    /// Instructions that other CPUs executed before its turn.
    elsewhere: u64,
    /// The clock when its last turn ended.
    left_at: u64,
    /// It has executed nothing since a halt, or since the recording began.
    is_halted: bool,
}

impl Default for CpuState {
    fn default() -> CpuState {
        CpuState {
            current: 0,
            running: 0,
            in_user_mode: false,
            usual: 0,
            awaited: Awaited::Nothing,
            callee: None,
            last_interrupt: None,
            runs_since: 0,
            stay: Invocation::default(),
            elsewhere: 0,
            left_at: 0,
            is_halted: true,
        }
    }
}

/// The CPUs that do not execute.
#[derive(Debug, Default)]
pub(super) struct ParkedCpus {
    /// By number. The entry of the executing CPU has no meaning.
    states: Vec<CpuState>,
    /// The number of the executing CPU.
    executing: usize,
}

impl ParkedCpus {
    fn parked(&self) -> impl Iterator<Item = &CpuState> {
        let others = self.states.iter().enumerate();
        others.filter(|(number, _)| *number != self.executing).map(|(_, state)| state)
    }
}

impl<M: Meter> Automaton<'_, M> {
    /// The executing CPU's own instructions.
    #[inline]
    pub(super) fn executed(&self) -> u64 {
        self.clock - self.cpu.elsewhere
    }

    /// This CPU executes from now on.
    pub(super) fn turn_to(&mut self, cpu: CpuId) {
        let number = usize::from(cpu.0);
        if number != self.cpus.executing {
            self.book_turn();
            let known = self.cpus.states.len().max(number.max(self.cpus.executing) + 1);
            self.cpus.states.resize(known, CpuState::default());
            self.cpu.left_at = self.clock;
            std::mem::swap(&mut self.cpu, &mut self.cpus.states[self.cpus.executing]);
            std::mem::swap(&mut self.cpu, &mut self.cpus.states[number]);
            self.cpus.executing = number;
            self.cpu.elsewhere += self.clock - self.cpu.left_at;
            self.meter.turned_to(cpu, self.cpu.current);
        }
        self.cpu.is_halted = false;
    }

    /// Whether a CPU runs the task.
    pub(super) fn runs(&self, task: usize) -> bool {
        self.cpu.current == task || self.cpus.parked().any(|cpu| cpu.current == task)
    }

    /// The executing CPU halts. The clock stands still when all CPUs are halted.
    pub(super) fn halt(&mut self) {
        self.cpu.is_halted = true;
        if self.cpus.parked().all(|cpu| cpu.is_halted) {
            self.halts.halt(self.clock);
        }
    }

    /// The executing CPU executes again after a halt.
    #[inline]
    pub(super) fn not_halted(&mut self) {
        self.cpu.is_halted = false;
    }

    /// Indices of the tasks that run on other CPUs.
    pub(super) fn tasks_elsewhere(&self) -> Vec<usize> {
        self.cpus.parked().map(|cpu| cpu.current).collect()
    }

    /// Closes, at the end of the recording, the services of the tasks that run on other CPUs.
    pub(super) fn close_on_other_cpus(&mut self) {
        let last = self.cpus.executing;
        for number in (0..self.cpus.states.len()).filter(|number| *number != last) {
            self.turn_to(CpuId(number as u8));
            self.book();
            self.close_all(self.cpu.current);
        }
        self.turn_to(CpuId(last as u8));
    }
}
