//! Locks as rows for reports. These are plain values.
//!
//! Input: the locks that were followed, and names. Output: locks, the most expensive first. Prints
//! nothing.

use super::book::{LockCounts, LockUses, Party};
use super::follow::{LineEvents, LockFollower};
pub use super::functions::LockKind;
use super::functions::{FunctionRole, LockFunctions};
use super::names::{LockName, LockNames};
use crate::sharing::caches::SharedMachine;
use crate::sharing::costs::OrderedTotals;
use anyhow::Result;
pub use memory::misses::owners::StructureClass;
use memory::objects::names::VariableTypes;
use serde::Serialize;
use sim::PerMode;
use std::collections::{BTreeMap, HashSet};
use trace::RecordingHeader;

/// The locks of a recording on one machine. Cycles are those of all CPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LockTable {
    /// The recorded workload.
    pub workload: String,
    /// The build id of the recorded kernel.
    pub kernel_build_id: String,
    /// The seed of the recording.
    pub seed: u64,
    /// The number of CPUs.
    pub cpus: usize,
    /// The simulated machine.
    pub machine: String,
    /// What coherence costs, and how far this is from the order of the recording.
    #[serde(flatten)]
    pub totals: OrderedTotals,
    /// Cycles by mode, with stalls.
    pub cycles: PerMode<f64>,
    /// All locks of a kind, by kind.
    pub kinds: Vec<KindRow>,
    /// The lock functions that ran, by name.
    pub functions: Vec<FunctionRow>,
    /// Functions whose names look like those of lock functions, but which were not followed.
    pub unknown_functions: Vec<String>,
    /// The kinds for which the kernel has no function.
    pub missing_kinds: Vec<LockKind>,
    /// Attempts that still waited when the recording ended.
    pub waiting_behind: u64,
    /// Whether the kernel describes types of its variables (BTF).
    pub types_known: bool,
    /// Why the recording does not contain the use of frames; `None` when it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames_unknown: Option<String>,
    /// Descending by cycles of both kinds of waiting, then by acquisitions.
    pub locks: Vec<LockRow>,
}

/// The counts of locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LockTotals {
    /// Acquisitions; of a sequence counter, writes.
    pub acquisitions: u64,
    /// Acquisitions through a slow path; of a sequence counter, reads that found a writer.
    pub contended: u64,
    /// Contended acquisitions for which the task left its CPU.
    pub slept: u64,
    /// Attempts of `trylock` functions that reached the lock and failed.
    pub failed: u64,
    /// Loads of a sequence counter.
    pub reads: u64,
    /// Attempts before which the CPU waited, in simulated time, until another CPU had stored to the
    /// lock. Most of them took no slow path, because in the recording the CPUs never met.
    pub awaited: u64,
    /// The cycles of these waits, and of those in slow paths.
    pub awaited_cycles: f64,
    /// Cycles that waiters executed from their attempt to their acquisition.
    pub wait_cycles: f64,
    /// The longest wait.
    pub longest_wait_cycles: f64,
    /// Cycles that holders executed from their acquisition to their release.
    pub hold_cycles: f64,
    /// The longest hold.
    pub longest_hold_cycles: f64,
    /// Releases of locks that were held when the recording began.
    pub held_before: u64,
    /// Acquisitions whose lock was still held when the recording ended.
    pub held_behind: u64,
    /// Acquisitions whose release was not seen.
    pub lost: u64,
}

impl From<LockCounts> for LockTotals {
    fn from(counts: LockCounts) -> LockTotals {
        LockTotals {
            acquisitions: counts.acquisitions,
            contended: counts.contended,
            slept: counts.slept,
            failed: counts.failed,
            reads: counts.reads,
            awaited: counts.awaited,
            awaited_cycles: counts.awaited_cycles,
            wait_cycles: counts.wait,
            longest_wait_cycles: counts.longest_wait,
            hold_cycles: counts.hold,
            longest_hold_cycles: counts.longest_hold,
            held_before: counts.held_before,
            held_behind: counts.held_behind,
            lost: counts.lost,
        }
    }
}

/// The locks of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct KindRow {
    /// The kind.
    pub kind: LockKind,
    /// Cycles in its lock functions, with stalls: to acquire, to wait and to release.
    pub function_cycles: f64,
    /// The share of these cycles in the kernel's cycles.
    pub of_kernel: f64,
    /// The counts of its locks.
    #[serde(flatten)]
    pub totals: LockTotals,
}

/// A lock function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionRow {
    /// Its name.
    pub function: String,
    /// How often it ran.
    pub runs: u64,
    /// How often it reached the lock. A `trylock` function looks first, and may give up then.
    pub attempts: u64,
    /// Whether it gives up when it does not get the lock.
    pub tries: bool,
    /// Whether every run reaches the lock. If there are fewer attempts than runs, Kernlane does not
    /// understand its code.
    pub must_reach: bool,
}

/// A lock, or all locks of one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LockRow {
    /// Its kind.
    pub kind: LockKind,
    /// The class of the object that holds it.
    pub class: StructureClass,
    /// The object and the field; empty for classes without names.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The class, unless it is static, and the name.
    pub title: String,
    /// The number of locks.
    pub locks: u64,
    /// The virtual address of the first of them, in hex.
    pub addr: String,
    /// The counts.
    #[serde(flatten)]
    pub totals: LockTotals,
    /// Coherence misses of their lines, by any access.
    pub coherence_misses: u64,
    /// Upgrades of their lines.
    pub upgrades: u64,
    /// The cycles of these misses and upgrades.
    pub coherence_cycles: f64,
    /// Who acquired them, descending by acquisitions.
    pub functions: Vec<AcquiredBy>,
    /// Who waited for whom, descending by cycles.
    pub waits: Vec<WaitRow>,
}

/// A function that acquires a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AcquiredBy {
    /// The caller of the lock function.
    pub function: String,
    /// How often.
    pub acquisitions: u64,
}

/// Someone who waits for a lock, or holds it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LockUser {
    /// The caller of the lock function.
    pub function: String,
    /// The name of the task that ran.
    pub task: String,
}

/// Waits of one user for another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WaitRow {
    /// Who waited.
    pub waiter: LockUser,
    /// Who held the lock when the wait began. `None` when the holder is unknown, for example
    /// because another waiter came first.
    pub holder: Option<LockUser>,
    /// How often.
    pub waits: u64,
    /// The cycles that the waiter executed.
    pub cycles: f64,
}

/// The name of an unknown caller.
const UNKNOWN: &str = "(unknown)";

#[derive(Default)]
struct Gathered {
    counts: LockCounts,
    locks: u64,
    addr: u64,
    lines: HashSet<u64>,
    functions: BTreeMap<String, u64>,
    waits: BTreeMap<(LockUser, Option<LockUser>), (u64, f64)>,
}

impl LockTable {
    /// # Errors
    /// The kernel's BTF is damaged.
    pub(super) fn new(
        header: &RecordingHeader,
        machine: &SharedMachine<'_>,
        totals: OrderedTotals,
        followed: &LockFollower<'_>,
        types: &VariableTypes<'_>,
        waiting_behind: u64,
    ) -> Result<LockTable> {
        let uses = &followed.book.uses;
        let mut names = LockNames::new(&followed.owners, types, uses)?;
        let mut gathered = BTreeMap::<LockName, Gathered>::new();
        for lock in uses {
            let into = gathered.entry(names.name(lock)?).or_default();
            into.add(lock, followed, machine.line_log2());
        }
        let mut kinds: Vec<KindRow> = LockKind::ALL.map(|kind| followed.kind(kind)).into();
        for kind in &mut kinds {
            let mut counts = LockCounts::default();
            let of_kind = uses.iter().filter(|lock| lock.kind == kind.kind);
            of_kind.for_each(|lock| counts += lock.counts);
            kind.totals = counts.into();
        }
        let rows = gathered.into_iter().map(|(name, of)| of.row(name, followed));
        let mut locks: Vec<LockRow> = rows.collect();
        locks.sort_by(|a, b| {
            let of = |row: &LockRow| row.totals.wait_cycles + row.totals.awaited_cycles;
            let waits = of(b).total_cmp(&of(a));
            waits.then(b.totals.acquisitions.cmp(&a.totals.acquisitions))
        });
        let time = &followed.time;
        Ok(LockTable {
            workload: header.workload.clone(),
            kernel_build_id: header.build_id.clone(),
            seed: header.seed,
            cpus: machine.cpus(),
            machine: machine.name().to_owned(),
            totals,
            cycles: PerMode { kernel: time.kernel, user: time.user },
            kinds,
            functions: followed.function_rows(),
            unknown_functions: followed.functions.unknown.clone(),
            missing_kinds: followed.functions.missing(),
            waiting_behind,
            types_known: types.known(),
            frames_unknown: followed.owners.unknown().map(str::to_owned),
            locks,
        })
    }
}

impl LockFollower<'_> {
    fn kind(&self, kind: LockKind) -> KindRow {
        let function_cycles = self.time.kinds[kind as usize];
        let kernel = self.time.kernel;
        let of_kernel = if kernel > 0.0 { function_cycles / kernel } else { 0.0 };
        KindRow { kind, function_cycles, of_kernel, totals: LockTotals::default() }
    }

    /// One row for each name: the compiler makes several copies of `queued_spin_unlock`.
    fn function_rows(&self) -> Vec<FunctionRow> {
        let mut rows = BTreeMap::<&str, FunctionRow>::new();
        let ran = self.functions.functions.iter().zip(&self.runs);
        for (function, runs) in ran.filter(|(_, runs)| runs.runs > 0) {
            let row = rows.entry(&function.name).or_insert_with(|| FunctionRow {
                function: function.name.clone(),
                runs: 0,
                attempts: 0,
                tries: matches!(function.role, FunctionRole::Try(_)),
                must_reach: LockFunctions::reaches(function),
            });
            row.runs += runs.runs;
            row.attempts += runs.attempts;
        }
        rows.into_values().collect()
    }

    fn function(&self, number: u32) -> String {
        let name = self.functions.names.get(number as usize);
        name.map_or(UNKNOWN, |name| name).to_owned()
    }

    fn user(&self, party: Party) -> LockUser {
        let task = self.tasks.name(party.task).to_owned();
        LockUser { function: self.function(party.function), task }
    }
}

impl Gathered {
    fn add(&mut self, lock: &LockUses, followed: &LockFollower<'_>, line_log2: u32) {
        self.counts += lock.counts;
        self.addr = if self.locks == 0 { lock.addr } else { self.addr };
        self.locks += 1;
        self.lines.insert(lock.physical >> line_log2);
        for &(function, times) in &lock.functions {
            *self.functions.entry(followed.function(function)).or_default() += times;
        }
        for (&(waiter, holder), &(waits, cycles)) in &lock.waits {
            let key = (followed.user(waiter), holder.map(|holder| followed.user(holder)));
            let into = self.waits.entry(key).or_default();
            into.0 += waits;
            into.1 += cycles;
        }
    }

    fn row(self, name: LockName, followed: &LockFollower<'_>) -> LockRow {
        let LockName { kind, class, name } = name;
        let mut events = LineEvents::default();
        for line in &self.lines {
            let of_line = followed.lines.get(line).copied().unwrap_or_default();
            events.misses += of_line.misses;
            events.upgrades += of_line.upgrades;
            events.cycles += of_line.cycles;
        }
        let acquired = self.functions.into_iter();
        let acquired =
            acquired.map(|(function, acquisitions)| AcquiredBy { function, acquisitions });
        let mut functions: Vec<AcquiredBy> = acquired.collect();
        functions.sort_by_key(|row| std::cmp::Reverse(row.acquisitions));
        let waits = self.waits.into_iter();
        let mut waits: Vec<WaitRow> = waits
            .map(|((waiter, holder), (waits, cycles))| WaitRow { waiter, holder, waits, cycles })
            .collect();
        waits.sort_by(|a, b| b.cycles.total_cmp(&a.cycles));
        let title = match (class, name.is_empty()) {
            (StructureClass::Static, false) => name.clone(),
            (_, false) if name.starts_with('+') => format!("{}{name}", class.title()),
            (_, false) => format!("{} {name}", class.title()),
            (_, true) => class.title().to_owned(),
        };
        LockRow {
            kind,
            class,
            name,
            title,
            locks: self.locks,
            addr: format!("{:016x}", self.addr),
            totals: self.counts.into(),
            coherence_misses: events.misses,
            upgrades: events.upgrades,
            coherence_cycles: events.cycles,
            functions,
            waits,
        }
    }
}
