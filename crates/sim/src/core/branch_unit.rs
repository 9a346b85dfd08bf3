//! All predictors of a core together: where control goes after each branch, and when the front end
//! knows this.
//!
//! * Branch target buffers in levels tell that there is a branch. The first level that has the
//!   branch decides how many cycles the prediction takes. Only taken branches come in.
//! * A direct branch that no level has is found when it is decoded: a *resteer*.
//! * Conditional branches are predicted by [`PathDirection`]. The front end does not see a
//!   conditional branch that no level has: the branch is not taken, or it is found when it is
//!   decoded or executed.
//! * Returns are predicted by the return stack, indirect branches by [`PathTargets`]. An indirect
//!   branch that no level has is a misprediction.

use super::description::{PredictionDescription, TargetLevel};
use super::direction::PathDirection;
use super::history::PathHistory;
use super::indirect::PathTargets;
use super::start_targets::StartTargets;
use crate::branch_counters::PredictionFailure;
use crate::branches::{Branch, BranchKind, CodeAddr};
use crate::return_stack::ReturnStack;
use crate::target_buffer::TargetBuffer;

/// How the front end passed a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BranchOutcome {
    /// It went the right way, after this many cycles without a new fetch target.
    Followed { bubble: u32 },
    /// The decoder found a direct branch or a return that no target buffer had.
    Resteered,
    /// Execution found that the front end had gone the wrong way.
    Mispredicted(PredictionFailure),
}

/// A level of target buffers.
#[derive(Clone, Debug)]
enum Targets {
    /// An entry holds a branch.
    Branches(TargetBuffer),
    /// An entry belongs to a place where control comes into a line.
    Starts(StartTargets),
}

impl Targets {
    fn new(level: &TargetLevel) -> Targets {
        match level.by_start {
            true => Targets::Starts(StartTargets::new(level)),
            false => Targets::Branches(TargetBuffer::new(level.geometry)),
        }
    }

    /// Passes a branch that is not taken. Returns whether the level has it.
    #[inline]
    fn not_taken(&mut self, branch: &Branch) -> bool {
        match self {
            Targets::Branches(buffer) => buffer.holds(buffer.folded(branch.at)),
            Targets::Starts(buffer) => buffer.not_taken(branch),
        }
    }

    /// Passes a branch that is not taken, and returns nothing.
    #[inline]
    fn follow(&mut self, branch: &Branch) {
        if let Targets::Starts(buffer) = self {
            buffer.not_taken(branch);
        }
    }

    /// Passes a taken branch. Returns the target that the level had, and the cycles until it gave
    /// it; `bubble`: those of an entry.
    #[inline]
    fn taken(
        &mut self,
        Branch { kind, at, .. }: &Branch,
        target: CodeAddr,
        bubble: u32,
    ) -> Option<(CodeAddr, u32)> {
        match self {
            Targets::Branches(buffer) => Some((buffer.taken(buffer.folded(*at), target)?, bubble)),
            Targets::Starts(buffer) => {
                let found = buffer.taken(*kind, *at, target)?;
                Some((found.target, if found.read_before { 0 } else { bubble }))
            }
        }
    }
}

/// The number of targets that a predictor knows besides a path of sources.
const RECENT: usize = 4;

/// The number of low bits of each of them that count for the targets of indirect branches.
const OFFSET_BITS: u32 = 9;

/// A number that depends on the bits of `mask` of the last targets, and on their order.
#[inline]
fn mixed(recent: &[CodeAddr; RECENT], mask: u64) -> u64 {
    recent.iter().fold(0, |mixed: u64, target| {
        (mixed.rotate_left(7) ^ (target.0 & mask)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

#[derive(Clone, Debug)]
pub(crate) struct BranchUnit {
    /// The levels, each with its cycles.
    levels: Vec<(Targets, u32)>,
    direction: PathDirection,
    targets: PathTargets,
    returns: ReturnStack,
    history: PathHistory,
    /// The targets of the last branches, the last one first, where the path has only sources.
    recent: Option<[CodeAddr; RECENT]>,
    /// The outcomes of conditional branches that were taken before; none if no table looks at them.
    outcomes: Option<PathHistory>,
    call_bubble: u32,
    indirect_bubble: u32,
    conditionals_by_execution: bool,
}

impl BranchUnit {
    pub(super) fn new(description: &PredictionDescription) -> BranchUnit {
        let levels = description.targets.iter();
        let mut tables = description.direction.tables.iter().chain(&description.indirect);
        let looks = tables.any(|table| table.outcomes > 0);
        BranchUnit {
            levels: levels.map(|level| (Targets::new(level), level.bubble)).collect(),
            direction: PathDirection::new(&description.direction),
            targets: PathTargets::new(&description.indirect),
            returns: ReturnStack::new(description.return_stack),
            history: PathHistory::new(),
            recent: description.path_of_sources.then_some([CodeAddr(0); RECENT]),
            outcomes: looks.then(PathHistory::new),
            call_bubble: description.call_bubble,
            indirect_bubble: description.indirect_bubble,
            conditionals_by_execution: description.conditionals_by_execution,
        }
    }

    /// Passes a branch whose target is known, and learns.
    pub(super) fn branch(&mut self, branch: &Branch) -> BranchOutcome {
        match branch.target {
            Some(target) if branch.taken => self.taken(branch, target),
            _ => self.not_taken(branch),
        }
    }

    fn not_taken(&mut self, branch: &Branch) -> BranchOutcome {
        // The last level holds all entries of the levels before it. Those only follow control.
        let Some(((last, _), earlier)) = self.levels.split_last_mut() else {
            return BranchOutcome::Followed { bubble: 0 };
        };
        for (level, _) in earlier {
            level.follow(branch);
        }
        if !last.not_taken(branch) || branch.kind != BranchKind::Conditional {
            return BranchOutcome::Followed { bubble: 0 };
        }
        let wrong = self.direction.predicts(branch.at, false);
        self.outcome(false);
        match wrong {
            true => BranchOutcome::Mispredicted(PredictionFailure::Direction),
            false => BranchOutcome::Followed { bubble: 0 },
        }
    }

    /// A conditional branch that a target buffer has was `taken` or not.
    #[inline]
    fn outcome(&mut self, taken: bool) {
        let Some(outcomes) = &mut self.outcomes else { return };
        let footprint = 1 + u32::from(taken);
        self.direction.seen().push_outcome(outcomes, footprint);
        self.targets.seen().push_outcome(outcomes, footprint);
        outcomes.push(footprint);
    }

    fn taken(&mut self, branch: &Branch, target: CodeAddr) -> BranchOutcome {
        let mut held = None;
        for (level, bubble) in &mut self.levels {
            let found = level.taken(branch, target, *bubble);
            held = held.or(found);
        }
        let more = match branch.kind {
            BranchKind::Jump | BranchKind::Conditional => 0,
            BranchKind::Call | BranchKind::Return => self.call_bubble,
            BranchKind::IndirectJump | BranchKind::IndirectCall => {
                self.call_bubble + self.indirect_bubble
            }
        };
        let found = match held {
            Some((_, bubble)) => BranchOutcome::Followed { bubble: bubble + more },
            None => BranchOutcome::Resteered,
        };
        let unless_wrong = |wrong: bool, failure| match wrong {
            true => BranchOutcome::Mispredicted(failure),
            false => found,
        };
        let outcome = match branch.kind {
            BranchKind::Conditional => {
                let wrong = !self.direction.predicts(branch.at, true);
                let unknown = held.is_none() && self.conditionals_by_execution;
                unless_wrong(wrong || unknown, PredictionFailure::Direction)
            }
            BranchKind::Jump => found,
            BranchKind::Call => {
                self.returns.push(branch.end);
                found
            }
            BranchKind::Return => {
                unless_wrong(self.returns.pop() != Some(target), PredictionFailure::Return)
            }
            BranchKind::IndirectJump | BranchKind::IndirectCall => {
                if branch.kind == BranchKind::IndirectCall {
                    self.returns.push(branch.end);
                }
                if let Some(recent) = &self.recent {
                    self.targets.seen().came_by(mixed(recent, (1 << OFFSET_BITS) - 1));
                }
                let wrong = match held {
                    Some((last, _)) => self.targets.predicts(branch.at, last, target) != target,
                    None => true,
                };
                unless_wrong(wrong, PredictionFailure::Target)
            }
        };
        if branch.kind == BranchKind::Conditional && held.is_some() {
            self.outcome(true);
        }
        let footprint = match &mut self.recent {
            None => PathHistory::footprint(branch.at, target),
            Some(recent) => {
                recent.rotate_right(1);
                recent[0] = target;
                self.direction.seen().came_by(mixed(recent, u64::MAX));
                PathHistory::source(branch.end)
            }
        };
        self.direction.seen().push(&self.history, footprint);
        self.targets.seen().push(&self.history, footprint);
        self.history.push(footprint);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Replacement;
    use crate::core::description::DirectionDescription;
    use crate::core::tagged::TaggedTable;
    use crate::geometry::CacheGeometry;
    use BranchOutcome::{Followed, Mispredicted, Resteered};

    fn unit() -> BranchUnit {
        BranchUnit::new(&described())
    }

    fn described() -> PredictionDescription {
        let level = |entries, bubble| TargetLevel {
            geometry: CacheGeometry::tlb(entries, entries, Replacement::Lru).unwrap(),
            bubble,
            by_start: false,
            random: false,
            returns_with_calls: false,
        };
        PredictionDescription {
            direction: DirectionDescription { base_entries: 64, tables: Vec::new(), shared: false },
            indirect: Vec::new(),
            targets: vec![level(1, 0), level(4, 2)],
            return_stack: 2,
            mispredict_penalty: 10,
            resteer_penalty: 5,
            call_bubble: 0,
            indirect_bubble: 0,
            path_of_sources: false,
            conditionals_by_execution: false,
        }
    }

    fn branch(kind: BranchKind, at: u64, target: u64, taken: bool) -> Branch {
        Branch {
            kind,
            at: CodeAddr(at),
            end: CodeAddr(at + 2),
            target: Some(CodeAddr(target)),
            taken,
        }
    }

    #[test]
    fn each_level_has_its_cycles() {
        let mut unit = unit();
        let mut jump = |at| unit.branch(&branch(BranchKind::Jump, at, 100, true));
        assert_eq!([10, 10, 20].map(&mut jump), [Resteered, Followed { bubble: 0 }, Resteered]);
        // 20 took the only entry of the first level.
        assert_eq!([10, 10].map(&mut jump), [Followed { bubble: 2 }, Followed { bubble: 0 }]);
        // Five jumps do not fit into four entries.
        assert_eq!([30, 40, 50, 20].map(&mut jump), [Resteered; 4]);
    }

    #[test]
    fn calls_returns_and_indirect_branches_take_more_cycles() {
        let mut unit = unit();
        (unit.call_bubble, unit.indirect_bubble) = (1, 2);
        let kinds = [BranchKind::Jump, BranchKind::Call, BranchKind::IndirectJump];
        let second = kinds.map(|kind| {
            unit.branch(&branch(kind, 10, 50, true));
            unit.branch(&branch(kind, 10, 50, true))
        });
        assert_eq!(second, [0, 1, 3].map(|bubble| Followed { bubble }));
    }

    #[test]
    fn jumps_at_multiples_of_16_bytes_use_all_sets() {
        let mut unit = unit();
        for (entries, ways) in [(256, 4), (1536, 6), (7168, 7)] {
            let geometry = CacheGeometry::tlb(entries, ways, Replacement::Lru).unwrap();
            unit.levels = vec![(Targets::Branches(TargetBuffer::new(geometry)), 0)];
            let mut jumps = |from: u64| {
                let found = (from..from + entries)
                    .map(|n| unit.branch(&branch(BranchKind::Jump, 0x40_0000 + 16 * n, 100, true)));
                found.filter(|outcome| *outcome == Resteered).count() as u64
            };
            assert_eq!([jumps(0), jumps(0)], [entries, 0]);
            // One jump more is too much for one set.
            assert_eq!(jumps(1), 1);
        }
    }

    #[test]
    fn conditional_branches_come_in_when_they_are_taken() {
        let mut unit = unit();
        let mut jcc = |taken| unit.branch(&branch(BranchKind::Conditional, 8, 100, taken));
        let wrong = Mispredicted(PredictionFailure::Direction);
        // The counter begins at weakly not taken, so the second taken branch is predicted.
        assert_eq!(
            [false, true, true, false, true].map(&mut jcc),
            [Followed { bubble: 0 }, wrong, Followed { bubble: 0 }, wrong, Followed { bubble: 0 }]
        );
    }

    #[test]
    fn returns_and_indirect_branches() {
        let mut unit = unit();
        let steps = [
            (BranchKind::Call, 10, 50, Resteered),
            (BranchKind::Return, 60, 12, Resteered),
            (BranchKind::Call, 10, 50, Followed { bubble: 2 }),
            (BranchKind::Return, 60, 12, Followed { bubble: 2 }),
            (BranchKind::Return, 60, 99, Mispredicted(PredictionFailure::Return)),
            (BranchKind::IndirectJump, 70, 80, Mispredicted(PredictionFailure::Target)),
            (BranchKind::IndirectJump, 70, 80, Followed { bubble: 0 }),
            (BranchKind::IndirectJump, 70, 81, Mispredicted(PredictionFailure::Target)),
        ];
        for (kind, at, target, outcome) in steps {
            assert_eq!(unit.branch(&branch(kind, at, target, true)), outcome, "{kind:?} {target}");
        }
    }

    /// Of 1000 directions that a random bit says, the mispredicted ones, when `informs` has told
    /// the bit and `jumps` jumps follow. The predictor looks at eight taken branches, and at
    /// `outcomes` outcomes.
    fn wrong(
        outcomes: u32,
        path_of_sources: bool,
        jumps: u64,
        informs: impl Fn(&mut BranchUnit, bool),
    ) -> u32 {
        let mut description = described();
        description.path_of_sources = path_of_sources;
        description.direction.tables = vec![TaggedTable { entries: 256, history: 8, outcomes }];
        description.targets.truncate(1);
        description.targets[0].geometry = CacheGeometry::tlb(64, 64, Replacement::Lru).unwrap();
        let mut unit = BranchUnit::new(&description);
        let (mut state, mut wrong) = (1_u64, 0);
        for round in 0..2000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bit = state >> 40 & 1 == 1;
            informs(&mut unit, bit);
            for jump in 0..jumps {
                let at = 0x1000 + 32 * jump;
                unit.branch(&branch(BranchKind::Jump, at, at + 32, true));
            }
            let said = unit.branch(&branch(BranchKind::Conditional, 0x8000, 0x9000, bit));
            let failed = said == Mispredicted(PredictionFailure::Direction);
            wrong += u32::from(failed && round >= 1000);
        }
        wrong
    }

    #[test]
    fn a_path_of_sources_knows_two_bits_of_a_jump() {
        let jump = |apart| {
            move |unit: &mut BranchUnit, bit| {
                let at = 0x400 + if bit { apart } else { 0 };
                unit.branch(&branch(BranchKind::Jump, at, 0x1000, true));
            }
        };
        for (apart, seen) in [(4, true), (8, true), (1, false), (16, false), (64, false)] {
            assert_eq!(wrong(0, true, 2, jump(apart)) < 50, seen, "{apart}");
            assert!(wrong(0, false, 2, jump(apart)) < 50, "{apart}");
        }
        assert!(wrong(0, true, 8, jump(4)) > 400, "a path of eight branches saw the ninth");
    }

    #[test]
    fn a_path_of_sources_comes_with_the_last_four_targets() {
        let target = |unit: &mut BranchUnit, bit| {
            let target = 0x500 + if bit { 64 } else { 0 };
            unit.branch(&branch(BranchKind::IndirectJump, 0x400, target, true));
            unit.branch(&branch(BranchKind::Jump, target, 0x1000, true));
        };
        assert!(wrong(0, true, 2, target) < 50);
        assert!(wrong(0, true, 3, target) > 400);
    }

    #[test]
    fn an_outcome_is_seen_behind_any_number_of_jumps() {
        let outcome = |unit: &mut BranchUnit, bit| {
            unit.branch(&branch(BranchKind::Conditional, 0x400, 0x500, bit));
        };
        assert!(wrong(0, true, 8, outcome) > 400);
        // There is none between the two outcomes of a round.
        assert!(wrong(1, true, 8, outcome) < 50);
        let two = |unit: &mut BranchUnit, bit| {
            outcome(unit, bit);
            unit.branch(&branch(BranchKind::Conditional, 0x600, 0x700, true));
        };
        assert!(wrong(1, true, 8, two) > 400);
        assert!(wrong(2, true, 8, two) < 50);
    }

    #[test]
    fn a_conditional_branch_that_no_level_has_is_found_when_it_executes() {
        let found = |conditionals_by_execution| {
            let mut unit = BranchUnit { conditionals_by_execution, ..unit() };
            // The direction is learned; five other branches drive it out of both levels.
            for _ in 0..8 {
                unit.branch(&branch(BranchKind::Conditional, 0x100, 0x900, true));
            }
            for at in [0x201, 0x302, 0x403, 0x504, 0x605] {
                unit.branch(&branch(BranchKind::Jump, at, 0x900, true));
            }
            unit.branch(&branch(BranchKind::Conditional, 0x100, 0x900, true))
        };
        assert_eq!(found(false), Resteered);
        assert_eq!(found(true), Mispredicted(PredictionFailure::Direction));
    }

    /// Two levels of places: at once, and after 3 cycles.
    fn unit_of_places(entries: [u64; 2]) -> BranchUnit {
        let [first, second] = entries.map(|entries| {
            let geometry = CacheGeometry::tlb(entries, entries, Replacement::Lru).unwrap();
            Targets::new(&TargetLevel {
                geometry,
                bubble: 0,
                by_start: true,
                random: false,
                returns_with_calls: false,
            })
        });
        BranchUnit { levels: vec![(first, 0), (second, 3)], ..unit() }
    }

    /// The first level knows that a third branch of a line lies behind two that were not taken.
    #[test]
    fn every_level_follows_branches_that_are_not_taken() {
        let mut unit = unit_of_places([2, 4]);
        let mut pass = |at: u64, taken| {
            unit.branch(&branch(BranchKind::Conditional, at, 0x00, taken));
        };
        for taken in [0x08, 0x10, 0x18, 0x18] {
            [0x08, 0x10].into_iter().filter(|&at| at < taken).for_each(|at| pass(at, false));
            pass(taken, true);
        }
        pass(0x08, false);
        let found = unit.branch(&branch(BranchKind::Jump, 0x10, 0x00, true));
        assert_eq!(found, Followed { bubble: 0 });
    }

    #[test]
    fn the_second_branch_of_an_entry_comes_with_the_first() {
        let mut unit = unit_of_places([1, 2]);
        // Two lines, each with a jump to a second one, take turns.
        let round = [(0x00, 0x10), (0x10, 0x40), (0x40, 0x50), (0x50, 0x00)];
        let mut pass =
            || round.map(|(at, to)| unit.branch(&branch(BranchKind::Jump, at, to, true)));
        pass();
        let [first, second] = [3, 0].map(|bubble| Followed { bubble });
        assert_eq!(pass(), [first, second, first, second]);
    }
}
