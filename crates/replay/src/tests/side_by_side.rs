//! Several CPUs side by side, against counts and times computed by hand for the machine `server-8`:
//! an instruction takes 1 cycle, a TLB miss 7, a line from memory 400, and from another core 80.
//!
//! The first step of a CPU fetches the one line of code. CPU 0 gets it from memory, the others get
//! it from CPU 0. The instructions of a turn's last step come when the CPU goes on.

use crate::CpuOrder::{self, Recorded, SideBySide};
use crate::CpuWaits;
use crate::tests::several_cpus::{
    DATA, Ran, exchange, halt, load, plain, recording, replayed, store, times,
};
use crate::{CoherenceCounts, ReplayLayout, Replayed, replay};
use sim::coherent::CoreCounters;
use trace::RecordingReader;

fn coherence(replayed: &Replayed) -> &CoherenceCounts {
    replayed.layouts[0].machines[0].coherence.as_ref().unwrap()
}

/// The kernel's counters of each CPU.
fn counted(order: CpuOrder, cpus: u32, turns: &[(u8, Vec<Ran>)]) -> Vec<CoreCounters> {
    let replayed = replayed("server-8", order, cpus, turns).unwrap();
    coherence(&replayed).cpus.iter().map(|cpu| cpu.kernel).collect()
}

/// For each CPU, when it ends, and its waits in the kernel.
fn times_of(cpus: u32, turns: &[(u8, Vec<Ran>)]) -> Vec<(f64, CpuWaits)> {
    let replayed = replayed("server-8", SideBySide, cpus, turns).unwrap();
    let machine = machines::find("server-8").unwrap().model;
    let counts = coherence(&replayed);
    let times = counts.times.as_ref().unwrap();
    for ((ends, waits), counters) in times.iter().zip(&counts.cpus) {
        let stalls = crate::stalls(&machine, &counters.kernel).unwrap().total();
        let cycles = counters.kernel.instructions as f64 + stalls + waits.kernel.total();
        assert_eq!(*ends, cycles, "the times of a CPU add up");
        assert_eq!(waits.user, CpuWaits::default());
    }
    times.iter().map(|(ends, waits)| (*ends, waits.kernel)).collect()
}

const NO_WAIT: CpuWaits = CpuWaits { value: 0.0, order: 0.0, idle: 0.0, held: 0.0 };

fn value(value: f64) -> CpuWaits {
    CpuWaits { value, ..NO_WAIT }
}

/// Each of two CPUs stores to a counter of its own in one turn.
fn counters(second: u64) -> [(u8, Vec<Ran>); 2] {
    [(0, times(1000, store(DATA))), (1, times(1000, store(second)))]
}

#[test]
fn in_recorded_order_a_line_with_two_counters_moves_once() {
    let counted = counted(Recorded, 2, &counters(DATA + 8));
    assert_eq!([counted[0].l2_data.coherence(), counted[1].l2_data.coherence()], [0, 0]);
    assert_eq!([counted[0].l2_data.cold, counted[1].l2_data.cold], [1, 1]);
}

/// The first steps take 2 + 7 + 400 + 7 + 400 = 816 and 2 + 7 + 80 + 7 + 80 = 176 cycles. Until
/// cycle 816, CPU 1 makes 320 steps of 2 cycles. Then each step of both misses, and takes 82
/// cycles: 679 of CPU 1, and as many of CPU 0, and one more. CPU 0 has 319 steps left, which hit.
#[test]
fn side_by_side_two_counters_in_one_line_bounce() {
    let turns = counters(DATA + 8);
    let counted = counted(SideBySide, 2, &turns);
    assert_eq!([counted[0].l2_data.false_sharing, counted[1].l2_data.false_sharing], [680, 679]);
    assert_eq!([counted[0].l2_data.total(), counted[1].l2_data.total()], [681, 680]);
    assert_eq!([counted[0].upgrades, counted[1].upgrades], [0, 0]);
    let ends = [816 + 680 * 82 + 319 * 2, 176 + 320 * 2 + 679 * 82].map(f64::from);
    assert_eq!(times_of(2, &turns), [(ends[0], NO_WAIT), (ends[1], NO_WAIT)]);
}

#[test]
fn side_by_side_two_counters_in_two_lines_never_move() {
    let turns = counters(DATA + 64);
    let counted = counted(SideBySide, 2, &turns);
    assert_eq!([counted[0].l2_data.total(), counted[1].l2_data.total()], [1, 1]);
    let ends = [816.0 + 999.0 * 2.0, 2.0 + 7.0 + 80.0 + 7.0 + 400.0 + 999.0 * 2.0];
    assert_eq!(times_of(2, &turns), [(ends[0], NO_WAIT), (ends[1], NO_WAIT)]);
}

/// One counter for both CPUs.
#[test]
fn stores_to_one_word_keep_their_order() {
    let turns = counters(DATA);
    assert_eq!(counted(SideBySide, 2, &turns), counted(Recorded, 2, &turns));
    // CPU 0 makes its last store after 816 + 998 * 2 cycles.
    let order = CpuWaits { order: 2812.0, ..NO_WAIT };
    assert_eq!(times_of(2, &turns)[1], (2812.0 + 176.0 + 999.0 * 2.0, order));
}

/// CPU 0: 409 and 409 cycles. CPU 1 loads at 818, for 176 cycles, and stores for 402. CPU 0 was
/// ready at 820, and loads at 1396.
#[test]
fn values_handed_over_keep_their_order() {
    let (there, back) = (DATA, DATA + 64);
    let turns = [
        (0, vec![plain(), store(there), plain()]),
        (1, vec![load(there), store(back), plain()]),
        (0, vec![load(back), plain()]),
    ];
    assert_eq!(times_of(2, &turns), [(1480.0, value(576.0)), (1398.0, value(818.0))]);
}

#[test]
fn a_long_ping_pong_moves_as_often_as_in_the_recording() {
    let turns: Vec<(u8, Vec<Ran>)> = (0..400)
        .map(|turn| {
            let (own, other) = (DATA + 64 * (turn % 2), DATA + 64 * ((turn + 1) % 2));
            ((turn % 2) as u8, vec![load(other), plain(), store(own), plain()])
        })
        .collect();
    let side_by_side = counted(SideBySide, 2, &turns);
    assert_eq!(side_by_side, counted(Recorded, 2, &turns));
    assert_eq!(side_by_side[0].l2_data.true_sharing, 199);
    let waits: Vec<CpuWaits> = times_of(2, &turns).into_iter().map(|(_, waits)| waits).collect();
    assert!(waits.iter().all(|waits| waits.value > 0.0 && waits.total() == waits.value));
}

/// CPU 0 locks for 816 cycles, holds the lock for 20, and unlocks at 838. CPU 1 arrives at 93. It
/// locks for 2 + 7 + 80 + 80 cycles: the load brings the line, and the store takes it.
#[test]
fn a_lock_is_waited_for() {
    let unlock = store;
    let first = [times(1, exchange(DATA)), times(10, plain()), times(1, unlock(DATA))].concat();
    let second = [times(3, plain()), times(1, exchange(DATA)), times(2, plain())].concat();
    let turns = [
        (0, [first, times(5, plain())].concat()),
        (1, [second, vec![unlock(DATA), plain()]].concat()),
    ];
    assert_eq!(times_of(2, &turns), [(848.0, NO_WAIT), (1015.0, value(745.0))]);
    let counted = counted(SideBySide, 2, &turns);
    assert_eq!((counted[1].l2_data.cold, counted[1].upgrades), (1, 1));
}

/// The reader waits for the third store, which ends at 818, and for the fifth. In between, the
/// writer waits from 820 to 994 until the reader has loaded.
#[test]
fn a_writer_waits_until_the_reader_has_loaded() {
    let turns = [
        (0, times(3, store(DATA))),
        (1, vec![load(DATA), plain()]),
        (0, times(2, store(DATA))),
        (1, vec![load(DATA)]),
    ];
    let order = CpuWaits { order: 174.0, ..NO_WAIT };
    assert_eq!(times_of(2, &turns), [(1078.0, order), (1158.0, value(898.0))]);
    let counted = counted(SideBySide, 2, &turns);
    assert_eq!((counted[0].upgrades, counted[1].l2_data.true_sharing), (1, 1));
}

/// CPU 1 halts at 89. What CPU 0 did before CPU 1 went on ends at 425.
#[test]
fn a_halted_cpu_is_idle() {
    let turns = [(1, vec![plain(), halt()]), (0, times(10, plain())), (1, vec![plain()])];
    let idle = CpuWaits { idle: 336.0, ..NO_WAIT };
    assert_eq!(times_of(2, &turns), [(427.0, NO_WAIT), (428.0, idle)]);
}

/// QEMU gives every CPU that is not halted a turn. CPU 2 has none while CPU 0 has two.
#[test]
fn a_cpu_that_gets_no_turn_is_halted() {
    let ten = || times(10, plain());
    let turns = [(0, ten()), (1, ten()), (0, ten()), (1, ten()), (2, ten())];
    let times = times_of(3, &turns);
    // CPU 0: 409 cycles, then 19 steps, the last without its instructions.
    assert_eq!(times[2].1, CpuWaits { idle: 409.0 + 18.0 * 2.0, ..NO_WAIT });
    assert_eq!([times[0].1, times[1].1], [NO_WAIT; 2]);
}

#[test]
fn the_same_recording_gives_the_same_counts() {
    let recording = recording(2, &counters(DATA + 8));
    let machines = ["server-8", "simos-1994-8"].map(|name| machines::find(name).unwrap().model);
    let replayed = |machines| {
        let reader = RecordingReader::new(&recording[..]).unwrap();
        replay(reader, &[ReplayLayout::original()], machines).unwrap()
    };
    let both = replayed(&machines[..]);
    assert_eq!(both, replayed(&machines[..]));
    assert_eq!(both.layouts[0].machines[0], replayed(&machines[..1]).layouts[0].machines[0]);
}
