//! Code that is passed without time leaves the core as code that was run: the same is predicted and
//! in the caches.

use super::*;

/// What both ways of passing code count.
fn events(core: &Core) -> [u64; 12] {
    let counters = core.counters().kernel;
    let branches = counters.branches;
    [
        counters.instructions,
        branches.conditional,
        branches.indirect,
        branches.mispredictions(),
        branches.misfetches,
        counters.l1i_requests,
        counters.l1i_misses,
        counters.l2_instruction_misses,
        counters.itlb_misses,
        counters.l1d_misses,
        counters.l2_data_misses,
        counters.dtlb_walks,
    ]
}

/// Passes 300 rounds of these programs in turn, every other ten of them without time. Checks that
/// the events of each ten are those of a core that runs all.
fn check(machine: &MachineModel, programs: &[Program]) {
    let [mut all, mut some] = [0; 2].map(|_| Core::new(machine).unwrap().unwrap());
    for ten in 0..30 {
        for round in ten * 10..ten * 10 + 10 {
            for program in programs {
                program.run(&mut all, round);
                match ten % 2 {
                    0 => program.warm(&mut some, round),
                    _ => program.run(&mut some, round),
                }
            }
        }
        if ten % 2 == 0 {
            some.resume();
        }
        assert_eq!(events(&some), events(&all), "rounds from {}", ten * 10);
    }
    let [branches, .., misses, walks] = events(&all);
    assert!(branches > 0 && (misses > 0 || walks > 0), "the programs do too little");
}

/// Five lines with branches whose outcomes alternate, in more lines and pages than fit.
#[test]
fn code_that_is_passed_is_predicted_and_cached_as_code_that_runs() {
    let line = [alu(1, 0, 0); 6];
    let programs: Vec<Program> = (0..5)
        .map(|number| {
            let lines = Program::lines(&[&line, &line[..4], &line]).first_line(number * 3);
            let accesses = lines.branch(BranchKind::Conditional, move |round| {
                let taken = round >> (number % 3) & 1 != 0;
                (taken, u64::from((number + 1) % 5 * 3) * 64)
            });
            accesses.accesses(|_| Vec::new())
        })
        .collect();
    let loads = Program::lines(&[&[load(0, 1), load(0, 2), alu(1, 1, 2)]])
        .first_line(40)
        .branch(BranchKind::IndirectJump, |round| (true, round % 3 * 64))
        .accesses(|round| vec![round % 7 * 4096, (round * 5 % 11) * 64]);
    let all: Vec<Program> = programs.into_iter().chain([loads]).collect();
    check(&machine(), &all);
    let cached = with(|core| {
        core.front_end.uop_cache = Some(UopCacheDescription {
            geometry: crate::CacheGeometry::tlb(8, 4, crate::Replacement::Lru).unwrap(),
            slots: 4,
            width: 4,
            by_start: true,
            pair_interval: None,
            single_lines: 0,
        });
    });
    check(&cached, &all);
}

/// A repeated string instruction stores to many lines: the same lines are missed and counted.
#[test]
fn the_accesses_of_string_instructions_count_alike() {
    let string = [store(1)[0], Uop { begins_slot: false, ..Uop::new(UopKind::Microcode, 0) }];
    let program = Program::lines(&[&string])
        .branch(BranchKind::Jump, |_| (true, 0))
        .accesses(|round| (0..20).map(|n| round % 5 * 4096 + n * 32).collect());
    let [mut run, mut warm] = [0; 2].map(|_| Core::new(&machine()).unwrap().unwrap());
    for round in 0..50 {
        program.run(&mut run, round);
        program.warm(&mut warm, round);
    }
    assert_eq!(events(&run), events(&warm));
    let accesses = [&run, &warm].map(|core| core.counters().kernel.string_accesses);
    // 640 bytes are ten pieces of 64. The first belongs to the instruction's store.
    assert_eq!(accesses, [9 * 50; 2]);
}
