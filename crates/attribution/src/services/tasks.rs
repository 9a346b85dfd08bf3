//! What the automaton remembers of a task: its open services, its open calls, its clocks.
//!
//! Times are of the guest's clock, in nanoseconds: an instruction is one, and so is each in which
//! the processor was halted.

use crate::services::annotations::Kind;
use crate::services::ledger::{MachineCounts, ServiceId};

/// What closes an open service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The return from an interruption.
    InterruptReturn,
    /// The return of the function: fewer open calls than there were.
    Return,
    /// User mode only.
    UserMode,
}

/// An open service.
#[derive(Clone, Debug)]
pub struct Open {
    pub service: ServiceId,
    pub kind: Kind,
    pub until: Until,
    /// Open calls when it began.
    pub calls: usize,
    pub began: Moment,
    pub instructions: u64,
    pub machines: Vec<MachineCounts>,
}

/// A task's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moment {
    pub clock: u64,
    /// In instructions.
    pub ran: u64,
    pub blocked: u64,
    pub waiting: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Task {
    pub name: String,
    /// Its user mode.
    pub user: Option<ServiceId>,
    pub open: Vec<Open>,
    /// Return addresses of open calls.
    pub calls: Vec<u64>,
    /// When it was switched to, while it runs; when it was switched away from, while it does not.
    pub since: u64,
    /// Instructions of the recording when it was switched to.
    pub runs_since: u64,
    /// When it became able to run, while it does not.
    pub woken: Option<u64>,
    pub ran: u64,
    pub blocked: u64,
    pub waiting: u64,
    /// What it does was not seen to begin.
    pub unknown: bool,
    /// Its clocks when it was switched away from last.
    pub last: Moment,
    /// It has been switched to since the innermost service began.
    pub switched: bool,
}
