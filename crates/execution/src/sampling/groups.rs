//! Estimates for groups of executions, as the services of a system are: each with its own interval.
//!
//! What a group counted in the whole recording is known: its instructions, branches, failed
//! predictions, misses of code. Two things say what that takes. A regression says what an event
//! takes: the same in all groups of a mode. What is left in a group's own units, by instruction of
//! the group, is the group's (a ratio estimate: Cochran, "Sampling Techniques", 3rd edition, 1977,
//! chapter 6). So the regression needs no constant column here: whatever it leaves out on average,
//! the ratio adds.
//!
//! Input: what each group counted everywhere, and in each unit. Output: slots of each group, and
//! intervals of each group and of any sum of them. This module simulates nothing.

use super::regression::{Regression, dot};
use super::{DISPATCH, EXPLAINING, Estimate, GRADUATION, SamplePlan, widest};
use sim::core::{CoreCounters, CoreSlots};
use sim::{Mode, PerMode};
use std::collections::HashMap;

/// The counts that are known of the whole recording, of both modes, in the order of [`EXPLAINING`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct KnownCounts([u64; EXPLAINING.len()]);

impl KnownCounts {
    fn of(counters: &PerMode<CoreCounters>) -> KnownCounts {
        let mut known = KnownCounts::default();
        for (known, field) in known.0.iter_mut().zip(EXPLAINING) {
            *known = field(&counters.kernel) + field(&counters.user);
        }
        known
    }

    /// The first of them.
    fn instructions(&self) -> u64 {
        self.0[0]
    }

    fn row(&self) -> Vec<f64> {
        self.0.iter().map(|&count| count as f64).collect()
    }
}

impl std::ops::AddAssign for KnownCounts {
    fn add_assign(&mut self, other: KnownCounts) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
    }
}

/// A group's part of a unit.
#[derive(Clone, Copy, Debug, PartialEq)]
struct UnitPart {
    unit: u32,
    known: KnownCounts,
    slots: CoreSlots,
}

/// What a group of executions counted on a core. Without samples, only the slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupCounts {
    /// The slots that were simulated in detail and are not parts of units.
    pub slots: CoreSlots,
    known: KnownCounts,
    parts: Vec<UnitPart>,
}

impl GroupCounts {
    /// Adds counts that lie in no unit.
    pub(crate) fn add_known(&mut self, since: &PerMode<CoreCounters>) {
        self.known += KnownCounts::of(since);
    }

    /// Adds a part of a unit, which the counts of the whole include.
    pub(crate) fn add_part(&mut self, unit: u32, since: &PerMode<CoreCounters>) {
        let mut slots = CoreSlots::default();
        for mode in [since.kernel, since.user] {
            slots += CoreSlots { dispatch: mode.slots, graduation: mode.graduation };
        }
        self.push(UnitPart { unit, known: KnownCounts::of(since), slots });
    }

    fn push(&mut self, part: UnitPart) {
        match self.parts.last_mut() {
            Some(last) if last.unit == part.unit => {
                last.known += part.known;
                last.slots += part.slots;
            }
            _ if part.known == KnownCounts::default() && part.slots == CoreSlots::default() => {}
            _ => self.parts.push(part),
        }
    }

    /// One part for each unit, ascending.
    fn units(&self) -> Vec<UnitPart> {
        let mut sorted = self.parts.clone();
        sorted.sort_by_key(|part| part.unit);
        let mut merged = GroupCounts::default();
        sorted.into_iter().for_each(|part| merged.push(part));
        merged.parts
    }
}

impl std::ops::AddAssign<&GroupCounts> for GroupCounts {
    fn add_assign(&mut self, other: &GroupCounts) {
        self.slots += other.slots;
        self.known += other.known;
        other.parts.iter().for_each(|part| self.push(*part));
    }
}

/// A group that ran in fewer units is estimated together with the others of its mode that did, and
/// has no interval.
pub(super) const FEWEST_UNITS: usize = 5;

/// What the units of a recording say of groups of executions.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledGroups {
    /// Where the samples lie.
    pub plan: SamplePlan,
    /// The number of units.
    pub units: u64,
    /// The slots of the dispatch of the groups of each mode.
    pub slots: PerMode<Estimate>,
    /// The slots of the dispatch of all groups.
    pub all: Estimate,
    groups: Vec<GroupSample>,
    /// The groups of each mode that ran in few units, as one.
    few: PerMode<Residuals>,
}

/// An estimated group.
#[derive(Clone, Debug, PartialEq)]
struct GroupSample {
    mode: Mode,
    units: usize,
    /// Empty for a group that ran in few units.
    residuals: Residuals,
    /// The slots that no unit says anything about.
    unseen: f64,
}

/// What is not explained, by unit: as slots of the whole.
type Residuals = Vec<(u32, f64)>;

/// The slots by field: those of the dispatch, then those of the graduation.
type Fields = [f64; DISPATCH.len() + GRADUATION.len()];

fn fields(slots: &CoreSlots) -> Fields {
    let mut slots = *slots;
    std::array::from_fn(|at| match at.checked_sub(DISPATCH.len()) {
        None => *DISPATCH[at](&mut slots.dispatch) as f64,
        Some(at) => *GRADUATION[at](&mut slots.graduation) as f64,
    })
}

fn slots(fields: &Fields) -> CoreSlots {
    let mut slots = CoreSlots::default();
    for (at, value) in fields.iter().enumerate() {
        let value = value.max(0.0).round() as u64;
        match at.checked_sub(DISPATCH.len()) {
            None => *DISPATCH[at](&mut slots.dispatch) = value,
            Some(at) => *GRADUATION[at](&mut slots.graduation) = value,
        }
    }
    slots
}

/// The slots of the dispatch.
fn dispatched(fields: &Fields) -> f64 {
    fields[..DISPATCH.len()].iter().sum()
}

/// What an event takes in a mode, by field.
struct Costs {
    factors: Vec<Vec<f64>>,
    /// The events that no unit has.
    unseen: [bool; EXPLAINING.len()],
}

impl Costs {
    /// From the parts of each group.
    fn new<'a>(groups: impl Iterator<Item = &'a [UnitPart]>) -> Costs {
        let mut costs = Costs { factors: Vec::new(), unseen: [true; EXPLAINING.len()] };
        let (mut rows, mut values) = (Vec::new(), Vec::new());
        for parts in groups {
            let mut of_group: Vec<Vec<f64>> = parts.iter().map(|part| part.known.row()).collect();
            for row in &of_group {
                costs.unseen.iter_mut().zip(row).for_each(|(unseen, x)| *unseen &= *x == 0.0);
            }
            let mut took: Vec<Fields> = parts.iter().map(|part| fields(&part.slots)).collect();
            // What a group takes for each instruction is its own, and tells nothing of events.
            let ran: Vec<f64> = of_group.iter().map(|row| row[0]).collect();
            (0..EXPLAINING.len()).for_each(|at| leave_out(&ran, &mut of_group, at));
            (0..Fields::default().len()).for_each(|at| leave_out(&ran, &mut took, at));
            rows.append(&mut of_group);
            values.append(&mut took);
        }
        let fit = Regression::new(&rows, &[0.0; EXPLAINING.len()]);
        let of = |at: usize| fit.factors(&values.iter().map(|of| of[at]).collect::<Vec<_>>());
        costs.factors = (0..Fields::default().len()).map(of).collect();
        costs
    }

    fn explained(&self, known: &KnownCounts) -> Fields {
        let row = known.row();
        std::array::from_fn(|at| dot(&self.factors[at], &row))
    }

    fn left(&self, part: &UnitPart) -> Fields {
        let explained = self.explained(&part.known);
        let slots = fields(&part.slots);
        std::array::from_fn(|at| slots[at] - explained[at])
    }

    fn unseen(&self, known: &KnownCounts) -> f64 {
        let events = known.0.iter().zip(self.unseen).filter(|(_, unseen)| *unseen);
        events.map(|(count, _)| *count as f64).sum()
    }
}

/// Takes from a column what the instructions that ran explain of it.
fn leave_out<R: AsMut<[f64]>>(ran: &[f64], rows: &mut [R], at: usize) {
    let products = ran.iter().zip(&mut *rows).map(|(ran, row)| ran * row.as_mut()[at]);
    let factor = products.sum::<f64>() / ran.iter().map(|ran| ran * ran).sum::<f64>().max(1.0);
    ran.iter().zip(rows).for_each(|(ran, row)| row.as_mut()[at] -= factor * ran);
}

/// Whether these parts of units say how the slots of their group vary.
fn are_known(parts: &[UnitPart]) -> bool {
    parts.len() >= FEWEST_UNITS && parts.iter().any(|part| part.known.instructions() > 0)
}

/// The groups of a mode that ran in few units, as one, and what events take in the mode.
struct Few {
    costs: Costs,
    ratio: OwnRatio,
    are_known: bool,
    known: KnownCounts,
}

/// How a group, or those with few units together, differ from what an event takes.
struct OwnRatio {
    /// Slots for each instruction, beyond what the events take.
    ratio: Fields,
    /// By unit: instructions, and slots of the dispatch beyond what the events take.
    parts: Vec<(u32, f64, f64)>,
    instructions: f64,
}

impl OwnRatio {
    fn new(parts: &[UnitPart], costs: &Costs) -> OwnRatio {
        let mut ratio = Fields::default();
        let mut own = Vec::new();
        let mut instructions = 0.0;
        for part in parts {
            let left = costs.left(part);
            ratio.iter_mut().zip(left).for_each(|(sum, slots)| *sum += slots);
            let ran = part.known.instructions() as f64;
            instructions += ran;
            own.push((part.unit, ran, dispatched(&left)));
        }
        ratio.iter_mut().for_each(|sum| *sum /= instructions.max(1.0));
        OwnRatio { ratio, parts: own, instructions }
    }

    /// The residuals. `whole`: its instructions in the whole recording. `left_out`: the share of
    /// the recording that lies in no unit.
    fn residuals(&self, whole: f64, left_out: f64) -> Residuals {
        let (units, ratio) = (self.parts.len() as f64, dispatched(&self.ratio));
        let degrees = (units / (units - 1.0).max(1.0) * left_out).sqrt();
        let factor = degrees * whole / self.instructions.max(1.0);
        let parts = self.parts.iter();
        parts.map(|&(unit, ran, slots)| (unit, factor * (slots - ratio * ran))).collect()
    }
}

impl SampledGroups {
    /// Estimates the slots of groups, each with its mode. `units`: the number of all units. `most`:
    /// the most slots that one event can take. Also returns the slots of each group.
    pub fn new(
        plan: SamplePlan,
        units: u64,
        most: f64,
        groups: &[(Mode, GroupCounts)],
    ) -> (SampledGroups, Vec<CoreSlots>) {
        let whole: u64 = groups.iter().map(|(_, group)| group.known.instructions()).sum();
        let left_out = (1.0 - (units * plan.measured) as f64 / whole.max(1) as f64).max(0.0);
        let parts: Vec<Vec<UnitPart>> = groups.iter().map(|(_, group)| group.units()).collect();
        let of = |wanted: Mode| {
            let of_mode = groups.iter().zip(&parts).filter(move |((mode, _), _)| *mode == wanted);
            of_mode.map(|((_, group), parts)| (group, parts))
        };
        let modes = [Mode::Kernel, Mode::User].map(|mode| {
            let mut few = GroupCounts::default();
            let rare = of(mode).filter(|(_, parts)| !are_known(parts));
            rare.for_each(|(group, _)| few += group);
            let of_few = few.units();
            let known = of(mode).map(|(_, parts)| &parts[..]).filter(|parts| are_known(parts));
            let costs = Costs::new(known.chain([&of_few[..]]));
            let ratio = OwnRatio::new(&of_few, &costs);
            Few { are_known: are_known(&of_few), ratio, costs, known: few.known }
        });
        let mut estimated = Vec::new();
        let mut found = Vec::new();
        for ((mode, group), parts) in groups.iter().zip(&parts) {
            let Few { costs, ratio: few, are_known: few_are_known, .. } = &modes[*mode as usize];
            let own = OwnRatio::new(parts, costs);
            let is_known = are_known(parts);
            let instructions = group.known.instructions() as f64;
            let ratio = if is_known { &own } else { few };
            let explained = costs.explained(&group.known);
            let all: Fields =
                std::array::from_fn(|at| explained[at] + ratio.ratio[at] * instructions);
            let of_group = slots(&all);
            let is_guess = !is_known && !few_are_known;
            let guessed = if is_guess { dispatched(&all).max(0.0) } else { 0.0 };
            estimated.push(of_group);
            found.push(GroupSample {
                mode: *mode,
                units: parts.len(),
                residuals: match is_known {
                    true => own.residuals(instructions, left_out),
                    false => Vec::new(),
                },
                unseen: most * costs.unseen(&group.known) + guessed,
            });
        }
        let few = |mode: Mode| {
            let few = &modes[mode as usize];
            let instructions = few.known.instructions() as f64;
            if few.are_known { few.ratio.residuals(instructions, left_out) } else { Vec::new() }
        };
        let few = PerMode { kernel: few(Mode::Kernel), user: few(Mode::User) };
        let mut sampled = SampledGroups {
            plan,
            units,
            slots: PerMode::default(),
            all: Estimate::default(),
            groups: found,
            few,
        };
        let sum = |wanted: &dyn Fn(Mode) -> bool| {
            let of_groups = groups.iter().zip(&estimated).filter(|((mode, _), _)| wanted(*mode));
            let value: u64 = of_groups.map(|(_, slots)| slots.dispatch.total()).sum();
            let within = sampled.within_of(|group| wanted(groups[group].0));
            Estimate { value: value as f64, within }
        };
        let [kernel, user] = [Mode::Kernel, Mode::User].map(|mode| sum(&|of| of == mode));
        (sampled.all, sampled.slots) = (sum(&|_| true), PerMode { kernel, user });
        (sampled, estimated)
    }

    /// The units in which a group ran.
    pub fn units_of(&self, group: usize) -> u64 {
        self.groups.get(group).map_or(0, |group| group.units as u64)
    }

    /// Half of the 95 % interval of a group's slots. `None`: the group ran in too few units.
    pub fn within(&self, group: usize) -> Option<f64> {
        let group = self.groups.get(group).filter(|group| !group.residuals.is_empty())?;
        let squares: f64 = group.residuals.iter().map(|(_, left)| left * left).sum();
        Some(quantile(group.units - 1) * squares.sqrt() + group.unseen)
    }

    /// The same of the sum of some groups.
    pub fn within_of(&self, wanted: impl Fn(usize) -> bool) -> f64 {
        let mut left = HashMap::<u32, f64>::new();
        let mut unseen = 0.0;
        let mut has_few = PerMode::<bool>::default();
        for (_, group) in self.groups.iter().enumerate().filter(|(at, _)| wanted(*at)) {
            unseen += group.unseen;
            *has_few.get_mut(group.mode) |= group.residuals.is_empty();
            for (unit, slots) in &group.residuals {
                *left.entry(*unit).or_default() += slots;
            }
        }
        for mode in [Mode::Kernel, Mode::User].into_iter().filter(|mode| *has_few.get(*mode)) {
            for (unit, slots) in self.few.get(mode) {
                *left.entry(*unit).or_default() += slots;
            }
        }
        // In one order, so that the same inputs give the same bytes.
        let mut left: Vec<(u32, f64)> = left.into_iter().collect();
        left.sort_by_key(|(unit, _)| *unit);
        let squares: f64 = left.iter().map(|(_, slots)| slots * slots).sum();
        quantile(left.len().saturating_sub(1).max(1)) * squares.sqrt() + unseen
    }

    /// The widest interval of these: the slots of the kernel, of user code, and of both, in per
    /// cent of each. A mode with less than a twentieth of the slots does not count.
    pub fn widest(&self) -> f64 {
        widest(&self.slots, &self.all)
    }
}

/// By this factor, a standard error becomes half of a 95 % interval: the quantile of Student's
/// distribution (Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.5). Off by less
/// than 0.3 % from four degrees of freedom on.
pub(super) fn quantile(degrees: usize) -> f64 {
    let (z, n) = (1.959_964_f64, degrees as f64);
    let terms = [
        (z.powi(3) + z) / 4.0,
        (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
    ];
    z + terms[0] / n + terms[1] / n.powi(2) + terms[2] / n.powi(3)
}

#[cfg(test)]
#[path = "groups_tests.rs"]
mod tests;
