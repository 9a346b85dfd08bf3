//! Section 4.1: sequences of pieces that grow from the seeds with falling thresholds.
//!
//! Input: the flow graph and the schedule. Output: every hot piece once, in the order of the
//! sequences.

use super::transitions::{TransitionArc, Transitions};
use super::{OptSParameters, ScheduleRow};
use crate::graph::SeedClass;
use crate::hot::HotCode;
use crate::pieces::PieceId;

/// The thresholds of one pass.
#[derive(Clone, Copy)]
struct PassThresholds {
    exec: f64,
    branch: f64,
}

/// A call that is being followed: where to continue after the callee ends, and the call around it.
#[derive(Clone, Copy)]
struct Activation {
    caller: PieceId,
    around: Option<usize>,
}

/// A piece with the innermost call in which it was reached.
#[derive(Clone, Copy)]
struct Visit {
    piece: PieceId,
    within: Option<usize>,
}

/// Every hot piece once.
pub(super) struct Sequences {
    pub order: Vec<PieceId>,
    /// The number of leading pieces that belong to sequences with an ExecThresh of at least `MAIN`
    /// (section 5.1: MainSeq).
    pub main: usize,
}

/// The least ExecThresh of a main sequence.
const MAIN: f64 = 0.002;

pub(super) fn sequences(
    hot: &HotCode,
    transitions: &Transitions,
    parameters: &OptSParameters,
) -> Sequences {
    let mut builder = SequenceBuilder {
        transitions,
        placed: vec![false; hot.pieces.len()],
        searched_in: vec![0; hot.pieces.len()],
        pass: 0,
        activations: Vec::new(),
        order: Vec::new(),
    };
    let mut main = None;
    for iteration in &parameters.schedule {
        if iteration.exec < MAIN {
            main.get_or_insert(builder.order.len());
        }
        for class in
            [SeedClass::Interrupt, SeedClass::PageFault, SeedClass::SystemCall, SeedClass::Other]
        {
            if let Some(branch) = branch_threshold(iteration, class) {
                builder.pass(&seeds(hot, class), PassThresholds { exec: iteration.exec, branch });
            }
        }
    }
    let main = main.unwrap_or(builder.order.len());
    // Code that no seed reaches was entered in a way that the profile did not see. The most popular
    // piece comes first.
    let mut rest: Vec<PieceId> =
        hot.pieces.all().filter(|&p| hot.is_hot(p) && !builder.placed[p.index()]).collect();
    rest.sort_by(|&a, &b| {
        transitions.popularity[b.index()]
            .total_cmp(&transitions.popularity[a.index()])
            .then(a.cmp(&b))
    });
    builder.pass(&rest, PassThresholds { exec: 0.0, branch: 0.0 });
    Sequences { order: builder.order, main }
}

fn branch_threshold(iteration: &ScheduleRow, class: SeedClass) -> Option<f64> {
    match class {
        SeedClass::Interrupt => iteration.interrupt,
        SeedClass::PageFault => iteration.page_fault,
        SeedClass::SystemCall => iteration.system_call,
        SeedClass::Other => iteration.other,
    }
}

/// The seeds of a class that ran, by entries.
fn seeds(hot: &HotCode, class: SeedClass) -> Vec<PieceId> {
    let mut seeds: Vec<_> = hot.graph.seeds.iter().filter(|s| s.class == class).collect();
    seeds.sort_by_key(|s| (std::cmp::Reverse(s.count), s.block));
    seeds.into_iter().map(|s| hot.pieces.of_block(s.block)).filter(|&p| hot.is_hot(p)).collect()
}

struct SequenceBuilder<'a> {
    transitions: &'a Transitions,
    placed: Vec<bool>,
    /// The pass in which each piece was last searched for a next block.
    searched_in: Vec<u32>,
    pass: u32,
    /// `None`: neither the caller nor any caller around it leads to a piece that is not placed. A
    /// caller that has no such way itself becomes a copy of the nearest caller around it that has
    /// one. Otherwise, call chains as long as the graph would be walked again and again.
    activations: Vec<Option<Activation>>,
    order: Vec<PieceId>,
}

impl SequenceBuilder<'_> {
    /// Grows sequences until the seeds reach no further piece above the thresholds.
    fn pass(&mut self, seeds: &[PieceId], thresholds: PassThresholds) {
        self.pass += 1;
        self.activations.clear();
        for &seed in
            seeds.iter().filter(|s| self.transitions.popularity[s.index()] >= thresholds.exec)
        {
            let start = Visit { piece: seed, within: None };
            if !self.placed[seed.index()] {
                self.grow(start, thresholds);
            }
            self.search(start, thresholds);
        }
    }

    /// "We start again from the seed, looking for the next acceptable basic block": follows the
    /// placed pieces in the order in which they run, callees first, and grows a sequence wherever
    /// one can begin.
    fn search(&mut self, start: Visit, thresholds: PassThresholds) {
        let mut waiting = vec![start];
        while let Some(visit) = waiting.pop() {
            let Visit { piece, within } = visit;
            if std::mem::replace(&mut self.searched_in[piece.index()], self.pass) == self.pass {
                continue;
            }
            while let Some(next) = self.next(visit, thresholds) {
                self.grow(next, thresholds);
            }
            let above = |arc: &&TransitionArc| {
                self.reaches(arc, thresholds) && self.searched_in[arc.to.index()] != self.pass
            };
            let transitions = self.transitions;
            let arcs = transitions.arcs[piece.index()].iter().filter(above);
            let mut onward: Vec<Visit> = arcs.map(|arc| Visit { piece: arc.to, within }).collect();
            let callees: Vec<PieceId> =
                transitions.calls[piece.index()].iter().filter(above).map(|arc| arc.to).collect();
            if !callees.is_empty() {
                let call = self.activate(piece, within);
                onward.splice(
                    0..0,
                    callees.into_iter().map(|piece| Visit { piece, within: Some(call) }),
                );
            }
            waiting.extend(onward.into_iter().rev());
        }
    }

    /// Places a piece, and then always the most frequent acceptable successor, until there is none.
    fn grow(&mut self, start: Visit, thresholds: PassThresholds) {
        let mut next = Some(start);
        while let Some(visit) = next {
            self.placed[visit.piece.index()] = true;
            self.order.push(visit.piece);
            next = self.next(visit, thresholds).or_else(|| self.behind(visit, thresholds));
        }
    }

    /// The successor of a piece: the callee or, if there is none, the target of the most frequent
    /// transfer.
    fn next(
        &mut self,
        Visit { piece, within }: Visit,
        thresholds: PassThresholds,
    ) -> Option<Visit> {
        if let Some(callee) = self.best(self.transitions.calls[piece.index()].iter(), thresholds) {
            let call = self.activate(piece, within);
            return Some(Visit { piece: callee, within: Some(call) });
        }
        self.best(self.transitions.arcs[piece.index()].iter(), thresholds)
            .map(|piece| Visit { piece, within })
    }

    /// The successor when all direct successors are placed: out of the loop that ends here, or else
    /// out of the call.
    fn behind(&mut self, mut visit: Visit, thresholds: PassThresholds) -> Option<Visit> {
        let mut climbed = Vec::new();
        let found = loop {
            if let Some(piece) = self.best(self.transitions.behind_loops(visit.piece), thresholds) {
                let within = visit.within;
                break Some(Visit { piece, within });
            }
            let Some((call, activation)) =
                visit.within.and_then(|call| Some((call, self.activations[call]?)))
            else {
                break None;
            };
            climbed.push(call);
            visit = Visit { piece: activation.caller, within: activation.around };
            if let Some(next) = self.next(visit, thresholds) {
                break Some(next);
            }
        };
        // Within a pass, thresholds do not change and placed pieces stay placed. So a caller that
        // leads nowhere never will.
        let leads_on = found.and(climbed.pop()).and_then(|call| self.activations[call]);
        climbed.into_iter().for_each(|call| self.activations[call] = leads_on);
        found
    }

    fn activate(&mut self, caller: PieceId, around: Option<usize>) -> usize {
        self.activations.push(Some(Activation { caller, around }));
        self.activations.len() - 1
    }

    fn best<'t>(
        &self,
        mut arcs: impl Iterator<Item = &'t TransitionArc>,
        thresholds: PassThresholds,
    ) -> Option<PieceId> {
        arcs.find(|arc| !self.placed[arc.to.index()] && self.reaches(arc, thresholds))
            .map(|arc| arc.to)
    }

    fn reaches(&self, arc: &TransitionArc, thresholds: PassThresholds) -> bool {
        arc.share >= thresholds.branch
            && self.transitions.popularity[arc.to.index()] >= thresholds.exec
    }
}
