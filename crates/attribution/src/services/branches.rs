//! The branch predictors of simulated machines while services run, beside their caches.
//!
//! Takes the executions in their order; gives the counts of each machine since the last call of
//! `take`. The next execution shows what a branch did. The branch counts for the service that
//! executed it, or for the next task when a task switch comes in between.

use crate::services::ledger::ServiceMachineCounts;
use crate::services::machines::Machines;
use crate::services::meter::Meter;
use anyhow::Result;
use execution::branches::{FragmentBranches, PredictorRun};
use execution::flow::{ExecutionFlow, FragmentId};
use execution::moved;
use image::place::Placement;
use sim::MachineModel;
use trace::{StreamEvent, Translation, TranslationId};

pub(super) struct BranchMeter {
    machines: Machines,
    flow: ExecutionFlow,
    /// The code stays where it is.
    placement: Placement,
    branches: FragmentBranches,
    /// `None` for a machine that describes no branch prediction.
    predicting: Vec<Option<PredictorRun>>,
    fragments: Vec<FragmentId>,
    /// The predictors have seen the current execution.
    already_followed: bool,
    taken: Vec<ServiceMachineCounts>,
}

impl BranchMeter {
    pub(super) fn new(machines: &[MachineModel]) -> BranchMeter {
        BranchMeter {
            machines: Machines::new(machines),
            flow: ExecutionFlow::default(),
            placement: Placement::default(),
            branches: FragmentBranches::default(),
            predicting: machines
                .iter()
                .map(|machine| machine.branch.as_ref().map(PredictorRun::new))
                .collect(),
            fragments: Vec::new(),
            already_followed: false,
            taken: Vec::new(),
        }
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
        for fragment in &self.flow.fragments[self.branches.fragments()..] {
            let code = &self.flow.codes[fragment.translation.0 as usize];
            self.branches.push(&moved::run(code, fragment, &self.placement));
        }
        for predicting in self.predicting.iter_mut().flatten() {
            predicting.run(&self.fragments, &self.branches);
            predicting.arrives(self.flow.codes[translation.0 as usize].addr);
        }
    }
}

impl Meter for BranchMeter {
    const TAKES_DATA: bool = true;

    fn define(&mut self, translation: &Translation) -> Result<()> {
        self.flow.define(translation)?;
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

    fn take(&mut self) -> &[ServiceMachineCounts] {
        let counted = self.machines.take().iter().zip(&mut self.predicting);
        let with_branches = counted.map(|(counts, predicting)| ServiceMachineCounts {
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
