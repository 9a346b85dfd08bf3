//! What the automaton knows about a task: its open services, its open calls, its clocks.
//!
//! Times are in nanoseconds of the guest's clock. An instruction takes one; halted nanoseconds
//! count, too.

use crate::annotations::ServiceKind;
use crate::ledger::{ServiceId, ServiceMachineCounts};

/// What closes an open service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosedBy {
    /// The return from an interruption.
    InterruptReturn,
    /// The return of the function: fewer open calls than at its begin.
    Return,
    /// User mode only.
    UserMode,
}

/// An open service.
#[derive(Clone, Debug)]
pub(super) struct OpenService {
    pub service: ServiceId,
    pub kind: ServiceKind,
    pub until: ClosedBy,
    /// The number of open calls when the service began.
    pub calls: usize,
    pub began: TaskClocks,
    pub instructions: u64,
    pub machines: Vec<ServiceMachineCounts>,
}

/// A task's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TaskClocks {
    pub clock: u64,
    /// In instructions.
    pub ran: u64,
    pub blocked: u64,
    pub waiting: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct TaskState {
    pub name: String,
    /// The service of its user mode.
    pub user: Option<ServiceId>,
    pub open: Vec<OpenService>,
    /// The return addresses of open calls.
    pub calls: Vec<u64>,
    /// While it runs: when it was switched to. Otherwise: when it was switched away from.
    pub since: u64,
    /// When it became able to run, while it does not run.
    pub woken: Option<u64>,
    pub ran: u64,
    pub blocked: u64,
    pub waiting: u64,
    /// Its current work began before the recording.
    pub unknown: bool,
    /// Its clocks when it was last switched away from.
    pub last: TaskClocks,
    /// It has been switched to since the innermost service began.
    pub switched: bool,
}
