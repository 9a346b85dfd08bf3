//! What is counted besides instructions while services run.
//!
//! Takes the executions in their order; gives, whenever it is asked, what was counted since it was asked last. Knows no services.

use crate::replay::data::Stream;
use crate::services::ledger::MachineCounts;
use anyhow::Result;
use trace::{Patterns, Task, Translation};

pub trait Meter {
    /// Whether it makes anything of data accesses.
    const TAKES_DATA: bool = false;
    /// Learns the next translation.
    fn define(&mut self, translation: &Translation) -> Result<()>;
    fn define_tasks(&mut self, _: &[Task]) {}
    /// What the words accessed that will be executed next.
    fn accesses(&mut self, _: &[u32], _: &mut Stream<'_>, _: &Patterns) -> Result<()> {
        Ok(())
    }
    /// The accesses of a chunk are done with.
    fn accesses_end(&mut self, _: Stream<'_>) {}
    fn executed(&mut self, translation: u32);
    fn left(&mut self, translation: u32, instructions: u32);
    /// What each machine counted since the last call.
    fn take(&mut self) -> &[MachineCounts];
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
