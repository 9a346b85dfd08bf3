//! Section 4.1: sequences of pieces, grown from the seeds with falling thresholds.
//!
//! Takes the flow graph and the schedule; gives every piece that ran, once, in the order of the
//! sequences.

use super::transitions::{Arc, Transitions};
use super::{Iteration, OptSParameters};
use crate::graph::SeedClass;
use crate::hot::Hot;
use crate::pieces::PieceId;

/// The thresholds of one pass.
#[derive(Clone, Copy)]
struct Thresholds {
    exec: f64,
    branch: f64,
}

/// A call that is being followed: where to go on when the callee has come to its end, and in which
/// call that is.
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

/// Every piece that ran, once.
pub(super) struct Sequences {
    pub order: Vec<PieceId>,
    /// How many of them, from the first on, belong to sequences with an ExecThresh of at least
    /// `MAIN` (section 5.1: MainSeq).
    pub main: usize,
}

/// ExecThresh from which a sequence is a main one.
const MAIN: f64 = 0.002;

pub(super) fn sequences(
    hot: &Hot,
    transitions: &Transitions,
    parameters: &OptSParameters,
) -> Sequences {
    let mut builder = Builder {
        transitions,
        placed: vec![false; hot.pieces.len()],
        seen: vec![0; hot.pieces.len()],
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
                builder.pass(&seeds(hot, class), Thresholds { exec: iteration.exec, branch });
            }
        }
    }
    let main = main.unwrap_or(builder.order.len());
    // What no seed reaches: entered in a way that the profile did not see. The most popular first.
    let mut rest: Vec<PieceId> =
        hot.pieces.all().filter(|&p| hot.ran(p) && !builder.placed[p.index()]).collect();
    rest.sort_by(|&a, &b| {
        transitions.popularity[b.index()]
            .total_cmp(&transitions.popularity[a.index()])
            .then(a.cmp(&b))
    });
    builder.pass(&rest, Thresholds { exec: 0.0, branch: 0.0 });
    Sequences { order: builder.order, main }
}

fn branch_threshold(iteration: &Iteration, class: SeedClass) -> Option<f64> {
    match class {
        SeedClass::Interrupt => iteration.interrupt,
        SeedClass::PageFault => iteration.page_fault,
        SeedClass::SystemCall => iteration.system_call,
        SeedClass::Other => iteration.other,
    }
}

/// The seeds of a class that ran, the one entered most often first.
fn seeds(hot: &Hot, class: SeedClass) -> Vec<PieceId> {
    let mut seeds: Vec<_> = hot.graph.seeds.iter().filter(|s| s.class == class).collect();
    seeds.sort_by_key(|s| (std::cmp::Reverse(s.count), s.block));
    seeds.into_iter().map(|s| hot.pieces.of_block(s.block)).filter(|&p| hot.ran(p)).collect()
}

struct Builder<'a> {
    transitions: &'a Transitions,
    placed: Vec<bool>,
    /// The pass in which each piece was last searched for ways on.
    seen: Vec<u32>,
    pass: u32,
    /// `None`: neither the caller nor any around it leads to anything that is not placed. One whose
    /// own caller does not has become a copy of the nearest around it that does, or chains of calls
    /// as long as the graph would be climbed again and again.
    activations: Vec<Option<Activation>>,
    order: Vec<PieceId>,
}

impl Builder<'_> {
    /// Grows sequences until nothing is left that the seeds reach above the thresholds.
    fn pass(&mut self, seeds: &[PieceId], thresholds: Thresholds) {
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
    /// ways that are placed already in the order in which they run, callees first, and grows a
    /// sequence wherever one begins.
    fn search(&mut self, start: Visit, thresholds: Thresholds) {
        let mut waiting = vec![start];
        while let Some(visit) = waiting.pop() {
            let Visit { piece, within } = visit;
            if std::mem::replace(&mut self.seen[piece.index()], self.pass) == self.pass {
                continue;
            }
            while let Some(next) = self.next(visit, thresholds) {
                self.grow(next, thresholds);
            }
            let above = |arc: &&Arc| {
                self.reaches(arc, thresholds) && self.seen[arc.to.index()] != self.pass
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

    /// Places a piece and, from there, always the most frequent way on, until none is acceptable.
    fn grow(&mut self, start: Visit, thresholds: Thresholds) {
        let mut next = Some(start);
        while let Some(visit) = next {
            self.placed[visit.piece.index()] = true;
            self.order.push(visit.piece);
            next = self.next(visit, thresholds).or_else(|| self.behind(visit, thresholds));
        }
    }

    /// The way on from a piece: into the callee or, if there is none, along the most frequent
    /// control transfer.
    fn next(&mut self, Visit { piece, within }: Visit, thresholds: Thresholds) -> Option<Visit> {
        if let Some(callee) = self.best(self.transitions.calls[piece.index()].iter(), thresholds) {
            let call = self.activate(piece, within);
            return Some(Visit { piece: callee, within: Some(call) });
        }
        self.best(self.transitions.arcs[piece.index()].iter(), thresholds)
            .map(|piece| Visit { piece, within })
    }

    /// The way on where all successors are placed: out of the loop that ends here, else out of the
    /// call.
    fn behind(&mut self, mut visit: Visit, thresholds: Thresholds) -> Option<Visit> {
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
        // In a pass thresholds stay and what is placed stays placed: a caller that leads nowhere
        // never will.
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
        mut arcs: impl Iterator<Item = &'t Arc>,
        thresholds: Thresholds,
    ) -> Option<PieceId> {
        arcs.find(|arc| !self.placed[arc.to.index()] && self.reaches(arc, thresholds))
            .map(|arc| arc.to)
    }

    fn reaches(&self, arc: &Arc, thresholds: Thresholds) -> bool {
        arc.share >= thresholds.branch
            && self.transitions.popularity[arc.to.index()] >= thresholds.exec
    }
}
