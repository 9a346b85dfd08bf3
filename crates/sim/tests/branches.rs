//! Compares the branch predictor with a naive one: both agree on every branch.

mod random;

use kernlane_sim::{
    Branch, BranchKind, BranchPrediction, BranchPredictor, CodeAddr, DirectionPrediction,
    HeldBranches, PredictionFailure, TargetBufferDescription,
};
use random::XorShift;
use std::collections::HashMap;

/// The counters are a map. The history and the branches of a set are lists, the newest last. The
/// return stack is a map by depth.
struct NaivePredictor {
    machine: BranchPrediction,
    counters: HashMap<u64, i32>,
    history: Vec<bool>,
    sets: HashMap<u64, Vec<(u64, u64)>>,
    stack: HashMap<i64, u64>,
    depth: i64,
}

impl NaivePredictor {
    fn new(machine: BranchPrediction) -> NaivePredictor {
        NaivePredictor {
            machine,
            counters: HashMap::new(),
            history: Vec::new(),
            sets: HashMap::new(),
            stack: HashMap::new(),
            depth: 0,
        }
    }

    fn direction(&mut self, at: u64, target: u64, taken: bool) -> bool {
        let (entries, history) = match self.machine.direction() {
            DirectionPrediction::Static => return target <= at,
            DirectionPrediction::Bimodal { entries } => (u64::from(entries), 0),
            DirectionPrediction::Gshare { entries, history } => {
                (u64::from(entries), history as usize)
            }
        };
        // The index as a string of bits. The history is xored into the first ones, the newest
        // outcome last.
        let mut index: Vec<bool> =
            (0..entries.ilog2()).rev().map(|bit| at >> bit & 1 == 1).collect();
        let newest = &self.history[self.history.len().saturating_sub(history)..];
        for (bit, outcome) in index[..history].iter_mut().rev().zip(newest.iter().rev()) {
            *bit ^= outcome;
        }
        let index = index.iter().fold(0, |index, &bit| index * 2 + u64::from(bit));
        let counter = self.counters.entry(index).or_insert(-1);
        let predicted = *counter >= 0;
        *counter = (*counter + if taken { 1 } else { -1 }).clamp(-2, 1);
        self.history.push(taken);
        predicted
    }

    fn target(&mut self, at: u64, target: u64) -> Option<u64> {
        let geometry = self.machine.targets()?.geometry();
        let set = self.sets.entry(at % u64::from(geometry.sets())).or_default();
        let held = set.iter().find(|(held, _)| *held == at).map(|&(_, target)| target);
        set.retain(|(held, _)| *held != at);
        set.push((at, target));
        if set.len() > geometry.ways() as usize {
            set.remove(0);
        }
        held
    }

    fn direct(&mut self, at: u64, target: u64) -> Option<PredictionFailure> {
        let holds =
            self.machine.targets().is_some_and(|targets| targets.holds() == HeldBranches::Taken);
        (holds && self.target(at, target) != Some(target)).then_some(PredictionFailure::Misfetch)
    }

    fn call(&mut self, end: u64) {
        let entries = i64::from(self.machine.return_stack());
        if entries > 0 {
            self.depth += 1;
            self.stack.insert(self.depth.rem_euclid(entries), end);
        }
    }

    fn branch(&mut self, branch: &Branch) -> Option<PredictionFailure> {
        let (at, target) = (branch.at.0, branch.target.map(|target| target.0));
        if matches!(branch.kind, BranchKind::Call | BranchKind::IndirectCall) {
            self.call(branch.end.0);
        }
        match branch.kind {
            BranchKind::Conditional => {
                let target = target?;
                let right = self.direction(at, target, branch.taken) == branch.taken;
                let misfetch = branch.taken.then(|| self.direct(at, target)).flatten();
                if right { misfetch } else { Some(PredictionFailure::Direction) }
            }
            BranchKind::Jump | BranchKind::Call => self.direct(at, target?),
            BranchKind::Return if self.machine.return_stack() > 0 => {
                let predicted = self
                    .stack
                    .get(&self.depth.rem_euclid(self.machine.return_stack().into()))
                    .copied();
                self.depth -= 1;
                (predicted != Some(target?)).then_some(PredictionFailure::Return)
            }
            BranchKind::Return => {
                (self.target(at, target?) != target).then_some(PredictionFailure::Return)
            }
            BranchKind::IndirectJump | BranchKind::IndirectCall => {
                (self.target(at, target?) != target).then_some(PredictionFailure::Target)
            }
        }
    }
}

/// The branches of a program with a few hundred of them, with one target or many. Most calls and
/// returns nest.
fn stream(random: &mut XorShift, open: &mut Vec<u64>) -> Branch {
    let at = random.below(400) * 3 + (random.below(2) << 40);
    let end = at + 2;
    let target = at ^ 0x155 ^ (random.below(2) * 0x400);
    let kinds = [
        BranchKind::Conditional,
        BranchKind::Conditional,
        BranchKind::Jump,
        BranchKind::Call,
        BranchKind::IndirectJump,
        BranchKind::IndirectCall,
        BranchKind::Return,
        BranchKind::Return,
    ];
    let kind = kinds[random.below(kinds.len() as u64) as usize];
    let taken = kind != BranchKind::Conditional || random.below(at % 7 + 1) == 0;
    if matches!(kind, BranchKind::Call | BranchKind::IndirectCall) {
        open.push(end);
    }
    let target = match kind {
        BranchKind::Return => open.pop().unwrap_or(target),
        _ => target,
    };
    let seen = kind == BranchKind::Conditional || random.below(50) > 0;
    Branch {
        kind,
        at: CodeAddr(at),
        end: CodeAddr(end),
        target: seen.then_some(CodeAddr(target)),
        taken,
    }
}

#[test]
fn the_predictor_agrees_with_the_naive_predictor() {
    let mut random = XorShift(0x5EED_0B5E);
    let directions = [
        DirectionPrediction::Static,
        DirectionPrediction::bimodal(1).unwrap(),
        DirectionPrediction::bimodal(128).unwrap(),
        DirectionPrediction::gshare(256, 8).unwrap(),
        DirectionPrediction::gshare(512, 3).unwrap(),
    ];
    let buffers = [(1, 1), (16, 1), (64, 4), (48, 3), (1024, 8)]
        .map(|(entries, ways)| (entries, ways, HeldBranches::Taken));
    let mut outcomes = HashMap::new();
    for direction in directions {
        let some = buffers.into_iter().chain([(64, 64, HeldBranches::Indirect)]).map(Some);
        for (number, buffer) in some.chain([None]).enumerate() {
            let targets = buffer.map(|(entries, ways, holds)| {
                TargetBufferDescription::new(entries, ways, holds).unwrap()
            });
            let machine =
                BranchPrediction::new(direction, targets, [0, 1, 2, 7, 16][number % 5], None, None)
                    .unwrap();
            let (mut predictor, mut naive, mut open) =
                (BranchPredictor::new(&machine), NaivePredictor::new(machine), Vec::new());
            for step in 0..20_000 {
                let branch = stream(&mut random, &mut open);
                let wrong = predictor.branch(&branch);
                assert_eq!(wrong, naive.branch(&branch), "{machine:?}, step {step}: {branch:?}");
                *outcomes.entry(format!("{:?} {wrong:?}", branch.kind)).or_insert(0) += 1;
            }
        }
    }
    // Every kind of branch can be predicted and fail. Conditional branches can fail in two ways.
    assert_eq!(outcomes.len(), 3 + 5 * 2, "{outcomes:?}");
}

/// A loop around a call through a pointer. The second round uses what the first one taught.
#[test]
fn a_loop_by_hand() {
    let targets = TargetBufferDescription::new(4, 2, HeldBranches::Taken).unwrap();
    let machine =
        BranchPrediction::new(DirectionPrediction::Static, Some(targets), 4, None, None).unwrap();
    let mut predictor = BranchPredictor::new(&machine);
    let mut branch = |kind, at, end, target, taken| {
        predictor.branch(&Branch {
            kind,
            at: CodeAddr(at),
            end: CodeAddr(end),
            target: Some(CodeAddr(target)),
            taken,
        })
    };
    let mut round = |callee: u64, again: bool| {
        [
            branch(BranchKind::IndirectCall, 10, 12, callee, true),
            branch(BranchKind::Return, callee + 8, callee + 9, 12, true),
            branch(BranchKind::Conditional, 21, 23, 10, again),
        ]
    };
    assert_eq!(
        round(100, true),
        [Some(PredictionFailure::Target), None, Some(PredictionFailure::Misfetch)]
    );
    assert_eq!(round(100, true), [None, None, None]);
    assert_eq!(round(200, true), [Some(PredictionFailure::Target), None, None]);
    assert_eq!(round(200, false), [None, None, Some(PredictionFailure::Direction)]);
}
