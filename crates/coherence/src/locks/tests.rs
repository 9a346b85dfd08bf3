//! Recordings of lock functions. All counts and cycles are counted by hand: an instruction takes
//! one cycle; on `server-8`, a line takes 400 from memory and 80 from another core, making it
//! writable takes 80, and a TLB miss takes 7. The stall of an attempt belongs to neither wait nor
//! hold. The same holds for the stall of the store that releases.

mod side_by_side;

use super::LockStudy;
use super::table::{LockKind, LockRow, LockTable, LockUser};
use anyhow::Result;
use execution::cpu_order::CpuOrder;
use memory::misses::variables;
use memory::objects::names::DataNames;
use services::symbols::KernelSymbols;
use std::collections::HashSet;
use trace::{
    AccessSite, CpuCount, CpuId, FrameUse, FrameUseChange, Mapping, ObservedAccesses, PageKind,
    RecordingHeader, RecordingReader, RecordingWriter, RunAddr, StreamEvent, Task, TaskId,
    TaskPointer, Translation, TranslationId,
};

const CODE: u64 = 0xffff_ffff_8100_0000;
const DATA: u64 = 0xffff_ffff_8200_0000;
const DIRECT: u64 = 0xffff_8880_0000_0000;
const LOCK_A: u64 = DATA;
const LOCK_B: u64 = DATA + 0x40;
const MUTEX: u64 = DATA + 0x80;
const RWLOCK: u64 = DATA + 0xc0;
const RENAME: u64 = DATA + 0x100;

/// The functions, each in a line of its own.
const FUNCTIONS: [&str; 18] = [
    "f",
    "g",
    "h",
    "_raw_spin_lock",
    "native_queued_spin_lock_slowpath",
    "_raw_spin_trylock",
    "mutex_lock",
    "__mutex_lock_slowpath",
    "__mutex_lock.constprop.0",
    "mutex_unlock",
    "mutex_lock_killable",
    "down_read",
    "up_read",
    "down_write",
    "downgrade_write",
    "_raw_read_lock",
    "_raw_read_trylock",
    "mutex_lock_renamed",
];

fn at(function: &str) -> u64 {
    CODE + 0x40 * FUNCTIONS.iter().position(|&name| name == function).unwrap() as u64
}

/// An access of an instruction: its number, the address, whether it stores, log2 of the bytes.
type Site = (u16, u64, bool, u8);

/// The load and the store of an instruction.
fn changes(instruction: u16, addr: u64, size_log2: u8) -> [Site; 2] {
    [(instruction, addr, false, size_log2), (instruction, addr, true, size_log2)]
}

fn call(from: u64, target: u64) -> Vec<u8> {
    [&[0xe8][..], &(target.wrapping_sub(from + 5) as u32).to_le_bytes()].concat()
}

/// A recording that is being made.
struct Guest {
    header: RecordingHeader,
    translations: Vec<Translation>,
    tasks: Vec<Task>,
    words: Vec<u32>,
    seen: ObservedAccesses,
    executes: u8,
    mapped: HashSet<(u8, u64)>,
}

impl Guest {
    /// Each CPU has fetched all code, and runs a task: 101, 102, …
    fn new(cpus: u8) -> Guest {
        let header =
            RecordingHeader { cpus: CpuCount::new(cpus.into()).unwrap(), ..Default::default() };
        let mut guest = Guest {
            header,
            translations: Vec::new(),
            tasks: Vec::new(),
            words: Vec::new(),
            seen: ObservedAccesses { slab_caches: vec!["dentry".into()], ..Default::default() },
            executes: 0,
            mapped: HashSet::new(),
        };
        for cpu in 0..cpus {
            guest.on(cpu).task(101 + u32::from(cpu));
            for function in FUNCTIONS {
                guest.run(at(function) + 0x3f, &[&[0x90]], &[]);
            }
        }
        guest
    }

    fn on(&mut self, cpu: u8) -> &mut Guest {
        if cpu != self.executes {
            StreamEvent::Cpu(CpuId(cpu)).append_to(&mut self.words);
            self.executes = cpu;
        }
        self
    }

    /// Switches to the task `tPID`; 0 is the idle task.
    fn task(&mut self, pid: u32) -> &mut Guest {
        let found = self.tasks.iter().position(|task| task.pid == Some(pid));
        let id = found.unwrap_or(self.tasks.len());
        if found.is_none() {
            let mut comm = [0; 16];
            let name = format!("t{pid}");
            comm[..name.len()].copy_from_slice(name.as_bytes());
            let id = TaskId(id as u32);
            let pointer = TaskPointer(DIRECT + u64::from(pid));
            self.tasks.push(Task { id, pointer, pid: Some(pid), comm });
        }
        StreamEvent::Task(TaskId(id as u32)).append_to(&mut self.words);
        self
    }

    /// Runs a translation block of these instructions.
    fn run(&mut self, addr: u64, code: &[&[u8]], accesses: &[Site]) -> &mut Guest {
        let bytes = code.concat();
        let known = self.translations.iter().find(|it| it.addr.0 == addr && *it.code == *bytes);
        let id = known.map_or(TranslationId(self.translations.len() as u32), |it| it.id);
        if known.is_none() {
            self.translations.push(Translation {
                id,
                addr: RunAddr(addr),
                lengths: code.iter().map(|instruction| instruction.len() as u8).collect(),
                code: bytes.into(),
            });
            let physical = 0x100_0000 + (addr & 0xff_ffff);
            self.seen.physical.push((id, [Some(physical), None]));
        }
        StreamEvent::Executed(id).append_to(&mut self.words);
        self.seen.starts.push(self.seen.addresses.len() as u32);
        for &(instruction, addr, store, size_log2) in accesses {
            let page = addr >> 12;
            if self.mapped.insert((self.executes, page)) {
                let mapping = Mapping { page, frame: page & 0xfff, kind: PageKind::Memory };
                self.seen.mappings.push((self.seen.addresses.len() as u32, mapping));
            }
            self.seen.addresses.push(addr);
            self.seen.sites.push(AccessSite::new(instruction, store, size_log2));
        }
        self
    }

    /// The CPU's stack, and the place of a return address there.
    fn slot(&self) -> u64 {
        DIRECT + 0x20_0000 + 0x1000 * u64::from(self.executes) + 0x808
    }

    /// One instruction, a call. Its access to the stack is not recorded.
    fn calls(&mut self, from: &str, target: &str) -> &mut Guest {
        self.run(at(from), &[&call(at(from), at(target))], &[])
    }

    /// No-ops.
    fn works(&mut self, function: &str, instructions: usize) -> &mut Guest {
        let code: Vec<&[u8]> = vec![&[0x90]; instructions];
        self.run(at(function) + 8, &code, &[])
    }

    /// Five instructions, the fourth of which is atomic: `call; xor; mov; lock cmpxchg; jne`.
    fn tries_spin(&mut self, from: &str, lock: u64) -> &mut Guest {
        self.tries_in("_raw_spin_lock", from, lock, &[0xf0, 0x0f, 0xb1, 0x17])
    }

    fn tries_in(&mut self, function: &str, from: &str, lock: u64, atomic: &[u8]) -> &mut Guest {
        let code: [&[u8]; 4] = [&[0x31, 0xc0], &[0xba, 1, 0, 0, 0], atomic, &[0x75, 2]];
        self.calls(from, function).run(at(function), &code, &changes(2, lock, 2))
    }

    /// `ret`. Its access to the stack is not recorded.
    fn returns(&mut self, function: &str) -> &mut Guest {
        self.run(at(function) + 0x20, &[&[0xc3]], &[])
    }

    /// `movb $0,(%rdi)`
    fn unlocks_spin(&mut self, from: &str, lock: u64) -> &mut Guest {
        self.run(at(from) + 0x10, &[&[0xc6, 7, 0]], &[(0, lock, true, 0)])
    }

    /// `mov; call` of the slow path, which looks at the lock: `push; mov; pause`.
    fn goes_slow(&mut self, function: &str, slow: &str, lock: u64) -> &mut Guest {
        let (from, slot) = (at(function) + 0x18, self.slot());
        self.run(from, &[&[0x89, 0xc6], &call(from + 2, at(slow))], &[(1, slot, true, 3)]);
        let looks: [Site; 2] = [(0, slot - 8, true, 3), (1, lock, false, 2)];
        self.run(at(slow), &[&[0x53], &[0x8b, 7], &[0xf3, 0x90]], &looks)
    }

    /// `mov; pop; ret` of the slow path.
    fn ends_slow(&mut self, slow: &str, lock: u64) -> &mut Guest {
        let slot = self.slot();
        let accesses: [Site; 3] =
            [(0, lock, false, 2), (1, slot - 8, false, 3), (2, slot, false, 3)];
        self.run(at(slow) + 0x20, &[&[0x8b, 7], &[0x5b], &[0xc3]], &accesses)
    }

    /// `call; mutex_lock: lock cmpxchg; jne`
    fn tries_mutex(&mut self, function: &str, from: &str, lock: u64) -> &mut Guest {
        let code: [&[u8]; 2] = [&[0xf0, 0x48, 0x0f, 0xb1, 0x13], &[0x75, 2]];
        self.calls(from, function).run(at(function), &code, &changes(0, lock, 3))
    }

    /// `call; lock xadd; ret` of `down_read`, `up_read`, `mutex_unlock` and others.
    fn adds(&mut self, function: &str, from: &str, lock: u64) -> &mut Guest {
        let code: [&[u8]; 2] = [&[0xf0, 0x48, 0x0f, 0xc1, 0x07], &[0xc3]];
        self.calls(from, function).run(at(function), &code, &changes(0, lock, 3))
    }

    /// Gives a frame this use from the next execution on.
    fn frame(&mut self, frame: u64, used: FrameUse) -> &mut Guest {
        let change = FrameUseChange { frame, frames: 1, used };
        self.seen.uses.push((self.seen.starts.len() as u32, change));
        self
    }

    fn recording(&self) -> Vec<u8> {
        let mut writer = RecordingWriter::with_data(Vec::new(), &self.header).unwrap();
        writer.translations(&self.translations).unwrap();
        writer.tasks(&self.tasks).unwrap();
        writer.stream_with_data(&self.words, &self.seen).unwrap();
        writer.end().unwrap().0
    }

    fn table_on(&self, machine: &str, functions: &[&str]) -> Result<LockTable> {
        table_of(&self.recording(), machine, functions, CpuOrder::Recorded)
    }

    fn table(&self) -> LockTable {
        self.table_on("server-8", &FUNCTIONS).unwrap()
    }
}

fn table_of(
    recording: &[u8],
    machine: &str,
    functions: &[&str],
    order: CpuOrder,
) -> Result<LockTable> {
    let directory = tempfile::tempdir().unwrap();
    let map = directory.path().join("System.map");
    let lines = functions.iter().map(|name| format!("{:x} T {name}\n", at(name)));
    std::fs::write(&map, lines.collect::<String>()).unwrap();
    let symbols = KernelSymbols::read(&map).unwrap();
    let image = [
        (LOCK_A, 4, "lock_a"),
        (LOCK_B - 8, 16, "holder_of_b"),
        (MUTEX, 32, "a_mutex"),
        (RWLOCK, 8, "a_rwlock"),
        (RENAME, 8, "rename_lock"),
    ];
    let names = DataNames::of(variables::of(&image, &[]), None);
    let machine = machines::find(machine)?.model;
    let study = LockStudy::new(&symbols, &names, &machine, order);
    let simulated = study.simulate(RecordingReader::new(recording)?)?;
    study.table(RecordingReader::new(recording)?, &simulated)
}

fn lock<'a>(table: &'a LockTable, title: &str) -> &'a LockRow {
    let found = table.locks.iter().find(|lock| lock.title == title);
    found.unwrap_or_else(|| panic!("no {title} among {:#?}", table.locks))
}

fn user(function: &str, task: &str) -> LockUser {
    LockUser { function: function.to_owned(), task: task.to_owned() }
}

/// (acquisitions, contended, cycles of waiting, cycles of holding)
fn counted(lock: &LockRow) -> (u64, u64, f64, f64) {
    let totals = &lock.totals;
    (totals.acquisitions, totals.contended, totals.wait_cycles, totals.hold_cycles)
}

/// Checks that every hold and every wait began and ended in the recording.
fn is_whole(table: &LockTable) {
    for lock in &table.locks {
        let totals = &lock.totals;
        let left = (totals.held_before, totals.held_behind, totals.lost);
        assert_eq!(left, (0, 0, 0), "{}", lock.title);
    }
    assert_eq!(table.waiting_behind, 0);
}

#[test]
fn an_uncontended_lock() {
    let mut guest = Guest::new(1);
    for _ in 0..2 {
        guest.tries_spin("f", LOCK_A).returns("_raw_spin_lock").works("f", 10);
        guest.unlocks_spin("f", LOCK_A);
    }
    let table = guest.table();
    let of = lock(&table, "lock_a");
    // From the third of the four instructions on: the last one, ret, ten no-ops, the store.
    let hold = 1.0 + 1.0 + 10.0 + 1.0;
    assert_eq!(counted(of), (2, 0, 0.0, 2.0 * hold));
    assert_eq!((of.kind, of.locks, of.totals.longest_hold_cycles), (LockKind::Spin, 1, hold));
    assert_eq!((of.functions.len(), &*of.functions[0].function), (1, "f"));
    assert_eq!((of.coherence_misses, of.upgrades), (0, 0));
    let runs: Vec<_> =
        table.functions.iter().map(|row| (&*row.function, row.runs, row.attempts)).collect();
    assert_eq!(runs, [("_raw_spin_lock", 2, 2)]);
    // Two times five instructions, and a line and a page from memory.
    assert_eq!(table.kinds[0].function_cycles, 2.0 * 5.0 + 400.0 + 7.0 + WARM_SPIN);
    assert_eq!(table.unknown_functions, ["mutex_lock_renamed"]);
    is_whole(&table);
}

/// A no-op in each of four spin lock functions, whose lines come from memory.
const WARM_SPIN: f64 = 3.0 * 401.0;

#[test]
fn a_waiter_knows_the_holder() {
    let mut guest = Guest::new(2);
    guest.on(0).tries_spin("f", LOCK_A).returns("_raw_spin_lock").works("f", 10);
    guest.on(1).tries_spin("g", LOCK_A);
    guest.goes_slow("_raw_spin_lock", "native_queued_spin_lock_slowpath", LOCK_A);
    guest.on(0).unlocks_spin("f", LOCK_A);
    guest.on(1).ends_slow("native_queued_spin_lock_slowpath", LOCK_A);
    guest.returns("_raw_spin_lock").works("g", 5).unlocks_spin("g", LOCK_A);
    let table = guest.table();
    let of = lock(&table, "lock_a");
    // jne; ret; ten no-ops; the store.
    let first = 1.0 + 1.0 + 10.0 + 1.0;
    // jne; mov, call with a new line and page of the stack; push, mov, pause; the lock from the
    // other core; mov, pop, ret.
    let wait = 1.0 + 2.0 + 400.0 + 7.0 + 3.0 + 3.0 + 80.0;
    // ret; five no-ops; the store.
    let second = 1.0 + 5.0 + 1.0;
    assert_eq!(counted(of), (2, 1, wait, first + second));
    let [waits] = &of.waits[..] else { panic!("{:?}", of.waits) };
    assert_eq!((&waits.waiter, waits.waits), (&user("g", "t102"), 1));
    assert_eq!(waits.holder, Some(user("f", "t101")));
    assert_eq!((of.totals.slept, of.totals.longest_wait_cycles), (0, wait));
    // g's first load is cold; f's store, g's load at the end. Made writable: g's attempt and g's
    // release.
    assert_eq!((of.coherence_misses, of.upgrades), (2, 2));
    is_whole(&table);
}

#[test]
fn a_trylock_counts_when_its_release_follows() {
    let atomic: &[u8] = &[0xf0, 0x0f, 0xb1, 0x17];
    let mut guest = Guest::new(2);
    guest.on(0).tries_in("_raw_spin_trylock", "f", LOCK_A, atomic).works("f", 3);
    guest.on(1).tries_in("_raw_spin_trylock", "g", LOCK_A, atomic).works("g", 2);
    guest.on(0).unlocks_spin("f", LOCK_A);
    // Looks first, and gives up: `mov (%rdi),%eax; test; jne`.
    let looks: [&[u8]; 3] = [&[0x8b, 7], &[0x85, 0xc0], &[0x75, 2]];
    guest.calls("f", "_raw_spin_trylock");
    guest.run(at("_raw_spin_trylock"), &looks, &[(0, LOCK_A, false, 2)]).works("f", 1);
    // No known holder has lock B, and nobody releases it.
    guest.tries_in("_raw_spin_trylock", "h", LOCK_B, atomic).works("h", 1);
    let table = guest.table();
    let of = lock(&table, "lock_a");
    assert_eq!(counted(of), (1, 0, 0.0, 1.0 + 3.0 + 1.0));
    assert_eq!(of.totals.failed, 1);
    let of = lock(&table, "holder_of_b+0x8");
    assert_eq!((of.totals.acquisitions, of.totals.failed), (0, 1));
    let runs = table.functions.iter().find(|row| row.tries).unwrap();
    assert_eq!((runs.runs, runs.attempts), (4, 3));
    is_whole(&table);
}

#[test]
fn locks_nest() {
    let mut guest = Guest::new(1);
    guest.tries_spin("f", LOCK_A).returns("_raw_spin_lock");
    guest.tries_spin("f", LOCK_B).returns("_raw_spin_lock").works("f", 7);
    guest.unlocks_spin("f", LOCK_B).works("f", 2).unlocks_spin("f", LOCK_A);
    let table = guest.table();
    let inner = 1.0 + 1.0 + 7.0 + 1.0;
    // jne, ret; call, 3 instructions and a line from memory; the inner one; 2 no-ops; the store.
    let outer = 2.0 + 4.0 + 400.0 + inner + 2.0 + 1.0;
    assert_eq!(counted(lock(&table, "holder_of_b+0x8")), (1, 0, 0.0, inner));
    assert_eq!(counted(lock(&table, "lock_a")), (1, 0, 0.0, outer));
    is_whole(&table);
}

#[test]
fn a_task_sleeps_with_a_mutex_and_moves() {
    let mut guest = Guest::new(2);
    guest.on(0).tries_mutex("mutex_lock", "f", MUTEX).returns("mutex_lock").works("f", 4);
    // It sleeps; another task runs for 50 cycles, and waits for the mutex.
    guest.task(103).works("g", 50).tries_mutex("mutex_lock", "g", MUTEX);
    guest.goes_slow("mutex_lock", "__mutex_lock_slowpath", MUTEX);
    guest.task(0).works("h", 9);
    // The first task goes on, on CPU 1, and unlocks.
    guest.on(1).task(101).works("f", 6).adds("mutex_unlock", "f", MUTEX).works("f", 1);
    guest.on(0).task(103).ends_slow("__mutex_lock_slowpath", MUTEX).returns("mutex_lock");
    guest.works("g", 3).adds("mutex_unlock", "g", MUTEX);
    let table = guest.table();
    let of = lock(&table, "a_mutex");
    // jne, ret, 4; on CPU 1: 6, call, the atomic instruction, whose load takes the line and walks
    // to its page.
    let first = 1.0 + 1.0 + 4.0 + 6.0 + 1.0 + 1.0 + 80.0 + 7.0;
    // jne; mov, call with a line and page of the stack from memory; push, mov, pause; and later
    // mov, pop, ret with the line from the other core. While it sleeps, it executes nothing.
    let wait = 1.0 + 2.0 + 400.0 + 7.0 + 3.0 + 3.0 + 80.0;
    // ret, 3, call, the atomic instruction.
    let second = 1.0 + 3.0 + 1.0 + 1.0;
    assert_eq!(counted(of), (2, 1, wait, first + second));
    assert_eq!((of.kind, of.totals.slept), (LockKind::Mutex, 1));
    let [waits] = &of.waits[..] else { panic!("{:?}", of.waits) };
    assert_eq!(waits.waiter, user("g", "t103"));
    assert_eq!(waits.holder, Some(user("f", "t101")));
    is_whole(&table);
}

#[test]
fn a_slow_path_that_jumps_to_another_is_one() {
    let mut guest = Guest::new(2);
    guest.on(0).tries_mutex("mutex_lock", "f", MUTEX).returns("mutex_lock");
    guest.on(1).tries_mutex("mutex_lock", "g", MUTEX);
    // mutex_lock jumps, so nobody stores a return address: the first push lies below it.
    let (slow, inner) = (at("__mutex_lock_slowpath"), at("__mutex_lock.constprop.0"));
    guest.run(slow, &[&[0x90], &[0xeb, 0x3d]], &[]);
    let slot = guest.slot();
    let looks: [Site; 2] = [(0, slot - 8, true, 3), (1, MUTEX, false, 3)];
    guest.run(inner, &[&[0x55], &[0x48, 0x8b, 0x13], &[0xf3, 0x90]], &looks);
    guest.on(0).adds("mutex_unlock", "f", MUTEX);
    guest.on(1).ends_slow("__mutex_lock.constprop.0", MUTEX).adds("mutex_unlock", "g", MUTEX);
    let table = guest.table();
    let of = lock(&table, "a_mutex");
    // jne; 2; push on a line and page from memory, mov, pause; mov with the line from the other
    // core, pop, ret.
    let wait = 1.0 + 2.0 + 3.0 + 400.0 + 7.0 + 3.0 + 80.0;
    assert_eq!((of.totals.acquisitions, of.totals.contended), (2, 1));
    assert_eq!(of.totals.wait_cycles, wait);
    is_whole(&table);
}

#[test]
fn a_killed_waiter_does_not_acquire() {
    let mut guest = Guest::new(2);
    guest.on(0).tries_mutex("mutex_lock", "f", MUTEX).returns("mutex_lock");
    guest.on(1).tries_mutex("mutex_lock_killable", "g", MUTEX);
    guest.goes_slow("mutex_lock_killable", "__mutex_lock_slowpath", MUTEX);
    guest.ends_slow("__mutex_lock_slowpath", MUTEX).returns("mutex_lock_killable");
    guest.on(0).works("f", 2).adds("mutex_unlock", "f", MUTEX);
    guest.tries_mutex("mutex_lock", "h", MUTEX).adds("mutex_unlock", "h", MUTEX);
    let table = guest.table();
    let of = lock(&table, "a_mutex");
    assert_eq!((of.totals.acquisitions, of.totals.contended, of.totals.failed), (2, 0, 1));
    assert_eq!(of.totals.lost, 0);
}

#[test]
fn locks_that_are_held_at_the_begin_and_at_the_end() {
    let mut guest = Guest::new(2);
    // f releases a mutex that nobody acquired. An unknown holder has the spin lock.
    guest.on(0).adds("mutex_unlock", "f", MUTEX);
    guest.tries_spin("f", LOCK_A);
    guest.goes_slow("_raw_spin_lock", "native_queued_spin_lock_slowpath", LOCK_A);
    guest.ends_slow("native_queued_spin_lock_slowpath", LOCK_A).returns("_raw_spin_lock");
    guest.works("f", 3);
    guest.on(1).tries_spin("g", LOCK_A);
    guest.goes_slow("_raw_spin_lock", "native_queued_spin_lock_slowpath", LOCK_A);
    let table = guest.table();
    let of = lock(&table, "a_mutex");
    assert_eq!((of.totals.acquisitions, of.totals.held_before), (0, 1));
    let of = lock(&table, "lock_a");
    // jne; mov, call with a line and page of the stack from memory; push, mov, pause; mov, pop,
    // ret.
    assert_eq!(counted(of), (1, 1, 1.0 + 2.0 + 400.0 + 7.0 + 3.0 + 3.0, 0.0));
    assert_eq!((of.totals.held_behind, of.totals.lost), (1, 0));
    assert_eq!(of.waits[0].holder, None);
    assert_eq!(table.waiting_behind, 1);
}

#[test]
fn readers_hold_together_and_writers_become_readers() {
    let mut guest = Guest::new(2);
    let rwsem = DIRECT + 0x30_0000;
    guest.frame(0x300, FrameUse::Slab(0));
    guest.on(0).adds("down_read", "f", rwsem).on(1).adds("down_read", "g", rwsem);
    guest.on(0).adds("up_read", "f", rwsem).on(1).adds("up_read", "g", rwsem);
    guest.tries_mutex("down_write", "h", rwsem).adds("downgrade_write", "h", rwsem);
    guest.on(0).adds("down_read", "f", rwsem).adds("up_read", "f", rwsem);
    guest.on(1).adds("up_read", "h", rwsem);
    // A reader of a rwlock, and an interrupt that also reads it. They release it without a
    // function.
    let leaves: [&[u8]; 1] = [&[0xf0, 0x0f, 0xc1, 0x07]];
    guest.tries_in("_raw_read_lock", "f", RWLOCK, &[0xf0, 0x0f, 0xc1, 0x07]).works("f", 2);
    guest.tries_in("_raw_read_lock", "g", RWLOCK, &[0xf0, 0x0f, 0xc1, 0x07]).works("g", 2);
    guest.run(at("g") + 0x30, &leaves, &changes(0, RWLOCK, 2));
    guest.run(at("f") + 0x30, &leaves, &changes(0, RWLOCK, 2));
    // A try that takes itself back: `lock xadd`, then `lock subl $0x200,(%rdi)`.
    guest.tries_in("_raw_read_trylock", "h", RWLOCK, &[0xf0, 0x0f, 0xc1, 0x07]);
    let back: [&[u8]; 1] = [&[0xf0, 0x81, 0x2f, 0, 2, 0, 0]];
    guest.run(at("_raw_read_trylock") + 0x18, &back, &changes(0, RWLOCK, 2));
    let table = guest.table();
    let of = lock(&table, "slab dentry");
    assert_eq!((of.totals.acquisitions, of.totals.contended, of.kind), (4, 0, LockKind::Rwsem));
    let of = lock(&table, "a_rwlock");
    // f: jne, 2; call, 3; then, as for g, jne, 2, the atomic instruction; and its own atomic
    // instruction.
    let inner = 1.0 + 2.0 + 1.0;
    assert_eq!(counted(of), (2, 0, 0.0, inner + (3.0 + 4.0 + inner + 1.0)));
    assert_eq!((of.totals.failed, of.kind), (1, LockKind::Rw));
    is_whole(&table);
}

#[test]
fn a_reader_waits_for_a_sequence_counter() {
    let relative = |addr: u64, bytes: u64| (RENAME.wrapping_sub(addr + bytes) as u32).to_le_bytes();
    let (write, read) = (at("f") + 0x30, at("g") + 0x30);
    // addl $1,rename_lock(%rip); mov rename_lock(%rip),%eax
    let adds = [&[0x83, 0x05][..], &relative(write, 7), &[1]].concat();
    let loads = [&[0x8b, 0x05][..], &relative(read, 6)].concat();
    let mut guest = Guest::new(2);
    let writes = |guest: &mut Guest| {
        guest.on(0).run(write, &[&adds], &changes(0, RENAME, 2));
    };
    let reads = |guest: &mut Guest| {
        guest.on(1).run(read, &[&loads, &[0xf3, 0x90]], &[(0, RENAME, false, 2)]);
    };
    writes(&mut guest);
    guest.works("f", 5);
    reads(&mut guest);
    reads(&mut guest);
    writes(&mut guest);
    reads(&mut guest);
    reads(&mut guest);
    let table = guest.table();
    let of = lock(&table, "rename_lock");
    // The first load takes the line; pause; load and pause; the load that sees the end.
    let wait = 80.0 + 1.0 + 2.0 + 1.0;
    // Five no-ops and the instruction.
    assert_eq!(counted(of), (1, 1, wait, 5.0 + 1.0));
    assert_eq!((of.totals.reads, of.kind), (4, LockKind::Seq));
    assert_eq!(of.waits[0].holder, Some(user("f", "t101")));
    is_whole(&table);
}

#[test]
fn locks_of_a_slab_cache_are_one_row_for_each_field() {
    let mut guest = Guest::new(1);
    guest.frame(0x300, FrameUse::Slab(0));
    for object in [0, 1, 3, 4, 7, 8, 11, 20] {
        let first = DIRECT + 0x30_0000 + 192 * object;
        for (from, offset) in [("f", 0x58), ("g", 0x8)] {
            guest.tries_spin(from, first + offset).unlocks_spin(from, first + offset);
        }
    }
    let table = guest.table();
    for title in ["slab dentry+0x58", "slab dentry+0x8"] {
        let of = lock(&table, title);
        assert_eq!((of.locks, of.totals.acquisitions), (8, 8), "{title}");
    }
    is_whole(&table);
}

/// On a kernel with one CPU, `lock` prefixes are patched to `ds`.
#[test]
fn prefixes_do_not_matter() {
    let mut guest = Guest::new(1);
    guest.tries_in("_raw_spin_lock", "f", LOCK_A, &[0x3e, 0x0f, 0xb1, 0x17]);
    guest.unlocks_spin("f", LOCK_A);
    assert_eq!(lock(&guest.table(), "lock_a").totals.acquisitions, 1);
}

#[test]
fn what_does_not_fit_is_named() {
    let mut guest = Guest::new(2);
    guest.tries_spin("f", LOCK_A).unlocks_spin("f", LOCK_A);
    let error = |machine: &str, functions: &[&str]| {
        format!("{:#}", guest.table_on(machine, functions).unwrap_err())
    };
    let one_core = error("server-32k", &FUNCTIONS);
    assert!(one_core.contains("server-32k has no coherent caches"), "{one_core}");
    let no_locks = error("server-8", &["f", "g"]);
    assert!(no_locks.contains("no function that acquires a spin lock"), "{no_locks}");
    let missing = guest.table_on("server-8", &["f", "_raw_spin_lock"]).unwrap().missing_kinds;
    assert_eq!(missing, [LockKind::Rw, LockKind::Mutex, LockKind::Rwsem]);

    let mut writer = RecordingWriter::new(Vec::new(), &guest.header).unwrap();
    writer.translations(&guest.translations).unwrap();
    writer.tasks(&guest.tasks).unwrap();
    writer.stream(&guest.words).unwrap();
    let without_data = writer.end().unwrap().0;
    let found = table_of(&without_data, "server-8", &FUNCTIONS, CpuOrder::SideBySide);
    let message = format!("{:#}", found.unwrap_err());
    assert!(message.contains("no data accesses: record"), "{message}");
}
