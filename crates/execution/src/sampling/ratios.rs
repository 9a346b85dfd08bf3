//! Estimates for many small groups of executions, as the functions of a kernel are.
//!
//! What is known of each is its instructions. Its estimate is what an instruction of the group took
//! in the units, times these (a ratio estimate: Cochran, "Sampling Techniques", 3rd edition, 1977,
//! chapter 6). Only sums over the units are kept, so memory does not grow with their number.
//!
//! Input: the instructions and slots of each group in each unit. Output: slots, and intervals.

use super::groups::{FEWEST_UNITS, quantile};
use std::collections::HashMap;

/// The slots of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupSlots {
    /// The slots of the dispatch.
    pub slots: f64,
    /// How far they may be off; `None` when every instruction was simulated in detail.
    pub estimated: Option<GroupEstimate>,
}

/// How far the slots of a group may be off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupEstimate {
    /// The units in which it ran.
    pub units: u64,
    /// Half of the 95 % interval; `None`: it ran in too few units.
    pub within: Option<f64>,
}

/// What the units say of each group, by its number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ratios {
    sums: Vec<Sums>,
}

/// What groups ran in the unit under way: instructions, and slots.
pub(crate) type UnitGroups = HashMap<u32, [u64; 2]>;

/// Sums over the units of a group.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    units: u64,
    instructions: f64,
    slots: f64,
    /// The squares and the product of both.
    squares: [f64; 3],
}

impl Sums {
    fn add(&mut self, [instructions, slots]: [u64; 2]) {
        let (x, y) = (instructions as f64, slots as f64);
        self.units += 1;
        self.instructions += x;
        self.slots += y;
        self.squares.iter_mut().zip([x * x, x * y, y * y]).for_each(|(sum, of)| *sum += of);
    }

    /// Whether the units say how the slots vary.
    fn is_known(&self) -> bool {
        self.units >= FEWEST_UNITS as u64 && self.instructions > 0.0
    }

    fn ratio(&self) -> f64 {
        self.slots / self.instructions.max(1.0)
    }

    /// Half of the 95 % interval. `whole`: its instructions in the whole recording. `left_out`: the
    /// share of the recording that lies in no unit.
    fn within(&self, whole: f64, left_out: f64) -> f64 {
        let (units, ratio, [xx, xy, yy]) = (self.units as f64, self.ratio(), self.squares);
        let left = (yy - 2.0 * ratio * xy + ratio * ratio * xx).max(0.0);
        let factor = whole / self.instructions * (left_out * units / (units - 1.0)).sqrt();
        quantile(self.units as usize - 1) * factor * left.sqrt()
    }
}

impl Ratios {
    /// Ends a unit. Its groups are empty afterwards.
    pub(crate) fn end_unit(&mut self, unit: &mut UnitGroups) {
        for (group, amounts) in unit.drain() {
            let at = group as usize;
            self.sums.resize(self.sums.len().max(at + 1), Sums::default());
            self.sums[at].add(amounts);
        }
    }

    /// The slots of each group that ran these instructions in the whole recording. `left_out`: the
    /// share of the recording that lies in no unit. Groups that ran in few units take, for each
    /// instruction, what such groups took together.
    pub(crate) fn estimates(&self, instructions: &[u64], left_out: f64) -> Vec<GroupSlots> {
        let sums = |at: usize| self.sums.get(at).copied().unwrap_or_default();
        let mut few = Sums::default();
        for of in (0..instructions.len()).map(sums).filter(|of| !of.is_known()) {
            few.instructions += of.instructions;
            few.slots += of.slots;
        }
        if few.instructions == 0.0 {
            for of in &self.sums {
                few.instructions += of.instructions;
                few.slots += of.slots;
            }
        }
        let of_group = |(at, &whole): (usize, &u64)| {
            let (of, whole) = (sums(at), whole as f64);
            let known = of.is_known();
            let within = known.then(|| of.within(whole, left_out));
            GroupSlots {
                slots: whole * if known { of.ratio() } else { few.ratio() },
                estimated: Some(GroupEstimate { units: of.units, within }),
            }
        };
        instructions.iter().enumerate().map(of_group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::mixed;

    /// The second group runs in one unit of eight, the third in none that is drawn.
    #[test]
    fn the_true_number_lies_in_the_interval_in_95_of_100_cases() {
        let mut state = 9;
        let mut random = |below: u64| {
            state += 1;
            mixed(state) % below
        };
        let population: Vec<[[u64; 2]; 2]> = (0..20_000)
            .map(|at| {
                let second = if at % 8 == 0 { 50 + random(100) } else { 0 };
                let first = 1000 - second;
                [[first, 2 * first + random(900)], [second, 5 * second + random(1 + second)]]
            })
            .collect();
        let whole = [0, 1].map(|group| {
            population.iter().fold([0, 0], |[x, y], unit| [x + unit[group][0], y + unit[group][1]])
        });
        let mut inside = [0; 2];
        for _ in 0..200 {
            let mut ratios = Ratios::default();
            for hundred in population.chunks(100) {
                let unit = hundred[random(100) as usize];
                let ran = (0..).zip(unit).filter(|(_, [ran, _])| *ran > 0);
                ratios.end_unit(&mut ran.collect());
            }
            let found = ratios.estimates(&[whole[0][0], whole[1][0], 70], 0.99);
            for group in 0..2 {
                let truth = whole[group][1] as f64;
                let within = found[group].estimated.unwrap().within.unwrap();
                assert!(within < 0.2 * truth, "{group}: {within} of {truth}");
                inside[group] += usize::from((found[group].slots - truth).abs() <= within);
            }
            let never = GroupEstimate { units: 0, within: None };
            assert_eq!(found[2].estimated, Some(never));
            assert!((150.0..400.0).contains(&found[2].slots), "{}", found[2].slots);
        }
        assert!(inside.iter().all(|inside| (180..=198).contains(inside)), "{inside:?} of 200");
    }
}
