//! Small executions, written down by hand, and where each of their instructions must go.

mod branches;
mod exports;

use crate::services::annotations::{Annotations, Kind};
use crate::services::automaton::Attributed;
use crate::services::binding::Binding;
use crate::services::calls::CallTree;
use crate::services::symbols::Symbols;
use crate::services::timeline::Timeline;
use trace::{Event, Header, Reader, RunAddr, Task, TaskId, TaskPointer, Translation, TranslationId, Writer};

const BASE: u64 = 0xffff_ffff_8100_0000;
const USER: u64 = 0x40_0000;

/// The kernel's functions, each 0x100 bytes.
const FUNCTIONS: [&str; 18] = [
    "entry_SYSCALL_64",
    "do_syscall_64",
    "__x64_sys_read",
    "asm_exc_page_fault",
    "handle_mm_fault",
    "folio_add_new_anon_rmap",
    "do_wp_page",
    "asm_sysvec_apic_timer_interrupt",
    "handle_softirqs",
    "net_rx_action",
    "__schedule",
    "__switch_to",
    "ret_from_fork_asm",
    "irq_entries_start",
    "__handle_irq_event_percpu",
    "serial8250_interrupt",
    "__x86_indirect_thunk_rax",
    "bare_entry",
];

fn at(function: &str) -> u64 {
    let number = FUNCTIONS.iter().position(|&name| name == function).unwrap();
    BASE + 0x100 * number as u64
}

/// What is executed: translations are made as they are first run.
#[derive(Default)]
struct Run {
    translations: Vec<Translation>,
    tasks: Vec<Task>,
    events: Vec<Event>,
}

impl Run {
    fn new() -> Run {
        let mut run = Run::default();
        run.switch(1, "sh");
        run
    }

    fn translation(&mut self, addr: u64, nops: usize, last: &[u8]) -> TranslationId {
        let mut code = vec![0x90; nops];
        code.extend(last);
        let mut lengths = vec![1; nops];
        lengths.extend((!last.is_empty()).then_some(last.len() as u8));
        let known = self.translations.iter().find(|t| t.addr.0 == addr && *t.code == *code);
        if let Some(known) = known {
            return known.id;
        }
        let id = TranslationId(self.translations.len() as u32);
        self.translations.push(Translation {
            id,
            addr: RunAddr(addr),
            lengths: lengths.into(),
            code: code.into(),
        });
        id
    }

    fn push(&mut self, addr: u64, nops: usize, last: &[u8]) -> &mut Run {
        let id = self.translation(addr, nops, last);
        self.events.push(Event::Executed(id));
        self
    }

    fn user(&mut self, instructions: usize) -> &mut Run {
        self.push(USER, instructions, &[])
    }

    fn plain(&mut self, addr: u64, instructions: usize) -> &mut Run {
        self.push(addr, instructions, &[])
    }

    /// So many instructions, the last of which calls `target`.
    fn call(&mut self, addr: u64, instructions: usize, target: &str) -> &mut Run {
        let end = addr + instructions as u64 - 1 + 5;
        let offset = at(target).wrapping_sub(end) as u32;
        self.push(addr, instructions - 1, &[&[0xe8][..], &offset.to_le_bytes()].concat())
    }

    fn ret(&mut self, addr: u64, instructions: usize) -> &mut Run {
        self.push(addr, instructions - 1, &[0xc3])
    }

    fn iret(&mut self, addr: u64, instructions: usize) -> &mut Run {
        self.push(addr, instructions - 1, &[0x48, 0xcf])
    }

    fn left(&mut self, addr: u64, nops: usize, reached: u32) -> &mut Run {
        let translation = self.translation(addr, nops, &[]);
        self.events.push(Event::Left {
            translation,
            instructions: reached,
        });
        self
    }

    fn switch(&mut self, pid: u32, name: &str) -> &mut Run {
        let mut comm = [0; 16];
        comm[..name.len()].copy_from_slice(name.as_bytes());
        let found = self.tasks.iter().position(|task| task.pid == Some(pid) && task.comm == comm);
        let at = found.unwrap_or_else(|| {
            self.tasks.push(Task {
                id: TaskId(self.tasks.len() as u32),
                pointer: TaskPointer(0xffff_8880_0000_0000 + u64::from(pid)),
                pid: Some(pid),
                comm,
            });
            self.tasks.len() - 1
        });
        self.events.push(Event::Task(TaskId(at as u32)));
        self
    }

    fn wake(&mut self, pid: u32) -> &mut Run {
        let at = self.tasks.iter().position(|task| task.pid == Some(pid)).unwrap();
        self.events.push(Event::Woken(TaskId(at as u32)));
        self
    }

    fn clock(&mut self, ticks: u32) -> &mut Run {
        self.events.push(Event::Clock(ticks));
        self
    }

    /// `read` up to the first instruction of its function: 2 + 3 instructions.
    fn enter_read(&mut self) -> &mut Run {
        self.call(at("entry_SYSCALL_64"), 2, "do_syscall_64");
        self.call(at("do_syscall_64"), 3, "__x64_sys_read")
    }

    /// The way back from `read`: 1 + 2 + 4 instructions.
    fn leave_read(&mut self) -> &mut Run {
        self.ret(at("__x64_sys_read") + 0x80, 1);
        self.ret(at("do_syscall_64") + 7, 2);
        self.push(at("entry_SYSCALL_64") + 6, 3, &[0x48, 0x0f, 0x07])
    }

    fn books(&self) -> Attributed {
        self.books_on(&[])
    }

    fn books_on(&self, machines: &[sim::Machine]) -> Attributed {
        let (symbols, binding) = kernel();
        let bytes = self.recording();
        let books = crate::services::attribute(&mut Reader::new(&bytes[..]).unwrap(), &symbols, &binding, machines).unwrap();
        let booked: u64 = books.ledger.accounts.iter().map(|account| account.totals.instructions).sum();
        assert_eq!(booked, books.instructions, "every instruction has a service");
        books
    }

    fn recording(&self) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), &Header::default()).unwrap();
        writer.translations(&self.translations).unwrap();
        writer.tasks(&self.tasks).unwrap();
        let mut words = Vec::new();
        self.events.iter().for_each(|event| event.append_to(&mut words));
        writer.stream(&words).unwrap();
        writer.end().unwrap().0
    }

    fn observed(&self) -> (Attributed, CallTree, Timeline) {
        let (symbols, binding) = kernel();
        let bytes = self.recording();
        crate::services::attribute_with_calls(&mut Reader::new(&bytes[..]).unwrap(), &symbols, &binding, &[]).unwrap()
    }

    /// The chains of calls, the instructions of which are those of the services.
    fn calls(&self) -> CallTree {
        let (books, calls, timeline) = self.observed();
        for service in &calls.services {
            let sum: u64 = service.costs.iter().map(|(_, cost)| cost.instructions).sum();
            let mut accounts = books.ledger.accounts.iter();
            let account = accounts
                .find(|account| (account.kind, &account.name) == (service.kind, &service.name))
                .unwrap();
            assert_eq!(sum, account.totals.instructions, "{}", service.name);
        }
        let shown: f64 = timeline.buckets.iter().map(crate::services::timeline::Parts::total).sum();
        assert!((shown - books.instructions as f64).abs() < 1e-6);
        calls
    }

    /// (kind, name, calls, instructions) of what ran, by kind and name.
    fn services(&self) -> Vec<(Kind, String, u64, u64)> {
        let books = self.books();
        let mut found: Vec<_> = books
            .ledger
            .accounts
            .iter()
            .filter(|account| account.totals.calls > 0)
            .map(|account| {
                (
                    account.kind,
                    account.name.clone(),
                    account.totals.calls,
                    account.totals.instructions,
                )
            })
            .collect();
        found.sort();
        found
    }
}

fn kernel() -> (Symbols, Binding) {
    let map: String = FUNCTIONS.iter().map(|name| format!("{:016x} T {name}\n", at(name))).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), map).unwrap();
    let symbols = Symbols::read(file.path()).unwrap();
    let binding = Binding::new(&Annotations::shipped().unwrap(), &symbols);
    (symbols, binding)
}

fn expect(run: &Run, expected: &[(Kind, &str, u64, u64)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|&(kind, name, calls, n)| (kind, name.to_owned(), calls, n))
        .collect();
    assert_eq!(run.services(), expected);
}

#[test]
fn a_system_call_by_its_name() {
    let mut run = Run::new();
    run.user(10).enter_read().plain(at("__x64_sys_read"), 5).leave_read().user(4);
    expect(&run, &[(Kind::SystemCall, "read", 1, 17), (Kind::User, "sh", 2, 14)]);
}

#[test]
fn faults_by_what_resolved_them() {
    let fault = at("asm_exc_page_fault");
    let rmap = at("folio_add_new_anon_rmap");
    let mut run = Run::new();
    // In user mode: demand zero.
    run.left(USER, 10, 3).call(fault, 2, "folio_add_new_anon_rmap");
    run.ret(rmap, 5).iret(fault + 6, 3).user(10);
    // In a system call: copy on write; the system call goes on behind it.
    run.enter_read().left(at("__x64_sys_read"), 5, 2).call(fault, 2, "do_wp_page");
    run.call(at("do_wp_page"), 2, "folio_add_new_anon_rmap").ret(rmap, 5);
    run.ret(at("do_wp_page") + 6, 1).iret(fault + 6, 3);
    run.plain(at("__x64_sys_read") + 1, 4).leave_read().user(1);
    expect(
        &run,
        &[
            (Kind::SystemCall, "read", 1, 5 + 2 + 4 + 7),
            (Kind::PageFault, "copy on write", 1, 2 + 2 + 5 + 1 + 3),
            (Kind::PageFault, "demand zero", 1, 10),
            (Kind::User, "sh", 3, 14),
        ],
    );
    assert_eq!(run.books().counters[0], ("faults handled".to_owned(), 0));
}

#[test]
fn an_interrupt_with_a_softirq_in_the_kernel() {
    let tick = at("asm_sysvec_apic_timer_interrupt");
    let mut run = Run::new();
    run.user(1).enter_read().plain(at("__x64_sys_read"), 5);
    run.call(tick, 2, "handle_softirqs").call(at("handle_softirqs"), 3, "net_rx_action");
    run.ret(at("net_rx_action"), 7).ret(at("handle_softirqs") + 7, 1);
    run.iret(tick + 6, 2);
    run.plain(at("__x64_sys_read") + 5, 6).leave_read().user(1);
    expect(
        &run,
        &[
            (Kind::SystemCall, "read", 1, 5 + 5 + 6 + 7),
            (Kind::Interrupt, "apic_timer_interrupt", 1, 4),
            (Kind::Softirq, "dispatch", 1, 4),
            (Kind::Softirq, "net_rx_action", 1, 7),
            (Kind::User, "sh", 2, 2),
        ],
    );
}

#[test]
fn an_interrupt_between_a_return_and_where_it_goes() {
    let tick = at("asm_sysvec_apic_timer_interrupt");
    let mut run = Run::new();
    run.user(1)
        .enter_read()
        .call(at("__x64_sys_read"), 2, "handle_softirqs")
        .ret(at("handle_softirqs"), 3);
    run.iret(tick, 2);
    run.plain(at("__x64_sys_read") + 6, 4).leave_read().user(1);
    expect(
        &run,
        &[
            (Kind::SystemCall, "read", 1, 5 + 2 + 4 + 7),
            (Kind::Interrupt, "apic_timer_interrupt", 1, 2),
            (Kind::Softirq, "dispatch", 1, 3),
            (Kind::User, "sh", 2, 2),
        ],
    );
}

#[test]
fn what_is_open_goes_with_its_task() {
    let schedule = at("__schedule");
    let mut run = Run::new();
    // sh blocks in read; a new task runs, forks off into user mode, and blocks in read, too; sh goes on.
    run.user(1).enter_read().call(at("__x64_sys_read"), 2, "__schedule");
    run.call(schedule, 4, "__switch_to").switch(2, "cat").ret(at("__switch_to"), 3);
    run.iret(at("ret_from_fork_asm"), 8).user(20);
    run.enter_read().call(at("__x64_sys_read"), 2, "__schedule");
    run.call(schedule, 4, "__switch_to").switch(1, "sh").ret(at("__switch_to"), 3);
    run.ret(schedule + 8, 5).plain(at("__x64_sys_read") + 6, 1).leave_read().user(2);
    expect(
        &run,
        &[
            (Kind::SystemCall, "read", 2, 5 + 2 + 1 + 7 + 5 + 2),
            (Kind::ContextSwitch, "schedule", 2, 4 + 3 + 5 + 4),
            (Kind::Task, "first return", 1, 3 + 8),
            (Kind::User, "cat", 1, 20),
            (Kind::User, "sh", 2, 3),
        ],
    );
    let books = run.books();
    assert_eq!(books.context_switches, 2);
    let read = books.ledger.accounts.iter().find(|account| account.name == "read").unwrap();
    // sh's: 7 before it blocked, 4 + 5 + 3 in the scheduler, 8 behind; off the processor while cat ran: 3 + 8 + 20 + 7 + 4, less its own.
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
    let mut run = Run::new();
    run.user(1).enter_read().call(at("__x64_sys_read"), 2, "__schedule");
    run.call(at("__schedule"), 4, "__switch_to")
        .switch(2, "cat")
        .ret(at("__switch_to"), 3);
    run.iret(at("ret_from_fork_asm"), 8).user(20).wake(1).wake(1).user(30);
    // Pre-empted, so never woken.
    run.call(at("asm_sysvec_apic_timer_interrupt"), 2, "__schedule");
    run.call(at("__schedule"), 4, "__switch_to")
        .switch(1, "sh")
        .ret(at("__switch_to"), 3);
    run.ret(at("__schedule") + 8, 5)
        .plain(at("__x64_sys_read") + 6, 1)
        .leave_read()
        .user(2);
    let books = run.books();
    let totals = &books.ledger.accounts.iter().find(|account| account.name == "read").unwrap().totals;
    assert!(books.wakes_seen);
    assert_eq!((totals.times.blocked, totals.times.waiting), (3 + 8 + 20, 30 + 2 + 4));
}

/// Without pids a new task is known by where it begins: what its address did before belongs to a dead task.
#[test]
fn a_dead_task_waits_for_nothing() {
    let mut run = Run::new();
    let die = |run: &mut Run, next: u32| {
        run.user(1).enter_read().call(at("__x64_sys_read"), 2, "__schedule");
        run.call(at("__schedule"), 4, "__switch_to")
            .switch(next, "sh")
            .ret(at("__switch_to"), 3);
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
    let mut run = Run::new();
    run.user(1)
        .call(stub, 2, "__handle_irq_event_percpu")
        .call(handle, 3, "__x86_indirect_thunk_rax");
    // The thunk calls its own next lines, puts the handler's address over the return address, and returns to it.
    run.push(thunk, 0, &[0xe8, 7, 0, 0, 0]).ret(thunk + 12, 2);
    run.ret(handler, 4).ret(handle + 7, 1).iret(at("bare_entry"), 1).user(1);
    expect(
        &run,
        &[
            (Kind::Interrupt, "serial8250_interrupt", 1, 2 + 3 + 1 + 2 + 4 + 1 + 1),
            (Kind::User, "sh", 2, 2),
        ],
    );
}

#[test]
fn a_function_that_is_a_service_ends_with_its_return_behind_a_retpoline() {
    let thunk = at("__x86_indirect_thunk_rax");
    let mut run = Run::new();
    run.user(1).enter_read().call(at("__x64_sys_read"), 2, "__x86_indirect_thunk_rax");
    run.push(thunk, 0, &[0xe8, 7, 0, 0, 0]).ret(thunk + 12, 2);
    run.ret(at("net_rx_action"), 9);
    run.plain(at("__x64_sys_read") + 6, 4).leave_read().user(1);
    expect(
        &run,
        &[
            (Kind::SystemCall, "read", 1, 5 + 2 + 3 + 4 + 7),
            (Kind::Softirq, "net_rx_action", 1, 9),
            (Kind::User, "sh", 2, 2),
        ],
    );
}

#[test]
fn an_interrupt_return_to_itself_ends_nothing() {
    let tick = at("asm_sysvec_apic_timer_interrupt");
    let mut run = Run::new();
    run.user(1).iret(tick, 3).plain(tick + 4, 5).iret(tick + 9, 1).user(1);
    expect(&run, &[(Kind::Interrupt, "apic_timer_interrupt", 1, 9), (Kind::User, "sh", 2, 2)]);
}

#[test]
fn what_began_before_the_recording_is_known_by_its_code() {
    let mut run = Run::new();
    // Another task goes on in read; a third in code that tells nothing; a fourth never leaves the kernel.
    run.user(1).enter_read().call(at("__x64_sys_read"), 2, "__schedule");
    run.call(at("__schedule"), 4, "__switch_to")
        .switch(2, "cat")
        .ret(at("__switch_to"), 3);
    run.plain(at("__x64_sys_read") + 0x40, 6)
        .iret(at("entry_SYSCALL_64") + 0x40, 2)
        .user(1);
    run.iret(at("asm_sysvec_apic_timer_interrupt"), 2);
    run.switch(3, "wc")
        .ret(at("__switch_to"), 3)
        .iret(at("entry_SYSCALL_64") + 0x40, 2)
        .user(1);
    run.call(at("asm_sysvec_apic_timer_interrupt"), 1, "__schedule");
    run.switch(4, "kworker/0:1")
        .ret(at("__switch_to"), 3)
        .plain(at("bare_entry") + 4, 10);
    expect(
        &run,
        &[
            (Kind::SystemCall, "read", 2, 5 + 2 + 3 + 6 + 2),
            (Kind::Interrupt, "apic_timer_interrupt", 2, 3),
            (Kind::ContextSwitch, "schedule", 1, 4),
            (Kind::KernelThread, "kworker", 1, 13),
            (Kind::Other, "begun before the recording", 1, 5),
            (Kind::User, "cat", 1, 1),
            (Kind::User, "sh", 1, 1),
            (Kind::User, "wc", 1, 1),
        ],
    );
}

#[test]
fn an_entry_without_annotation_is_other_by_name() {
    let mut run = Run::new();
    run.user(1).plain(at("bare_entry"), 3).iret(at("bare_entry") + 3, 1).user(1);
    expect(&run, &[(Kind::Other, "entered at bare_entry", 1, 4), (Kind::User, "sh", 2, 2)]);
}

#[test]
fn idle_is_told_from_kernel_threads_by_its_name() {
    let mut run = Run::new();
    run.user(1).iret(at("asm_sysvec_apic_timer_interrupt"), 2);
    run.switch(0, "swapper/0").ret(at("__switch_to"), 3);
    run.iret(at("asm_sysvec_apic_timer_interrupt"), 2).plain(at("bare_entry") + 4, 10);
    expect(
        &run,
        &[
            (Kind::Interrupt, "apic_timer_interrupt", 2, 4),
            (Kind::Idle, "idle", 1, 13),
            (Kind::User, "sh", 1, 1),
        ],
    );
}

/// `sh` blocks in `read`, the processor is halted for 1000 ns, an interrupt wakes `sh`.
fn halted() -> Run {
    let (schedule, tick) = (at("__schedule"), at("asm_sysvec_apic_timer_interrupt"));
    let mut run = Run::new();
    run.user(1).enter_read().call(at("__x64_sys_read"), 2, "__schedule");
    run.plain(schedule, 1).clock(0).call(schedule + 1, 3, "__switch_to");
    run.switch(0, "swapper/0").ret(at("__switch_to"), 3);
    // 13 instructions between the readings.
    run.push(schedule + 0x80, 2, &[0xf4]).plain(tick, 4).clock(1013);
    run.wake(1).iret(tick + 4, 2).call(schedule + 0x90, 2, "__schedule");
    run.call(schedule, 4, "__switch_to").switch(1, "sh").ret(at("__switch_to"), 3);
    run.ret(schedule + 8, 5).plain(at("__x64_sys_read") + 6, 1).leave_read().user(2);
    run
}

#[test]
fn a_halt_is_time_of_those_who_wait_and_of_idle() {
    let books = halted().books();
    let times = |kind: Kind, name: &str| {
        let mut accounts = books.ledger.accounts.iter();
        accounts
            .find(|account| account.kind == kind && account.name == name)
            .unwrap()
            .totals
            .times
    };
    assert_eq!(books.halted, Some(1000));
    let read = times(Kind::SystemCall, "read");
    assert_eq!((read.latency, read.ran, read.blocked, read.waiting), (1045, 27, 1010, 8));
    let tick = times(Kind::Interrupt, "apic_timer_interrupt");
    assert_eq!((tick.latency, tick.ran), (6, 6), "it began when the halt was over");
    let idle = times(Kind::Idle, "idle");
    assert_eq!((idle.latency, idle.ran), (1018, 18));
    assert_eq!(Run::new().user(1).books().halted, None, "no clock");
}

/// Whatever runs in whatever order: every instruction has a service, and nothing panics.
#[test]
fn nonsense_is_attributed_whole() {
    let mut state = 3_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    for _ in 0..60 {
        let mut run = Run::new();
        for _ in 0..3000 {
            let function = FUNCTIONS[random(FUNCTIONS.len())];
            let inside = if random(2) == 0 { 0 } else { 0x40 };
            match random(8) {
                0 => run.user(1 + random(3)),
                1 | 2 => run.call(at(function) + inside, 1 + random(3), FUNCTIONS[random(FUNCTIONS.len())]),
                3 | 4 => run.ret(at(function) + inside, 1 + random(3)),
                5 => run.iret(at(function) + inside, 1 + random(3)),
                6 => run.switch(random(4) as u32, ["swapper/0", "sh", "kworker/0:0", "cat"][random(4)]),
                _ => run.left(at(function) + inside, 3, 1 + random(2) as u32),
            };
        }
        run.books();
    }
}

/// A direct-mapped cache of two lines of 64 bytes: `read` and the fault handler evict one another, and each miss is its own service's.
#[test]
fn misses_go_to_the_service_that_has_them() {
    let mut machine = crate::machine::find("server-32k").unwrap();
    machine.l1i = sim::Geometry::cache(128, 1, 64, sim::Replacement::Lru).unwrap();
    let mut run = Run::new();
    run.user(1);
    for _ in 0..2 {
        run.enter_read().plain(at("__x64_sys_read"), 5).leave_read().user(1);
    }
    let books = run.books_on(&[machine]);
    let misses = |name: &str| {
        let account = books.ledger.accounts.iter().find(|account| account.name == name).unwrap();
        account.totals.machines[0].l1i_misses
    };
    // All code lies at multiples of 128 bytes and takes one line: everything evicts everything, but not itself.
    assert_eq!(misses("sh"), 3);
    assert_eq!(misses("read"), 2 * 6);
}
