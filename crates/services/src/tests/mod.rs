//! Small executions written by hand, and the service of each of their instructions.

mod branches;
mod cpus;
mod sampled;
mod sliced;

use crate::annotations::ServiceKind;
use crate::examples::{ExampleRun, FUNCTIONS, USER, at, halted};
use crate::share::OsShare;
use crate::table::ServiceTable;
use trace::RecordingHeader;

fn expect(run: &ExampleRun, expected: &[(ServiceKind, &str, u64, u64)]) {
    let expected: Vec<_> =
        expected.iter().map(|&(kind, name, calls, n)| (kind, name.to_owned(), calls, n)).collect();
    assert_eq!(run.services(), expected);
}

#[test]
fn a_system_call_by_its_name() {
    let mut run = ExampleRun::new();
    run.user(10).enter_read().plain(at("__x64_sys_read"), 5).leave_read().user(4);
    expect(&run, &[(ServiceKind::SystemCall, "read", 1, 17), (ServiceKind::User, "sh", 2, 14)]);
}

#[test]
fn faults_by_what_resolved_them() {
    let fault = at("asm_exc_page_fault");
    let rmap = at("folio_add_new_anon_rmap");
    let mut run = ExampleRun::new();
    // In user mode: demand zero.
    run.left(USER, 10, 3).call(fault, 2, "folio_add_new_anon_rmap");
    run.ret(rmap, 5).iret(fault + 6, 3).user(10);
    // In a system call: copy on write. The system call continues after it.
    run.enter_read().left(at("__x64_sys_read"), 5, 2).call(fault, 2, "do_wp_page");
    run.call(at("do_wp_page"), 2, "folio_add_new_anon_rmap").ret(rmap, 5);
    run.ret(at("do_wp_page") + 6, 1).iret(fault + 6, 3);
    run.plain(at("__x64_sys_read") + 1, 4).leave_read().user(1);
    expect(
        &run,
        &[
            (ServiceKind::SystemCall, "read", 1, 5 + 2 + 4 + 7),
            (ServiceKind::PageFault, "copy on write", 1, 2 + 2 + 5 + 1 + 3),
            (ServiceKind::PageFault, "demand zero", 1, 10),
            (ServiceKind::User, "sh", 3, 14),
        ],
    );
    assert_eq!(run.books().counters[0], ("faults handled".to_owned(), 0));
}

#[test]
fn an_emulated_vsyscall_is_not_a_zero_page() {
    let fault = at("asm_exc_page_fault");
    let mut run = ExampleRun::new();
    run.user(3).call(fault, 2, "emulate_vsyscall");
    run.ret(at("emulate_vsyscall"), 6).iret(fault + 6, 3).user(1);
    expect(
        &run,
        &[(ServiceKind::PageFault, "vsyscall emulation", 1, 11), (ServiceKind::User, "sh", 2, 4)],
    );
}

/// `mark-start` runs when a recording begins, and its first instructions are those of its last
/// system call.
#[test]
fn a_user_task_that_ends_in_its_first_system_call_is_not_a_kernel_thread() {
    let mut run = ExampleRun::new();
    run.enter_read().call(at("__x64_sys_read"), 2, "__schedule");
    run.call(at("__schedule"), 4, "__switch_to").switch(2, "cat").ret(at("__switch_to"), 3);
    run.iret(at("ret_from_fork_asm"), 8).user(1);
    expect(
        &run,
        &[
            (ServiceKind::SystemCall, "read", 1, 5 + 2),
            (ServiceKind::ContextSwitch, "schedule", 1, 4),
            (ServiceKind::Task, "first return", 1, 3 + 8),
            (ServiceKind::User, "cat", 1, 1),
        ],
    );
}

#[test]
fn interrupts_are_counted_and_not_the_times_between_them() {
    let tick = at("asm_sysvec_apic_timer_interrupt");
    let interrupts = |count: usize| {
        let mut run = ExampleRun::new();
        run.user(1);
        for _ in 0..count {
            run.iret(tick, 2).user(5);
        }
        let books = run.books();
        let table = ServiceTable::new(&RecordingHeader::default(), &books, Vec::new(), &[]);
        OsShare::new(&table).interrupts
    };
    assert_eq!((interrupts(0).count, interrupts(1).count), (0, 1));
    let three = interrupts(3);
    assert_eq!((three.count, three.distribution.0.iter().sum::<u64>()), (3, 2));
}

#[test]
fn an_interrupt_with_a_softirq_in_the_kernel() {
    let tick = at("asm_sysvec_apic_timer_interrupt");
    let mut run = ExampleRun::new();
    run.user(1).enter_read().plain(at("__x64_sys_read"), 5);
    run.call(tick, 2, "handle_softirqs").call(at("handle_softirqs"), 3, "net_rx_action");
    run.ret(at("net_rx_action"), 7).ret(at("handle_softirqs") + 7, 1);
    run.iret(tick + 6, 2);
    run.plain(at("__x64_sys_read") + 5, 6).leave_read().user(1);
    expect(
        &run,
        &[
            (ServiceKind::SystemCall, "read", 1, 5 + 5 + 6 + 7),
            (ServiceKind::Interrupt, "apic_timer_interrupt", 1, 4),
            (ServiceKind::Softirq, "dispatch", 1, 4),
            (ServiceKind::Softirq, "net_rx_action", 1, 7),
            (ServiceKind::User, "sh", 2, 2),
        ],
    );
}

#[test]
fn an_interrupt_between_a_return_and_its_destination() {
    let tick = at("asm_sysvec_apic_timer_interrupt");
    let mut run = ExampleRun::new();
    run.user(1)
        .enter_read()
        .call(at("__x64_sys_read"), 2, "handle_softirqs")
        .ret(at("handle_softirqs"), 3);
    run.iret(tick, 2);
    run.plain(at("__x64_sys_read") + 6, 4).leave_read().user(1);
    expect(
        &run,
        &[
            (ServiceKind::SystemCall, "read", 1, 5 + 2 + 4 + 7),
            (ServiceKind::Interrupt, "apic_timer_interrupt", 1, 2),
            (ServiceKind::Softirq, "dispatch", 1, 3),
            (ServiceKind::User, "sh", 2, 2),
        ],
    );
}

#[test]
fn open_services_stay_with_their_task() {
    let schedule = at("__schedule");
    let mut run = ExampleRun::new();
    // sh blocks in read. A new task runs, returns to user mode, and also blocks in read. sh
    // continues.
    run.user(1).enter_read().call(at("__x64_sys_read"), 2, "__schedule");
    run.call(schedule, 4, "__switch_to").switch(2, "cat").ret(at("__switch_to"), 3);
    run.iret(at("ret_from_fork_asm"), 8).user(20);
    run.enter_read().call(at("__x64_sys_read"), 2, "__schedule");
    run.call(schedule, 4, "__switch_to").switch(1, "sh").ret(at("__switch_to"), 3);
    run.ret(schedule + 8, 5).plain(at("__x64_sys_read") + 6, 1).leave_read().user(2);
    expect(
        &run,
        &[
            (ServiceKind::SystemCall, "read", 2, 5 + 2 + 1 + 7 + 5 + 2),
            (ServiceKind::ContextSwitch, "schedule", 2, 4 + 3 + 5 + 4),
            (ServiceKind::Task, "first return", 1, 3 + 8),
            (ServiceKind::User, "cat", 1, 20),
            (ServiceKind::User, "sh", 2, 3),
        ],
    );
    let books = run.books();
    assert_eq!(books.context_switches, 2);
    let read = books.ledger.accounts.iter().find(|account| account.name == "read").unwrap();
    // sh ran 7 before it blocked, 4 + 5 + 3 in the scheduler, and 8 behind. It was off the
    // processor while cat ran: 3 + 8 + 20 + 7 + 4, minus its own.
    let away = 3 + 8 + 20 + 7 + 4 - 3;
    assert_eq!(read.totals.times.ran, (7 + 4 + 3 + 5 + 8) + (7 + 4));
    assert_eq!(read.totals.times.blocked + read.totals.times.waiting, away + 3);
    assert_eq!(
        read.totals.times.latency,
        read.totals.times.ran + read.totals.times.blocked + read.totals.times.waiting
    );
}

#[test]
fn blocked_ends_and_waiting_begins_with_the_wake() {
    let mut run = ExampleRun::new();
    run.user(1).enter_read().call(at("__x64_sys_read"), 2, "__schedule");
    run.call(at("__schedule"), 4, "__switch_to").switch(2, "cat").ret(at("__switch_to"), 3);
    run.iret(at("ret_from_fork_asm"), 8).user(20).wake(1).wake(1).user(30);
    // cat is pre-empted, so nobody wakes it.
    run.call(at("asm_sysvec_apic_timer_interrupt"), 2, "__schedule");
    run.call(at("__schedule"), 4, "__switch_to").switch(1, "sh").ret(at("__switch_to"), 3);
    run.ret(at("__schedule") + 8, 5).plain(at("__x64_sys_read") + 6, 1).leave_read().user(2);
    let books = run.books();
    let totals =
        &books.ledger.accounts.iter().find(|account| account.name == "read").unwrap().totals;
    assert!(books.wakes_seen);
    assert_eq!((totals.times.blocked, totals.times.waiting), (3 + 8 + 20, 30 + 2 + 4));
}

/// Without pids, a new task is recognized by where it begins. What its address did before belongs
/// to a dead task.
#[test]
fn a_dead_task_does_not_wait() {
    let mut run = ExampleRun::new();
    let die = |run: &mut ExampleRun, next: u32| {
        run.user(1).enter_read().call(at("__x64_sys_read"), 2, "__schedule");
        run.call(at("__schedule"), 4, "__switch_to").switch(next, "sh").ret(at("__switch_to"), 3);
    };
    die(&mut run, 2);
    run.iret(at("ret_from_fork_asm"), 8).user(500);
    die(&mut run, 1);
    run.iret(at("ret_from_fork_asm"), 8).user(1);
    let books = run.books();
    let read = books.ledger.accounts.iter().find(|account| account.name == "read").unwrap();
    assert_eq!((read.totals.calls, read.totals.times.blocked + read.totals.times.waiting), (2, 0));
    assert_eq!(
        books
            .ledger
            .accounts
            .iter()
            .find(|account| account.name == "first return")
            .unwrap()
            .totals
            .calls,
        2
    );
}

#[test]
fn a_device_by_its_handler_through_a_retpoline() {
    let (stub, handle, handler) = (
        at("irq_entries_start") + 0x30,
        at("__handle_irq_event_percpu"),
        at("serial8250_interrupt"),
    );
    let thunk = at("__x86_indirect_thunk_rax");
    let mut run = ExampleRun::new();
    run.user(1).call(stub, 2, "__handle_irq_event_percpu").call(
        handle,
        3,
        "__x86_indirect_thunk_rax",
    );
    // The thunk calls its own next lines, puts the handler's address over the return address, and
    // returns to it.
    run.push(thunk, 0, &[0xe8, 7, 0, 0, 0]).ret(thunk + 12, 2);
    run.ret(handler, 4).ret(handle + 7, 1).iret(at("bare_entry"), 1).user(1);
    expect(
        &run,
        &[
            (ServiceKind::Interrupt, "serial8250_interrupt", 1, 2 + 3 + 1 + 2 + 4 + 1 + 1),
            (ServiceKind::User, "sh", 2, 2),
        ],
    );
}

#[test]
fn a_function_that_is_a_service_ends_with_its_return_behind_a_retpoline() {
    let thunk = at("__x86_indirect_thunk_rax");
    let mut run = ExampleRun::new();
    run.user(1).enter_read().call(at("__x64_sys_read"), 2, "__x86_indirect_thunk_rax");
    run.push(thunk, 0, &[0xe8, 7, 0, 0, 0]).ret(thunk + 12, 2);
    run.ret(at("net_rx_action"), 9);
    run.plain(at("__x64_sys_read") + 6, 4).leave_read().user(1);
    expect(
        &run,
        &[
            (ServiceKind::SystemCall, "read", 1, 5 + 2 + 3 + 4 + 7),
            (ServiceKind::Softirq, "net_rx_action", 1, 9),
            (ServiceKind::User, "sh", 2, 2),
        ],
    );
}

#[test]
fn an_interrupt_return_to_the_next_instruction_ends_no_service() {
    let tick = at("asm_sysvec_apic_timer_interrupt");
    let mut run = ExampleRun::new();
    run.user(1).iret(tick, 3).plain(tick + 4, 5).iret(tick + 9, 1).user(1);
    expect(
        &run,
        &[(ServiceKind::Interrupt, "apic_timer_interrupt", 1, 9), (ServiceKind::User, "sh", 2, 2)],
    );
}

#[test]
fn services_that_began_before_the_recording_are_known_by_their_code() {
    let mut run = ExampleRun::new();
    // Another task continues in read, a third in code of no known service, and a fourth never
    // leaves the kernel.
    run.user(1).enter_read().call(at("__x64_sys_read"), 2, "__schedule");
    run.call(at("__schedule"), 4, "__switch_to").switch(2, "cat").ret(at("__switch_to"), 3);
    run.plain(at("__x64_sys_read") + 0x40, 6).iret(at("entry_SYSCALL_64") + 0x40, 2).user(1);
    run.iret(at("asm_sysvec_apic_timer_interrupt"), 2);
    run.switch(3, "wc").ret(at("__switch_to"), 3).iret(at("entry_SYSCALL_64") + 0x40, 2).user(1);
    run.call(at("asm_sysvec_apic_timer_interrupt"), 1, "__schedule");
    run.switch(4, "kworker/0:1").ret(at("__switch_to"), 3).plain(at("bare_entry") + 4, 10);
    expect(
        &run,
        &[
            (ServiceKind::SystemCall, "read", 2, 5 + 2 + 3 + 6 + 2),
            (ServiceKind::Interrupt, "apic_timer_interrupt", 2, 3),
            (ServiceKind::ContextSwitch, "schedule", 1, 4),
            (ServiceKind::KernelThread, "kworker", 1, 13),
            (ServiceKind::Other, "begun before the recording", 1, 5),
            (ServiceKind::User, "cat", 1, 1),
            (ServiceKind::User, "sh", 1, 1),
            (ServiceKind::User, "wc", 1, 1),
        ],
    );
}

#[test]
fn an_entry_without_annotation_is_other_by_name() {
    let mut run = ExampleRun::new();
    run.user(1).plain(at("bare_entry"), 3).iret(at("bare_entry") + 3, 1).user(1);
    expect(
        &run,
        &[(ServiceKind::Other, "entered at bare_entry", 1, 4), (ServiceKind::User, "sh", 2, 2)],
    );
}

#[test]
fn idle_differs_from_kernel_threads_by_its_name() {
    let mut run = ExampleRun::new();
    run.user(1).iret(at("asm_sysvec_apic_timer_interrupt"), 2);
    run.switch(0, "swapper/0").ret(at("__switch_to"), 3);
    run.iret(at("asm_sysvec_apic_timer_interrupt"), 2).plain(at("bare_entry") + 4, 10);
    expect(
        &run,
        &[
            (ServiceKind::Interrupt, "apic_timer_interrupt", 2, 4),
            (ServiceKind::Idle, "idle", 1, 13),
            (ServiceKind::User, "sh", 1, 1),
        ],
    );
}

#[test]
fn halted_time_counts_for_idle_and_for_waiting_services() {
    let books = halted().books();
    let times = |kind: ServiceKind, name: &str| {
        let mut accounts = books.ledger.accounts.iter();
        accounts.find(|account| account.kind == kind && account.name == name).unwrap().totals.times
    };
    assert_eq!(books.halted, Some(1000));
    let read = times(ServiceKind::SystemCall, "read");
    assert_eq!((read.latency, read.ran, read.blocked, read.waiting), (1045, 27, 1010, 8));
    let tick = times(ServiceKind::Interrupt, "apic_timer_interrupt");
    assert_eq!((tick.latency, tick.ran), (6, 6), "it began when the halt was over");
    let idle = times(ServiceKind::Idle, "idle");
    assert_eq!((idle.latency, idle.ran), (1018, 18));
    assert_eq!(ExampleRun::new().user(1).books().halted, None, "no clock");
}

/// Random executions: every instruction has a service, and nothing panics.
#[test]
fn random_executions_are_attributed_completely() {
    let mut state = 3_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    for _ in 0..60 {
        let mut run = ExampleRun::new();
        for _ in 0..3000 {
            let function = FUNCTIONS[random(FUNCTIONS.len())];
            let inside = if random(2) == 0 { 0 } else { 0x40 };
            match random(8) {
                0 => run.user(1 + random(3)),
                1 | 2 => run.call(
                    at(function) + inside,
                    1 + random(3),
                    FUNCTIONS[random(FUNCTIONS.len())],
                ),
                3 | 4 => run.ret(at(function) + inside, 1 + random(3)),
                5 => run.iret(at(function) + inside, 1 + random(3)),
                6 => run
                    .switch(random(4) as u32, ["swapper/0", "sh", "kworker/0:0", "cat"][random(4)]),
                _ => run.left(at(function) + inside, 3, 1 + random(2) as u32),
            };
        }
        run.books();
    }
}

/// A direct-mapped cache of two lines of 64 bytes: services evict each other, and each miss counts
/// for the service that misses.
#[test]
fn misses_count_for_the_service_that_misses() {
    let mut machine = machines::find("server-32k").unwrap().model;
    machine.l1i = sim::CacheGeometry::cache(128, 1, 64, sim::Replacement::Lru).unwrap();
    let mut run = ExampleRun::new();
    run.user(1);
    for _ in 0..2 {
        run.enter_read().plain(at("__x64_sys_read"), 5).leave_read().user(1);
    }
    let books = run.books_on(&[machine]);
    let misses = |name: &str| {
        let account = books.ledger.accounts.iter().find(|account| account.name == name).unwrap();
        account.totals.machines[0].l1i_misses
    };
    // All code lies at multiples of 128 bytes and takes one line: every line evicts every other
    // line.
    assert_eq!(misses("sh"), 3);
    assert_eq!(misses("read"), 2 * 6);
}
