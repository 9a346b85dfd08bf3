//! Executions of several CPUs, which take turns.

use super::branches::{books_with_branches, machine};
use super::expect;
use crate::annotations::ServiceKind;
use crate::examples::{ExampleRun, USER, at};
use sim::BranchCounters;
use sim::core::CoreSlots;
use std::collections::BTreeMap;

/// A step of an execution.
type Step = Box<dyn for<'a> Fn(&'a mut ExampleRun) -> &'a mut ExampleRun>;

fn step(step: impl for<'a> Fn(&'a mut ExampleRun) -> &'a mut ExampleRun + 'static) -> Step {
    Box::new(step)
}

/// `sh` is interrupted in `read` and blocks there. The CPU halts, then `sh` goes on.
fn blocked_reader() -> Vec<Step> {
    let (read, schedule) = (at("__x64_sys_read"), at("__schedule"));
    let tick = at("asm_sysvec_apic_timer_interrupt");
    vec![
        step(|run| run.switch(1, "sh")),
        step(|run| run.user(3)),
        step(|run| run.enter_read()),
        step(move |run| run.left(read, 5, 2)),
        step(move |run| run.plain(tick, 4)),
        step(move |run| run.iret(tick + 4, 2)),
        step(move |run| run.call(read + 2, 2, "__schedule")),
        step(move |run| run.call(schedule, 4, "__switch_to").switch(10, "swapper/0")),
        step(|run| run.ret(at("__switch_to"), 3)),
        step(move |run| run.push(schedule + 0x80, 2, &[0xf4])),
        step(move |run| run.plain(tick, 4).wake(1)),
        step(move |run| run.iret(tick + 4, 2)),
        step(move |run| run.call(schedule + 0x90, 2, "__schedule")),
        step(move |run| run.call(schedule, 4, "__switch_to").switch(1, "sh")),
        step(|run| run.ret(at("__switch_to"), 3)),
        step(move |run| run.ret(schedule + 8, 5)),
        step(move |run| run.plain(read + 8, 1).leave_read()),
        step(|run| run.user(2)),
    ]
}

/// `cat` faults in user mode and in a system call.
fn faulting_reader() -> Vec<Step> {
    let (fault, rmap) = (at("asm_exc_page_fault"), at("folio_add_new_anon_rmap"));
    vec![
        step(|run| run.switch(2, "cat")),
        step(|run| run.left(USER, 10, 3)),
        step(move |run| run.call(fault, 2, "folio_add_new_anon_rmap")),
        step(move |run| run.ret(rmap, 5)),
        step(move |run| run.iret(fault + 6, 3)),
        step(|run| run.user(10)),
        step(|run| run.enter_read()),
        step(|run| run.left(at("__x64_sys_read"), 5, 2)),
        step(move |run| run.call(fault, 2, "do_wp_page")),
        step(move |run| run.call(at("do_wp_page"), 2, "folio_add_new_anon_rmap")),
        step(move |run| run.ret(rmap, 5)),
        step(move |run| run.ret(at("do_wp_page") + 6, 1)),
        step(move |run| run.iret(fault + 6, 3)),
        step(|run| run.plain(at("__x64_sys_read") + 1, 4).leave_read()),
        step(|run| run.user(1)),
    ]
}

/// Calls, instructions and the instructions of whole invocations, by service.
type Totals = BTreeMap<(ServiceKind, String), [u64; 3]>;

fn totals(run: &ExampleRun) -> Totals {
    let books = run.books();
    let mut found = Totals::new();
    for account in books.ledger.accounts.iter().filter(|account| account.totals.calls > 0) {
        let totals = &account.totals;
        let numbers = [totals.calls, totals.instructions, totals.times.ran];
        found.insert((account.kind, account.name.clone()), numbers);
    }
    found
}

fn alone(steps: &[Step]) -> ExampleRun {
    let mut run = ExampleRun::default();
    for step in steps {
        step(&mut run);
    }
    run
}

/// Both executions, in turns that depend on the seed.
fn in_turns(cpus: &[Vec<Step>; 2], seed: u64) -> ExampleRun {
    let mut run = ExampleRun::default();
    let (mut left, mut executing) = ([cpus[0].iter(), cpus[1].iter()], 0);
    let mut bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    while left.iter().any(|steps| !steps.as_slice().is_empty()) {
        bits = bits.rotate_left(7).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let cpu = usize::from(bits >> 60 & 1 == 1);
        let Some(step) = left[cpu].next() else { continue };
        if cpu != executing {
            run.cpu(cpu as u8);
            executing = cpu;
        }
        step(&mut run);
    }
    run
}

#[test]
fn two_cpus_in_turns_count_what_they_count_alone() {
    let cpus = [blocked_reader(), faulting_reader()];
    let mut expected = totals(&alone(&cpus[0]));
    for (service, numbers) in totals(&alone(&cpus[1])) {
        let sums = expected.entry(service).or_default();
        sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
    }
    for seed in 1..=300 {
        let run = in_turns(&cpus, seed);
        assert_eq!(totals(&run), expected, "seed {seed}");
        run.calls();
    }
}

/// The branches of each service, and the slots of all.
fn predicted(run: &ExampleRun) -> (BTreeMap<(ServiceKind, String), BranchCounters>, CoreSlots) {
    let machines = [machine(), machines::find("zen4").unwrap().model];
    let books = books_with_branches(run, &machines);
    let (mut branches, mut slots) = (BTreeMap::new(), CoreSlots::default());
    for account in &books.ledger.accounts {
        // A service that never ran has no machines.
        let [predicting, core] = &account.totals.machines[..] else { continue };
        let counters = predicting.branches.unwrap();
        if counters != BranchCounters::default() {
            branches.insert((account.kind, account.name.clone()), counters);
        }
        slots += core.slots.unwrap();
    }
    (branches, slots)
}

#[test]
fn each_cpu_predicts_and_executes_for_itself() {
    let cpus = [blocked_reader(), faulting_reader()];
    let (mut branches, mut slots) = predicted(&alone(&cpus[0]));
    let (others, others_slots) = predicted(&alone(&cpus[1]));
    for (service, counters) in others {
        *branches.entry(service).or_default() += counters;
    }
    slots += others_slots;
    assert!(branches.len() > 3, "{branches:?}");
    for seed in 1..=100 {
        assert_eq!(predicted(&in_turns(&cpus, seed)), (branches.clone(), slots), "seed {seed}");
    }
}

#[test]
fn a_system_call_goes_on_when_its_task_moves_to_another_cpu() {
    let (read, schedule) = (at("__x64_sys_read"), at("__schedule"));
    let mut run = ExampleRun::new();
    run.user(1).enter_read().call(read, 2, "__schedule").call(schedule, 4, "__switch_to");
    run.switch(10, "swapper/0").ret(at("__switch_to"), 3);
    run.cpu(1).switch(11, "swapper/1").call(schedule + 0x90, 2, "__schedule");
    run.call(schedule, 4, "__switch_to").switch(1, "sh").ret(at("__switch_to"), 3);
    run.cpu(0).plain(schedule + 0xa0, 7);
    run.cpu(1).ret(schedule + 8, 5).plain(read + 6, 1).leave_read().user(2);
    let found = totals(&run);
    let read = &found[&(ServiceKind::SystemCall, "read".to_owned())];
    // `ran` includes the context switch, which is a separate service, but not what CPU 0 executed.
    assert_eq!(read, &[1, 5 + 2 + 1 + 7, 5 + 2 + 4 + 3 + 5 + 1 + 7]);
    assert_eq!(run.books().context_switches, 2);
}

#[test]
fn time_stands_still_only_when_all_cpus_are_halted() {
    let (schedule, tick) = (at("__schedule"), at("asm_sysvec_apic_timer_interrupt"));
    let idle = |run: &mut ExampleRun, cpu: u8| {
        run.cpu(cpu).switch(10 + u32::from(cpu), ["swapper/0", "swapper/1"][usize::from(cpu)]);
        run.plain(schedule, 1).clock(1).push(schedule + 0x80, 2, &[0xf4]);
    };
    let mut run = ExampleRun::default();
    idle(&mut run, 0);
    // CPU 1 executes. A string instruction repeats: the clock advances by more than was recorded.
    run.cpu(1).switch(2, "cat").user(5).clock(900);
    assert_eq!(run.books().halted, Some(0));
    idle(&mut run, 1);
    run.cpu(0).plain(tick, 4).clock(1007);
    assert_eq!(run.books().halted, Some(1000));
}

#[test]
fn a_cpu_that_comes_late_begins_in_an_unknown_task() {
    let mut run = ExampleRun::new();
    run.user(4).cpu(3).user(5).switch(3, "late").user(6);
    expect(
        &run,
        &[
            (ServiceKind::User, "(unknown)", 1, 5),
            (ServiceKind::User, "late", 1, 6),
            (ServiceKind::User, "sh", 1, 4),
        ],
    );
}

#[test]
fn a_stay_in_user_mode_is_one_however_many_turns_it_takes() {
    let mut run = ExampleRun::new();
    run.user(4).cpu(1).switch(2, "cat").user(3).cpu(0).user(5).cpu(1).user(6).enter_read();
    run.plain(at("__x64_sys_read"), 1).cpu(0).user(1);
    expect(
        &run,
        &[
            (ServiceKind::SystemCall, "read", 1, 6),
            (ServiceKind::User, "cat", 1, 9),
            (ServiceKind::User, "sh", 1, 10),
        ],
    );
}
