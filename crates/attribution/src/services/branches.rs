//! The branch predictors of simulated machines while services run, beside their caches.
//!
//! Takes the executions in their order; gives what each machine counted since it was asked last.
//! What a branch did is seen when the next execution comes, and counts for whoever executed the
//! branch. Where a task switch comes between, it counts for the next task.

use crate::services::ledger::MachineCounts;
use crate::services::machines::Machines;
use crate::services::meter::Meter;
use anyhow::Result;
use execution::branches::{FragmentBranches, PredictorRun};
use execution::flow::{ExecutionFlow, FragmentId};
use execution::moved;
use image::place::Placement;
use sim::MachineModel;
use trace::{StreamEvent, Translation, TranslationId};

pub struct WithBranches {
    machines: Machines,
    flow: ExecutionFlow,
    /// The code stays where it is.
    placement: Placement,
    branches: FragmentBranches,
    /// `None`: the machine describes no branch prediction.
    predicting: Vec<Option<PredictorRun>>,
    ran: Vec<FragmentId>,
    /// The execution at hand is known to the predictors.
    came: bool,
    taken: Vec<MachineCounts>,
}

impl WithBranches {
    pub fn new(machines: &[MachineModel]) -> WithBranches {
        WithBranches {
            machines: Machines::new(machines),
            flow: ExecutionFlow::default(),
            placement: Placement::default(),
            branches: FragmentBranches::default(),
            predicting: machines
                .iter()
                .map(|machine| machine.branch.as_ref().map(PredictorRun::new))
                .collect(),
            ran: Vec::new(),
            came: false,
            taken: Vec::new(),
        }
    }

    fn follow(&mut self, translation: u32, reached: Option<u32>) {
        if std::mem::replace(&mut self.came, true) {
            return;
        }
        let translation = TranslationId(translation);
        let event = match reached {
            None => StreamEvent::Executed(translation),
            Some(instructions) => StreamEvent::Left { translation, instructions },
        };
        self.ran.clear();
        let followed = self.flow.follow(std::iter::once(event), &mut self.ran);
        followed.expect("the automaton knows every translation that it runs");
        for fragment in &self.flow.fragments[self.branches.fragments()..] {
            let code = &self.flow.codes[fragment.translation.0 as usize];
            self.branches.push(&moved::run(code, fragment, &self.placement));
        }
        for predicting in self.predicting.iter_mut().flatten() {
            predicting.run(&self.ran, &self.branches);
            predicting.arrives(self.flow.codes[translation.0 as usize].addr);
        }
    }
}

impl Meter for WithBranches {
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
        self.came = false;
        self.machines.executed(translation);
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.follow(translation, Some(instructions));
        self.came = false;
        self.machines.left(translation, instructions);
    }

    fn take(&mut self) -> &[MachineCounts] {
        let counted = self.machines.take().iter().zip(&mut self.predicting);
        let with_branches = counted.map(|(counts, predicting)| MachineCounts {
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
