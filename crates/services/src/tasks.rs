//! What the automaton knows about a task: its open services, its open calls, its clocks.
//!
//! Times are in nanoseconds of the guest's clock. An instruction takes one nanosecond. The clock
//! also counts halted nanoseconds.

use crate::annotations::ServiceKind;
use crate::ledger::{ServiceId, ServiceMachineCounts};

/// What closes an open service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosedBy {
    /// The return from an interruption.
    InterruptReturn,
    /// The return of the function: the task has fewer open calls than at the function's begin.
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

/// A task becomes able to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskWake {
    /// When, in nanoseconds of the guest's clock.
    pub at: u64,
    /// The task that executed then.
    pub by: usize,
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
    /// The service for its user mode.
    pub user: Option<ServiceId>,
    pub open: Vec<OpenService>,
    /// The return addresses of open calls.
    pub calls: Vec<u64>,
    /// While the task runs: the time of the switch to it. Otherwise: the time of the switch away
    /// from it.
    pub since: u64,
    /// What made it able to run, if it has become so since it last ran.
    pub woken: Option<TaskWake>,
    pub ran: u64,
    pub blocked: u64,
    pub waiting: u64,
    /// Whether its current work began before the recording.
    pub unknown: bool,
    /// Its clocks when it was last switched away from.
    pub last: TaskClocks,
    /// Whether it was switched to after its base service began.
    pub switched: bool,
}
