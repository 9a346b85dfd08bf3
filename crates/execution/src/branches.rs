//! The branches that fragments execute, and predictors that run on them.
//!
//! The branches of each fragment under a layout are computed once. An execution then walks through
//! these lists. A return or an indirect branch goes to where the next execution begins. So its
//! prediction is checked when the next execution begins.
//!
//! Several processes may map user code at different addresses. The recording has the addresses of
//! the first. Offsets within a page are the same for all (see `flow.rs`). So for user code, only
//! the offset in the page is known.

use crate::flow::FragmentId;
use crate::moved::MovedFragment;
use serde::{Deserialize, Serialize};
use sim::{Branch, BranchCounters, BranchPrediction, BranchPredictor, CodeAddr, Mode, PerMode};
use trace::RunAddr;

/// How the branches were predicted on a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Predictions {
    /// Conditional branches.
    pub conditional: u64,
    /// Conditional branches with a wrong direction.
    pub wrong_directions: u64,
    /// Indirect jumps and calls.
    pub indirect: u64,
    /// Indirect jumps and calls with a wrong target.
    pub wrong_targets: u64,
    /// Returns.
    pub returns: u64,
    /// Returns with a wrong target.
    pub wrong_returns: u64,
    /// Direct branches, rightly taken, that the target buffer did not have.
    pub misfetches: u64,
    /// Mispredictions in 1000 instructions.
    pub per_thousand: f64,
    /// The cycles that failed predictions cost, including misfetches when their cost is known.
    /// `None`: the cost of a misprediction is not known.
    pub stall: Option<f64>,
}

impl Predictions {
    /// The predictions of `instructions` instructions with these counters.
    pub fn new(
        prediction: &sim::BranchPrediction,
        counters: &sim::BranchCounters,
        instructions: u64,
    ) -> Predictions {
        Predictions {
            conditional: counters.conditional,
            wrong_directions: counters.wrong_directions,
            indirect: counters.indirect,
            wrong_targets: counters.wrong_targets,
            returns: counters.returns,
            wrong_returns: counters.wrong_returns,
            misfetches: counters.misfetches,
            per_thousand: 1000.0 * counters.mispredictions() as f64 / instructions.max(1) as f64,
            stall: prediction.stall(counters),
        }
    }

    /// All failed predictions but misfetches.
    pub fn mispredictions(&self) -> u64 {
        self.wrong_directions + self.wrong_targets + self.wrong_returns
    }
}

/// The branches of every fragment under one layout, in the order of the fragments.
#[derive(Clone, Debug)]
pub struct FragmentBranches {
    /// Fragment f executes `branches[starts[f]..starts[f + 1]]`.
    starts: Vec<u32>,
    branches: Vec<Branch>,
    /// The address at which control arrives in the fragment; `None` when the fragment runs no
    /// instruction.
    arrivals: Vec<Option<CodeAddr>>,
}

impl Default for FragmentBranches {
    fn default() -> FragmentBranches {
        FragmentBranches { starts: vec![0], branches: Vec::new(), arrivals: Vec::new() }
    }
}

impl FragmentBranches {
    /// The number of fragments appended so far.
    pub fn fragments(&self) -> usize {
        self.arrivals.len()
    }

    /// Appends the next fragment.
    pub fn push(&mut self, moved: &MovedFragment) {
        self.branches.extend(
            moved
                .branches
                .iter()
                .map(|branch| Branch { end: place(RunAddr(branch.end.0)), ..*branch }),
        );
        self.starts.push(self.branches.len() as u32);
        self.arrivals.push(moved.arrives.map(place));
    }

    #[inline]
    fn of(&self, fragment: FragmentId) -> &[Branch] {
        let at = fragment.0 as usize;
        &self.branches[self.starts[at] as usize..self.starts[at + 1] as usize]
    }
}

/// The part of an address that identifies the place of code.
pub(crate) fn place(addr: RunAddr) -> CodeAddr {
    CodeAddr(if addr.is_kernel() { addr.0 } else { addr.0 & 0xfff })
}

fn is_kernel(addr: CodeAddr) -> bool {
    RunAddr(addr.0).is_kernel()
}

/// A machine's branch predictor while it runs.
#[derive(Clone)]
pub struct PredictorRun {
    predictor: BranchPredictor,
    /// The counters by the mode of the branch.
    pub counters: PerMode<BranchCounters>,
    /// A branch whose target is the beginning of the next execution.
    open: Option<Branch>,
}

impl PredictorRun {
    /// A predictor that has seen no branch.
    pub fn new(prediction: &BranchPrediction) -> PredictorRun {
        PredictorRun {
            predictor: BranchPredictor::new(prediction),
            counters: PerMode::default(),
            open: None,
        }
    }

    /// Runs fragments. `branches` must know all of them.
    pub fn run(&mut self, ran: &[FragmentId], branches: &FragmentBranches) {
        for &fragment in ran {
            if let Some(arrives) = branches.arrivals[fragment.0 as usize] {
                self.arrives_at(arrives);
            }
            for branch in branches.of(fragment) {
                match branch.target {
                    Some(_) => self.execute(branch),
                    None => self.open = Some(*branch),
                }
            }
        }
    }

    /// The next execution begins at `addr`, in code that has not moved.
    pub fn arrives(&mut self, addr: RunAddr) {
        self.arrives_at(place(addr));
    }

    /// Executes the open branch, which went to where the next execution begins. If an interrupt
    /// came in between, the branch's target is not known: user code never branches into the kernel.
    fn arrives_at(&mut self, arrives: CodeAddr) {
        let Some(open) = self.open.take() else { return };
        let interrupted = is_kernel(arrives) && !is_kernel(open.at);
        self.execute(&Branch { target: (!interrupted).then_some(arrives), ..open });
    }

    #[inline]
    fn execute(&mut self, branch: &Branch) {
        let wrong = self.predictor.branch(branch);
        let mode = if is_kernel(branch.at) { Mode::Kernel } else { Mode::User };
        self.counters.get_mut(mode).count(branch, wrong);
    }
}
