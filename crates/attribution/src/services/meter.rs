//! What is counted besides instructions while services run.
//!
//! Takes the executions in their order; gives, whenever it is asked, what was counted since it was
//! asked last. Knows no services.

use crate::services::annotations::Kind;
use crate::services::ledger::{Invocation, Ledger, MachineCounts, ServiceId};
use crate::services::machines::Machines;
use anyhow::Result;
use execution::data::AccessStream;
use trace::{AccessPatterns, Task, Translation};

pub trait Meter {
    /// Whether it makes anything of data accesses.
    const TAKES_DATA: bool = false;
    /// Learns the next translation.
    fn define(&mut self, translation: &Translation) -> Result<()>;
    /// The machines that run what runs, if there are any: they are handed tasks and data accesses.
    fn machines(&mut self) -> Option<&mut Machines> {
        None
    }
    fn define_tasks(&mut self, tasks: &[Task]) {
        if let Some(machines) = self.machines() {
            machines.define_tasks(tasks);
        }
    }
    /// What the words accessed that will be executed next.
    fn accesses(
        &mut self,
        words: &[u32],
        stream: &mut AccessStream<'_>,
        patterns: &AccessPatterns,
    ) -> Result<()> {
        match self.machines() {
            Some(machines) => machines.accesses(words, stream, patterns),
            None => Ok(()),
        }
    }
    /// The accesses of a chunk are done with.
    fn accesses_end(&mut self, stream: AccessStream<'_>) {
        if let Some(machines) = self.machines() {
            machines.accesses_end(stream);
        }
    }
    /// What is executed next, which may come before the services know of it; [`Meter::executed`] or
    /// [`Meter::left`] follows. Of most executions only they are told.
    #[inline]
    fn comes(&mut self, _translation: u32, _reached: Option<u32>) {}
    fn executed(&mut self, translation: u32);
    fn left(&mut self, translation: u32, instructions: u32);
    /// What each machine counted since the last call.
    fn take(&mut self) -> &[MachineCounts];

    /// The current task's last execution called.
    #[inline]
    fn called(&mut self) {}
    /// Of the current task's open calls only so many are left.
    fn unwound(&mut self, _calls: usize) {}
    /// Another task is the current one; tasks are numbered from 0.
    fn switched(&mut self, _task: usize) {}
    /// The task that was switched to last is another than it seemed, with this number: the kernel
    /// has used a dead task's address again.
    fn replaced(&mut self, task: usize) {
        self.switched(task);
    }
    /// What the current task is called from now on; `id`: its number in the recording.
    fn named(&mut self, _task: usize, _id: usize, _name: &str) {}
    /// A service began in the current task, which has so many open calls.
    fn opened(&mut self, _calls: usize) {}
    /// The innermost open service of a task is over, and this it was.
    fn settled(
        &mut self,
        _task: usize,
        _service: ServiceId,
        _invocation: &Invocation,
        _ledger: &Ledger,
    ) {
    }
    /// The processor was halted so many nanoseconds: what was booked last came before, the current
    /// task's `later` innermost open services behind it.
    fn halted(&mut self, _nanoseconds: u64, _later: usize) {}
    /// So many instructions went to the innermost open service, or to user mode; before the one or
    /// the other ends, and after `take`.
    fn booked(&mut self, _instructions: u64, _under: Booked) {}
}

/// Where instructions went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Booked {
    /// The current task's innermost open service.
    Open(Kind),
    /// This service, which is user mode.
    User(ServiceId),
}

/// Nothing but instructions.
pub struct NoMachine;

impl Meter for NoMachine {
    fn define(&mut self, _: &Translation) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn executed(&mut self, _: u32) {}

    fn left(&mut self, _: u32, _: u32) {}

    #[inline]
    fn take(&mut self) -> &[MachineCounts] {
        &[]
    }
}

impl Meter for Machines {
    const TAKES_DATA: bool = true;

    fn define(&mut self, translation: &Translation) -> Result<()> {
        self.define(translation)
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

    fn take(&mut self) -> &[MachineCounts] {
        self.take()
    }
}
