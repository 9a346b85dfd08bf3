//! The service table: SimOS' table 4.8 (Rosenblum 1995, section 4.5) from the ledger of a
//! recording.
//!
//! Takes an attribution; gives rows, the largest share of kernel time first. Prints nothing.

use crate::annotations::ServiceKind;
use crate::automaton::Attributed;
use crate::binding::UnseenAnnotation;
use crate::core_time::{CoreSamples, CoreTime};
use crate::ledger::{Account, Distribution, ServiceMachineCounts};
use execution::branches::Predictions;
use serde::{Deserialize, Serialize};
use sim::core::CoreSlots;
use sim::{MachineCounters, MachineModel};
use std::collections::BTreeMap;

/// Instructions of the guest per second of its clock while it is not idle. Recordings are made with
/// `-icount shift=0`: an instruction takes a nanosecond.
const PER_SECOND: f64 = 1e9;

/// Where a recording's time goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServiceTable {
    /// The recorded workload.
    pub workload: String,
    /// Build id.
    pub kernel: String,
    /// The seed of the recording.
    pub seed: u64,
    /// The number of CPUs. JSON contains it only when there are several.
    #[serde(skip_serializing_if = "is_one")]
    pub cpus: u8,
    /// All executed instructions.
    pub instructions: u64,
    /// Instructions in user mode.
    pub user_instructions: u64,
    /// Instructions of the idle loop.
    pub idle_instructions: u64,
    /// Nanoseconds of the guest's clock in which the processor was halted. `None` when the
    /// recording has no clock; latencies then leave out halted time.
    pub halted: Option<u64>,
    /// Instructions of all services except user mode and idle.
    pub kernel_instructions: u64,
    /// The share of the kernel's instructions without a service.
    pub other_share: f64,
    /// Switches from one known task to another.
    pub context_switches: u64,
    /// Interrupts that began, including those between processors.
    pub interrupts: u64,
    /// The annotations' counters: forks and similar events.
    pub counters: BTreeMap<String, u64>,
    /// How often each kind of service began.
    pub begun: BTreeMap<ServiceKind, u64>,
    /// Instructions from one interrupt to the next.
    pub between_interrupts: Distribution,
    /// Annotations for which this kernel has no symbol.
    pub blind: Vec<UnseenAnnotation>,
    /// The simulated machines.
    pub machines: Vec<MachineTotals>,
    /// The services of the kernel, descending by instructions, then user mode and idle.
    pub rows: Vec<ServiceRow>,
}

/// A service. Times are in nanoseconds of the guest's clock; an instruction takes one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServiceRow {
    /// The kind of the service.
    pub kind: ServiceKind,
    /// The name of the service.
    pub name: String,
    /// How often it ran.
    pub calls: u64,
    /// Calls per second of the guest's clock.
    pub calls_per_second: f64,
    /// Its own instructions.
    pub instructions: u64,
    /// Its share of the kernel's instructions; for user mode and idle, of all instructions.
    pub share: f64,
    /// Its own instructions per call.
    pub mean_instructions: f64,
    /// Its counts on each machine.
    #[serde(rename = "on")]
    pub machines: Vec<ServiceOnMachine>,
    /// How long a call takes.
    pub latency: Latency,
    /// The distribution of the instructions that its task ran per call.
    pub lengths: Distribution,
}

/// The counts of a machine over the whole recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineTotals {
    /// The machine's name.
    pub name: String,
    /// Whether it describes a second-level cache.
    pub has_l2: bool,
    /// Cycles of the whole recording.
    pub cycles: f64,
    /// Cycles of the kernel.
    pub kernel_cycles: f64,
    /// L1I misses of the whole recording.
    pub l1i_misses: u64,
    /// L1I misses of the kernel.
    pub kernel_l1i_misses: u64,
    /// Cycles in which the kernel stalls for memory: for instructions, for data. `None` without
    /// data accesses, or when the machine describes no data cache.
    pub kernel_stalls: Option<[f64; 2]>,
    /// Predictions of the whole recording and of the kernel; `None` when prediction was not
    /// simulated, or the machine describes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branches: Option<[Predictions; 2]>,
    /// The slots of the whole recording and of the kernel; `None` when the machine describes no
    /// out-of-order core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<[CoreSlots; 2]>,
    /// The time of the whole recording and of the kernel on the out-of-order core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core: Option<[CoreTime; 2]>,
    /// The samples from which slots and times are estimated; `None` when every instruction was
    /// simulated in detail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<CoreSamples>,
}

/// A service on a machine. With data accesses, cycles follow SimOS' 1994 model (Rosenblum 1995,
/// section 3.2): the machine waits for every miss. Without data accesses, they follow Torrellas'
/// simple model (1998, section 5.2): every L1I miss stalls the machine, and data stalls are the
/// same for every instruction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ServiceOnMachine {
    /// Cycles of all calls.
    pub cycles: f64,
    /// Its share of the kernel's cycles; for user mode and idle, of all cycles.
    pub share: f64,
    /// Cycles per call.
    pub mean_cycles: f64,
    /// Cycles per instruction.
    pub cpi: f64,
    /// Misses of the L1I.
    pub l1i_misses: u64,
    /// Stall cycles per instruction, for instructions that the L1I lacked and the L2 had. On a
    /// machine without an L2, for all instructions that the L1I lacked.
    pub l1i_stall: f64,
    /// Its share of the kernel's L1I misses; for user mode and idle, of all L1I misses.
    pub l1i_stall_share: f64,
    /// Stall cycles per instruction, for data that the L1D lacked and the L2 had. On a machine
    /// without an L2, for all data that the L1D lacked.
    pub l1d_stall: Option<f64>,
    /// Stall cycles per instruction, for instructions and data that the L2 lacked; `None` without
    /// an L2.
    pub l2_stall: Option<f64>,
    /// Stall cycles per instruction, for TLB misses.
    pub tlb_stall: Option<f64>,
    /// TLB misses of instructions and of data.
    pub tlb_misses: Option<[u64; 2]>,
    /// Its shares of the kernel's stalls for memory: for instructions, for data.
    pub stall_shares: Option<[f64; 2]>,
    /// Mean cycles on the first machine divided by mean cycles on this one.
    pub speedup: f64,
    /// As in [`MachineTotals`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branches: Option<Predictions>,
    /// As in [`MachineTotals`]. The slots of all services together are those of the recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<CoreSlots>,
    /// As in [`MachineTotals`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreTime>,
}

/// Mean times per call, from begin to end, in nanoseconds of the guest's clock; an instruction
/// takes one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// From begin to end.
    pub total: f64,
    /// The service's own time.
    pub computing: f64,
    /// Time in which its task ran other services: interrupts, faults, context switches.
    pub other_services: f64,
    /// Time in which its task did not run.
    pub off_cpu: f64,
    /// The time in which the task could not run. This and `waiting` are `None` when the recording
    /// does not say when tasks became able to run.
    pub blocked: Option<f64>,
    /// The time in which the task could run, but another task ran.
    pub waiting: Option<f64>,
}

impl ServiceTable {
    /// `header`: the recording's header. `simulated`: the machines of the attribution.
    pub fn new(
        header: &trace::RecordingHeader,
        attributed: &Attributed,
        blind: Vec<UnseenAnnotation>,
        simulated: &[MachineModel],
    ) -> ServiceTable {
        let sum = |wanted: &dyn Fn(ServiceKind) -> bool| -> u64 {
            let accounts = attributed.ledger.accounts.iter();
            accounts
                .filter(|account| wanted(account.kind))
                .map(|account| account.totals.instructions)
                .sum()
        };
        let kernel_instructions = sum(&in_kernel);
        let mut begun = BTreeMap::new();
        for account in &attributed.ledger.accounts {
            *begun.entry(account.kind).or_insert(0) += account.totals.calls;
        }
        let machines: Vec<MachineTotals> = simulated
            .iter()
            .enumerate()
            .map(|(at, machine)| machine_totals(attributed, at, machine))
            .collect();
        let whole = ShareBases {
            instructions: attributed.instructions,
            kernel_instructions,
            wakes_seen: attributed.wakes_seen,
            machines: &machines,
            simulated,
            attributed,
        };
        let mut rows: Vec<ServiceRow> = attributed
            .ledger
            .accounts
            .iter()
            .enumerate()
            .filter(|(_, account)| account.totals.calls > 0)
            .map(|(service, account)| row(service, account, &whole))
            .collect();
        rows.sort_by(|a, b| {
            let outside = |row: &ServiceRow| !in_kernel(row.kind);
            (outside(a), b.instructions, a.kind, &a.name).cmp(&(
                outside(b),
                a.instructions,
                b.kind,
                &b.name,
            ))
        });
        ServiceTable {
            workload: header.workload.clone(),
            kernel: header.build_id.clone(),
            seed: header.seed,
            cpus: header.cpus.get(),
            instructions: attributed.instructions,
            user_instructions: sum(&|kind| kind == ServiceKind::User),
            idle_instructions: sum(&|kind| kind == ServiceKind::Idle),
            halted: attributed.halted,
            kernel_instructions,
            other_share: sum(&|kind| kind == ServiceKind::Other) as f64
                / kernel_instructions.max(1) as f64,
            context_switches: attributed.context_switches,
            interrupts: attributed.interrupts,
            counters: attributed.counters.iter().cloned().collect(),
            begun,
            between_interrupts: attributed.between_interrupts.clone(),
            blind,
            machines,
            rows,
        }
    }
}

impl ServiceTable {
    /// The widest interval of all machines' cores, in per cent; 0 when all were simulated in
    /// detail.
    pub fn widest(&self) -> f64 {
        CoreSamples::widest(self.machines.iter().filter_map(|machine| machine.samples))
    }
}

/// Whether a field that counts CPUs is left out: recordings of one CPU have no such field.
fn is_one(cpus: &u8) -> bool {
    *cpus == 1
}

/// Whether a service is the kernel's work.
pub fn in_kernel(kind: ServiceKind) -> bool {
    !matches!(kind, ServiceKind::User | ServiceKind::Idle)
}

/// The totals that shares are relative to.
struct ShareBases<'a> {
    instructions: u64,
    kernel_instructions: u64,
    wakes_seen: bool,
    machines: &'a [MachineTotals],
    simulated: &'a [MachineModel],
    attributed: &'a Attributed,
}

fn machine_totals(attributed: &Attributed, at: usize, machine: &MachineModel) -> MachineTotals {
    let sum = |wanted: &dyn Fn(ServiceKind) -> bool| {
        let accounts = attributed.ledger.accounts.iter().filter(|account| wanted(account.kind));
        accounts.fold(
            (0, ServiceMachineCounts::default()),
            |(instructions, mut counts), account| {
                if let Some(of_account) = account.totals.machines.get(at) {
                    counts += of_account;
                }
                (instructions + account.totals.instructions, counts)
            },
        )
    };
    let ((instructions, counts), (of_kernel, kernel)) = (sum(&|_| true), sum(&in_kernel));
    let stalls = kernel.memory.and_then(|counters| machine.stalls(&counters));
    let sampled = attributed.sampled_on(at);
    let core = |counts: &ServiceMachineCounts, wanted: &dyn Fn(ServiceKind) -> bool| {
        let wanted = |service: usize| wanted(attributed.ledger.accounts[service].kind);
        CoreTime::of_sum(machine, counts.slots.as_ref(), sampled, wanted)
    };
    let core = core(&counts, &|_| true).zip(core(&kernel, &in_kernel));
    MachineTotals {
        name: machine.name.clone(),
        has_l2: has_l2(machine),
        cycles: cycles(machine, instructions, &counts),
        kernel_cycles: cycles(machine, of_kernel, &kernel),
        l1i_misses: counts.l1i_misses,
        kernel_l1i_misses: kernel.l1i_misses,
        kernel_stalls: stalls.map(|stalls| [stalls.l1i + stalls.l2i, stalls.l1d + stalls.l2d]),
        branches: predictions(machine, instructions, &counts)
            .zip(predictions(machine, of_kernel, &kernel))
            .map(|(all, kernel)| [all, kernel]),
        slots: counts.slots.map(|all| [all, kernel.slots.unwrap_or_default()]),
        core: core.map(|(all, kernel)| [all, kernel]),
        samples: sampled.map(CoreSamples::new),
    }
}

/// Cycles of a machine, by its memory model when data accesses were simulated, or else by the
/// simple model.
pub(crate) fn cycles(
    machine: &MachineModel,
    instructions: u64,
    counts: &ServiceMachineCounts,
) -> f64 {
    let by_memory = counts.memory.and_then(|counters: MachineCounters| machine.cycles(&counters));
    by_memory.unwrap_or_else(|| machine.time.cycles(instructions, counts.l1i_misses))
}

fn has_l2(machine: &MachineModel) -> bool {
    machine.memory.as_ref().is_some_and(|memory| memory.l2.is_some())
}

fn predictions(
    machine: &MachineModel,
    instructions: u64,
    counts: &ServiceMachineCounts,
) -> Option<Predictions> {
    Some(Predictions::new(machine.branch.as_ref()?, &counts.branches?, instructions))
}

/// `service`: the number of the account.
fn row(service: usize, account: &Account, whole: &ShareBases<'_>) -> ServiceRow {
    let totals = &account.totals;
    let of_kernel = in_kernel(account.kind);
    let of = if of_kernel { whole.kernel_instructions } else { whole.instructions };
    let per_call = |amount: u64| amount as f64 / totals.calls.max(1) as f64;
    let mut machines: Vec<ServiceOnMachine> = Vec::new();
    for (at, (whole_machine, machine)) in whole.machines.iter().zip(whole.simulated).enumerate() {
        let counts = totals.machines.get(at).cloned().unwrap_or_default();
        let cycles = cycles(machine, totals.instructions, &counts);
        let sampled = whole.attributed.sampled_on(at);
        let (all_cycles, all_misses) = match of_kernel {
            true => (whole_machine.kernel_cycles, whole_machine.kernel_l1i_misses),
            false => (whole_machine.cycles, whole_machine.l1i_misses),
        };
        let per_instruction = |amount: f64| amount / totals.instructions.max(1) as f64;
        let mean_cycles = cycles / totals.calls.max(1) as f64;
        let stalls = counts.memory.and_then(|counters| machine.stalls(&counters));
        let simple = counts.l1i_misses as f64 * machine.time.miss_penalty();
        let shares = stalls.zip(whole_machine.kernel_stalls).map(
            |(stalls, [for_instructions, for_data])| {
                let all = (for_instructions + for_data).max(1.0);
                [(stalls.l1i + stalls.l2i) / all, (stalls.l1d + stalls.l2d) / all]
            },
        );
        machines.push(ServiceOnMachine {
            cycles,
            share: cycles / all_cycles.max(1.0),
            mean_cycles,
            cpi: per_instruction(cycles),
            l1i_misses: counts.l1i_misses,
            l1i_stall: per_instruction(stalls.map_or(simple, |stalls| stalls.l1i)),
            l1i_stall_share: counts.l1i_misses as f64 / all_misses.max(1) as f64,
            l1d_stall: stalls.map(|stalls| per_instruction(stalls.l1d)),
            l2_stall: stalls
                .filter(|_| has_l2(machine))
                .map(|stalls| per_instruction(stalls.l2i + stalls.l2d)),
            tlb_stall: stalls.map(|stalls| per_instruction(stalls.tlb)),
            tlb_misses: counts.memory.map(|counters| [counters.itlb, counters.dtlb]),
            stall_shares: shares.filter(|_| of_kernel),
            speedup: machines
                .first()
                .map_or(1.0, |first| first.mean_cycles / mean_cycles.max(f64::MIN_POSITIVE)),
            branches: predictions(machine, totals.instructions, &counts),
            core: CoreTime::of_service(machine, counts.slots.as_ref(), sampled, service),
            slots: counts.slots,
        });
    }
    ServiceRow {
        kind: account.kind,
        name: account.name.clone(),
        calls: totals.calls,
        calls_per_second: totals.calls as f64 * PER_SECOND / whole.instructions.max(1) as f64,
        instructions: totals.instructions,
        share: totals.instructions as f64 / of.max(1) as f64,
        mean_instructions: per_call(totals.instructions),
        machines,
        latency: Latency {
            total: per_call(totals.times.latency),
            computing: per_call(totals.instructions),
            other_services: per_call(totals.times.ran.saturating_sub(totals.instructions)),
            off_cpu: per_call(totals.times.blocked + totals.times.waiting),
            blocked: whole.wakes_seen.then(|| per_call(totals.times.blocked)),
            waiting: whole.wakes_seen.then(|| per_call(totals.times.waiting)),
        },
        lengths: totals.lengths.clone(),
    }
}
