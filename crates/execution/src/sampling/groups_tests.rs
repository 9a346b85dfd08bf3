//! Estimates of groups that are made here.

use super::*;
use crate::sampling::mixed;

const PLAN: SamplePlan = SamplePlan { interval: 100_000, before: 0, measured: 1000, seed: 1 };

/// A pseudo-random number from 0 to 1.
fn random(state: &mut u64) -> f64 {
    *state += 1;
    (mixed(*state) >> 11) as f64 / (1_u64 << 53) as f64
}

/// What a part of a unit counted: each misprediction takes 60 slots.
fn counted(instructions: u64, mispredictions: u64, other_slots: u64) -> PerMode<CoreCounters> {
    let mut counters = PerMode::<CoreCounters>::default();
    counters.kernel.instructions = instructions;
    counters.kernel.branches.wrong_directions = mispredictions;
    counters.kernel.slots.retiring = other_slots;
    counters.kernel.slots.bad_speculation = 60 * mispredictions;
    counters
}

/// Units of 1000 instructions. The first group runs in each, with 2 slots for an instruction and
/// noise; the second in one of ten, with 5; the third in one of a thousand.
fn population(state: &mut u64, noise: f64) -> Vec<[PerMode<CoreCounters>; 3]> {
    let unit = |at: usize| {
        let mut part = |instructions: u64, each: u64| {
            let mispredictions = (random(state) * 5.0) as u64;
            let left = (random(state) * noise) as u64;
            counted(instructions, mispredictions, each * instructions + left)
        };
        let rare = if at.is_multiple_of(1000) { 100 } else { 0 };
        let second = if at % 10 == 3 { 400 } else { 0 };
        [
            part(1000 - rare - second, 2),
            if second > 0 { part(second, 5) } else { PerMode::default() },
            if rare > 0 { part(rare, 2) } else { PerMode::default() },
        ]
    };
    (0..40_000).map(unit).collect()
}

/// The groups of a population of which these units, by number, were simulated in detail.
fn groups(population: &[[PerMode<CoreCounters>; 3]], drawn: &[usize]) -> Vec<(Mode, GroupCounts)> {
    let mut groups = vec![(Mode::Kernel, GroupCounts::default()); 3];
    for unit in population {
        for ((_, group), part) in groups.iter_mut().zip(unit) {
            group.add_known(part);
        }
    }
    for &unit in drawn {
        for ((_, group), part) in groups.iter_mut().zip(&population[unit]) {
            group.add_part(unit as u32, part);
        }
    }
    groups
}

fn truth(population: &[[PerMode<CoreCounters>; 3]], group: usize) -> f64 {
    population.iter().map(|unit| unit[group].kernel.slots.total() as f64).sum()
}

/// One unit in a hundred is drawn; 200 times. The second group runs in 40 of the 400 drawn units.
#[test]
fn each_group_lies_in_its_interval_in_95_of_100_cases() {
    let mut state = 3;
    let population = population(&mut state, 1500.0);
    let truths = [0, 1].map(|group| truth(&population, group));
    let mut inside = [0; 3];
    for _ in 0..200 {
        let drawn: Vec<usize> =
            (0..400).map(|at| at * 100 + (random(&mut state) * 100.0) as usize).collect();
        let (sampled, slots) = SampledGroups::new(PLAN, 400, 600.0, &groups(&population, &drawn));
        for (group, truth) in truths.iter().enumerate() {
            let value = slots[group].dispatch.total() as f64;
            let within = sampled.within(group).unwrap();
            assert!(within < [0.03, 0.1][group] * truth, "{group}: {within} of {truth}");
            inside[group] += usize::from((value - truth).abs() <= within);
        }
        let all: f64 = (0..3).map(|group| truth(&population, group)).sum();
        inside[2] += usize::from((sampled.all.value - all).abs() <= sampled.all.within);
    }
    assert!(inside.iter().all(|inside| (181..=198).contains(inside)), "{inside:?} of 200");
}

/// Without noise, a group is known exactly, although others take other times for an instruction,
/// and although the drawn units are unlike the others: each has the second group.
#[test]
fn a_group_differs_from_the_others_by_its_own_units() {
    let mut state = 8;
    let population = population(&mut state, 0.0);
    let drawn: Vec<usize> = (0..400).map(|at| at * 100 + 3 + at % 7 * 10).collect();
    let (sampled, slots) = SampledGroups::new(PLAN, 400, 600.0, &groups(&population, &drawn));
    for group in [0, 1] {
        let (value, truth) = (slots[group].dispatch.total() as f64, truth(&population, group));
        assert!((value / truth - 1.0).abs() < 1e-3, "{group}: {value} of {truth}");
        assert!(sampled.within(group).unwrap() < 2e-3 * truth, "{group}");
    }
    // The sum is that of the groups.
    let sum: u64 = slots.iter().map(|slots| slots.dispatch.total()).sum();
    assert_eq!(sampled.slots.kernel.value, sum as f64);
    assert_eq!(sampled.slots.user, Estimate::default());
}

/// A group that no unit has is estimated from its counts. It has no interval, and makes that of the
/// sum wider by what it may take.
#[test]
fn a_group_in_no_unit_says_so() {
    let mut state = 21;
    let population = population(&mut state, 0.0);
    let drawn: Vec<usize> = (0..400).map(|at| at * 100 + 15).collect();
    let (sampled, slots) = SampledGroups::new(PLAN, 400, 600.0, &groups(&population, &drawn));
    assert_eq!((sampled.units_of(2), sampled.within(2)), (0, None));
    let (value, truth) = (slots[2].dispatch.total() as f64, truth(&population, 2));
    assert!((0.3..3.0).contains(&(value / truth)), "{value} of {truth}");
    let without = sampled.within_of(|group| group != 2);
    assert!((sampled.all.within - without - value).abs() < 1.0, "{sampled:?}");
    assert_eq!(sampled.units_of(1), 0);
}

/// Invocations of a service end in another order than their units.
#[test]
fn parts_of_units_come_in_any_order() {
    let parts = [(4, 100, 300), (1, 200, 500), (4, 50, 110), (2, 10, 60), (1, 5, 5)];
    let made = |order: &[usize]| {
        let mut group = GroupCounts::default();
        for &at in order {
            let (unit, instructions, slots) = parts[at];
            let mut part = GroupCounts::default();
            part.add_part(unit, &counted(instructions, 0, slots));
            group += &part;
        }
        group.units()
    };
    let units = made(&[0, 1, 2, 3, 4]);
    assert_eq!(units, made(&[4, 2, 3, 0, 1]));
    let slots: Vec<(u32, u64)> =
        units.iter().map(|part| (part.unit, part.slots.dispatch.retiring)).collect();
    assert_eq!(slots, [(1, 505), (2, 60), (4, 410)]);
}

#[test]
fn few_units_make_wide_intervals() {
    for (degrees, expected) in [(4, 2.776), (9, 2.262), (29, 2.045), (1_000_000, 1.960)] {
        let found = quantile(degrees);
        assert!((found / expected - 1.0).abs() < 0.003, "{degrees}: {found}");
    }
}
