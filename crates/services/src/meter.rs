//! Meters, which count more than instructions while services run.
//!
//! A meter takes the executions in their order, and gives the counts since the last call of `take`.
//! It knows no services.

use crate::annotations::ServiceKind;
use crate::caches::Machines;
use crate::ledger::{Account, Invocation, Ledger, ServiceId, ServiceMachineCounts};
use crate::tasks::TaskWake;
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::data::DataWish;
use execution::sampling::groups::SampledGroups;
use execution::sampling::ratios::GroupSlots;
use execution::walk::{Piece, PieceData};
use trace::{CpuId, Task, Translation};

pub(super) trait Meter {
    /// Whether it uses the data accesses of several CPUs.
    const DATA_OF_SEVERAL_CPUS: bool = false;
    /// Whether it uses the control flow of a piece.
    const NEEDS_CONTROL: bool = false;
    /// Which data accesses it uses.
    fn wish(&self) -> Option<DataWish> {
        None
    }
    /// Adds the next translation block.
    fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> Result<()>;
    /// The simulated machines, if any. They receive pieces and turns.
    fn machines(&mut self) -> Option<&mut Machines> {
        None
    }
    /// The translation block that was added last belongs to this function.
    fn belongs_to(&mut self, _function: Option<u32>) {}
    /// The slots of functions on the core of the first machine, by their number. `instructions`:
    /// those that each function ran. `None` without a core.
    fn function_slots(&self, _instructions: &[u64]) -> Option<Vec<GroupSlots>> {
        None
    }
    /// Adds the next tasks.
    fn define_tasks(&mut self, _tasks: &[Task]) {}
    /// The executions of this piece come next, with these accesses.
    fn piece(&mut self, piece: &Piece<'_>, data: Option<&PieceData<'_>>) -> Result<()> {
        match (self.machines(), data) {
            (Some(machines), Some(data)) => machines.accesses(piece.codes, data),
            _ => Ok(()),
        }
    }
    /// Why the executions of the last piece could not be counted.
    ///
    /// # Errors
    /// There is more code than a simulation can number.
    fn failure(&mut self) -> Result<()> {
        Ok(())
    }
    /// The next execution, before the services change because of it. [`Meter::executed`] or
    /// [`Meter::left`] follows. Fast-path executions skip this callback.
    #[inline]
    fn comes(&mut self, _translation: u32, _reached: Option<u32>) {}
    fn executed(&mut self, translation: u32);
    fn left(&mut self, translation: u32, instructions: u32);
    /// The recording ends. A last [`Meter::take`] follows.
    fn finish(&mut self) {}
    /// The counts of each machine since the last call.
    fn take(&mut self) -> &[ServiceMachineCounts];
    /// Puts estimates into the totals of all services. Returns how far they may be off, for each
    /// machine; nothing for a machine that was not simulated by samples.
    fn estimate(&mut self, _accounts: &mut [Account]) -> Vec<Option<SampledGroups>> {
        Vec::new()
    }

    /// The current task's last execution ended with a call.
    #[inline]
    fn called(&mut self) {}
    /// The current task has only `calls` open calls left.
    fn unwound(&mut self, _calls: usize) {}
    /// Another task is the current task. Tasks are numbered from 0.
    fn switched(&mut self, _task: usize) {}
    /// This CPU executes from now on, and runs this task. [`Meter::booked`] has been called before.
    fn turned_to(&mut self, cpu: CpuId, task: usize) {
        if let Some(machines) = self.machines() {
            machines.turn_to(cpu);
        }
        self.switched(task);
    }
    /// The current task did not run until now: `at`, in nanoseconds
    /// of the guest's clock. `wake`: what made it able to run, if the recording says so.
    fn resumed(&mut self, _task: usize, _at: u64, _wake: Option<TaskWake>) {}
    /// The last switch was to a new task, which has this number: the kernel reused the address of a
    /// dead task.
    fn replaced(&mut self, task: usize) {
        self.switched(task);
    }
    /// The last switch went from this task, if the recording says which one ran, to the task with
    /// the number `to` in the recording. [`Meter::named`] has been called before.
    fn switches(&mut self, _from: Option<usize>, _to: usize) {}
    /// The current task has this name from now on. `id`: its number in the recording.
    fn named(&mut self, _task: usize, _id: usize, _name: &str) {}
    /// A service began in the current task, which has `calls` open calls.
    fn opened(&mut self, _calls: usize) {}
    /// The service that began last is an interrupt. `since`: the instructions since the interrupt
    /// before, on the same CPU.
    fn interrupted(&mut self, _since: Option<u64>) {}
    /// The innermost open service of a task ended. `service` is its final name.
    fn settled(
        &mut self,
        _task: usize,
        _service: ServiceId,
        _invocation: &Invocation,
        _ledger: &Ledger,
    ) {
    }
    /// The processor was halted. Instructions booked so far came before the halt; the current
    /// task's `later` innermost open services began after it.
    fn halted(&mut self, _nanoseconds: u64, _later: usize) {}
    /// The `later` innermost open services of a task that runs on another CPU began after the halt.
    fn began_later(&mut self, _task: usize, _nanoseconds: u64, _later: usize) {}
    /// Instructions were added to the innermost open service, or to user mode, before either ends.
    /// [`Meter::take`] has been called before.
    fn booked(&mut self, _instructions: u64, _under: Booked) {}
    /// The counts of the last [`Meter::take`] belong to this service of user mode, whose
    /// instructions were added before.
    fn lagged(&mut self, _user: ServiceId) {}
    /// The stay in user mode to which instructions were added last has ended.
    fn stayed(&mut self) {}
}

/// Where instructions were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Booked {
    /// The current task's innermost open service.
    Open(ServiceKind),
    /// This service, which is user mode.
    User(ServiceId),
}

/// Counts nothing beyond instructions.
pub(super) struct NoMachine;

impl Meter for NoMachine {
    fn define(&mut self, _: &Translation, _: &TranslatedCode) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn executed(&mut self, _: u32) {}

    fn left(&mut self, _: u32, _: u32) {}

    #[inline]
    fn take(&mut self) -> &[ServiceMachineCounts] {
        &[]
    }
}

impl Meter for Machines {
    fn wish(&self) -> Option<DataWish> {
        Some(self.wish())
    }

    fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> Result<()> {
        self.define(translation, code)
    }

    fn machines(&mut self) -> Option<&mut Machines> {
        Some(self)
    }

    #[inline]
    fn executed(&mut self, translation: u32) {
        self.run(translation, None);
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.run(translation, Some(instructions));
    }

    fn take(&mut self) -> &[ServiceMachineCounts] {
        self.take()
    }
}
