//! Out-of-order cores under layouts: what is predicted for a layout is what a recording of it
//! takes, to the last slot.

use crate::tests::guest::{record, record_on_cpus, replayed};
use crate::tests::program::{Program, XorShift};
use crate::tests::random::{addresses, execute, surroundings};
use crate::{CoreCounts, Replayed};
use image::place::Placement;
use sim::MachineModel;
use sim::core::CoreSlots;

fn machines() -> Vec<MachineModel> {
    ["zen4", "gracemont"].map(|name| machines::find(name).unwrap().model).into()
}

fn cores(replayed: &Replayed, layout: usize) -> Vec<CoreCounts> {
    let machines = &replayed.layouts[layout].machines;
    machines.iter().map(|machine| machine.core.clone().unwrap()).collect()
}

/// Takes the slots of the blocks away, whose addresses differ between recordings. Their sum is that
/// of both modes.
fn without_blocks(mut cores: Vec<CoreCounts>) -> Vec<CoreCounts> {
    for counts in &mut cores {
        let mut sum = CoreSlots::default();
        counts.slots_at.drain(..).for_each(|(_, slots)| sum += slots);
        let mut all = counts.counters.kernel;
        all += counts.counters.user;
        assert_eq!(sum, CoreSlots { dispatch: all.slots, graduation: all.graduation });
    }
    cores
}

#[test]
fn predicted_cycles_are_recorded_cycles() {
    let mut random = XorShift(0x0f1e_2d3c_4b5a_6978);
    let (mut changed, mut wrong) = (0, 0);
    for case in 0..10 {
        let program = Program::random(&mut random);
        let steps = execute(&program, &mut random, 40, 0);
        let mut old = program.original();
        surroundings(&mut old.memory, old.starts[0]);
        let (mut new, placement) = program.moved(&mut random);
        surroundings(&mut new.memory, new.starts[0]);
        let old_recording = record(&old.memory, &addresses(&program, &old, &steps), 64);
        let new_recording = record(&new.memory, &addresses(&program, &new, &steps), 3);
        let in_threads = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| replayed(&old_recording, placement.clone(), &machines()))
        };
        let old_replayed = in_threads(1);
        assert_eq!(old_replayed.layouts, in_threads(2).layouts, "case {case}");
        let new_replayed = replayed(&new_recording, Placement::default(), &machines());
        let blocks = &cores(&old_replayed, 1)[0].slots_at;
        assert!(blocks.len() > 3 && blocks.is_sorted_by(|a, b| a.0 < b.0));
        let (predicted, recorded) =
            (without_blocks(cores(&old_replayed, 1)), without_blocks(cores(&new_replayed, 0)));
        assert_eq!(predicted, recorded, "case {case}");
        for counts in &predicted {
            let mut sum = counts.counters.kernel;
            sum += counts.counters.user;
            // Six slots a cycle on Zen 4, five on Gracemont.
            assert!([5, 6].contains(&(sum.slots.total() / counts.cycles)));
            assert_eq!(sum.slots.total() % counts.cycles, 0);
            wrong += sum.branches.mispredictions();
        }
        changed += usize::from(predicted != without_blocks(cores(&old_replayed, 0)));
    }
    assert!(changed > 4, "layouts change the cycles: only {changed} did");
    assert!(wrong > 200, "only {wrong} mispredictions");
}

/// The counts of two recordings together.
fn together(first: Vec<CoreCounts>, second: Vec<CoreCounts>) -> Vec<CoreCounts> {
    let pairs = first.into_iter().zip(second);
    let added = pairs.map(|(first, second)| {
        let mut counters = first.counters;
        counters += second.counters;
        CoreCounts { cycles: first.cycles + second.cycles, counters, ..first }
    });
    added.collect()
}

#[test]
fn each_cpu_has_a_core_of_its_own() {
    let mut random = XorShift(0x1357_9bdf_0246_8ace);
    for case in 0..5 {
        let program = Program::random(&mut random);
        let mut laid = program.original();
        surroundings(&mut laid.memory, laid.starts[0]);
        let mut executed = || addresses(&program, &laid, &execute(&program, &mut random, 20, 0));
        let (first, second) = (executed(), executed());
        let alone = |executed: &[u64]| {
            let recording = record(&laid.memory, executed, 4);
            without_blocks(cores(&replayed(&recording, Placement::default(), &machines()), 0))
        };
        let (mut cpu, slice) = (0, 1 + random.below(12));
        let both = record_on_cpus(&laid.memory, &[&first, &second], 4, || {
            cpu ^= usize::from(random.below(slice) == 0);
            cpu
        });
        let both = replayed(&both, Placement::default(), &machines());
        let expected = together(alone(&first), alone(&second));
        assert_eq!(without_blocks(cores(&both, 0)), expected, "case {case}");
    }
}
