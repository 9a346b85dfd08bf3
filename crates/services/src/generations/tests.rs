//! P = T × A, calculated by hand and for small executions.

use super::*;
use crate::Attribution;
use crate::examples::{ExampleRun, at, kernel};
use crate::ledger::{Distribution, Invocation, Ledger};
use crate::table::ServiceTable;
use std::path::Path;

fn machines(names: &[&str]) -> Vec<MachineModel> {
    names.iter().map(|name| machines::find(name).unwrap().model).collect()
}

/// Services with calls, instructions and counts.
fn counted(services: &[(ServiceKind, &str, u64, u64, ServiceMachineCounts)]) -> Attributed {
    let mut ledger = Ledger::default();
    for (kind, name, calls, instructions, counts) in services {
        let (instructions, calls) = (*instructions, *calls);
        let service = ledger.service(*kind, name);
        let machines = vec![counts.clone()];
        ledger.add(service, &Invocation { instructions, machines, times: Default::default() });
        (1..calls).for_each(|_| ledger.add(service, &Invocation::default()));
    }
    Attributed {
        ledger,
        instructions: services.iter().map(|service| service.3).sum(),
        counters: Vec::new(),
        context_switches: 0,
        interrupts: 0,
        between_interrupts: Distribution::default(),
        wakes_seen: false,
        halted: None,
        sampled: Vec::new(),
    }
}

fn misses(l1i_misses: u64) -> ServiceMachineCounts {
    ServiceMachineCounts { l1i_misses, ..ServiceMachineCounts::default() }
}

/// Slots of a core that dispatches and graduates three slots a cycle.
fn slots(retiring: u64, memory: u64) -> ServiceMachineCounts {
    let dispatch = Slots { retiring, memory, ..Slots::default() };
    let graduation = GraduationSlots { busy: retiring, data: memory, ..GraduationSlots::default() };
    let slots = Some(CoreSlots { dispatch, graduation });
    ServiceMachineCounts { slots, ..ServiceMachineCounts::default() }
}

/// Two calls of a read, and user mode, on a 486 at 33 MHz and a Pentium 4 at 3 GHz.
fn by_hand() -> Generations {
    let (call, user) = (ServiceKind::SystemCall, ServiceKind::User);
    let older = [(call, "read", 2, 1000, misses(20)), (user, "sh", 1, 3000, misses(0))];
    let newer = [(call, "read", 2, 1000, slots(1200, 720)), (user, "sh", 1, 3000, slots(3000, 0))];
    Generations::new(
        &RecordingHeader::default(),
        &RecordingPart::WHOLE,
        &machines(&["i486", "pentium4"]),
        &[counted(&older), counted(&newer)],
    )
}

/// A service that only lost slots, and only on the second machine, counts in its sums.
#[test]
fn slots_without_instructions_count_on_every_machine() {
    let user = ServiceKind::User;
    let [mut older, mut newer] =
        [misses(0), slots(3000, 0)].map(|on| counted(&[(user, "sh", 1, 3000, on)]));
    older.ledger.service(user, "gone");
    let gone = newer.ledger.service(user, "gone");
    newer.ledger.add_counts(gone, &[slots(0, 7)]);
    let machines = machines(&["i486", "pentium4"]);
    let header = RecordingHeader::default();
    let found = Generations::new(&header, &RecordingPart::WHOLE, &machines, &[older, newer]);
    assert_eq!(found.sums[0].on[1].parts, 3007);
    assert_eq!(found.rows.iter().map(|row| row.on[1].parts).sum::<u64>(), 3007);
}

#[test]
fn a_split_by_hand() {
    let found = by_hand();
    let read = &found.rows[0];
    // 1000 instructions, 20 misses of 8 cycles, and 0.3 × 0.05 × 8 cycles of data for each
    // instruction: 1280 cycles. 1920 slots of 3 a cycle: 640 cycles.
    assert_eq!((read.on[0].parts, read.on[0].cpi), (1_280_000, 1.28));
    assert_eq!((read.on[1].parts, read.on[1].cpi), (1920, 0.64));
    assert_eq!(
        read.on[0].graduation,
        GraduationSlots { busy: 1_000_000, data: 120_000, instruction: 160_000, pipeline: 0 }
    );
    let split = read.on[1].split.unwrap();
    assert_eq!(
        [split.speedup, split.technology, split.architecture],
        [2000.0 / 11.0, 1000.0 / 11.0, 2.0]
    );
    assert_eq!(read.on[0].split, Some(Split { speedup: 1.0, technology: 1.0, architecture: 1.0 }));
    let times = |row: &GenerationRow| row.on.iter().map(|on| on.nanoseconds_per_call).collect();
    let of_read: Vec<Option<f64>> = times(read);
    // Half of 1280 cycles at 33 MHz, and of 640 at 3 GHz.
    assert!((of_read[0].unwrap() - 640.0 / 0.033).abs() < 1e-6, "{of_read:?}");
    assert!((of_read[1].unwrap() - 320.0 / 3.0).abs() < 1e-9, "{of_read:?}");

    let [all, of_kernel, user, idle] = &found.sums;
    assert_eq!((all.calls, all.instructions, of_kernel.instructions), (3, 4000, 1000));
    // User mode: 3000 + 360 cycles, and 1000.
    assert_eq!((all.on[0].parts, all.on[1].parts), (1_280_000 + 3_360_000, 1920 + 3000));
    assert_eq!((&user.on[1].parts, idle.on[0].parts, idle.on[1].split), (&3000, 0, None));
    assert!(times(all).iter().all(|time: &Option<f64>| time.is_none()), "a sum has no calls");
    assert!((all.on[0].milliseconds.unwrap() - 4640.0 / 33e3).abs() < 1e-12);
    assert_eq!(found.split(read, 1, 0).unwrap().architecture, 0.5);
    assert_eq!((found.split(read, 0, 2), found.machine("i486")), (None, Some(0)));
}

#[test]
fn technology_times_architecture_is_the_speedup_exactly() {
    let clock = |megahertz| NonZeroU32::new(megahertz).unwrap();
    // A fixed sequence of numbers, then the largest numbers that are possible.
    let mut seed = 1_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 20).max(1)
    };
    for _ in 0..1000 {
        let [older, newer] = [(); 2].map(|()| Elapsed {
            parts: next(),
            parts_per_cycle: 1 + next() as u32 % 1000,
            megahertz: clock(1 + next() as u32 % 100_000),
        });
        let split = ExactSplit::new(older, newer).unwrap();
        assert_eq!(split.technology * split.architecture, split.speedup, "{older:?} {newer:?}");
    }
    let largest = Elapsed { parts: u64::MAX, parts_per_cycle: 1, megahertz: clock(1) };
    let most = Elapsed { parts: 1, parts_per_cycle: u32::MAX, megahertz: clock(u32::MAX) };
    let split = ExactSplit::new(largest, most).unwrap();
    assert!((split.speedup.value() / (2f64.powi(128)) - 1.0).abs() < 1e-9);
    assert_eq!(ExactSplit::new(Elapsed { parts: 0, ..largest }, most), None);
}

fn recorded(directory: &Path, run: &ExampleRun) {
    std::fs::write(directory.join("trace.klt"), run.recording()).unwrap();
}

fn attribution(names: &[&str]) -> Attribution {
    let (symbols, binding) = kernel();
    Attribution { symbols, binding, machines: machines(names), part: RecordingPart::WHOLE }
}

fn reads(count: usize) -> ExampleRun {
    let mut run = ExampleRun::new();
    for _ in 0..count {
        run.user(10).enter_read().plain(at("__x64_sys_read"), 5).leave_read();
    }
    run
}

/// The sums of the services are those of the whole recording, and each machine counts the same
/// alone and beside others.
#[test]
fn sums_are_exact_on_one_thread_and_many() {
    let directory = tempfile::tempdir().unwrap();
    recorded(directory.path(), &reads(50));
    let names = ["i486", "simos-1994", "simos-1998", "pentium4", "zen4"];
    let attribution = attribution(&names);
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| attribution.generations(directory.path(), None)).unwrap()
    };
    let found = run(1);
    let json = |found: &Generations| serde_json::to_string(found).unwrap();
    assert_eq!(json(&found), json(&run(4)));

    let table = attribution.table(directory.path(), None).unwrap();
    let [all, of_kernel, user, _] = &found.sums;
    assert_eq!(
        (all.instructions, of_kernel.instructions, user.instructions),
        (table.instructions, table.kernel_instructions, table.user_instructions)
    );
    for (at, machine) in found.machines.iter().enumerate() {
        let parts: u64 = found.rows.iter().map(|row| row.on[at].parts).sum();
        assert_eq!(parts, all.on[at].parts, "{}", machine.name);
        let Some([slots, _]) = table.machines[at].slots else {
            let cycles = table.machines[at].cycles;
            assert!((parts as f64 / 1000.0 - cycles).abs() < 0.01, "{}", machine.name);
            continue;
        };
        assert_eq!(
            (Some(slots.dispatch), slots.graduation),
            (all.on[at].dispatch, all.on[at].graduation)
        );
        assert_eq!(parts % u64::from(machine.parts_per_cycle), 0, "whole cycles");
        let cycles = parts / u64::from(machine.parts_per_cycle);
        assert_eq!(slots.graduation.total(), cycles * u64::from(machine.graduation_per_cycle));
        rows_agree(&found, &table, at);
    }
}

fn rows_agree(found: &Generations, table: &ServiceTable, at: usize) {
    for (ours, theirs) in found.rows.iter().zip(&table.rows) {
        assert_eq!((ours.kind, &ours.name), (Some(theirs.kind), &theirs.name));
        assert_eq!((ours.calls, ours.instructions), (theirs.calls, theirs.instructions));
        assert_eq!(ours.on[at].dispatch, theirs.machines[at].slots.map(|slots| slots.dispatch));
    }
    assert_eq!(found.rows.len(), table.rows.len());
}

/// The core runs the last instructions of a task when those of the next task come: no slot is lost.
#[test]
fn slots_around_a_switch_in_user_mode_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = ExampleRun::new();
    for _ in 0..5 {
        run.user(10).switch(2, "cat").switch(1, "sh").user(10).switch(2, "cat");
    }
    recorded(directory.path(), &run);
    let attribution = attribution(&["zen4"]);
    let found = attribution.generations(directory.path(), None).unwrap();
    let all = &found.sums[0].on[0];
    let cycles = all.parts / 6;
    assert_eq!((all.parts % 6, all.graduation.total()), (0, 8 * cycles));
}

#[test]
fn parts_of_a_recording_add_up() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = reads(20);
    run.user(10).switch(2, "cat").user(10);
    recorded(directory.path(), &run);
    let attribution = attribution(&["i486", "zen4"]);
    let mut attribution = attribution;
    let mut of = |from, until| {
        attribution.part = RecordingPart { from, until };
        attribution.generations(directory.path(), None).unwrap()
    };
    // 20 reads of 27 instructions, with 10 of user mode. The last part ends before the switch.
    let until_switch = 550.0 / 560.0;
    let parts = [of(0.0, 1.0), of(0.0, 0.5), of(0.5, 1.0), of(0.0, until_switch)];
    for found in &parts {
        let (machine, all) = (&found.machines[1], &found.sums[0].on[1]);
        let cycles = all.parts / u64::from(machine.parts_per_cycle);
        assert_eq!(all.parts % u64::from(machine.parts_per_cycle), 0, "whole cycles");
        assert_eq!(all.graduation.total(), cycles * u64::from(machine.graduation_per_cycle));
    }
    let [whole, first, second, before_switch] = parts;
    assert_eq!((whole.sums[0].instructions, before_switch.sums[0].instructions), (560, 550));
    let amounts = |found: &Generations| [found.sums[0].instructions, found.sums[1].instructions];
    assert_eq!(amounts(&whole), [0, 1].map(|sum| amounts(&first)[sum] + amounts(&second)[sum]));
    assert!(second.sums[1].instructions > 0 && second.sums[0].on[1].parts > 0);
    assert_eq!((whole.part, second.part.as_deref()), (None, Some("0.5 to 1")));
    attribution.part = RecordingPart { from: 0.5, until: 0.5 };
    let message = format!("{:#}", attribution.generations(directory.path(), None).unwrap_err());
    assert!(message.contains("begin before it ends, not from 0.5 to 0.5"), "{message}");
}

#[test]
fn notes_name_what_weakens_the_numbers() {
    let notes = by_hand().notes;
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].starts_with("only 4000 instructions ran: below 1000000, "), "{notes:?}");
    assert!(notes[1].starts_with("i486: no out-of-order core; Torrellas' simple"), "{notes:?}");
    let call = ServiceKind::SystemCall;
    let found = Generations::new(
        &RecordingHeader::default(),
        &RecordingPart::WHOLE,
        &machines(&["zen4"]),
        &[counted(&[(call, "read", 1, WARM, slots(6, 0))])],
    );
    assert!(found.notes.is_empty(), "{:?}", found.notes);
}

#[test]
fn machines_that_cannot_be_compared_are_named() {
    let message = |names: &[&str]| check(&machines(names)).unwrap_err().to_string();
    assert!(message(&["zen4"]).starts_with("generations need at least two machines: "));
    let of_paper = message(&["zen4", "torrellas-8k"]);
    assert!(of_paper.starts_with("torrellas-8k: the machine's file has no clock"), "{of_paper}");
    check(&machines(&["i486", "zen4"])).unwrap();
    // On a page, such a machine has cycles, but no times.
    let found = Generations::new(
        &RecordingHeader::default(),
        &RecordingPart::WHOLE,
        &machines(&["torrellas-8k"]),
        &[counted(&[(ServiceKind::SystemCall, "read", 1, 1000, misses(1))])],
    );
    let on = found.rows[0].on[0];
    assert_eq!((on.milliseconds, on.nanoseconds_per_call, on.split), (None, None, None));
    assert!(on.parts > 1_000_000);
}

/// A machine without a core stops for each miss of the recorded data accesses.
#[test]
fn stops_for_data_are_counted_where_they_were_recorded() {
    let mut memory = sim::MachineCounters { instructions: 1000, dtlb: 3, ..Default::default() };
    memory.l1i.cold = 5;
    memory.l1d.cold = 7;
    memory.l2d.cold = 2;
    let counts = ServiceMachineCounts { memory: Some(memory), ..misses(5) };
    let found = Generations::new(
        &RecordingHeader::default(),
        &RecordingPart::WHOLE,
        &machines(&["server-32k"]),
        &[counted(&[(ServiceKind::SystemCall, "read", 1, 1000, counts)])],
    );
    assert_eq!(found.machines[0].model, CycleModel::InOrderWithData);
    // The L2 answers after 14 cycles, the L3 after 50, a TLB after 7.
    let expected = GraduationSlots {
        busy: 1_000_000,
        data: 1000 * (5 * 14 + 2 * 50),
        instruction: 1000 * 5 * 14,
        pipeline: 1000 * 3 * 7,
    };
    assert_eq!(found.rows[0].on[0].graduation, expected);
}

#[test]
fn a_recording_of_another_kernel_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    recorded(directory.path(), &reads(1));
    let mut attribution = attribution(&["i486", "zen4"]);
    attribution.symbols.build_id = Some(image::BuildId("0b".into()));
    let found = attribution.generations(directory.path(), None);
    let message = format!("{:#}", found.unwrap_err());
    assert!(message.contains("the symbols of 0b: give the vmlinux that was recorded"), "{message}");
}
