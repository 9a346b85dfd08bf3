//! Turns of the recording become stretches of steps.
//!
//! Input: for each turn of a CPU, the fragments that ran, and the executions with their accesses.
//! Output: stretches, and when a CPU was halted. This module decides no order.
//!
//! A CPU is halted after an `hlt`. QEMU gives each CPU that is not halted a turn in a fixed
//! rotation. So a CPU is also halted when another one had two turns since its own last turn.

use super::window::{CpuSet, MOST_CPUS, Step, Stretch, bit};
use crate::data::Execution;
use crate::flow::{ExecutionFlow, FragmentExit, FragmentId};
use crate::walk::PairedAccesses;
use sim::Mode;
use trace::{CpuId, Translation, TranslationId};

/// The turn of a CPU, and the accesses that belong to it.
#[derive(Clone, Copy)]
pub struct DataTurn<'a> {
    /// Knows what a fragment is.
    pub flow: &'a ExecutionFlow,
    /// The accesses by fragment.
    pub paired: &'a PairedAccesses<'a>,
}

/// Follows the turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    /// By translation: whether its last instruction is `hlt`.
    halts: Vec<bool>,
    /// The CPU whose turn it is, once one has made a step.
    current: Option<CpuId>,
    /// By CPU: the turns that each other one began since the CPU's own last turn.
    since: [[u8; MOST_CPUS]; MOST_CPUS],
    halted: CpuSet,
    ended: bool,
}

const HLT: &[u8] = &[0xf4];

impl Turns {
    /// Learns translations. They come in the order of their ids.
    pub(crate) fn define(&mut self, translations: &[Translation]) {
        let halts = |translation: &Translation| {
            translation.code_by_instruction().last().is_some_and(|(_, code)| code == HLT)
        };
        self.halts.extend(translations.iter().map(halts));
    }

    /// The recording has ended. What follows are the last fetches of each CPU, and no turns.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// The CPUs that are halted.
    pub(crate) fn halted(&self) -> CpuSet {
        self.halted
    }

    /// The steps of a turn, or of a part of it.
    pub(crate) fn stretch(
        &mut self,
        cpu: CpuId,
        fragments: &[FragmentId],
        turn: DataTurn<'_>,
    ) -> Stretch {
        let mut stretch = Stretch::new(cpu);
        let mut data = turn.paired.by_fragment();
        for &id in fragments {
            let fragment = turn.flow.fragments[id.0 as usize];
            let late = matches!(fragment.exit, FragmentExit::LateNext | FragmentExit::LateTaken);
            let execution = if late { None } else { data.of_fragment() };
            let mode = turn.flow.codes[fragment.translation.0 as usize].mode();
            self.step(&mut stretch, Some(id), mode, execution.map(|(execution, _)| execution));
        }
        for (execution, _) in data.take(turn.paired.rest) {
            let code = turn.flow.codes.get(execution.translation.0 as usize);
            let mode = code.map_or(Mode::Kernel, |code| code.mode());
            self.step(&mut stretch, None, mode, Some(execution));
        }
        let accesses: usize = stretch.steps.iter().map(|step| step.accesses as usize).sum();
        let made = turn.paired.accesses;
        stretch.accesses.extend_from_slice(&made[..accesses.min(made.len())]);
        stretch
    }

    fn step(
        &mut self,
        stretch: &mut Stretch,
        fragment: Option<FragmentId>,
        mode: Mode,
        execution: Option<&Execution>,
    ) {
        let cpu = usize::from(stretch.cpu.0);
        if self.current != Some(stretch.cpu) {
            self.begin(stretch.cpu);
        }
        if self.halted & bit(cpu) != 0 {
            self.halted &= !bit(cpu);
            stretch.woken.push(stretch.steps.len() as u32);
        }
        let none = Execution::NONE;
        let Execution { loads, stores, accesses, .. } = *execution.unwrap_or(&none);
        let is_execution = execution.is_some();
        stretch.steps.push(Step { fragment, is_execution, mode, loads, stores, accesses });
        if execution.is_some_and(|it| it.left == 0 && self.halts(it.translation)) {
            self.halted |= bit(cpu);
        }
    }

    fn halts(&self, translation: TranslationId) -> bool {
        self.halts.get(translation.0 as usize).copied().unwrap_or(false)
    }

    /// A turn begins.
    fn begin(&mut self, cpu: CpuId) {
        self.current = Some(cpu);
        if self.ended {
            return;
        }
        let own = usize::from(cpu.0);
        for (other, since) in self.since.iter_mut().enumerate().filter(|(other, _)| *other != own) {
            since[own] = since[own].saturating_add(1);
            if since[own] >= 2 {
                self.halted |= bit(other);
            }
        }
        self.since[own] = [0; MOST_CPUS];
    }
}
