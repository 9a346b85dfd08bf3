//! The steps of all CPUs that were read and that not every machine has made.
//!
//! A *step* is one execution of a translation block: its fetches, its loads and its stores. The
//! last execution of a turn is two steps: its loads and stores come in their place, its fetches
//! when the CPU goes on, because only then is the fragment known.
//!
//! ```text
//! CPU 0   [stretch][stretch][stretch] …        a stretch: steps of one CPU, with no step of
//! CPU 1   [stretch] …                          another CPU between them in the recording
//! ```
//!
//! Input: stretches in the order of the recording. This module decides no order.

use crate::data::DataAccess;
use crate::flow::FragmentId;
use sim::Mode;
use std::collections::VecDeque;
use trace::{CpuCount, CpuId};

/// The largest number of CPUs.
pub(crate) const MOST_CPUS: usize = CpuCount::MOST as usize;

/// A step of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is fetched. `None`: the fetches come when the CPU goes on.
    pub fragment: Option<FragmentId>,
    /// Whether a translation block begins to execute. Otherwise the step has the fetches of an
    /// execution that began before.
    pub is_execution: bool,
    /// The mode in which the CPU makes the step.
    pub mode: Mode,
    /// The recorded loads.
    pub loads: u32,
    /// The recorded stores.
    pub stores: u32,
    /// The number of [`Stretch::accesses`] that belong to this step.
    pub accesses: u32,
}

impl Step {
    /// The memory that the step takes.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        bytes(1, self.accesses.into())
    }
}

fn bytes(steps: u64, accesses: u64) -> u64 {
    steps * size_of::<Step>() as u64 + accesses * size_of::<DataAccess>() as u64
}

/// Why a step must come behind a step of another CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderReason {
    /// It loads what the other step stored.
    Value,
    /// It stores what the other step loaded or stored before.
    Order,
    /// The CPU was halted, and everything that other CPUs did until it went on comes first.
    Halt,
}

/// A step must come behind a step of another CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    /// The index of the step in its stretch.
    pub step: u32,
    /// The other CPU.
    pub on: CpuId,
    pub reason: OrderReason,
    /// How many steps the other CPU must have made.
    pub number: u64,
}

/// Steps of one CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The CPU.
    pub cpu: CpuId,
    /// The steps.
    pub steps: Vec<Step>,
    /// The accesses of all steps, one step after the other.
    pub accesses: Vec<DataAccess>,
    /// The steps, by index, before which the CPU was halted; ascending.
    pub(crate) woken: Vec<u32>,
    /// By step, ascending.
    pub(crate) dependencies: Vec<Dependency>,
}

impl Stretch {
    pub(crate) fn new(cpu: CpuId) -> Stretch {
        Stretch {
            cpu,
            steps: Vec::new(),
            accesses: Vec::new(),
            woken: Vec::new(),
            dependencies: Vec::new(),
        }
    }

    /// The memory that the steps take.
    pub(crate) fn bytes(&self) -> u64 {
        bytes(self.steps.len() as u64, self.accesses.len() as u64)
    }
}

/// CPUs, by bits.
pub(crate) type CpuSet = u8;

pub(crate) fn bit(cpu: usize) -> CpuSet {
    1 << cpu
}

/// The stretches of a CPU.
#[derive(Clone, Debug, Default)]
struct StretchQueue {
    /// The number of the first of `stretches`: how many came before it.
    first: u64,
    stretches: VecDeque<Stretch>,
}

/// The steps of all CPUs that not every machine has made.
#[derive(Clone, Debug)]
pub struct Window {
    queues: Vec<StretchQueue>,
    bytes: u64,
    limit: u64,
    halted: CpuSet,
    ended: bool,
}

impl Window {
    /// A window for this number of CPUs. A machine may leave steps of up to `limit` bytes unmade.
    pub(crate) fn new(cpus: CpuCount, limit: u64) -> Window {
        Window {
            queues: vec![StretchQueue::default(); cpus.get().into()],
            bytes: 0,
            limit,
            halted: 0,
            ended: false,
        }
    }

    /// The number of CPUs.
    pub(crate) fn cpus(&self) -> usize {
        self.queues.len()
    }

    /// The bytes of all steps that were ever appended.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes of steps that a machine may leave unmade.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// The CPUs that are halted behind their last step here. Whatever such a CPU does next comes
    /// behind all steps here.
    pub(crate) fn halted(&self) -> CpuSet {
        self.halted
    }

    /// Whether no step will come.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// A CPU's stretch by its number; `None`: it was not read yet, or was forgotten.
    #[inline]
    pub(crate) fn stretch(&self, cpu: usize, number: u64) -> Option<&Stretch> {
        let queue = self.queues.get(cpu)?;
        queue.stretches.get(number.checked_sub(queue.first)? as usize)
    }

    /// Appends stretches that have steps and dependencies. `halted`: behind them.
    pub(crate) fn append(&mut self, stretches: impl Iterator<Item = Stretch>, halted: CpuSet) {
        for stretch in stretches {
            if let Some(queue) = self.queues.get_mut(usize::from(stretch.cpu.0)) {
                self.bytes += stretch.bytes();
                queue.stretches.push_back(stretch);
            }
        }
        self.halted = halted;
    }

    /// No step will come.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Drops the stretches of a CPU before that with this number.
    pub(crate) fn forget(&mut self, cpu: usize, before: u64) {
        let Some(queue) = self.queues.get_mut(cpu) else { return };
        let passed = before.saturating_sub(queue.first).min(queue.stretches.len() as u64);
        queue.stretches.drain(..passed as usize);
        queue.first += passed;
    }
}
