//! The effects of a core for the operating system, as rows for reports.
//!
//! Input: what each policy did. Output: time, misses and energy by policy, compared with the policy
//! that moves nothing. Prints nothing.

use super::cores::{CoreWork, OsCoreMachine, PolicyRun};
use serde::Serialize;
use sim::coherent::CoreCounters;
use sim::{BranchCounters, PerMode};
use trace::RecordingHeader;

/// A recording on a machine with a core for the operating system, under several policies.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OsCoreTable {
    /// The recorded workload.
    pub workload: String,
    /// The build id of the recorded kernel.
    pub kernel_build_id: String,
    /// The seed of the recording.
    pub seed: u64,
    /// The number of CPUs, which are the application cores.
    pub cpus: usize,
    /// The simulated machine.
    pub machine: String,
    /// Cycles of a move to the operating system's core. A move back takes as many.
    pub move_cycles: f64,
    /// All instructions.
    pub instructions: PerMode<u64>,
    /// The policies. The first moves nothing.
    pub policies: Vec<PolicyRow>,
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyRow {
    /// The policy, as it is typed.
    pub policy: String,
    /// The number of instructions that a stay must exceed to move, when the policy asks for nothing
    /// else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<u64>,
    /// Stays in the kernel that ran on the operating system's core.
    pub stays: u64,
    /// Moves to the operating system's core, each with a move back.
    pub moves: u64,
    /// The part of the kernel's instructions that ran there.
    pub moved_share: f64,
    /// Cycles until the last CPU ended.
    pub cycles: u64,
    /// The change of `cycles` against the policy that moves nothing: −0.1 is a tenth less.
    pub cycles_change: f64,
    /// Cycles in which application cores executed, of all CPUs.
    pub busy_cycles: f64,
    /// Cycles in which CPUs waited until the operating system's core was free.
    pub waiting_cycles: u64,
    /// What all application cores did.
    pub application: WorkRow,
    /// What the operating system's core did.
    pub os_core: WorkRow,
    /// Energy in microjoules.
    pub energy: EnergyRow,
    /// The change of the energy against the policy that moves nothing.
    pub energy_change: f64,
    /// The change of energy × cycles against the policy that moves nothing.
    pub energy_delay_change: f64,
}

/// What cores did, by mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct WorkRow {
    /// Instructions.
    pub instructions: PerMode<u64>,
    /// Misses of the L1I.
    pub l1i_misses: PerMode<u64>,
    /// Misses of the L1D.
    pub l1d_misses: PerMode<u64>,
    /// Misses of the L2, on instructions and data.
    pub l2_misses: PerMode<u64>,
    /// The L2 misses of lines that another core's write took.
    pub coherence_misses: PerMode<u64>,
    /// Stores to a line that the core had but could only read.
    pub upgrades: PerMode<u64>,
    /// Branches with a wrong prediction; 0 when the machine predicts none.
    pub mispredictions: PerMode<u64>,
}

/// Energy in microjoules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EnergyRow {
    /// Of instructions and accesses.
    pub dynamic: f64,
    /// Of all cores in use, executing or waiting.
    pub r#static: f64,
}

impl EnergyRow {
    /// All energy.
    pub(crate) fn total(&self) -> f64 {
        self.dynamic + self.r#static
    }
}

impl WorkRow {
    fn new(work: &CoreWork) -> WorkRow {
        let of = |count: fn(&CoreCounters) -> u64| PerMode {
            kernel: count(&work.counters.kernel),
            user: count(&work.counters.user),
        };
        let coherence = |counters: &CoreCounters| {
            counters.l2_instructions.coherence() + counters.l2_data.coherence()
        };
        let wrong = BranchCounters::mispredictions;
        WorkRow {
            instructions: of(|counters| counters.instructions),
            l1i_misses: of(|counters| counters.l1i),
            l1d_misses: of(|counters| counters.l1d),
            l2_misses: of(|counters| counters.supplied.total()),
            coherence_misses: of(coherence),
            upgrades: of(|counters| counters.upgrades),
            mispredictions: PerMode {
                kernel: wrong(&work.branches.kernel),
                user: wrong(&work.branches.user),
            },
        }
    }
}

/// The run in which nothing moved. All other runs are compared with it.
struct RunBefore {
    instructions: PerMode<u64>,
    cycles: f64,
    energy: f64,
    /// The static power of an application core, in picojoules a cycle.
    static_power: f64,
}

impl RunBefore {
    /// The busy cycles and the energy of the run give the static power of an application core.
    fn new(machine: &OsCoreMachine<'_>, nothing: &PolicyRun) -> RunBefore {
        let energy = machine.os_core().energy();
        let of_busy = energy.static_of_busy(energy.dynamic(&nothing.application.of_both_modes()));
        let mut before = RunBefore {
            instructions: WorkRow::new(&nothing.application).instructions,
            cycles: nothing.cycles as f64,
            energy: 0.0,
            static_power: of_busy / nothing.busy.max(1.0),
        };
        before.energy = before.energy_of(machine, nothing).total();
        before
    }

    fn energy_of(&self, machine: &OsCoreMachine<'_>, run: &PolicyRun) -> EnergyRow {
        let os_core = machine.os_core();
        let dynamic =
            [&run.application, &run.os].map(|work| os_core.energy().dynamic(&work.of_both_modes()));
        let of_os = if run.moves > 0 { os_core.static_power() } else { 0.0 };
        let power = self.static_power * (machine.cpus() as f64 + of_os);
        EnergyRow {
            dynamic: dynamic.iter().sum::<f64>() / 1e6,
            r#static: power * run.cycles as f64 / 1e6,
        }
    }

    fn row(&self, machine: &OsCoreMachine<'_>, run: &PolicyRun) -> PolicyRow {
        let (application, os_core) = (WorkRow::new(&run.application), WorkRow::new(&run.os));
        let energy = self.energy_of(machine, run);
        let cycles = run.cycles as f64;
        PolicyRow {
            policy: run.policy.to_string(),
            threshold: run.policy.threshold(),
            stays: run.stays,
            moves: run.moves,
            moved_share: os_core.instructions.kernel as f64
                / self.instructions.kernel.max(1) as f64,
            cycles: run.cycles,
            cycles_change: change(cycles, self.cycles),
            busy_cycles: run.busy,
            waiting_cycles: run.waiting,
            application,
            os_core,
            energy,
            energy_change: change(energy.total(), self.energy),
            energy_delay_change: change(energy.total() * cycles, self.energy * self.cycles),
        }
    }
}

/// The change from an earlier value: −0.1 is a tenth less.
fn change(now: f64, before: f64) -> f64 {
    if before == 0.0 { 0.0 } else { now / before - 1.0 }
}

impl OsCoreTable {
    /// `runs`: one for each policy. The first moves nothing.
    pub(super) fn new(
        header: &RecordingHeader,
        machine: &OsCoreMachine<'_>,
        runs: &[PolicyRun],
    ) -> OsCoreTable {
        let mut table = OsCoreTable {
            workload: header.workload.clone(),
            kernel_build_id: header.build_id.clone(),
            seed: header.seed,
            cpus: machine.cpus(),
            machine: machine.name().to_owned(),
            move_cycles: machine.os_core().move_cycles(),
            instructions: PerMode::default(),
            policies: Vec::new(),
        };
        if let Some(nothing) = runs.first() {
            let before = RunBefore::new(machine, nothing);
            table.instructions = before.instructions;
            table.policies = runs.iter().map(|run| before.row(machine, run)).collect();
        }
        table
    }

    /// The policy with the smallest value; the first of equals.
    pub fn best(&self, value: impl Fn(&PolicyRow) -> f64) -> Option<&PolicyRow> {
        self.policies.iter().min_by(|one, other| value(one).total_cmp(&value(other)))
    }
}
