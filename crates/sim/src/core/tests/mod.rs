//! Programs whose cycles are known, on the small core of `examples.rs`: it dispatches two slots a
//! cycle, from a window of 16, and decodes two instructions of together 16 bytes a cycle.

mod program;
mod thunks;
mod warm;
mod window;

use super::examples::{core, machine};
use super::*;
use crate::branches::BranchKind;
use program::{Program, alu, eliminated, load, on_port, serialising, store};

/// Cycles of the rounds from 100 to 200: the start is over.
fn period(machine: &MachineModel, program: &Program) -> f64 {
    let cycles = |rounds| {
        let mut core = Core::new(machine).unwrap().unwrap();
        (0..rounds).for_each(|round| program.run(&mut core, round));
        core.finish()
    };
    (cycles(200) - cycles(100)) as f64 / 100.0
}

fn with(change: impl FnOnce(&mut CoreDescription)) -> MachineModel {
    let mut core = core();
    change(&mut core);
    MachineModel { core: Some(core), ..machine() }
}

#[test]
fn a_chain_takes_the_sum_of_its_latencies() {
    let chain = Program::lines(&[&[alu(3, 1, 1), alu(4, 1, 1), alu(1, 1, 1)]]);
    assert_eq!(period(&machine(), &chain), 8.0);
    // Two chains side by side take as long as the longer one.
    let two = Program::lines(&[&[alu(3, 1, 1), alu(4, 1, 1), alu(2, 2, 2), alu(2, 2, 2)]]);
    assert_eq!(period(&machine(), &two), 7.0);
}

#[test]
fn ports_and_widths_bound_the_throughput() {
    // Four slots in two cycles; four uops of one port in four.
    assert_eq!(period(&machine(), &Program::lines(&[&[eliminated(); 4]])), 2.0);
    assert_eq!(period(&machine(), &Program::lines(&[&[alu(1, 0, 0); 4]])), 2.0);
    assert_eq!(period(&machine(), &Program::lines(&[&[on_port(1); 4]])), 4.0);
    // Two on port 0, three on both: no port is idle.
    let mixed = [on_port(1), alu(1, 0, 0), alu(1, 0, 0), on_port(1), alu(1, 0, 0), alu(1, 0, 0)];
    assert_eq!(period(&machine(), &Program::lines(&[&mixed])), 3.0);
    // A divider that is kept for 6 cycles.
    let mut divide = on_port(1);
    (divide.unit, divide.unit_cycles) = (1, 6);
    assert_eq!(period(&machine(), &Program::lines(&[&[divide, eliminated()]])), 6.0);
}

#[test]
fn decoders_bound_the_front_end() {
    // Seven instructions of 9 bytes: 16 bytes a cycle, and what is left of them waits.
    let long = Program::lines(&[&[eliminated(); 7]]).bytes(9);
    assert_eq!(period(&machine(), &long), 3.94);
    let narrow = with(|core| core.front_end.decoders = 1);
    assert_eq!(period(&narrow, &Program::lines(&[&[eliminated(); 6]])), 6.0);
}

/// Two lines that the L2 has: each comes 85 cycles earlier than from memory.
#[test]
fn code_that_ran_before_comes_from_the_l2() {
    let program = Program::lines(&[&[alu(1, 0, 0)], &[alu(1, 0, 0)]]);
    let run = |ran_before: bool| {
        let mut core = Core::new(&with(|core| core.front_end.l1i_misses = 1)).unwrap().unwrap();
        if ran_before {
            core.ran_before(&program.fetch_runs(0..2));
        }
        program.run(&mut core, 0);
        (core.finish(), core.counters().kernel.l2_instruction_misses)
    };
    let ((cold, missed), (warm, found)) = (run(false), run(true));
    assert_eq!((cold - warm, missed, found), (170, 2, 0));
}

/// The branch is dispatched, executed in the next cycle, and 12 cycles after its dispatch the right
/// path follows from the uop cache. Without one, decoding takes 3 cycles more.
#[test]
fn a_misprediction_costs_its_penalty() {
    // Taken, not taken, taken, …: a counter of two bits is always wrong.
    let program = Program::lines(&[&[alu(1, 0, 0)]])
        .branch(BranchKind::Conditional, |round| (round % 2 == 0, 0));
    assert_eq!(period(&machine(), &program), 15.0);
    // An operand that takes 9 cycles more delays all by 9.
    let late = Program::lines(&[&[alu(10, 0, 0)]])
        .branch(BranchKind::Conditional, |round| (round % 2 == 0, 0));
    assert_eq!(period(&machine(), &late), 24.0);
    let mut core = Core::new(&machine()).unwrap().unwrap();
    (0..1000).for_each(|round| program.run(&mut core, round));
    let before = core.counters().kernel;
    (1000..1100).for_each(|round| program.run(&mut core, round));
    let slots = (core.counters().kernel - before).slots;
    // Of the 30 slots of a round: the branch; three until it is executed; the rest.
    assert_eq!((slots.retiring, slots.bad_speculation, slots.front_end_latency), (100, 300, 2600));
    assert_eq!(slots.total(), 3000);
    // One wrong fetch target a cycle, from the prediction of the branch to its execution: predicted
    // in p, dispatched in p + 9, complete in p + 11.
    assert_eq!((core.counters().kernel - before).wrong_path_targets, 100 * 11);
}

/// A direct jump that no target buffer has is found by the decoder.
#[test]
fn a_jump_without_a_target_costs_the_resteer() {
    // 32 jumps of lines that follow one another do not fit into 16 entries. The caches are large.
    let lines: Vec<[Uop; 1]> = vec![[alu(1, 0, 0)]; 32];
    let lines: Vec<&[Uop]> = lines.iter().map(|line| &line[..]).collect();
    let mut large = with(|core| core.memory.l1d_latency = 5);
    large.l1i = crate::CacheGeometry::cache(1 << 14, 4, 64, crate::Replacement::Lru).unwrap();
    let program = Program::lines(&lines).jumps();
    // Delivered in f, the target is dispatched 1 + 7 cycles after the jump. Decoding adds 3.
    assert_eq!(period(&large, &program), 32.0 * 11.0);
    // Eight jumps fit into the second level, which takes 2 cycles more than the one cycle of a
    // target.
    let program = Program::lines(&lines[..8]).jumps();
    assert_eq!(period(&large, &program), 8.0 * 3.0);
    // Four fit into the first: a jump a cycle.
    let program = Program::lines(&lines[..4]).jumps();
    assert_eq!(period(&large, &program), 4.0);
}

/// The L1I has four lines, the L2 takes 15 cycles, and two lines can be on their way.
#[test]
fn code_beyond_the_l1i_waits_for_the_l2() {
    let lines = |count| Program::lines(&vec![&[eliminated(); 4][..]; count]);
    // Four lines fit: eight cycles of dispatch.
    assert_eq!(period(&machine(), &lines(4)), 8.0);
    // Six do not, and LRU keeps none: two lines in 15 cycles.
    assert_eq!(period(&machine(), &lines(6)), 6.0 * 15.0 / 2.0);
    // Without run-ahead, one line in 15 cycles.
    let coupled = with(|core| core.front_end.fetch_targets = 1);
    assert_eq!(period(&coupled, &lines(6)), 6.0 * 15.0);
    // With many registers, the dispatch is the bound again: 12 cycles.
    let wide = with(|core| {
        core.front_end.l1i_misses = 16;
        core.front_end.fetch_targets = 32;
    });
    assert_eq!(period(&wide, &lines(6)), 12.0);
}

#[test]
fn loads_wait_for_their_level() {
    let chain = Program::lines(&[&[load(1, 1)]]);
    // Each address needs the load before. One line: hits.
    assert_eq!(period(&machine(), &chain.clone().accesses(|_| vec![0])), 5.0);
    // Six lines in four ways of two sets: each comes from the L2.
    assert_eq!(period(&machine(), &chain.accesses(|round| vec![round % 6 * 64])), 15.0);
    // Independent loads: two lines on their way.
    let free = Program::lines(&[&[load(0, 1)]]);
    assert_eq!(period(&machine(), &free.accesses(|round| vec![round % 6 * 64])), 7.5);
}

/// Loads from memory at a distance of the whole window: the second is dispatched when the first
/// retires, and begins one cycle later.
#[test]
fn the_window_bounds_what_is_hidden() {
    let mut uops = vec![load(0, 1)];
    uops.extend([eliminated(); 15]);
    let program = Program::lines(&[&uops]);
    let memory = |entries| {
        with(|core| {
            core.fixed_data = FixedData { l2: 0, l3: 0, memory: 1_000_000 };
            core.window.reorder_buffer = entries;
        })
    };
    assert_eq!(period(&memory(16), &program), 101.0);
    // Twice the window hides one of two.
    assert_eq!(period(&memory(32), &program), 50.5);
    let mut core = Core::new(&memory(16)).unwrap().unwrap();
    (0..100).for_each(|round| program.run(&mut core, round));
    let before = core.counters().kernel;
    (100..200).for_each(|round| program.run(&mut core, round));
    let slots = (core.counters().kernel - before).slots;
    assert_eq!((slots.retiring, slots.memory, slots.core), (1600, 100 * 202 - 1600, 0));
}

/// A value that goes through memory: 4 cycles for the load, 1 for the store.
#[test]
fn a_store_gives_its_data_to_the_load() {
    let [address, data] = store(1);
    let program = Program::lines(&[&[address, data, load(0, 1)]]).accesses(|_| vec![8, 8]);
    assert_eq!(period(&machine(), &program), 5.0);
}

/// A load that waits until the store before it, to another line, is written: both take turns.
#[test]
fn an_atomic_load_waits_for_the_stores_before_it() {
    let [address, data] = store(2);
    let in_turn = |waits_for_stores| {
        let load = Uop { waits_for_stores, ..load(0, 2) };
        let program = Program::lines(&[&[load, address, data]]).accesses(|_| vec![0, 256]);
        period(&machine(), &program)
    };
    // Or as fast as the port of the stores. The load takes 4 cycles, the store 1, and retires and
    // is written in the next two.
    assert_eq!([false, true].map(in_turn), [2.0, 7.0]);
}

#[test]
fn an_atomic_load_waits_for_what_is_before_it() {
    let in_turn = |waits_for_stores| {
        let load = Uop { waits_for_stores, ..load(0, 2) };
        let program = Program::lines(&[&[alu(1, 0, 1), load]]).accesses(|_| vec![0]);
        period(&machine(), &program)
    };
    // Two slots a cycle, or one load after the other, of 5 cycles.
    assert_eq!([false, true].map(in_turn), [1.0, 5.0]);
}

#[test]
fn a_serialising_instruction_costs_its_cycles() {
    let program = Program::lines(&[&[serialising(Serialising::Identify)]]);
    assert_eq!(period(&machine(), &program), 50.0);
    // A chain of 10 cycles before it: dispatched in d, complete in d + 11.
    let program = Program::lines(&[&[alu(10, 0, 1), serialising(Serialising::Fence)]]);
    assert_eq!(period(&machine(), &program), 61.0);
}

/// Every slot of every cycle is counted once.
#[test]
fn slots_are_the_width_times_the_cycles() {
    let mut state = 99_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let mut programs = Vec::new();
    for _ in 0..20 {
        let mut uops = Vec::new();
        for _ in 0..1 + random(12) {
            let (reads, writes) = (random(4) as u8, random(4) as u8);
            match random(8) {
                0 => uops.push(load(reads, writes)),
                1 => uops.extend(store(reads)),
                2 => uops.push(eliminated()),
                3 if random(9) == 0 => uops.push(serialising(Serialising::SwapBase)),
                _ => uops.push(alu(1 + random(5) as u16, reads, writes)),
            }
        }
        let first = random(40) as u32;
        let taken = random(3);
        let program = Program::lines(&[&uops]).first_line(first).accesses(move |round| {
            (0..24).map(|access| (round * 7919 + access * 977) % 100_000).collect()
        });
        programs
            .push(program.branch(BranchKind::Conditional, move |round| (round % 3 != taken, 0)));
    }
    let run = || {
        let mut core = Core::new(&machine()).unwrap().unwrap();
        for round in 0..3000 {
            let program = &programs[round as usize * 31 % programs.len()];
            program.run(&mut core, round);
            if round % 97 == 0 {
                core.interrupted();
            }
        }
        (core.finish(), core.counters())
    };
    let (cycles, counters) = run();
    let mut sum = counters.kernel;
    sum += counters.user;
    assert_eq!(sum.slots.total(), 2 * cycles);
    assert_eq!(sum.graduation.total(), 2 * cycles);
    assert_eq!(sum.slots.retiring, sum.graduation.busy);
    let causes = [
        sum.slots.bad_speculation,
        sum.slots.front_end_latency,
        sum.slots.front_end_bandwidth,
        sum.slots.memory,
        sum.slots.core,
        sum.graduation.data,
        sum.graduation.instruction,
        sum.graduation.pipeline,
    ];
    assert!(causes.iter().all(|&slots| slots > 0), "{causes:?}");
    // The same stream takes the same cycles.
    assert_eq!(run(), (cycles, counters));
}

#[test]
fn contradicting_numbers_name_their_rule() {
    let message = |change: fn(&mut CoreDescription)| {
        Core::new(&with(change)).map(|_| ()).unwrap_err().to_string()
    };
    let cases: [(fn(&mut CoreDescription), &str); 11] = [
        (|core| core.window.retire = 1, "the retirement of 1 slots a cycle is narrower"),
        (|core| core.window.loads = 17, "the reorder buffer of 16 slots is smaller than the 17"),
        (|core| core.window.schedulers.clear(), "at least one scheduler"),
        (|core| core.front_end.depth = 11, "mispredict_penalty, 12 cycles, must be at least 2"),
        (
            |core| core.prediction.direction.base_entries = 100,
            "base_entries must be a power of two",
        ),
        (
            |core| {
                let tables = [(64, 4), (32, 9)];
                let table = |(entries, history)| TaggedTable { entries, history, outcomes: 0 };
                core.prediction.direction.tables = tables.map(table).to_vec();
            },
            "the tables of direction must be of one size, and 32 entries follow 64",
        ),
        (|core| core.prediction.targets.swap(0, 1), "a branch target buffer of 4 entries follows"),
        (|core| core.prediction.targets.clear(), "at least one branch target buffer"),
        (|core| core.fixed_data.l2 = 1_000_001, "the shares of fixed_data"),
        (|core| core.memory.l1d_latency = 15, "l1d_latency, 15 cycles, must be below"),
        (|core| core.window.dispatch = 0, "dispatch must lie between 1 and 32, not 0"),
    ];
    for (change, start) in cases {
        assert!(message(change).starts_with(start), "{}\nexpected: {start}", message(change));
    }
    let without = MachineModel { itlb: None, ..machine() };
    assert_eq!(Core::new(&without).map(|_| ()), Err(CoreError::Missing("itlb")));
    assert!(Core::new(&MachineModel { core: None, ..machine() }).unwrap().is_none());
}
