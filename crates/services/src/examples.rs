//! A small kernel, and executions of it written by hand, for tests of code that reads attributions.

use crate::annotations::{Annotations, ServiceKind};
use crate::automaton::Attributed;
use crate::binding::Binding;
use crate::calls::CallTree;
use crate::symbols::KernelSymbols;
use crate::timeline::Timeline;
use trace::{
    CpuCount, CpuId, ObservedAccesses, RecordingHeader, RecordingReader, RecordingWriter, RunAddr,
    StreamEvent, Task, TaskId, TaskPointer, Translation, TranslationId,
};

const BASE: u64 = 0xffff_ffff_8100_0000;
/// The address of user code.
pub const USER: u64 = 0x40_0000;

/// The kernel's functions, each 0x100 bytes.
pub const FUNCTIONS: [&str; 20] = [
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
    "emulate_vsyscall",
    "_raw_spin_lock",
];

/// The address of a function.
pub fn at(function: &str) -> u64 {
    let number = FUNCTIONS.iter().position(|&name| name == function).unwrap();
    BASE + 0x100 * number as u64
}

/// An execution. A translation block is added when it first runs.
#[derive(Default)]
pub struct ExampleRun {
    translations: Vec<Translation>,
    tasks: Vec<Task>,
    events: Vec<StreamEvent>,
    /// The highest number of a CPU.
    last_cpu: u8,
}

impl ExampleRun {
    /// An execution that begins in the task `sh`.
    pub fn new() -> ExampleRun {
        let mut run = ExampleRun::default();
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

    /// Runs `nops` no-ops and the instruction `last`.
    pub fn push(&mut self, addr: u64, nops: usize, last: &[u8]) -> &mut ExampleRun {
        let id = self.translation(addr, nops, last);
        self.events.push(StreamEvent::Executed(id));
        self
    }

    /// Runs user code.
    pub fn user(&mut self, instructions: usize) -> &mut ExampleRun {
        self.push(USER, instructions, &[])
    }

    /// Runs instructions without a branch.
    pub fn plain(&mut self, addr: u64, instructions: usize) -> &mut ExampleRun {
        self.push(addr, instructions, &[])
    }

    /// Runs `instructions` instructions, the last of which calls `target`.
    pub fn call(&mut self, addr: u64, instructions: usize, target: &str) -> &mut ExampleRun {
        let end = addr + instructions as u64 - 1 + 5;
        let offset = at(target).wrapping_sub(end) as u32;
        self.push(addr, instructions - 1, &[&[0xe8][..], &offset.to_le_bytes()].concat())
    }

    /// Runs instructions, the last of which returns.
    pub fn ret(&mut self, addr: u64, instructions: usize) -> &mut ExampleRun {
        self.push(addr, instructions - 1, &[0xc3])
    }

    /// Runs instructions, the last of which returns from an interruption.
    pub fn iret(&mut self, addr: u64, instructions: usize) -> &mut ExampleRun {
        self.push(addr, instructions - 1, &[0x48, 0xcf])
    }

    /// Runs the first `reached` of `nops` no-ops.
    pub fn left(&mut self, addr: u64, nops: usize, reached: u32) -> &mut ExampleRun {
        let translation = self.translation(addr, nops, &[]);
        self.events.push(StreamEvent::Left { translation, instructions: reached });
        self
    }

    /// Switches to a task.
    pub fn switch(&mut self, pid: u32, name: &str) -> &mut ExampleRun {
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
        self.events.push(StreamEvent::Task(TaskId(at as u32)));
        self
    }

    /// As `switch`, for a recording without pids, in which tasks differ by their addresses.
    pub fn switch_to_address(&mut self, address: u64, name: &str) -> &mut ExampleRun {
        let mut comm = [0; 16];
        comm[..name.len()].copy_from_slice(name.as_bytes());
        let id = TaskId(self.tasks.len() as u32);
        self.tasks.push(Task {
            id,
            pointer: TaskPointer(0xffff_8880_1000_0000 + address),
            pid: None,
            comm,
        });
        self.events.push(StreamEvent::Task(id));
        self
    }

    /// This CPU executes from now on.
    pub fn cpu(&mut self, number: u8) -> &mut ExampleRun {
        self.last_cpu = self.last_cpu.max(number);
        self.events.push(StreamEvent::Cpu(CpuId(number)));
        self
    }

    /// Wakes a task.
    pub fn wake(&mut self, pid: u32) -> &mut ExampleRun {
        let at = self.tasks.iter().position(|task| task.pid == Some(pid)).unwrap();
        self.events.push(StreamEvent::Woken(TaskId(at as u32)));
        self
    }

    /// Reads the clock, which advanced by `ticks`.
    pub fn clock(&mut self, ticks: u32) -> &mut ExampleRun {
        self.events.push(StreamEvent::Clock(ticks));
        self
    }

    /// `read` up to the first instruction of its function: 2 + 3 instructions.
    pub fn enter_read(&mut self) -> &mut ExampleRun {
        self.call(at("entry_SYSCALL_64"), 2, "do_syscall_64");
        self.call(at("do_syscall_64"), 3, "__x64_sys_read")
    }

    /// The way back from `read`: 1 + 2 + 4 instructions.
    pub fn leave_read(&mut self) -> &mut ExampleRun {
        self.ret(at("__x64_sys_read") + 0x80, 1);
        self.ret(at("do_syscall_64") + 7, 2);
        self.push(at("entry_SYSCALL_64") + 6, 3, &[0x48, 0x0f, 0x07])
    }

    /// The attribution without machines.
    pub fn books(&self) -> Attributed {
        self.books_on(&[])
    }

    /// The attribution on machines. Checks that every instruction has a service.
    pub fn books_on(&self, machines: &[sim::MachineModel]) -> Attributed {
        let (symbols, binding) = kernel();
        let bytes = self.recording();
        let books = crate::attribute(
            RecordingReader::new(&bytes[..]).unwrap(),
            &symbols,
            &binding,
            machines,
        )
        .unwrap();
        let booked: u64 =
            books.ledger.accounts.iter().map(|account| account.totals.instructions).sum();
        assert_eq!(booked, books.instructions, "every instruction has a service");
        books
    }

    /// The recording of the execution.
    pub fn recording(&self) -> Vec<u8> {
        let mut writer = RecordingWriter::new(Vec::new(), &self.header()).unwrap();
        let words = self.write(&mut writer);
        writer.stream(&words).unwrap();
        writer.end().unwrap().0
    }

    /// As `recording`, in the form with data accesses, but without any access. Each translation
    /// block of user code lies in a page of its own.
    pub fn recording_with_data(&self) -> Vec<u8> {
        let mut writer = RecordingWriter::with_data(Vec::new(), &self.header()).unwrap();
        let words = self.write(&mut writer);
        let page = |id: u32| (TranslationId(id), [Some(u64::from(id) << 12), None]);
        let executes = |event: &&StreamEvent| {
            matches!(event, StreamEvent::Executed(_) | StreamEvent::Left { .. })
        };
        let seen = ObservedAccesses {
            physical: (0..self.translations.len() as u32).map(page).collect(),
            starts: self.events.iter().filter(executes).map(|_| 0).collect(),
            ..ObservedAccesses::default()
        };
        writer.stream_with_data(&words, &seen).unwrap();
        writer.end().unwrap().0
    }

    fn header(&self) -> RecordingHeader {
        let cpus = CpuCount::new(u32::from(self.last_cpu) + 1).unwrap();
        RecordingHeader { cpus, ..RecordingHeader::default() }
    }

    /// Writes what comes before the stream. Returns the stream.
    fn write(&self, writer: &mut RecordingWriter<Vec<u8>>) -> Vec<u32> {
        writer.translations(&self.translations).unwrap();
        writer.tasks(&self.tasks).unwrap();
        let mut words = Vec::new();
        self.events.iter().for_each(|event| event.append_to(&mut words));
        words
    }

    /// The attribution with chains of calls and the execution over time.
    pub fn observed(&self) -> (Attributed, CallTree, Timeline) {
        let (symbols, binding) = kernel();
        let bytes = self.recording();
        crate::attribute_with_calls(
            RecordingReader::new(&bytes[..]).unwrap(),
            &symbols,
            &binding,
            &[],
        )
        .unwrap()
    }

    /// The chains of calls. Checks that their instructions equal those of the services.
    pub fn calls(&self) -> CallTree {
        let (books, calls, timeline) = self.observed();
        for service in &calls.services {
            let sum: u64 = service.costs.iter().map(|(_, cost)| cost.instructions).sum();
            let mut accounts = books.ledger.accounts.iter();
            let account = accounts
                .find(|account| (account.kind, &account.name) == (service.kind, &service.name))
                .unwrap();
            assert_eq!(sum, account.totals.instructions, "{}", service.name);
        }
        let shown: f64 = timeline.buckets.iter().map(crate::timeline::TimelineBucket::total).sum();
        assert!((shown - books.instructions as f64).abs() < 1e-6);
        calls
    }

    /// (kind, name, calls, instructions) of the services that ran, by kind and name.
    pub fn services(&self) -> Vec<(ServiceKind, String, u64, u64)> {
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

/// The symbols of the small kernel, with the shipped annotations.
pub fn kernel() -> (KernelSymbols, Binding) {
    let map: String =
        FUNCTIONS.iter().map(|name| format!("{:016x} T {name}\n", at(name))).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), map).unwrap();
    let symbols = KernelSymbols::read(file.path()).unwrap();
    let binding = Binding::new(&Annotations::shipped().unwrap(), &symbols);
    (symbols, binding)
}

/// `sh` blocks in `read`, the processor is halted for 1000 ns, an interrupt wakes `sh`.
pub fn halted() -> ExampleRun {
    let (schedule, tick) = (at("__schedule"), at("asm_sysvec_apic_timer_interrupt"));
    let mut run = ExampleRun::new();
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
