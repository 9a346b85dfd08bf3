//! Branch stacks of a recording, as a processor records them in kernel mode.
//!
//! Input: a recording of one CPU. Output: stacks of the last 32 taken branches that ended in the
//! kernel, at irregular distances, each with the executions that it covers. Interrupts, exceptions
//! and their returns also count as branches.

use anyhow::Result;
use execution::code::{LastInstruction, TranslatedCode};
use execution::flow::{ExecutionFlow, FragmentExit, FragmentId};
use execution::opened::OpenedRecording;
use execution::part::RecordingPart;
use execution::walk::{Observer, Piece, Wants};
use host::recording::Recording;
use kernlane_layout::random::SplitMix64;
use sim::BranchKind;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::path::Path;
use trace::{RecordingHeader, RunAddr, Translation};

/// Branches in a stack.
const DEPTH: usize = 32;
/// Between two stacks lie as many branches, and up to twice as many. Stacks do not overlap.
const DISTANCE: u64 = 48;
const SEED: u64 = 1;

/// A taken branch.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedBranch {
    pub from: u64,
    pub to: u64,
    /// `None`: an interrupt, an exception, or the return from one.
    pub kind: Option<BranchKind>,
    /// The number of the execution that ended with it, among all of the part.
    execution: u64,
}

/// The last taken branches, the latest last.
#[derive(Clone, Debug)]
pub(super) struct BranchStack {
    pub branches: Vec<RecordedBranch>,
    /// The executions from the first branch to the code behind the last one.
    pub executions: RangeInclusive<u64>,
}

/// How an execution was left.
enum Departure {
    /// By a branch from there, with its target if the code has it.
    Taken { from: u64, target: Option<u64>, kind: Option<BranchKind> },
    /// In front of this address, by an interruption or by none.
    Before(u64),
    /// Whether the branch at the end was taken is not known yet.
    Unknown,
}

/// Samples the recording up to a share of its instructions.
pub(super) fn sample(recording: &Path, until: f64) -> Result<Vec<BranchStack>> {
    let part = RecordingPart { from: 0.0, until };
    let opened = OpenedRecording::open(&Recording::at(recording), &part, "stacks")?;
    let mut sampler = Sampler::new();
    opened.without_data().walk(&mut sampler)?;
    Ok(sampler.stacks)
}

impl Observer for Sampler {
    fn begin(&mut self, header: &RecordingHeader, _has_data: bool) -> Result<Wants> {
        header.one_cpu()?;
        Ok(Wants { control: true, ..Wants::default() })
    }

    fn define(&mut self, _: &[Translation], _: &[TranslatedCode]) -> Result<()> {
        Ok(())
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        // What a CPU does last has no end that a processor would record.
        if let Some(control) = piece.control.filter(|_| !piece.is_tail) {
            control.fragments.iter().for_each(|id| self.fragment(control.flow, *id));
        }
        Ok(())
    }
}

struct Sampler {
    latest: VecDeque<RecordedBranch>,
    departure: Option<Departure>,
    execution: u64,
    /// Branches until the next stack.
    wait: u64,
    random: SplitMix64,
    stacks: Vec<BranchStack>,
}

impl Sampler {
    fn new() -> Sampler {
        Sampler {
            latest: VecDeque::new(),
            departure: None,
            execution: 0,
            wait: DISTANCE,
            random: SplitMix64::new(SEED),
            stacks: Vec::new(),
        }
    }

    fn fragment(&mut self, flow: &ExecutionFlow, id: FragmentId) {
        let fragment = flow.fragments[id.0 as usize];
        if matches!(fragment.exit, FragmentExit::LateNext | FragmentExit::LateTaken) {
            return;
        }
        let code = &flow.codes[fragment.translation.0 as usize];
        self.arrive(code.addr);
        self.departure = Some(departure(code, fragment.exit));
        self.execution += 1;
    }

    /// The next execution begins at `start`.
    fn arrive(&mut self, start: RunAddr) {
        match self.departure.take() {
            Some(Departure::Taken { from, target: Some(target), kind }) if target != start.0 => {
                self.branch(from, target, kind);
                self.branch(target, start.0, None);
            }
            Some(Departure::Taken { from, kind, .. }) => self.branch(from, start.0, kind),
            Some(Departure::Before(at)) if at != start.0 => self.branch(at, start.0, None),
            Some(Departure::Before(_)) | None => {}
            Some(Departure::Unknown) => self.latest.clear(),
        }
    }

    /// The processor records branches that end in the kernel.
    fn branch(&mut self, from: u64, to: u64, kind: Option<BranchKind>) {
        if !RunAddr(to).is_kernel() {
            return;
        }
        let execution = self.execution.saturating_sub(1);
        self.latest.push_back(RecordedBranch { from, to, kind, execution });
        if self.latest.len() > DEPTH {
            self.latest.pop_front();
        }
        self.wait = self.wait.saturating_sub(1);
        if self.wait == 0 && self.latest.len() == DEPTH {
            self.wait = DISTANCE + self.random.below(DISTANCE);
            let branches: Vec<RecordedBranch> = self.latest.iter().copied().collect();
            let first = branches.first().map_or(0, |branch| branch.execution);
            self.stacks.push(BranchStack { branches, executions: first..=execution + 1 });
        }
    }
}

fn departure(code: &TranslatedCode, exit: FragmentExit) -> Departure {
    let last = code.lengths.len() - 1;
    let from = code.addr_of(last as u16).0;
    let taken = |kind| Departure::Taken { from, target: code.target().map(|at| at.0), kind };
    match (exit, code.last) {
        (FragmentExit::Midway(reached), _) => {
            // The last instruction raised an exception, or the next one was interrupted.
            Departure::Before(code.addr_of(reached).0)
        }
        (FragmentExit::Next, _) => Departure::Before(code.end().0),
        (_, LastInstruction::Plain) => Departure::Before(code.end().0),
        (FragmentExit::Interrupted, LastInstruction::Conditional { .. }) => Departure::Unknown,
        (_, LastInstruction::Conditional { .. }) => taken(Some(BranchKind::Conditional)),
        (_, LastInstruction::Jump { .. }) => taken(Some(BranchKind::Jump)),
        (_, LastInstruction::Call { .. }) => taken(Some(BranchKind::Call)),
        (_, LastInstruction::Taken(kind)) => taken(Some(kind)),
        (_, LastInstruction::InterruptReturn) => taken(None),
    }
}

/// The branch stacks' shortest distance leaves room between their executions.
const _: () = assert!(DISTANCE as usize > DEPTH);
