//! Samples: what is counted everywhere is exact, and what is estimated lies in its interval.

use crate::search::PairedTimes;
use crate::tests::guest::{record, record_on_cpus, replayed, replayed_by};
use crate::tests::program::{Program, XorShift};
use crate::tests::random::{addresses, execute, surroundings};
use crate::{Replayed, SamplePlan, Sampled};
use image::place::Placement;
use sim::MachineModel;
use sim::core::CoreCounters;

fn machines() -> Vec<MachineModel> {
    ["zen4", "golden-cove"].map(|name| machines::find(name).unwrap().model).into()
}

const PLAN: SamplePlan = SamplePlan { interval: 900, before: 200, measured: 100, seed: 7 };

/// What is counted everywhere.
fn events(counters: &CoreCounters) -> [u64; 4] {
    let branches = &counters.branches;
    let all = branches.conditional + branches.returns + branches.indirect;
    [counters.instructions, all, branches.mispredictions(), branches.misfetches]
}

fn sampled(replayed: &Replayed, layout: usize, machine: usize) -> &Sampled {
    let core = replayed.layouts[layout].machines[machine].core.as_ref();
    core.and_then(|core| core.sampled.as_ref()).expect("it was sampled")
}

/// The recording of a random program that is called `calls` times, and a random placement of it.
fn recorded(random: &mut XorShift, calls: usize) -> (Vec<u8>, Placement) {
    let program = Program::random(random);
    let steps = execute(&program, random, calls, 0);
    let mut laid = program.original();
    surroundings(&mut laid.memory, laid.starts[0]);
    let (_, placement) = program.moved(random);
    (record(&laid.memory, &addresses(&program, &laid, &steps), 64), placement)
}

#[test]
fn estimates_lie_in_their_intervals() {
    let mut random = XorShift(0x2468_ace0_1357_9bdf);
    let (mut inside, mut estimates) = (0, 0);
    for case in 0..10 {
        let (recording, placement) = recorded(&mut random, 20_000);
        let exact = replayed(&recording, placement.clone(), &machines());
        // A program without a decision does the same all the time: all but its start is known.
        let core = exact.layouts[0].machines[0].core.as_ref();
        if core.is_none_or(|core| core.counters.kernel.branches.conditional == 0) {
            continue;
        }
        let in_threads = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| replayed_by(Some(PLAN), &recording, placement.clone(), &machines()))
        };
        let estimated = in_threads(1);
        assert_eq!(estimated.layouts, in_threads(2).layouts, "case {case}");
        for (layout, machine) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let core = |replayed: &Replayed| {
                replayed.layouts[layout].machines[machine].core.clone().unwrap()
            };
            let (truth, guess) = (core(&exact), core(&estimated));
            assert_eq!(events(&guess.counters.kernel), events(&truth.counters.kernel));
            assert_eq!(events(&guess.counters.user), events(&truth.counters.user));
            let sampled = sampled(&estimated, layout, machine);
            assert!(sampled.units >= 100, "case {case}: only {} units", sampled.units);
            let true_slots = truth.counters.kernel.slots.total() as f64;
            let kernel = sampled.slots.kernel;
            estimates += 1;
            inside += usize::from((kernel.value - true_slots).abs() <= kernel.within);
            assert!(
                (kernel.value - true_slots).abs() <= 3.0 * kernel.within.max(0.01 * true_slots)
            );
            // The slots of blocks add up to those of both modes.
            let of_blocks: u64 = guess.slots_at.iter().map(|(_, at)| at.dispatch.total()).sum();
            let all =
                (guess.counters.kernel.slots.total() + guess.counters.user.slots.total()) as f64;
            assert!((of_blocks as f64 / all - 1.0).abs() < 0.01, "case {case}");
        }
        for machine in [0, 1] {
            let [original, moved] = [0, 1].map(|layout| sampled(&estimated, layout, machine));
            let [kernel, ..] = moved.change(original).expect("the places are the same");
            let slots = |layout: usize| {
                let core = exact.layouts[layout].machines[machine].core.as_ref().unwrap();
                core.counters.kernel.slots.total() as f64
            };
            let true_change = 100.0 * (slots(1) / slots(0) - 1.0);
            estimates += 1;
            inside += usize::from((kernel.value - true_change).abs() <= kernel.within);
            assert!((kernel.value - true_change).abs() <= 3.0 * kernel.within + 0.3, "case {case}");
        }
    }
    assert!(estimates >= 24, "only {estimates} estimates");
    assert!(inside * 100 >= estimates * 80, "{inside} of {estimates} lie in their intervals");
}

/// The differences of a search are the changes of rows, in both directions.
#[test]
fn differences_of_times_are_changes_against_the_original() {
    let mut random = XorShift(0x0f0f_1e1e_2d2d_3c3c);
    let (recording, placement) = recorded(&mut random, 20_000);
    let both = replayed_by(Some(PLAN), &recording, placement.clone(), &machines());
    let paired = PairedTimes::new(&both).unwrap();
    let [kernel, ..] = sampled(&both, 1, 0).change(sampled(&both, 0, 0)).unwrap();
    let found = &paired.differences;
    assert!(kernel.value.abs() > 0.01 && kernel.within > 0.0, "{kernel:?}");
    assert!((found[1][0].value - kernel.value).abs() < 1e-9, "{found:?} {kernel:?}");
    assert!((found[1][0].within - kernel.within).abs() < 1e-9, "{found:?} {kernel:?}");
    assert!((found[0][1].value + kernel.value).abs() < 1e-9, "{found:?}");
    assert!((found[0][1].within / kernel.within - 1.0).abs() < 0.1, "{found:?}");
    assert_eq!((found[1][1].value, found[1][1].within), (0.0, 0.0));
    // Without samples, the difference is exact.
    let exact = replayed(&recording, placement, &machines());
    let slots = |layout: usize| {
        let core = exact.layouts[layout].machines[0].core.as_ref().unwrap();
        core.counters.kernel.slots.total() as f64
    };
    let known = PairedTimes::new(&exact).unwrap().differences[1][0];
    assert!((known.value - 100.0 * (slots(1) / slots(0) - 1.0)).abs() < 1e-9, "{known:?}");
    assert_eq!(known.within, 0.0);
    let in_order =
        replayed(&recording, Placement::default(), &[machines::find("server-32k").unwrap().model]);
    assert!(PairedTimes::new(&in_order).unwrap_err().to_string().contains("no such times"));
}

#[test]
fn a_layout_against_itself_changes_nothing() {
    let (recording, _) = recorded(&mut XorShift(0x1111_2222_3333_4444), 2000);
    let both = replayed_by(Some(PLAN), &recording, Placement::default(), &machines());
    for change in sampled(&both, 1, 0).change(sampled(&both, 0, 0)).unwrap() {
        assert_eq!((change.value, change.within), (0.0, 0.0));
    }
    let elsewhere = SamplePlan { seed: 8, ..PLAN };
    let other = replayed_by(Some(elsewhere), &recording, Placement::default(), &machines());
    assert!(sampled(&other, 0, 0).change(sampled(&both, 0, 0)).is_none());
}

/// Each CPU has samples of its own.
#[test]
fn several_cpus_are_sampled() {
    let mut random = XorShift(0x0bad_cafe_0bad_cafe);
    let program = Program::random(&mut random);
    let mut laid = program.original();
    surroundings(&mut laid.memory, laid.starts[0]);
    let mut executed = || addresses(&program, &laid, &execute(&program, &mut random, 2000, 0));
    let (first, second) = (executed(), executed());
    let mut cpu = 0;
    let both = record_on_cpus(&laid.memory, &[&first, &second], 4, || {
        cpu ^= usize::from(random.below(40) == 0);
        cpu
    });
    let exact = replayed(&both, Placement::default(), &machines());
    let estimated = replayed_by(Some(PLAN), &both, Placement::default(), &machines());
    let (truth, guess) = (
        exact.layouts[0].machines[0].core.as_ref().unwrap().cycles as f64,
        estimated.layouts[0].machines[0].core.as_ref().unwrap().cycles as f64,
    );
    let instructions = (first.len() + second.len()) as u64;
    let units = sampled(&estimated, 0, 0).units;
    assert!((instructions / 900 - 3..=instructions / 900).contains(&units), "{units}");
    assert!((guess / truth - 1.0).abs() < 0.05, "{guess} {truth}");
}
