//! Estimates of units that are made here.

use super::*;

const PLAN: SamplePlan = SamplePlan { interval: 1000, before: 100, measured: 100, seed: 1 };

/// A pseudo-random number from 0 to 1.
fn random(state: &mut u64) -> f64 {
    *state += 1;
    (mixed(*state) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A unit of 100 kernel instructions. Each misprediction takes 60 slots. The counts do not explain
/// `noise` further slots.
fn unit(mispredictions: u64, noise: u64) -> PerMode<CoreCounters> {
    let mut unit = PerMode::<CoreCounters>::default();
    unit.kernel.instructions = 100;
    unit.kernel.branches.conditional = 20;
    unit.kernel.branches.wrong_directions = mispredictions;
    unit.kernel.slots.retiring = 110;
    unit.kernel.slots.bad_speculation = 60 * mispredictions + noise;
    unit
}

/// The whole of which these are all units.
fn whole(units: &[PerMode<CoreCounters>]) -> Counted {
    let mut counters = PerMode::default();
    units.iter().for_each(|unit| counters += *unit);
    Counted { counters, instructions: 100 * units.len() as u64, has_data: false, most: 600.0 }
}

#[test]
fn what_the_counts_explain_is_exact() {
    let mut state = 0;
    let units: Vec<_> = (0..3000).map(|_| unit((random(&mut state) * 5.0) as u64, 0)).collect();
    let some: Vec<_> = units.iter().step_by(10).copied().collect();
    let sampled = Sampled::new(PLAN, &some, &whole(&units));
    let truth = whole(&units).counters.kernel.slots;
    assert_eq!(sampled.counters.kernel.slots, truth);
    assert!((sampled.slots.kernel.value - truth.total() as f64).abs() < 1.0);
    assert!(sampled.slots.kernel.within < 1.0);
    assert_eq!((sampled.slots.user.value, sampled.slots.user.within), (0.0, 0.0));
}

/// One unit in a hundred is drawn; 200 times.
#[test]
fn the_true_number_lies_in_the_interval_in_95_of_100_cases() {
    let mut state = 77;
    let units: Vec<_> = (0..40_000)
        .map(|_| {
            let mispredictions = (random(&mut state) * 5.0) as u64;
            unit(mispredictions, (random(&mut state) * 200.0) as u64)
        })
        .collect();
    let truth = whole(&units).counters.kernel.slots.total() as f64;
    let inside = (0..200).filter(|_| {
        let drawn: Vec<_> = units
            .chunks(100)
            .map(|hundred| hundred[(random(&mut state) * 100.0) as usize])
            .collect();
        let kernel = Sampled::new(PLAN, &drawn, &whole(&units)).slots.kernel;
        assert!(kernel.percent() < 3.0, "{}", kernel.percent());
        (kernel.value - truth).abs() <= kernel.within
    });
    let inside = inside.count();
    assert!((183..=197).contains(&inside), "{inside} of 200");
}

/// A phase of one unit in a thousand has half of all mispredictions. It is counted, also where
/// no unit lies in it; where its slots are not explained by counts, the interval tells.
#[test]
fn a_short_phase_is_not_lost() {
    let units: Vec<_> = (0..10_000)
        .map(|at| if (5000..5010).contains(&at) { unit(1000, 0) } else { unit(1, 0) })
        .collect();
    let all = whole(&units);
    let truth = all.counters.kernel.slots.total() as f64;
    let drawn = |from: usize| units.iter().skip(from).step_by(10).copied().collect::<Vec<_>>();
    let hit = Sampled::new(PLAN, &drawn(0), &all).slots.kernel;
    assert!((hit.value - truth).abs() < 1.0, "{} of {truth}", hit.value);
    let unexplained: Vec<_> = (0..10_000)
        .map(|at| if (5000..5010).contains(&at) { unit(1, 60_000) } else { unit(1, 0) })
        .collect();
    let drawn: Vec<_> = unexplained.iter().step_by(10).copied().collect();
    let found = Sampled::new(PLAN, &drawn, &whole(&unexplained));
    assert!(found.widest() > 40.0, "±{} %", found.widest());
}

#[test]
fn changes_are_taken_at_the_same_places() {
    let mut state = 5;
    let units: Vec<_> = (0..2000).map(|_| unit(1, (random(&mut state) * 500.0) as u64)).collect();
    // The other layout saves a tenth of what every unit takes.
    let faster: Vec<_> = units
        .iter()
        .map(|unit| {
            let mut unit = *unit;
            let slots = &mut unit.kernel.slots;
            slots.bad_speculation -= slots.total() / 10;
            unit
        })
        .collect();
    let some = |units: &[PerMode<CoreCounters>]| {
        let drawn: Vec<_> = units.iter().step_by(20).copied().collect();
        Sampled::new(PLAN, &drawn, &whole(units))
    };
    let (original, layout) = (some(&units), some(&faster));
    let [kernel, user, all] = layout.change(&original).unwrap();
    assert!((kernel.value + 10.0).abs() < 0.2 && kernel.within < 0.05, "{kernel:?}");
    assert!(original.slots.kernel.percent() > 5.0);
    assert_eq!((user, all), (Estimate::default(), kernel));
}

#[test]
fn blocks_get_their_share_of_the_estimate() {
    let units = vec![unit(1, 0); 100];
    let sampled = Sampled::new(PLAN, &units[..10], &whole(&units));
    let kernel = RunAddr(0xffff_ffff_8100_0000);
    let one = CoreSlots { dispatch: units[0].kernel.slots, ..CoreSlots::default() };
    let mut slots_at = vec![(kernel, one); 10];
    sampled.scale(&mut slots_at);
    let scaled: u64 = slots_at.iter().map(|(_, slots)| slots.dispatch.total()).sum();
    assert_eq!(scaled, sampled.counters.kernel.slots.total());
}

#[test]
fn samples_lie_in_their_intervals_and_not_at_the_same_places() {
    let begins: Vec<u64> = (0..100).map(|number| PLAN.begin(0, number)).collect();
    let offsets: Vec<u64> = (0..).zip(&begins).map(|(n, begin)| begin - n * 1000).collect();
    assert!(offsets.iter().all(|offset| *offset < 850));
    let different: std::collections::BTreeSet<_> = offsets.iter().collect();
    assert!(different.len() > 80);
    assert_ne!(begins, (0..100).map(|number| PLAN.begin(1, number)).collect::<Vec<_>>());
}

#[test]
fn short_recordings_are_simulated_in_detail() {
    let plan = |instructions, units| SamplePlan::new(instructions, units, 1);
    assert_eq!(plan(1_000_000_000, 20_000).map(|plan| plan.interval), Some(50_000));
    assert_eq!(plan(100_000_000, 20_000), None);
    assert_eq!(plan(0, 20_000), None);
    // At least as many units as an interval needs.
    assert_eq!(plan(10_000_000, 1).map(|plan| plan.interval), Some(50_000));
}
