//! What the walk over invocations reports, and to whom.
//!
//! Input: nothing. Output: plain values, and the trait of their receiver.

use crate::annotations::ServiceKind;
use crate::ledger::{InvocationTimes, ServiceMachineCounts};
use crate::table;
use sim::MachineModel;
use trace::{CpuId, Task};

/// An invocation of a function that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionCall {
    /// Its number, in the order in which invocations begin.
    pub id: u64,
    /// The invocation that called it, and its function. `None` for the first function of a service.
    pub caller: Option<(u64, u32)>,
    /// The number of its function.
    pub function: u32,
    /// The address of its first recorded instruction.
    pub address: u64,
    /// Its first recorded instruction is that of the function.
    pub entered: bool,
    /// The number of functions of its service below it.
    pub depth: u32,
    /// The service invocation in which it ran.
    pub service: Option<u64>,
    /// The CPU on which it began.
    pub cpu: CpuId,
    /// The task in which it began: its number in the recording, once it is known.
    pub task: Option<u32>,
    /// Where it began.
    pub start: u64,
    /// Where it ended. `None`: the recording ended before.
    pub end: Option<u64>,
    /// Its own instructions.
    pub own: u64,
    /// Its own instructions and those of the functions that it called, without services that began
    /// meanwhile.
    pub inclusive: u64,
}

/// An invocation of a service that has ended, or a stay in user mode.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceCall {
    /// Its number, in the order in which invocations begin.
    pub id: u64,
    /// The invocation within which it began.
    pub parent: Option<u64>,
    /// The kind of the service.
    pub kind: ServiceKind,
    /// The name of the service; for user mode, of the task.
    pub name: String,
    /// The number of open services of its task when it began.
    pub depth: u32,
    /// The CPU on which it began.
    pub cpu: CpuId,
    /// The task in which it began: its number in the recording, once it is known.
    pub task: Option<u32>,
    /// Where it began.
    pub start: u64,
    /// Where it ended. `None`: the recording ended before.
    pub end: Option<u64>,
    /// Its own instructions.
    pub instructions: u64,
    /// Its times, in nanoseconds of the guest's clock.
    pub times: InvocationTimes,
    /// Its own counts on the first machine.
    pub machine: Option<ServiceMachine>,
}

/// The counts of a service invocation on a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceMachine {
    /// Cycles.
    pub cycles: f64,
    /// Misses of the L1I.
    pub l1i: u64,
    /// Misses of the L1D and of the L2. `None` without data accesses, or when the machine describes
    /// no data cache.
    pub data: Option<(u64, u64)>,
}

/// A CPU goes from a task to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskSwitch {
    /// Where it goes.
    pub position: u64,
    /// The CPU.
    pub cpu: CpuId,
    /// The number of the task in the recording. `None`: the recording does not say which task ran.
    pub from: Option<u32>,
    /// The number of the next task.
    pub to: u32,
}

impl ServiceMachine {
    /// The sum of both.
    pub(crate) fn and(self, more: ServiceMachine) -> ServiceMachine {
        ServiceMachine {
            cycles: self.cycles + more.cycles,
            l1i: self.l1i + more.l1i,
            data: self.data.zip(more.data).map(|(a, b)| (a.0 + b.0, a.1 + b.1)),
        }
    }

    /// The counts of an invocation with this number of instructions. `counts`: those of each
    /// machine, `machine` first.
    pub(crate) fn of(
        machine: &MachineModel,
        instructions: u64,
        counts: &[ServiceMachineCounts],
    ) -> ServiceMachine {
        let none = ServiceMachineCounts::default();
        let counts = counts.first().unwrap_or(&none);
        ServiceMachine {
            cycles: table::cycles(machine, instructions, counts),
            l1i: counts.l1i_misses,
            data: counts.memory.map(|it| (it.l1d.total(), it.l2i.total() + it.l2d.total())),
        }
    }
}

/// Receives invocations as they end, and switches.
pub trait InvocationTrack {
    /// Whether it wants invocations of functions.
    fn wants_calls(&self) -> bool;
    /// Whether it wants invocations of services.
    fn wants_services(&self) -> bool;
    /// A function that ran has this name. Functions are numbered from 0.
    fn function(&mut self, name: &str);
    /// Tasks that may run from now on, by their numbers in the recording.
    fn tasks(&mut self, tasks: &[Task]);
    /// An invocation of a function ended.
    fn call(&mut self, call: &FunctionCall);
    /// An invocation of a service ended.
    fn service(&mut self, service: &ServiceCall);
    /// A task follows another one.
    fn switched(&mut self, switch: &TaskSwitch);
    /// Everything that is open at this position has ended when the recording has.
    fn passes(&mut self, position: u64);
    /// Whether nothing more is wanted.
    fn has_ended(&self) -> bool;
}
