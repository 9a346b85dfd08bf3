//! The branches that fragments execute, as a predictor sees them, and predictors while they run.
//!
//! What a fragment executes under a layout is worked out once; the execution then is a walk through
//! these lists. A return or an indirect branch goes to where the next execution begins, so it is
//! judged when that is known.
//!
//! User code that several processes map at different addresses has the address of the first; within
//! a page offsets hold (see `flow.rs`). So where user code goes is known by its offset in the page
//! alone.

use crate::flow::FragmentId;
use crate::moved::Moved;
use serde::{Deserialize, Serialize};
use sim::{Branch, BranchCounters, BranchPrediction, CodeAddr, Mode, PerMode, Predictor};
use trace::RunAddr;

/// How branches were predicted on a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Predictions {
    /// Branches that were executed, and those of them that were predicted wrongly: the direction of
    /// a conditional branch, the target of an indirect jump or call, that of a return.
    pub conditional: u64,
    pub wrong_directions: u64,
    pub indirect: u64,
    pub wrong_targets: u64,
    pub returns: u64,
    pub wrong_returns: u64,
    /// Direct branches, rightly taken, that the target buffer lacked.
    pub misfetches: u64,
    /// Wrong predictions per thousand instructions, without misfetches.
    pub per_thousand: f64,
    /// Cycles for which wrong predictions stop the machine, misfetches too where it is known what
    /// one costs; `None`: it is not known at all.
    pub stall: Option<f64>,
}

impl Predictions {
    /// What these counters are, of so many instructions.
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

    /// All wrong predictions but misfetches.
    pub fn mispredictions(&self) -> u64 {
        self.wrong_directions + self.wrong_targets + self.wrong_returns
    }
}

/// The branches of every fragment under one layout, in order.
#[derive(Clone, Debug)]
pub struct Branches {
    /// Fragment f executes `branches[starts[f]..starts[f + 1]]`.
    starts: Vec<u32>,
    branches: Vec<Branch>,
    /// Where control arrives that goes to the fragment; `None`: it is no execution.
    arrivals: Vec<Option<CodeAddr>>,
}

impl Default for Branches {
    fn default() -> Branches {
        Branches { starts: vec![0], branches: Vec::new(), arrivals: Vec::new() }
    }
}

impl Branches {
    /// Of how many fragments they are known.
    pub fn fragments(&self) -> usize {
        self.arrivals.len()
    }

    /// Appends the next fragment.
    pub fn push(&mut self, moved: &Moved) {
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

/// What tells where control goes.
fn place(addr: RunAddr) -> CodeAddr {
    CodeAddr(if addr.is_kernel() { addr.0 } else { addr.0 & 0xfff })
}

fn is_kernel(addr: CodeAddr) -> bool {
    RunAddr(addr.0).is_kernel()
}

/// A machine's branch prediction while it runs.
pub struct Predicting {
    predictor: Predictor,
    /// By the mode of the branch.
    pub counters: PerMode<BranchCounters>,
    /// A branch that was taken to where the next execution begins.
    open: Option<Branch>,
}

impl Predicting {
    pub fn new(prediction: &BranchPrediction) -> Predicting {
        Predicting {
            predictor: Predictor::new(prediction),
            counters: PerMode::default(),
            open: None,
        }
    }

    /// Runs fragments, all of them known to `branches`.
    pub fn run(&mut self, ran: &[FragmentId], branches: &Branches) {
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

    /// The next execution begins at `addr`, as its fragment will say later; the code has not moved.
    pub fn arrives(&mut self, addr: RunAddr) {
        self.arrives_at(place(addr));
    }

    /// The branch of which it was open went where the next execution begins; unless an interrupt
    /// came between, as no user code branches into the kernel.
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
