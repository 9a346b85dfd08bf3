//! The kernel's lock functions: which locks they acquire or release, and where in their code they
//! do so.
//!
//! Input: the kernel's symbols, and translation blocks as recorded. Output: what each instruction
//! of a block does to locks. The names are those of Linux 6.12 on x86-64 (kernel/locking).
//!
//! To add a function: add its line to [`FUNCTIONS`]. To add a sequence counter: add its symbol to
//! [`SEQUENCES`].

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use memory::misses::collector::function_at;
use serde::Serialize;
use services::symbols::KernelSymbols;
use std::collections::{BTreeSet, HashMap};
use trace::Translation;

/// Kinds of locks, in the order of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockKind {
    /// `spinlock_t`, `raw_spinlock_t`: held by a CPU.
    Spin,
    /// `rwlock_t`: held by a CPU that writes, or by CPUs that read.
    Rw,
    /// `struct mutex`: held by a task.
    Mutex,
    /// `struct rw_semaphore`: held by a task that writes, or by tasks that read.
    Rwsem,
    /// `seqcount_t`, the counter of a `seqlock_t`: held by a CPU that writes.
    Seq,
}

impl LockKind {
    /// All kinds.
    pub const ALL: [LockKind; 5] =
        [LockKind::Spin, LockKind::Rw, LockKind::Mutex, LockKind::Rwsem, LockKind::Seq];

    /// The name in reports.
    pub fn title(self) -> &'static str {
        match self {
            LockKind::Spin => "spin",
            LockKind::Rw => "rwlock",
            LockKind::Mutex => "mutex",
            LockKind::Rwsem => "rwsem",
            LockKind::Seq => "seq",
        }
    }

    /// Whether tasks hold the lock. A task may sleep and move to another CPU. CPUs hold locks of
    /// the other kinds.
    pub fn sleeps(self) -> bool {
        matches!(self, LockKind::Mutex | LockKind::Rwsem)
    }
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldMode {
    Exclusive,
    Read,
}

/// What a function does to its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FunctionRole {
    /// Its first atomic instruction acquires the lock, or control goes to a slow path.
    Acquire(HoldMode),
    /// As `Acquire`, and the slow path may give up.
    Interruptible(HoldMode),
    /// Acquires the lock, or gives up.
    Try(HoldMode),
    /// Acquires the lock that the caller did not get.
    SlowPath,
    /// Its first atomic instruction, or the store of a byte, releases the lock.
    Release(HoldMode),
    /// A writer becomes a reader.
    Downgrade,
}

use FunctionRole::{Acquire, Downgrade, Interruptible, Release, SlowPath, Try};
use HoldMode::{Exclusive, Read};
use LockKind::{Mutex, Rw, Rwsem, Spin};

/// The functions, by kind and role.
const FUNCTIONS: &[(LockKind, FunctionRole, &[&str])] = &[
    (
        Spin,
        Acquire(Exclusive),
        &[
            "_raw_spin_lock",
            "_raw_spin_lock_bh",
            "_raw_spin_lock_irq",
            "_raw_spin_lock_irqsave",
            "_raw_spin_lock_nested",
            "_raw_spin_lock_bh_nested",
            "_raw_spin_lock_irqsave_nested",
            "_raw_spin_lock_nest_lock",
            "do_raw_spin_lock",
        ],
    ),
    (Spin, Try(Exclusive), &["_raw_spin_trylock", "_raw_spin_trylock_bh", "do_raw_spin_trylock"]),
    (
        Spin,
        SlowPath,
        &[
            "native_queued_spin_lock_slowpath",
            "__pv_queued_spin_lock_slowpath",
            "queued_spin_lock_slowpath",
        ],
    ),
    (
        Spin,
        Release(Exclusive),
        &[
            "_raw_spin_unlock",
            "_raw_spin_unlock_bh",
            "_raw_spin_unlock_irq",
            "_raw_spin_unlock_irqrestore",
            "do_raw_spin_unlock",
            "queued_spin_unlock",
            "__native_queued_spin_unlock",
            "__raw_callee_save___native_queued_spin_unlock",
        ],
    ),
    (
        Rw,
        Acquire(Read),
        &[
            "_raw_read_lock",
            "_raw_read_lock_bh",
            "_raw_read_lock_irq",
            "_raw_read_lock_irqsave",
            "do_raw_read_lock",
        ],
    ),
    (
        Rw,
        Acquire(Exclusive),
        &[
            "_raw_write_lock",
            "_raw_write_lock_bh",
            "_raw_write_lock_irq",
            "_raw_write_lock_irqsave",
            "_raw_write_lock_nested",
            "do_raw_write_lock",
        ],
    ),
    (Rw, Try(Read), &["_raw_read_trylock", "do_raw_read_trylock"]),
    (Rw, Try(Exclusive), &["_raw_write_trylock", "do_raw_write_trylock"]),
    (Rw, SlowPath, &["queued_read_lock_slowpath", "queued_write_lock_slowpath"]),
    (
        Rw,
        Release(Read),
        &[
            "_raw_read_unlock",
            "_raw_read_unlock_bh",
            "_raw_read_unlock_irq",
            "_raw_read_unlock_irqrestore",
            "do_raw_read_unlock",
        ],
    ),
    (
        Rw,
        Release(Exclusive),
        &[
            "_raw_write_unlock",
            "_raw_write_unlock_bh",
            "_raw_write_unlock_irq",
            "_raw_write_unlock_irqrestore",
            "do_raw_write_unlock",
        ],
    ),
    (
        Mutex,
        Acquire(Exclusive),
        &["mutex_lock", "mutex_lock_nested", "mutex_lock_io", "mutex_lock_io_nested"],
    ),
    (
        Mutex,
        Interruptible(Exclusive),
        &[
            "mutex_lock_interruptible",
            "mutex_lock_interruptible_nested",
            "mutex_lock_killable",
            "mutex_lock_killable_nested",
            "ww_mutex_lock",
            "ww_mutex_lock_interruptible",
        ],
    ),
    (Mutex, Try(Exclusive), &["mutex_trylock", "ww_mutex_trylock"]),
    (
        Mutex,
        SlowPath,
        &[
            "__mutex_lock",
            "__mutex_lock_slowpath",
            "__mutex_lock_interruptible_slowpath",
            "__mutex_lock_killable_slowpath",
            "__ww_mutex_lock",
            "__ww_mutex_lock_slowpath",
            "__ww_mutex_lock_interruptible_slowpath",
        ],
    ),
    (Mutex, Release(Exclusive), &["mutex_unlock"]),
    (Rwsem, Acquire(Read), &["down_read", "down_read_nested", "down_read_non_owner"]),
    (
        Rwsem,
        Interruptible(Read),
        &["down_read_interruptible", "down_read_killable", "down_read_killable_nested"],
    ),
    (Rwsem, Acquire(Exclusive), &["down_write", "down_write_nested"]),
    (Rwsem, Interruptible(Exclusive), &["down_write_killable", "down_write_killable_nested"]),
    (Rwsem, Try(Read), &["down_read_trylock"]),
    (Rwsem, Try(Exclusive), &["down_write_trylock"]),
    (Rwsem, SlowPath, &["rwsem_down_read_slowpath", "rwsem_down_write_slowpath"]),
    (Rwsem, Release(Read), &["up_read", "up_read_non_owner"]),
    (Rwsem, Release(Exclusive), &["up_write"]),
    (Rwsem, Downgrade, &["downgrade_write"]),
];

/// The beginnings of the names of functions that are expected to be lock functions.
const EXPECTED: [&str; 9] = [
    "_raw_spin_",
    "_raw_read_",
    "_raw_write_",
    "mutex_lock",
    "mutex_trylock",
    "mutex_unlock",
    "down_read",
    "down_write",
    "up_write",
];

/// Functions with such names that do nothing but call a function of the table.
const WRAPPERS: [&str; 1] = ["_raw_spin_rq_lock_irqsave"];

/// Static variables that begin with a sequence counter: `seqcount_t` or `seqlock_t`.
pub(super) const SEQUENCES: [&str; 4] = ["jiffies_seq", "tk_core", "rename_lock", "mount_lock"];

/// A function of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LockFunction {
    pub name: String,
    pub kind: LockKind,
    pub role: FunctionRole,
    pub start: u64,
    pub end: u64,
}

/// What an instruction does to locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockStep {
    /// The attempt of a function, by its number.
    Attempt { function: u16 },
    /// A `Try` function takes its attempt back.
    Withdraw,
    /// A release of a sleeping lock.
    Release { function: u16 },
    /// An atomic instruction outside of functions that acquire. A reader may release a rwlock with
    /// it.
    Atomic,
    /// Writes a sequence counter.
    SequenceWrite,
    /// Reads a sequence counter.
    SequenceRead,
}

/// What a translation block does to locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockFacts {
    pub is_kernel: bool,
    /// The number of the function that begins here.
    pub enters: Option<u16>,
    /// The kind of lock that its function uses.
    pub kind: Option<LockKind>,
    /// Whether the block belongs to a slow path.
    pub is_slow: bool,
    /// Its last instruction may call a slow path.
    pub may_call_slow: bool,
    /// Its last instruction returns.
    pub returns: bool,
    /// Its last instruction returns from an interruption.
    pub comes_back: bool,
    /// The first instruction that pushes a register, if the block belongs to a slow path.
    pub first_push: Option<u16>,
    /// By instruction.
    pub steps: Box<[(u16, LockStep)]>,
    /// The name of its function, by number.
    pub name: u32,
}

/// The lock functions of a kernel.
pub(super) struct LockFunctions<'a> {
    symbols: &'a KernelSymbols,
    /// Ascending by address.
    pub functions: Vec<LockFunction>,
    /// The addresses of sequence counters.
    sequences: Vec<u64>,
    /// Functions that look like lock functions and are not in the table.
    pub unknown: Vec<String>,
    /// The names of functions, by number.
    pub names: Vec<&'a str>,
    numbers: HashMap<&'a str, u32>,
}

impl<'a> LockFunctions<'a> {
    /// Finds the functions of the table. `sequences`: the addresses of sequence counters.
    pub(super) fn new(symbols: &'a KernelSymbols, sequences: Vec<u64>) -> LockFunctions<'a> {
        let all = FUNCTIONS
            .iter()
            .flat_map(|&(kind, role, names)| names.iter().map(move |&name| (name, (kind, role))));
        let table: HashMap<&str, (LockKind, FunctionRole)> = all.collect();
        let (mut functions, mut unknown) = (Vec::<LockFunction>::new(), BTreeSet::new());
        for symbol in symbols.iter() {
            let Some(name) = symbol.base_name() else { continue };
            let Some(&(kind, role)) = table.get(name) else {
                let expected = EXPECTED.iter().any(|prefix| name.starts_with(prefix));
                if expected && !WRAPPERS.contains(&name) {
                    unknown.insert(name.to_owned());
                }
                continue;
            };
            let (start, end) = (symbol.addr.0, symbol.addr.0 + symbol.size);
            if functions.last().is_none_or(|last| last.start != start) {
                functions.push(LockFunction { name: name.to_owned(), kind, role, start, end });
            }
        }
        LockFunctions {
            symbols,
            functions,
            sequences,
            unknown: unknown.into_iter().collect(),
            names: Vec::new(),
            numbers: HashMap::new(),
        }
    }

    /// The kinds of locks for which the kernel has no function that acquires.
    pub(super) fn missing(&self) -> Vec<LockKind> {
        let acquires = |function: &LockFunction| matches!(function.role, Acquire(_));
        let has = |kind| {
            self.functions.iter().any(|function| acquires(function) && function.kind == kind)
        };
        LockKind::ALL.into_iter().filter(|&kind| kind != LockKind::Seq && !has(kind)).collect()
    }

    /// The function that holds an address.
    fn at(&self, addr: u64) -> Option<(u16, &LockFunction)> {
        let after = self.functions.partition_point(|function| function.start <= addr);
        let at = after.checked_sub(1)?;
        let function = self.functions.get(at).filter(|function| addr < function.end)?;
        Some((at as u16, function))
    }

    fn is_slow_path(&self, addr: u64) -> bool {
        self.at(addr).is_some_and(|(_, it)| it.role == SlowPath && it.start == addr)
    }

    /// Whether every run of a function reaches its lock.
    pub(super) fn reaches(function: &LockFunction) -> bool {
        match function.role {
            Acquire(_) | Interruptible(_) | Downgrade => true,
            Release(_) => function.kind.sleeps(),
            Try(_) | SlowPath => false,
        }
    }

    /// What a translation block does to locks.
    pub(super) fn facts(&mut self, translation: &Translation) -> BlockFacts {
        if !translation.is_kernel() {
            return BlockFacts::default();
        }
        let addr = translation.addr.0;
        let name = function_at(self.symbols, translation.addr);
        let next = self.names.len() as u32;
        let number = *self.numbers.entry(name).or_insert(next);
        if number == next {
            self.names.push(name);
        }
        let of = self.at(addr).map(|(at, function)| (at, function.clone()));
        let is_slow = of.as_ref().is_some_and(|(_, function)| function.role == SlowPath);
        let mut facts = BlockFacts {
            enters: of.as_ref().filter(|(_, it)| it.start == addr).map(|(at, _)| *at),
            is_kernel: true,
            kind: of.as_ref().map(|(_, function)| function.kind),
            is_slow,
            name: number,
            ..BlockFacts::default()
        };
        let mut steps = Vec::new();
        for (index, (addr, bytes)) in translation.code_by_instruction().enumerate() {
            let code = Decoder::with_ip(64, bytes, addr.0, DecoderOptions::NONE).decode();
            let index = index as u16;
            if let Some(step) = self.step(of.as_ref().map(|(at, it)| (*at, it)), &code) {
                steps.push((index, step));
            }
            if is_slow && code.mnemonic() == Mnemonic::Push {
                facts.first_push.get_or_insert(index);
            }
            facts.returns = code.mnemonic() == Mnemonic::Ret;
            facts.comes_back = matches!(code.mnemonic(), Mnemonic::Iretq | Mnemonic::Iret);
            facts.may_call_slow = match code.flow_control() {
                FlowControl::Call => self.is_slow_path(code.near_branch_target()),
                FlowControl::IndirectCall => of.is_some(),
                _ => false,
            };
        }
        facts.steps = steps.into();
        facts
    }

    /// What an instruction of a function does to locks. `None` outside of lock functions, except
    /// for atomic instructions and sequence counters.
    fn step(&self, of: Option<(u16, &LockFunction)>, code: &Instruction) -> Option<LockStep> {
        if let Some(sequence) = self.sequence(code) {
            return Some(sequence);
        }
        let atomic = code.op0_kind() == OpKind::Memory && changes_at_once(code.mnemonic());
        if !atomic {
            return None;
        }
        let exchanges = matches!(code.mnemonic(), Mnemonic::Cmpxchg | Mnemonic::Xadd);
        // The lock is the first word of its object, and a register points to it.
        let first = code.memory_displacement64() == 0 && code.memory_base() != EMPTY;
        let Some((function, it)) = of else {
            return (code.has_lock_prefix() || exchanges).then_some(LockStep::Atomic);
        };
        match it.role {
            Acquire(_) | Interruptible(_) | Try(_) if exchanges && first => {
                Some(LockStep::Attempt { function })
            }
            Try(_) if first => Some(LockStep::Withdraw),
            Release(_) | Downgrade if it.kind.sleeps() && exchanges && first => {
                Some(LockStep::Release { function })
            }
            Release(Read) => Some(LockStep::Atomic),
            _ => None,
        }
    }

    /// What an instruction does to a sequence counter at a fixed address.
    fn sequence(&self, code: &Instruction) -> Option<LockStep> {
        let of_memory = (0..code.op_count()).find(|&op| code.op_kind(op) == OpKind::Memory)?;
        let fixed = code.is_ip_rel_memory_operand()
            || (code.memory_base() == EMPTY && code.memory_index() == EMPTY);
        let at = code.memory_displacement64();
        if !fixed || !self.sequences.contains(&at) {
            return None;
        }
        let reads_only = of_memory != 0
            || matches!(code.mnemonic(), Mnemonic::Cmp | Mnemonic::Test)
            || code.code() == Code::Push_rm64;
        Some(match reads_only {
            true => LockStep::SequenceRead,
            false => LockStep::SequenceWrite,
        })
    }
}

const EMPTY: iced_x86::Register = iced_x86::Register::None;

/// Whether an instruction loads and stores the same memory. A kernel with one CPU removes its
/// `lock` prefixes.
fn changes_at_once(mnemonic: Mnemonic) -> bool {
    use Mnemonic::{Add, And, Btr, Bts, Cmpxchg, Dec, Inc, Or, Sub, Xadd, Xchg};
    matches!(mnemonic, Add | And | Btr | Bts | Cmpxchg | Dec | Inc | Or | Sub | Xadd | Xchg)
}
