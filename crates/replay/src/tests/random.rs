//! Replay's prediction for a layout equals a recording of that layout in every counter: with random
//! programs, layouts, decisions, interrupts and system calls.

use crate::LayoutCounts;
use crate::tests::guest::{GuestMemory, record, record_on_cpus, replayed};
use crate::tests::program::{BlockEnd, LaidOutProgram, Program, XorShift};
use image::place::{Ending, Placement};
use sim::{
    BranchCounters, BranchPrediction, CacheGeometry, DirectionPrediction, HeldBranches,
    ItlbDescription, MachineModel, PerMode, Replacement, SimpleModel, TargetBufferDescription,
};
use std::collections::BTreeMap;

const HANDLER: u64 = 0xffff_ffff_8300_0000;
const SYSCALL_ENTRY: u64 = 0xffff_ffff_8300_1000;
const USER: u64 = 0x40_1000;

/// One step of the abstract execution, the same in every layout.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProgramStep {
    /// Instruction `1` of block `0`'s body.
    Body(usize, usize),
    /// The end of the block; whether a branch went to its target.
    End(usize, bool),
    /// An address that is the same in every layout.
    Fixed(u64),
    /// An interrupt, between any two instructions.
    Interrupt,
}

/// Executes function 0 as a system call of a user loop, `calls` times. `interrupts` is a
/// percentage.
pub(super) fn execute(
    program: &Program,
    random: &mut XorShift,
    calls: usize,
    interrupts: usize,
) -> Vec<ProgramStep> {
    let mut steps = Vec::new();
    for _ in 0..calls {
        steps.extend([USER, USER + 1, SYSCALL_ENTRY].map(ProgramStep::Fixed)); // nop; syscall; call
        let (mut block, mut stack, mut fuel) = (program.entries[0], Vec::new(), 300);
        loop {
            steps.extend(
                (0..program.blocks[block].body.len()).map(|at| ProgramStep::Body(block, at)),
            );
            let end = program.blocks[block].end;
            // Without fuel, control no longer branches backward.
            fuel = usize::saturating_sub(fuel, 1);
            let taken = match end {
                BlockEnd::Branch(target) => random.chance(50) && (fuel > 0 || target > block),
                _ => false,
            };
            steps.push(ProgramStep::End(block, taken));
            block = match end {
                BlockEnd::Jump(target) => target,
                BlockEnd::Branch(target) if taken => target,
                BlockEnd::FallThrough | BlockEnd::Branch(_) => block + 1,
                BlockEnd::Call(function) => {
                    stack.push(block + 1);
                    program.entries[function]
                }
                BlockEnd::Return => match stack.pop() {
                    Some(caller) => caller,
                    None => break,
                },
            };
        }
        steps.push(ProgramStep::Fixed(SYSCALL_ENTRY + 5)); // sysret
        steps.push(ProgramStep::Fixed(USER + 3)); // jmp back
    }
    let with_interrupts = steps
        .into_iter()
        .flat_map(|step| [Some(step), random.chance(interrupts).then_some(ProgramStep::Interrupt)]);
    with_interrupts.flatten().collect()
}

/// The addresses executed in one layout.
pub(super) fn addresses(
    program: &Program,
    laid: &LaidOutProgram,
    steps: &[ProgramStep],
) -> Vec<u64> {
    let mut executed = Vec::new();
    // Jumps behind calls that have not returned yet.
    let mut returns: Vec<Option<u64>> = Vec::new();
    // A jump between an instruction and its successor runs after an interrupt that comes between
    // them.
    let mut between: Option<u64> = None;
    for &step in steps {
        if !matches!(step, ProgramStep::Interrupt) {
            executed.extend(between.take());
        }
        match step {
            ProgramStep::Fixed(addr) => executed.push(addr),
            ProgramStep::Body(block, at) => executed.push(laid.instructions[block][at]),
            ProgramStep::Interrupt => executed.extend([HANDLER, HANDLER + 1]),
            ProgramStep::End(block, taken) => {
                let end = program.blocks[block].end;
                executed.extend(laid.instructions[block].get(program.blocks[block].body.len()));
                match end {
                    BlockEnd::Call(_) => returns.push(laid.appended[block]),
                    BlockEnd::Return => between = returns.pop().flatten(),
                    BlockEnd::FallThrough => between = laid.appended[block],
                    BlockEnd::Branch(_) if taken == (laid.endings[block] == Ending::Inverted) => {
                        between = laid.appended[block]
                    }
                    BlockEnd::Branch(_) | BlockEnd::Jump(_) => {}
                }
            }
        }
    }
    executed
}

/// Stores the code that lies at the same address in every layout.
pub(super) fn surroundings(memory: &mut GuestMemory, entry: u64) {
    memory.put(HANDLER, &[0x90]);
    memory.put(HANDLER + 1, &[0x48, 0xcf]);
    let distance = entry.wrapping_sub(SYSCALL_ENTRY + 5).to_le_bytes();
    memory.put(SYSCALL_ENTRY, &[0xe8, distance[0], distance[1], distance[2], distance[3]]);
    memory.put(SYSCALL_ENTRY + 5, &[0x48, 0x0f, 0x07]);
    memory.put(USER, &[0x90]);
    memory.put(USER + 1, &[0x0f, 0x05]);
    memory.put(USER + 3, &[0xeb, 0xfb]);
}

fn machines() -> Vec<MachineModel> {
    let itlb = CacheGeometry::tlb(2, 1, Replacement::Lru).unwrap();
    let machine = |size, ways, line, replacement| MachineModel {
        itlb: Some(ItlbDescription::new(itlb, 4096, 4096).unwrap()),
        ..MachineModel::l1i_only(
            &format!("{size}-{ways}-{line}"),
            CacheGeometry::cache(size, ways, line, replacement).unwrap(),
            line as u32,
            SimpleModel::new(30.0, 0.3, 0.05).unwrap(),
        )
    };
    let mut machines = vec![
        machine(64, 1, 16, Replacement::Lru),
        machine(128, 4, 32, Replacement::Lru),
        machine(256, 4, 64, Replacement::TreePlru),
    ];
    let predictors = [
        (DirectionPrediction::Static, 0, 1),
        (DirectionPrediction::bimodal(16).unwrap(), 8, 2),
        (DirectionPrediction::gshare(64, 4).unwrap(), 64, 16),
    ];
    for (machine, (direction, entries, return_stack)) in machines.iter_mut().zip(predictors) {
        let targets = (entries > 0)
            .then(|| TargetBufferDescription::new(entries, 2, HeldBranches::Taken).unwrap());
        machine.branch =
            Some(BranchPrediction::new(direction, targets, return_stack, None, None).unwrap());
    }
    machines
}

/// Drops the origins of misses: a recording of the new kernel does not know the old addresses.
fn without_origins(mut counts: LayoutCounts) -> LayoutCounts {
    counts.machines.iter_mut().for_each(|machine| machine.misses_at.clear());
    counts
}

#[test]
fn predicted_is_recorded_to_the_last_counter() {
    let mut random = XorShift(0x0123_4567_89AB_CDEF);
    let (mut endings, mut changed) = ([0; 4], 0);
    let mut branches = BranchCounters::default();
    for case in 0..300 {
        let program = Program::random(&mut random);
        let interrupts = [0, 3, 20][case % 3];
        let steps = execute(&program, &mut random, 4, interrupts);
        let mut old = program.original();
        surroundings(&mut old.memory, old.starts[0]);
        let (mut new, placement) = program.moved(&mut random);
        for block in &placement.blocks {
            endings[block.ending as usize] += 1;
            endings[3] += usize::from(block.appended > 0);
        }
        surroundings(&mut new.memory, new.starts[0]);
        let limits = (1 + random.below(6), 1 + random.below(6));
        let old_recording = record(&old.memory, &addresses(&program, &old, &steps), limits.0);
        let new_recording = record(&new.memory, &addresses(&program, &new, &steps), limits.1);
        let mut old_replayed = replayed(&old_recording, placement, &machines());
        let mut new_replayed = replayed(&new_recording, Placement::default(), &machines());
        let predicted = without_origins(old_replayed.layouts.remove(1));
        let recorded = without_origins(new_replayed.layouts.remove(0));
        assert_eq!(predicted.amounts.breaks, 0, "case {case}");
        assert_eq!(predicted, recorded, "case {case}");
        for counters in predicted.machines.iter().filter_map(|machine| machine.branches) {
            branches += counters.kernel;
            branches += counters.user;
        }
        assert_eq!(
            old_replayed.interruptions.unresolved + new_replayed.interruptions.unresolved,
            0,
            "case {case}"
        );
        changed += usize::from(predicted != without_origins(old_replayed.layouts.remove(0)));
    }
    assert!(endings.iter().all(|&count| count > 100), "every kind of ending is met: {endings:?}");
    assert!(changed > 200, "layouts change the counts: only {changed} did");
    let met = [branches.wrong_directions, branches.wrong_returns, branches.misfetches];
    assert!(
        met.iter().all(|&count| count > 1000),
        "every kind of wrong prediction is met: {branches:?}"
    );
}

/// What the counts of two recordings are together.
fn together(a: LayoutCounts, b: LayoutCounts) -> LayoutCounts {
    let mut sum = a;
    sum.amounts.instructions += b.amounts.instructions;
    sum.amounts.fetched_bytes += b.amounts.fetched_bytes;
    sum.amounts.taken += b.amounts.taken;
    sum.amounts.breaks += b.amounts.breaks;
    for (sum, other) in sum.machines.iter_mut().zip(b.machines) {
        sum.l1i += other.l1i;
        *sum.itlb.as_mut().unwrap() += other.itlb.unwrap();
        *sum.branches.as_mut().unwrap() += other.branches.unwrap();
        let mut misses: BTreeMap<_, u64> = sum.misses_at.iter().copied().collect();
        other.misses_at.iter().for_each(|&(at, count)| *misses.entry(at).or_default() += count);
        sum.misses_at = misses.into_iter().collect();
    }
    sum
}

/// Lines and pages that both touch are touched once.
fn without_touched(mut counts: LayoutCounts) -> LayoutCounts {
    counts.amounts.touched_pages = PerMode::default();
    counts.machines.iter_mut().for_each(|machine| machine.touched_lines = PerMode::default());
    counts
}

#[test]
fn each_of_several_cpus_counts_what_it_counts_alone() {
    let mut random = XorShift(0x0FED_CBA9_8765_4321);
    for case in 0..100 {
        let program = Program::random(&mut random);
        let interrupts = [0, 3, 20][case % 3];
        let mut laid = program.original();
        surroundings(&mut laid.memory, laid.starts[0]);
        let mut executed = || {
            let calls = 1 + random.below(4);
            addresses(&program, &laid, &execute(&program, &mut random, calls, interrupts))
        };
        let (first, second) = (executed(), executed());
        let (_, placement) = program.moved(&mut random);
        let alone = |executed: &[u64]| {
            let recording = record(&laid.memory, executed, 4);
            replayed(&recording, placement.clone(), &machines()).layouts
        };
        let (mut cpu, slice) = (0, 1 + random.below(12));
        let both = record_on_cpus(&laid.memory, &[&first, &second], 4, || {
            cpu ^= usize::from(random.below(slice) == 0);
            cpu
        });
        let both = replayed(&both, placement.clone(), &machines());
        for (both, (first, second)) in
            both.layouts.into_iter().zip(alone(&first).into_iter().zip(alone(&second)))
        {
            let expected = without_touched(together(first, second));
            assert_eq!(without_touched(both), expected, "case {case}");
        }
    }
}
