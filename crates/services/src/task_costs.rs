//! What each task has cost so far: instructions, and cycles and misses on a machine.
//!
//! Takes the executions in their order, and the task that ran; gives totals by task. Both modes
//! count, and interrupts that came meanwhile. Knows no services.

use crate::caches::Machines;
use crate::invocations::ServiceMachine;
use anyhow::Result;
use execution::code::TranslatedCode;
use execution::data::DataWish;
use execution::walk::PieceData;
use sim::MachineModel;
use std::collections::HashMap;
use trace::{CpuId, Translation};

/// What a task has cost since the recording began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TaskCost {
    /// Its instructions.
    pub instructions: u64,
    /// Its counts on the machine, if there is one.
    pub machine: Option<ServiceMachine>,
}

/// The costs of all tasks.
pub struct TaskCosts {
    machines: Machines,
    machine: Option<MachineModel>,
    /// By number of the task; `None` for one that is not known.
    tasks: HashMap<Option<u32>, TaskCost>,
    /// Instructions since the last booking.
    instructions: u64,
}

impl TaskCosts {
    /// `machine`: what to simulate.
    pub fn new(machine: Option<&MachineModel>) -> TaskCosts {
        TaskCosts {
            machines: Machines::new(machine.map_or(&[], std::slice::from_ref)),
            machine: machine.cloned(),
            tasks: HashMap::new(),
            instructions: 0,
        }
    }

    /// Which data accesses the machine needs, if there is one.
    pub fn wish(&self) -> Option<DataWish> {
        self.machine.as_ref().map(|_| self.machines.wish())
    }

    /// Adds the next translation block.
    ///
    /// # Errors
    /// There is more code than a simulation can number.
    pub fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> Result<()> {
        self.machines.define(translation, code)
    }

    /// The executions of this piece come next, with these accesses.
    ///
    /// # Errors
    /// There is more code than a simulation can number.
    pub fn accesses(&mut self, codes: &[TranslatedCode], data: &PieceData<'_>) -> Result<()> {
        match self.machine {
            Some(_) => self.machines.accesses(codes, data),
            None => Ok(()),
        }
    }

    /// This CPU executes from now on. What ran before must be booked.
    pub fn turn_to(&mut self, cpu: CpuId) {
        self.machines.turn_to(cpu);
    }

    /// A translation block ran, or its first instructions if it was `left`.
    #[inline]
    pub fn ran(&mut self, translation: u32, left: Option<u32>, instructions: u32) {
        self.instructions += u64::from(instructions);
        self.machines.run(translation, left);
    }

    /// This task has run since the last booking. Returns what it has cost.
    pub fn book(&mut self, task: Option<u32>) -> TaskCost {
        let instructions = std::mem::take(&mut self.instructions);
        let cost = self.tasks.entry(task).or_default();
        cost.instructions += instructions;
        if let Some(model) = &self.machine {
            let now = ServiceMachine::of(model, instructions, self.machines.take());
            cost.machine = Some(match cost.machine {
                Some(before) => before.and(now),
                None => now,
            });
        }
        *cost
    }
}
