//! Samples of a recording: where cores are simulated in detail, and what that says of the whole.
//!
//! A recording is divided into intervals of equally many instructions. At a pseudo-random place in
//! each lies a sample: instructions that the core simulates in detail and then, behind them, a
//! *unit* whose slots count. Between the samples the core passes the code without time
//! ([`sim::core::Core::warm`]), so instructions, branches, failed predictions and misses are
//! counted everywhere (Wunderlich et al., "SMARTS", ISCA 2003).
//!
//! These counts explain most of the differences between the units. So an estimate is that of a
//! regression: what a unit takes, as a linear function of its counts, times the counts of the whole
//! recording. Only what the regression leaves unexplained makes the interval wider (Cochran,
//! "Sampling Techniques", 3rd edition, 1977, chapter 7).
//!
//! Input: units, and the counts of the whole. Output: counters with estimates, and intervals. This
//! module simulates nothing.

pub mod groups;
pub mod ratios;
mod regression;

use regression::Regression;
use serde::{Deserialize, Serialize};
use sim::core::{CoreCounters, CoreSlots, GraduationSlots, Slots};
use sim::{Mode, PerMode};
use trace::RunAddr;

/// The instructions that are simulated in detail before a unit. 500 are enough for a bias below a
/// tenth of a per cent (`bench/sampling.txt`); the others are for code with many misses.
const BEFORE: u64 = 2_000;
/// The instructions of a unit.
const MEASURED: u64 = 1_000;
/// Detailed simulation of more than one instruction in this number is not worth a sample.
const WORTH: u64 = 3;
/// Fewer units say too little.
const FEWEST: u64 = 200;

/// Where samples lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplePlan {
    /// The instructions of an interval, in which lies one sample.
    pub interval: u64,
    /// The instructions that are simulated in detail before a unit.
    pub before: u64,
    /// The instructions of a unit.
    pub measured: u64,
    /// Where the places of the samples come from.
    pub seed: u64,
}

impl SamplePlan {
    /// At least `units` units in this number of instructions; `None`: simulating all of them in
    /// detail takes hardly longer.
    pub fn new(instructions: u64, units: u64, seed: u64) -> Option<SamplePlan> {
        let interval = instructions / units.max(FEWEST);
        let plan = SamplePlan { interval, before: BEFORE, measured: MEASURED, seed };
        (interval >= WORTH * (BEFORE + MEASURED)).then_some(plan)
    }

    /// The first instruction of a CPU's sample number `number`.
    pub(crate) fn begin(&self, cpu: u8, number: u64) -> u64 {
        let room = self.interval.saturating_sub(self.before + self.measured).max(1);
        let state = self.seed ^ u64::from(cpu) << 56 ^ number;
        number * self.interval + mixed(state) % room
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
fn mixed(state: u64) -> u64 {
    let mut value = state.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// A number that was estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The number.
    pub value: f64,
    /// It lies within this distance of the true one in 95 of 100 cases.
    pub within: f64,
}

impl Estimate {
    /// The distance in per cent of the number; 0 if the number is 0.
    pub fn percent(&self) -> f64 {
        if self.value > 0.0 { 100.0 * self.within / self.value } else { 0.0 }
    }
}

/// A counter of one mode.
type Field = fn(&mut CoreCounters) -> &mut u64;

/// The slots of the dispatch, which only detailed simulation counts.
const DISPATCH: &[fn(&mut Slots) -> &mut u64] = &[
    |slots| &mut slots.retiring,
    |slots| &mut slots.bad_speculation,
    |slots| &mut slots.front_end_latency,
    |slots| &mut slots.front_end_bandwidth,
    |slots| &mut slots.memory,
    |slots| &mut slots.core,
];

/// The slots of the graduation, which only detailed simulation counts.
const GRADUATION: &[fn(&mut GraduationSlots) -> &mut u64] = &[
    |slots| &mut slots.busy,
    |slots| &mut slots.data,
    |slots| &mut slots.instruction,
    |slots| &mut slots.pipeline,
];

/// The other counters that only detailed simulation counts.
const ESTIMATED: &[Field] = &[
    |counters| &mut counters.uops,
    |counters| &mut counters.late_targets,
    |counters| &mut counters.bubble_cycles,
    |counters| &mut counters.wrong_path_targets,
    |counters| &mut counters.uop_cache_slots,
    |counters| &mut counters.decoded_slots,
    |counters| &mut counters.l1i_late,
    |counters| &mut counters.loads,
    |counters| &mut counters.stores,
    |counters| &mut counters.forwarded,
    |counters| &mut counters.l1d_prefetches,
    |counters| &mut counters.serialising,
];

/// Loads that a stream without data accesses is said to miss with: also counted in detail only.
const ESTIMATED_WITHOUT_DATA: &[Field] = &[
    |counters| &mut counters.l1d_misses,
    |counters| &mut counters.l2_data_misses,
    |counters| &mut counters.l3_data_misses,
];

/// The counters that are known of the whole recording, and that explain those above.
const EXPLAINING: &[fn(&CoreCounters) -> u64] = &[
    |counters| counters.instructions,
    |counters| counters.branches.conditional,
    |counters| counters.branches.indirect + counters.branches.returns,
    |counters| counters.branches.mispredictions(),
    |counters| counters.branches.misfetches,
    |counters| counters.l1i_misses,
    |counters| counters.l2_instruction_misses,
    |counters| counters.itlb_walks,
];

/// Those that only streams with data accesses know. Misses of data are not among them: without
/// time, registers are free for more prefetches, so the units and the rest count them differently.
const EXPLAINING_DATA: &[fn(&CoreCounters) -> u64] =
    &[|counters| counters.string_accesses, |counters| counters.dtlb_walks];

/// The columns of the regression: the number of units, and their counts. The number makes the
/// estimate right for any code when there are many units, whether or not slots are a linear
/// function of the counts.
fn explaining(units: f64, counters: &PerMode<CoreCounters>, has_data: bool) -> Vec<f64> {
    let of = |mode: &CoreCounters| {
        let more = if has_data { EXPLAINING_DATA } else { &[] };
        EXPLAINING.iter().chain(more).map(|field| field(mode) as f64).collect::<Vec<_>>()
    };
    [vec![units], of(&counters.kernel), of(&counters.user)].concat()
}

/// What the units of a recording say of the whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Where the samples lie.
    pub plan: SamplePlan,
    /// The number of units.
    pub units: u64,
    /// The counters of the whole. Those that only detailed simulation counts are estimates.
    pub counters: PerMode<CoreCounters>,
    /// The slots of the dispatch in each mode.
    pub slots: PerMode<Estimate>,
    /// The slots of the dispatch in both.
    pub all: Estimate,
    /// The slots that were counted in units, of each mode.
    measured: PerMode<CoreSlots>,
    /// What the counts do not explain of each unit's slots: kernel, user.
    residuals: Vec<[f64; 2]>,
    /// By this factor, the root of the sum of the squares of residuals becomes a distance.
    spread: f64,
    /// The most slots that events can have taken which the whole has and no unit: kernel, user.
    unseen: [f64; 2],
}

/// The widest interval of the slots of each mode and of `all`, in per cent of each.
fn widest(slots: &PerMode<Estimate>, all: &Estimate) -> f64 {
    let counts = |mode: &&Estimate| mode.value * 20.0 >= all.value;
    let modes = [&slots.kernel, &slots.user, all];
    modes.into_iter().filter(counts).map(Estimate::percent).fold(0.0, f64::max)
}

/// What the whole recording counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// The counters of the whole, of which those that only detailed simulation counts are not read.
    pub counters: PerMode<CoreCounters>,
    /// The recorded instructions.
    pub instructions: u64,
    /// Whether the stream has data accesses.
    pub has_data: bool,
    /// The most slots that one event of those that are counted everywhere can take.
    pub most: f64,
}

impl Sampled {
    /// Estimates the whole from `units`.
    pub(crate) fn new(
        plan: SamplePlan,
        units: &[PerMode<CoreCounters>],
        counted: &Counted,
    ) -> Sampled {
        let Counted { mut counters, instructions, has_data, most } = *counted;
        let all = instructions as f64 / plan.measured as f64;
        let known = explaining(all, &counters, has_data);
        let rows: Vec<Vec<f64>> =
            units.iter().map(|unit| explaining(1.0, unit, has_data)).collect();
        let fit = Regression::new(&rows, &known);
        let mut measured = PerMode::<CoreSlots>::default();
        for mode in [Mode::Kernel, Mode::User] {
            let estimated = |field: &dyn Fn(&mut CoreCounters) -> u64| {
                let values = units.iter().map(|unit| field(&mut unit.get(mode).clone()) as f64);
                fit.total(&values.collect::<Vec<_>>()).max(0.0).round() as u64
            };
            let of_mode = counters.get_mut(mode);
            for field in DISPATCH {
                *field(&mut of_mode.slots) = estimated(&|unit| *field(&mut unit.slots));
            }
            for field in GRADUATION {
                *field(&mut of_mode.graduation) = estimated(&|unit| *field(&mut unit.graduation));
            }
            let more = if has_data { &[][..] } else { ESTIMATED_WITHOUT_DATA };
            for field in ESTIMATED.iter().chain(more) {
                *field(of_mode) = estimated(&|unit| *field(unit));
            }
            for unit in units {
                let CoreCounters { slots: dispatch, graduation, .. } = *unit.get(mode);
                *measured.get_mut(mode) += CoreSlots { dispatch, graduation };
            }
        }
        let slots = |unit: &PerMode<CoreCounters>| {
            [unit.kernel.slots.total() as f64, unit.user.slots.total() as f64]
        };
        let of_mode = |mode: usize| {
            let values: Vec<f64> = units.iter().map(|unit| slots(unit)[mode]).collect();
            (fit.total(&values), fit.residuals(&values))
        };
        let [(kernel, of_kernel), (user, of_user)] = [0, 1].map(of_mode);
        let residuals: Vec<[f64; 2]> =
            of_kernel.into_iter().zip(of_user).map(|(kernel, user)| [kernel, user]).collect();
        let mut sampled = Sampled {
            plan,
            units: units.len() as u64,
            counters,
            slots: PerMode::default(),
            all: Estimate::default(),
            measured,
            residuals,
            spread: fit.spread(),
            unseen: fit.unseen().map(|events| events * most),
        };
        let within =
            |of: &dyn Fn(&[f64; 2]) -> f64| sampled.within(sampled.residuals.iter().map(of));
        let estimates = [
            (kernel, within(&|residual| residual[0]) + sampled.unseen[0]),
            (user, within(&|residual| residual[1]) + sampled.unseen[1]),
            (
                kernel + user,
                within(&|residual| residual[0] + residual[1]) + sampled.unseen.iter().sum::<f64>(),
            ),
        ];
        let estimates = estimates.map(|(value, within)| Estimate { value, within });
        sampled.slots = PerMode { kernel: estimates[0], user: estimates[1] };
        sampled.all = estimates[2];
        sampled
    }

    fn within(&self, residuals: impl Iterator<Item = f64>) -> f64 {
        self.spread * residuals.map(|residual| residual * residual).sum::<f64>().sqrt()
    }

    /// The widest interval of these: the slots of the kernel, of user code, and of both, in per
    /// cent of each. A mode with less than a twentieth of the slots does not count.
    pub fn widest(&self) -> f64 {
        widest(&self.slots, &self.all)
    }

    /// By how many per cent the slots differ from those of `original`: of the kernel, of user code,
    /// and of both. Both have units at the same places. What differs from unit to unit in the same
    /// way does not make the interval wider. `None`: the places are others.
    pub fn change(&self, original: &Sampled) -> Option<[Estimate; 3]> {
        if self.plan != original.plan || self.residuals.len() != original.residuals.len() {
            return None;
        }
        let spread = self.spread.max(original.spread);
        let of = |own: f64, its: f64, pick: &dyn Fn(&[f64; 2]) -> f64| {
            let ratio = if its > 0.0 { own / its } else { 1.0 };
            let difference = |own: &[f64; 2], its: &[f64; 2]| pick(own) - ratio * pick(its);
            let pairs = self.residuals.iter().zip(&original.residuals);
            let squares: f64 = pairs.map(|(own, its)| difference(own, its).powi(2)).sum();
            let unseen = difference(&self.unseen, &original.unseen).abs();
            let within = spread * squares.sqrt() + unseen;
            Estimate { value: 100.0 * (ratio - 1.0), within: 100.0 * within / its.max(1.0) }
        };
        let (own, its) = (&self.slots, &original.slots);
        Some([
            of(own.kernel.value, its.kernel.value, &|residual| residual[0]),
            of(own.user.value, its.user.value, &|residual| residual[1]),
            of(self.all.value, original.all.value, &|residual| residual[0] + residual[1]),
        ])
    }

    /// Turns slots that were counted in units into slots of the whole. Their sum becomes the
    /// estimate, but for rounding.
    pub(crate) fn scale(&self, slots_at: &mut [(RunAddr, CoreSlots)]) {
        for (at, slots) in slots_at {
            let mode = if at.is_kernel() { Mode::Kernel } else { Mode::User };
            let (whole, mut measured) = (self.counters.get(mode), *self.measured.get(mode));
            let mut whole = CoreSlots { dispatch: whole.slots, graduation: whole.graduation };
            let scaled = |own: u64, whole: u64, measured: u64| {
                (own as f64 * whole as f64 / measured.max(1) as f64).round() as u64
            };
            for field in DISPATCH {
                let own = field(&mut slots.dispatch);
                *own = scaled(*own, *field(&mut whole.dispatch), *field(&mut measured.dispatch));
            }
            for field in GRADUATION {
                let own = field(&mut slots.graduation);
                *own =
                    scaled(*own, *field(&mut whole.graduation), *field(&mut measured.graduation));
            }
        }
    }
}

#[cfg(test)]
mod tests;
