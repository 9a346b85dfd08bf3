//! The service table: SimOS' table 4.8 (Rosenblum 1995, section 4.5) from the books of a recording.
//!
//! Takes what was attributed; gives rows, the largest share of kernel time first. Prints nothing.

use crate::services::annotations::Kind;
use crate::services::automaton::Attributed;
use crate::services::binding::Blind;
use crate::services::ledger::{Account, Distribution, MachineCounts};
use execution::branches::Predictions;
use serde::{Deserialize, Serialize};
use sim::{MachineCounters, MachineModel};
use std::collections::BTreeMap;

/// Instructions of the guest in a second of its clock while it is not idle: recordings are made
/// with `-icount shift=0`, an instruction a nanosecond.
const PER_SECOND: f64 = 1e9;

/// Where a recording's time goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServiceTable {
    pub workload: String,
    /// Build id.
    pub kernel: String,
    pub seed: u64,
    pub instructions: u64,
    pub user_instructions: u64,
    pub idle_instructions: u64,
    /// Nanoseconds of the guest's clock in which the processor was halted; `None`: the recording
    /// has no clock, and they are in no latency.
    pub halted: Option<u64>,
    /// All but user mode and idle.
    pub kernel_instructions: u64,
    /// Part of the kernel's instructions in code that no annotation gives a service.
    pub other_share: f64,
    pub context_switches: u64,
    /// Interrupts that began, those between processors, too.
    pub interrupts: u64,
    /// What the annotations count besides: forks and the like.
    pub counters: BTreeMap<String, u64>,
    /// How often each kind of service began.
    pub begun: BTreeMap<Kind, u64>,
    /// Instructions from one interrupt to the next.
    pub between_interrupts: Distribution,
    /// What the annotations cannot see in this kernel.
    pub blind: Vec<Blind>,
    /// The machines that were simulated.
    pub machines: Vec<MachineTotals>,
    pub rows: Vec<ServiceRow>,
}

/// A service. Times are in nanoseconds of the guest's clock, of which an instruction takes one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServiceRow {
    pub kind: Kind,
    pub name: String,
    pub calls: u64,
    pub calls_per_second: f64,
    pub instructions: u64,
    /// Of the kernel's instructions; of all for user mode and idle.
    pub share: f64,
    /// Per call, its own.
    pub mean_instructions: f64,
    /// One for each machine.
    pub on: Vec<OnMachine>,
    pub latency: Latency,
    /// Of the instructions that its task ran per call.
    pub lengths: Distribution,
}

/// What a machine counted over the whole recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineTotals {
    pub name: String,
    /// It describes a second-level cache.
    pub has_l2: bool,
    pub cycles: f64,
    pub kernel_cycles: f64,
    pub l1i_misses: u64,
    pub kernel_l1i_misses: u64,
    /// Cycles in which the kernel stands still for the memory: for instructions, for data. `None`:
    /// the recording has no data accesses, or the machine describes no data cache.
    pub kernel_stalls: Option<[f64; 2]>,
    /// Of the whole recording, and of the kernel; `None`: not asked for, or the machine describes
    /// no branch prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branches: Option<[Predictions; 2]>,
}

/// A service on a machine. With data accesses by SimOS' 1994 model (Rosenblum 1995, section 3.2):
/// the machine waits for every miss. Without by Torrellas' simple model (1998, section 5.2): every
/// miss of the L1I stops it; data stalls are the same share of all instructions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OnMachine {
    pub cycles: f64,
    /// Of the kernel's cycles; of all for user mode and idle.
    pub share: f64,
    pub mean_cycles: f64,
    /// Cycles per instruction.
    pub cpi: f64,
    pub l1i_misses: u64,
    /// Cycles per instruction for which the L1I stops the machine: what the L2 had; all, of a
    /// machine without one.
    pub l1i_stall: f64,
    /// Of the kernel's cycles in which the L1I stops the machine; of all for user mode and idle.
    pub l1i_stall_share: f64,
    /// Cycles per instruction for which data stop the machine that the L2 had, and what the L2 had
    /// not, instructions and data. Of a machine without an L2 the first has all that the L1D had
    /// not, and there is no second.
    pub l1d_stall: Option<f64>,
    pub l2_stall: Option<f64>,
    /// Cycles per instruction in which the TLBs translate an address that they lacked, and such
    /// addresses: of instructions, of data.
    pub tlb_stall: Option<f64>,
    pub tlb_misses: Option<[u64; 2]>,
    /// Of all cycles in which the kernel stands still for the memory: for instructions, for data.
    pub stall_shares: Option<[f64; 2]>,
    /// Mean cycles on the first machine over mean cycles on this.
    pub speedup: f64,
    /// As in [`MachineTotals`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branches: Option<Predictions>,
}

/// Mean times per call, from its begin to its end, in nanoseconds of the guest's clock: an
/// instruction takes one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub total: f64,
    /// Its own.
    pub computing: f64,
    /// Its task ran other services: interrupts, faults, context switches.
    pub other_services: f64,
    /// Its task did not run: it waited for something, or for the processor.
    pub off_cpu: f64,
    /// The two parts of that; `None` where the recording does not say when a task became able to
    /// run.
    pub blocked: Option<f64>,
    pub waiting: Option<f64>,
}

impl ServiceTable {
    /// `header`: of the recording; `simulated`: the machines on which it was attributed.
    pub fn new(
        header: &trace::RecordingHeader,
        attributed: &Attributed,
        blind: Vec<Blind>,
        simulated: &[MachineModel],
    ) -> ServiceTable {
        let sum = |wanted: &dyn Fn(Kind) -> bool| -> u64 {
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
        let whole = Whole {
            instructions: attributed.instructions,
            kernel_instructions,
            wakes_seen: attributed.wakes_seen,
            machines: &machines,
            simulated,
        };
        let mut rows: Vec<ServiceRow> = attributed
            .ledger
            .accounts
            .iter()
            .filter(|account| account.totals.calls > 0)
            .map(|account| row(account, &whole))
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
            instructions: attributed.instructions,
            user_instructions: sum(&|kind| kind == Kind::User),
            idle_instructions: sum(&|kind| kind == Kind::Idle),
            halted: attributed.halted,
            kernel_instructions,
            other_share: sum(&|kind| kind == Kind::Other) as f64
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

/// Whether a service is the kernel's work.
pub fn in_kernel(kind: Kind) -> bool {
    !matches!(kind, Kind::User | Kind::Idle)
}

/// What shares are of.
struct Whole<'a> {
    instructions: u64,
    kernel_instructions: u64,
    wakes_seen: bool,
    machines: &'a [MachineTotals],
    simulated: &'a [MachineModel],
}

fn machine_totals(attributed: &Attributed, at: usize, machine: &MachineModel) -> MachineTotals {
    let sum = |wanted: &dyn Fn(Kind) -> bool| {
        let accounts = attributed.ledger.accounts.iter().filter(|account| wanted(account.kind));
        accounts.fold((0, MachineCounts::default()), |(instructions, mut counts), account| {
            counts += account.totals.machines.get(at).copied().unwrap_or_default();
            (instructions + account.totals.instructions, counts)
        })
    };
    let ((instructions, counts), (of_kernel, kernel)) = (sum(&|_| true), sum(&in_kernel));
    let stalls = kernel.memory.and_then(|counters| machine.stalls(&counters));
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
    }
}

/// Cycles of a machine: by its memory where that was simulated, else by the simple model.
pub fn cycles(machine: &MachineModel, instructions: u64, counts: &MachineCounts) -> f64 {
    let by_memory = counts.memory.and_then(|counters: MachineCounters| machine.cycles(&counters));
    by_memory.unwrap_or_else(|| machine.time.cycles(instructions, counts.l1i_misses))
}

fn has_l2(machine: &MachineModel) -> bool {
    machine.memory.as_ref().is_some_and(|memory| memory.l2.is_some())
}

fn predictions(
    machine: &MachineModel,
    instructions: u64,
    counts: &MachineCounts,
) -> Option<Predictions> {
    Some(Predictions::new(machine.branch.as_ref()?, &counts.branches?, instructions))
}

fn row(account: &Account, whole: &Whole<'_>) -> ServiceRow {
    let totals = &account.totals;
    let of_kernel = in_kernel(account.kind);
    let of = if of_kernel { whole.kernel_instructions } else { whole.instructions };
    let per_call = |amount: u64| amount as f64 / totals.calls.max(1) as f64;
    let mut on: Vec<OnMachine> = Vec::new();
    for (at, (whole_machine, machine)) in whole.machines.iter().zip(whole.simulated).enumerate() {
        let counts = totals.machines.get(at).copied().unwrap_or_default();
        let cycles = cycles(machine, totals.instructions, &counts);
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
        on.push(OnMachine {
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
            speedup: on
                .first()
                .map_or(1.0, |first| first.mean_cycles / mean_cycles.max(f64::MIN_POSITIVE)),
            branches: predictions(machine, totals.instructions, &counts),
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
        on,
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
