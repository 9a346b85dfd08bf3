//! The services of a recording of several CPUs on coherent caches, beside the same workload on one
//! CPU (Rosenblum 1995, tables 5.2 and 5.4).
//!
//! Takes a recording and attributed services; gives rates of events, the parts of the time, and
//! rows by service. Prints nothing.

pub(crate) mod l2_sizes;

use crate::sharing::caches::SharedMachine;
use crate::sharing::costs::{LineCosts, OrderedTotals};
use anyhow::{Result, ensure};
use execution::coherent_walk::CoherentWalk;
use execution::cpu_order::CpuOrder;
use execution::served_log::ServedLog;
use execution::walk::walk;
pub use l2_sizes::L2Misses;
use serde::Serialize;
use services::Attributed;
use services::annotations::ServiceKind;
pub use services::ledger::CoherentCycles;
use services::ledger::{Account, ServiceTotals};
use services::table::in_kernel;
use sim::MachineModel;
use std::collections::HashMap;
use std::io::Read;
use trace::{CpuCount, RecordingHeader, RecordingReader};

/// The services of several CPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MultiprocessorTable {
    /// The recorded workload.
    pub workload: String,
    /// The build id of the recorded kernel.
    pub kernel_build_id: String,
    /// The seed of the recording.
    pub seed: u64,
    /// The number of CPUs.
    pub cpus: u8,
    /// The simulated machine.
    pub machine: String,
    /// The recording of one CPU that the services are compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_cpu: Option<OneCpu>,
    /// What coherence costs, and how far this is from the order of the recording.
    #[serde(flatten)]
    pub totals: OrderedTotals,
    /// All executed instructions.
    pub instructions: u64,
    /// How often events came.
    pub events: Vec<EventRate>,
    /// Where the time of all CPUs went, by mode: the kernel, user mode, idle.
    pub modes: Vec<ModeTime>,
    /// The kernel's services, descending by cycles.
    pub rows: Vec<MultiprocessorRow>,
    /// The kernel's misses in L2s of several sizes, ascending.
    pub l2_sizes: Vec<L2SizeRow>,
}

/// The kernel's misses in L2s of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct L2SizeRow {
    /// The size of each CPU's L2.
    pub bytes: u64,
    /// On all CPUs.
    pub misses: L2Misses,
    /// On one CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_one_cpu: Option<L2Misses>,
}

/// A recording of one CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OneCpu {
    /// The recorded workload.
    pub workload: String,
    /// The seed of the recording.
    pub seed: u64,
}

/// How often an event came.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventRate {
    /// The event.
    pub event: &'static str,
    /// How often.
    pub count: u64,
    /// How often in a million instructions of all CPUs.
    pub per_million: f64,
}

/// The time of a mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModeTime {
    /// `kernel`, `user` or `idle`.
    pub mode: &'static str,
    /// Its part of the cycles of all CPUs.
    pub share: f64,
    /// Where its cycles went.
    pub cycles: CoherentCycles,
}

/// A service of the kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MultiprocessorRow {
    /// The kind of the service.
    pub kind: ServiceKind,
    /// The name of the service.
    pub name: String,
    /// How often it ran.
    pub calls: u64,
    /// How often in a million instructions of all CPUs.
    pub per_million: f64,
    /// Its part of the kernel's cycles.
    pub share: f64,
    /// The same on one CPU; `None` when the service did not run there, or when no recording of one
    /// CPU is given.
    pub share_on_one_cpu: Option<f64>,
    /// Cycles per call.
    pub mean_cycles: f64,
    /// How much longer a call takes than on one CPU: 0.5 is half as long again.
    pub slowdown: Option<f64>,
    /// Where its cycles went.
    pub cycles: CoherentCycles,
    /// Coherence misses per call, outside of synchronization.
    pub coherence_misses: f64,
    /// Upgrades per call, outside of synchronization.
    pub upgrades: f64,
    /// Nanoseconds of the guest's clock per call in which the task could not run; `None` when the
    /// recording does not say when tasks became able to run.
    pub blocked: Option<f64>,
    /// Nanoseconds per call in which the task could run, but another task ran.
    pub waiting: Option<f64>,
}

/// What coherence costs on the machine, the log of all requests, and the kernel's misses on the
/// machines with other L2s.
///
/// # Errors
/// The recording is damaged or has no data accesses; a machine has no coherent caches or too few
/// cores.
pub(crate) fn simulate<R: Read>(
    reader: RecordingReader<R>,
    machine: &MachineModel,
    sizes: &[MachineModel],
    order: CpuOrder,
) -> Result<(OrderedTotals, ServedLog, Vec<L2Misses>)> {
    let cpus = reader.header().cpus;
    let shared = SharedMachine::for_any(machine, cpus, order)?;
    let mut runs = CoherentWalk::new(cpus, ());
    let costs = || LineCosts::new(&shared, 0);
    runs.add(machine, cpus, order, costs().logging(&shared))?;
    for size in sizes {
        runs.add(size, cpus, order, costs())?;
    }
    if order == CpuOrder::SideBySide && cpus != CpuCount::ONE {
        runs.add(machine, cpus, CpuOrder::Recorded, costs())?;
    }
    walk(reader, &mut runs)?;
    let (mut runs, ()) = runs.finish();
    let others = runs.split_off(1 + sizes.len());
    let misses = runs[1..].iter().map(|run| L2Misses::new(&run.counters())).collect();
    let run = runs.swap_remove(0);
    let totals = OrderedTotals::new(&shared, &run, others.first());
    Ok((totals, run.watcher.log.unwrap_or_default(), misses))
}

/// The numbers to compare: how often each service ran, and its cycles.
struct Compared {
    kernel_cycles: f64,
    services: HashMap<(ServiceKind, String), (u64, f64)>,
}

impl Compared {
    fn new(attributed: &Attributed) -> Compared {
        let of_kernel = attributed.ledger.accounts.iter().filter(|of| in_kernel(of.kind));
        let services: HashMap<_, _> = of_kernel
            .map(|of| {
                let cycles = cycles(&of.totals).total();
                ((of.kind, of.name.clone()), (of.totals.calls, cycles))
            })
            .collect();
        // The order is that of the ledger, so that the sum is the same each time.
        let of_kernel = attributed.ledger.accounts.iter().filter(|of| in_kernel(of.kind));
        let kernel_cycles = of_kernel.map(|of| cycles(&of.totals).total()).sum();
        Compared { kernel_cycles, services }
    }
}

impl MultiprocessorTable {
    /// `one_cpu`: the same workload on one CPU of the same machine. The caller adds the sizes of
    /// L2s.
    ///
    /// # Errors
    /// The recordings are of different kernels, or `one_cpu` is of several CPUs.
    pub(crate) fn new(
        header: &RecordingHeader,
        machine: &str,
        totals: OrderedTotals,
        attributed: &Attributed,
        one_cpu: Option<&(RecordingHeader, Attributed)>,
    ) -> Result<MultiprocessorTable> {
        if let Some((other, _)) = one_cpu {
            other.one_cpu()?;
            ensure!(
                other.build_id == header.build_id,
                "the recordings are of different kernels: {} and {}",
                header.build_id,
                other.build_id
            );
        }
        let compared = one_cpu.map(|(_, attributed)| Compared::new(attributed));
        let kernel_cycles = Compared::new(attributed).kernel_cycles;
        let accounts = attributed.ledger.accounts.iter();
        let mut rows: Vec<MultiprocessorRow> = accounts
            .filter(|of| in_kernel(of.kind) && of.totals.calls > 0)
            .map(|of| row(of, attributed, kernel_cycles, compared.as_ref()))
            .collect();
        rows.sort_by(|one, other| {
            let cycles = other.cycles.total().total_cmp(&one.cycles.total());
            cycles.then_with(|| (one.kind, &one.name).cmp(&(other.kind, &other.name)))
        });
        Ok(MultiprocessorTable {
            workload: header.workload.clone(),
            kernel_build_id: header.build_id.clone(),
            seed: header.seed,
            cpus: header.cpus.get(),
            machine: machine.to_owned(),
            totals,
            one_cpu: one_cpu.map(|(of, _)| OneCpu { workload: of.workload.clone(), seed: of.seed }),
            instructions: attributed.instructions,
            events: events(attributed),
            modes: modes(attributed),
            rows,
            l2_sizes: Vec::new(),
        })
    }

    /// The part of the kernel's cycles that goes to synchronization.
    pub fn synchronization(&self) -> f64 {
        let of_kernel = self.modes.iter().find(|mode| mode.mode == KERNEL);
        of_kernel.map_or(0.0, |mode| share(mode.cycles.synchronization, mode.cycles.total()))
    }
}

const KERNEL: &str = "kernel";

fn cycles(totals: &ServiceTotals) -> CoherentCycles {
    totals.machines.first().and_then(|counts| counts.coherent).unwrap_or_default()
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn events(attributed: &Attributed) -> Vec<EventRate> {
    let of_kind = |wanted: &[ServiceKind]| {
        let accounts = attributed.ledger.accounts.iter();
        let of = accounts.filter(|account| wanted.contains(&account.kind));
        of.map(|account| account.totals.calls).sum()
    };
    let event = |event, count| EventRate {
        event,
        count,
        per_million: 1e6 * count as f64 / attributed.instructions.max(1) as f64,
    };
    vec![
        event("process creations", of_kind(&[ServiceKind::Task])),
        event("context switches", attributed.context_switches),
        event("interrupts", attributed.interrupts),
        event("system calls", of_kind(&[ServiceKind::SystemCall])),
        event("page faults", of_kind(&[ServiceKind::PageFault])),
        event("other exceptions", of_kind(&[ServiceKind::Exception])),
    ]
}

fn modes(attributed: &Attributed) -> Vec<ModeTime> {
    let of = |mode: &'static str, wanted: &dyn Fn(ServiceKind) -> bool| {
        let mut sum = CoherentCycles::default();
        let accounts = attributed.ledger.accounts.iter();
        accounts.filter(|of| wanted(of.kind)).for_each(|of| sum += cycles(&of.totals));
        ModeTime { mode, share: 0.0, cycles: sum }
    };
    let mut modes = vec![
        of(KERNEL, &in_kernel),
        of("user", &|kind| kind == ServiceKind::User),
        of("idle", &|kind| kind == ServiceKind::Idle),
    ];
    let all: f64 = modes.iter().map(|mode| mode.cycles.total()).sum();
    modes.iter_mut().for_each(|mode| mode.share = share(mode.cycles.total(), all));
    modes
}

fn row(
    account: &Account,
    attributed: &Attributed,
    kernel_cycles: f64,
    compared: Option<&Compared>,
) -> MultiprocessorRow {
    let totals = &account.totals;
    let cycles = cycles(totals);
    let per_call = |amount: f64| amount / totals.calls.max(1) as f64;
    let mean_cycles = per_call(cycles.total());
    let name = account.name.clone();
    let found = compared.and_then(|compared| {
        let &(calls, cycles) = compared.services.get(&(account.kind, name.clone()))?;
        (calls > 0).then_some((cycles / calls as f64, share(cycles, compared.kernel_cycles)))
    });
    let on_clock = |amount: u64| attributed.wakes_seen.then(|| per_call(amount as f64));
    MultiprocessorRow {
        kind: account.kind,
        name,
        calls: totals.calls,
        per_million: 1e6 * totals.calls as f64 / attributed.instructions.max(1) as f64,
        share: share(cycles.total(), kernel_cycles),
        share_on_one_cpu: found.map(|(_, share)| share),
        mean_cycles,
        slowdown: found.and_then(|(mean, _)| (mean > 0.0).then(|| mean_cycles / mean - 1.0)),
        cycles,
        coherence_misses: per_call(cycles.coherence_misses as f64),
        upgrades: per_call(cycles.upgrade_count as f64),
        blocked: on_clock(totals.times.blocked),
        waiting: on_clock(totals.times.waiting),
    }
}

#[cfg(test)]
mod tests;
