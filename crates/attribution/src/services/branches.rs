//! The branch predictors and out-of-order cores of simulated machines while services run, beside
//! their caches. Each CPU has predictors and cores of its own. Cores take the fixed data behaviour
//! of their machine for every recording.
//!
//! Takes the executions in their order; gives the counts of each machine since the last call of
//! `take`. The next execution shows what a branch did. The branch counts for the service that
//! executed it, or for the next task when a task switch comes in between.

use crate::services::ledger::ServiceMachineCounts;
use crate::services::machines::Machines;
use crate::services::meter::Meter;
use anyhow::Result;
use execution::branches::{FragmentBranches, PredictorRun};
use execution::core_run::{CoreRun, UopCodes};
use execution::flow::{ExecutionFlow, FragmentId};
use execution::moved;
use execution::per_cpu::PerCpu;
use image::place::Placement;
use sim::MachineModel;
use sim::core::CoreSlots;
use trace::{CpuId, StreamEvent, Translation, TranslationId};

pub(super) struct BranchMeter {
    machines: Machines,
    flow: ExecutionFlow,
    /// The code stays where it is.
    placement: Placement,
    branches: FragmentBranches,
    /// By CPU, those of each machine. `None` for a machine that describes no branch prediction.
    predicting: PerCpu<Vec<Option<PredictorRun>>>,
    /// Predictors that have seen nothing.
    fresh: Vec<Option<PredictorRun>>,
    codes: UopCodes,
    /// `None` for a machine that describes no core. With the slots that were taken.
    cores: Vec<Option<(CoreRun, CoreSlots)>>,
    fragments: Vec<FragmentId>,
    /// The predictors have seen the current execution.
    already_followed: bool,
    taken: Vec<ServiceMachineCounts>,
}

impl BranchMeter {
    /// `predicts`: whether branch prediction is counted by itself.
    pub(super) fn new(machines: &[MachineModel], predicts: bool) -> Result<BranchMeter> {
        let core = |machine| {
            let core = CoreRun::new(machine)?;
            anyhow::Ok(core.map(|core| (core, CoreSlots::default())))
        };
        let described = machines.iter().map(|machine| machine.branch.as_ref().filter(|_| predicts));
        let fresh: Vec<_> = described.map(|branch| branch.map(PredictorRun::new)).collect();
        Ok(BranchMeter {
            codes: UopCodes::new(machines.iter())?,
            cores: machines.iter().map(core).collect::<Result<_>>()?,
            machines: Machines::new(machines),
            flow: ExecutionFlow::default(),
            placement: Placement::default(),
            branches: FragmentBranches::default(),
            predicting: PerCpu::new(fresh.clone()),
            fresh,
            fragments: Vec::new(),
            already_followed: false,
            taken: Vec::new(),
        })
    }

    fn follow(&mut self, translation: u32, reached: Option<u32>) {
        if std::mem::replace(&mut self.already_followed, true) {
            return;
        }
        let translation = TranslationId(translation);
        let event = match reached {
            None => StreamEvent::Executed(translation),
            Some(instructions) => StreamEvent::Left { translation, instructions },
        };
        self.fragments.clear();
        let followed = self.flow.follow(std::iter::once(event), &mut self.fragments);
        followed.expect("the automaton knows every translation that it runs");
        self.run_cores();
        for predicting in self.predicting.current().iter_mut().flatten() {
            predicting.run(&self.fragments, &self.branches);
            predicting.arrives(self.flow.codes[translation.0 as usize].addr);
        }
    }
}

impl BranchMeter {
    /// Learns the fragments that are new, and runs the current ones on the cores.
    fn run_cores(&mut self) {
        for fragment in &self.flow.fragments[self.branches.fragments()..] {
            let code = &self.flow.codes[fragment.translation.0 as usize];
            let moved = moved::run(code, fragment, &self.placement);
            self.branches.push(&moved);
            for (core, _) in self.cores.iter_mut().flatten() {
                let learned = core.learn(fragment, &moved, code.mode(), &self.codes, &mut |_| None);
                learned.expect("the predictors have numbered the same code");
            }
        }
        for (core, _) in self.cores.iter_mut().flatten() {
            core.run(self.flow.cpu(), &self.fragments, &self.codes, None);
        }
    }
}

impl Meter for BranchMeter {
    const TAKES_DATA: bool = true;

    fn define(&mut self, translation: &Translation) -> Result<()> {
        self.flow.define(translation)?;
        self.codes.define(std::slice::from_ref(translation));
        self.machines.define(translation)
    }

    fn machines(&mut self) -> Option<&mut Machines> {
        Some(&mut self.machines)
    }

    fn comes(&mut self, translation: u32, reached: Option<u32>) {
        self.follow(translation, reached);
    }

    fn executed(&mut self, translation: u32) {
        self.follow(translation, None);
        self.already_followed = false;
        self.machines.executed(translation);
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.follow(translation, Some(instructions));
        self.already_followed = false;
        self.machines.left(translation, instructions);
    }

    fn turned_to(&mut self, cpu: CpuId, _task: usize) {
        self.machines.turn_to(cpu);
        let turn = std::iter::once(StreamEvent::Cpu(cpu));
        let followed = self.flow.follow(turn, &mut self.fragments);
        followed.expect("a turn names no translation");
        self.predicting.turn_to(cpu, || self.fresh.clone());
    }

    fn finish(&mut self) {
        for cpu in self.flow.cpus() {
            self.fragments.clear();
            self.flow.finish_cpu(cpu, &mut self.fragments);
            self.run_cores();
        }
        self.cores.iter_mut().flatten().for_each(|(core, _)| core.finish());
    }

    fn take(&mut self) -> &[ServiceMachineCounts] {
        let predicting = self.predicting.current();
        let counted = self.machines.take().iter().zip(predicting).zip(&mut self.cores);
        let with_branches = counted.map(|((counts, predicting), core)| ServiceMachineCounts {
            slots: core.as_mut().map(|(core, taken)| {
                let before = std::mem::replace(taken, core.slots());
                *taken - before
            }),
            branches: predicting.as_mut().map(|predicting| {
                let modes = std::mem::take(&mut predicting.counters);
                let mut both = modes.kernel;
                both += modes.user;
                both
            }),
            ..*counts
        });
        self.taken.clear();
        self.taken.extend(with_branches);
        &self.taken
    }
}
