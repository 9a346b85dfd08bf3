//! Runs a recording on application cores and a core for the operating system, under one policy.
//!
//! Each CPU of the recording is an application core. The stays in the kernel that the policy moves
//! run on the operating system's core, while the application core waits. The operating system's
//! core runs one stay after the other. Caches and predictors see the executions in the order of the
//! recording. Each CPU has its own time: an instruction takes a cycle, misses and wrong predictions
//! stop the core. A CPU that was idle continues no earlier than at the time of the CPU that had the
//! turn before.
//!
//! Input: a recording, its stays, a machine and a policy. Output: time, counters, moves. This
//! module does not decide what moves.

use super::calendar::Calendar;
use super::policy::{BoundPolicy, OsCorePolicy};
use anyhow::{Context, Result, ensure};
use execution::branches::{FragmentBranches, PredictorRun};
use execution::coherent_step;
use execution::executions::{EachExecution, Executed, ExecutionVisitor};
use execution::flow::FragmentId;
use execution::moved;
use execution::walk::PieceControl;
use image::place::Placement;
use services::annotations::ServiceKind;
use services::stays::Stays;
use sim::coherent::{
    CoherenceDescription, CoherentCaches, CoreCounters, CoreId, OsCoreDescription,
};
use sim::{BranchCounters, BranchPrediction, MachineModel, MemoryDescription, PerMode};
use std::ops::AddAssign;
use trace::{Accesses, CpuCount, Translation};

/// After this number of moves to the operating system's core, the calendar forgets the past.
const FORGET_EVERY: u64 = 4096;

/// A machine with a core for the operating system, and empty caches.
pub(crate) struct OsCoreMachine<'a> {
    machine: &'a MachineModel,
    memory: &'a MemoryDescription,
    coherence: CoherenceDescription,
    os_core: OsCoreDescription,
    caches: CoherentCaches,
    /// By CPU of the recording.
    application: Vec<CoreId>,
    os: CoreId,
}

/// What cores did, by mode.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CoreWork {
    pub counters: PerMode<CoreCounters>,
    pub branches: PerMode<BranchCounters>,
}

/// What one policy did.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PolicyRun {
    pub policy: OsCorePolicy,
    /// Cycles until the last CPU ended.
    pub cycles: u64,
    /// Cycles in which application cores executed.
    pub busy: f64,
    /// Cycles in which CPUs waited until the operating system's core was free.
    pub waiting: u64,
    /// Moves to the operating system's core, each with a move back.
    pub moves: u64,
    /// Stays in the kernel on the operating system's core.
    pub stays: u64,
    /// What all application cores did.
    pub application: CoreWork,
    /// What the operating system's core did.
    pub os: CoreWork,
}

impl AddAssign for CoreWork {
    fn add_assign(&mut self, other: CoreWork) {
        self.counters += other.counters;
        self.branches += other.branches;
    }
}

impl PolicyRun {
    fn new(policy: &OsCorePolicy) -> PolicyRun {
        let (application, os) = (CoreWork::default(), CoreWork::default());
        let policy = policy.clone();
        PolicyRun { policy, cycles: 0, busy: 0.0, waiting: 0, moves: 0, stays: 0, application, os }
    }
}

impl CoreWork {
    /// The counters of kernel mode and user mode together.
    pub(super) fn of_both_modes(&self) -> CoreCounters {
        let mut sum = self.counters.kernel;
        sum += self.counters.user;
        sum
    }
}

impl OsCoreMachine<'_> {
    /// # Errors
    /// The machine has no core for the operating system, or fewer application cores than the
    /// recording has CPUs. `move_cycles`, which replaces the number in the machine's file, is not
    /// possible.
    pub(super) fn new(
        machine: &MachineModel,
        cpus: CpuCount,
        move_cycles: Option<f64>,
    ) -> Result<OsCoreMachine<'_>> {
        let caches = CoherentCaches::new(machine);
        let parts = (caches, &machine.memory, machine.coherence, machine.os_core);
        let (Some(caches), Some(memory), Some(coherence), Some(os_core)) = parts else {
            anyhow::bail!(
                "the machine {} has no core for the operating system: take one with [os_core], \
                 such as os-core-8 or os-core-small",
                machine.name
            );
        };
        let application: Vec<CoreId> = caches.cores().take(cpus.get().into()).collect();
        ensure!(
            application.len() == usize::from(cpus.get()),
            "{} has {} application cores, and the recording has {cpus} CPUs: choose another \
             machine",
            machine.name,
            caches.cores().count()
        );
        let os = caches.os_core().context("the machine has a core for the operating system")?;
        let os_core = move_cycles.map_or(Ok(os_core), |cycles| os_core.moving_in(cycles))?;
        Ok(OsCoreMachine { machine, memory, coherence, os_core, caches, application, os })
    }

    /// The core for the operating system.
    pub(super) fn os_core(&self) -> &OsCoreDescription {
        &self.os_core
    }

    /// The machine's name.
    pub(super) fn name(&self) -> &str {
        &self.machine.name
    }

    /// The number of CPUs.
    pub(super) fn cpus(&self) -> usize {
        self.application.len()
    }

    /// Runs a recording on empty caches, as an observer of it. `stays`: those of the same
    /// recording.
    pub(super) fn running<'s>(
        &'s self,
        stays: &'s Stays,
        policy: &'s BoundPolicy,
    ) -> EachExecution<'s, PolicyWalk<'s>> {
        let cores = self.application.iter().chain([&self.os]);
        let core = |&id| SimulatedCore {
            id,
            predictor: self.machine.branch.as_ref().map(PredictorRun::new),
            branch_stall: 0.0,
        };
        let walk = PolicyWalk {
            machine: self,
            caches: self.caches.clone(),
            cores: cores.map(core).collect(),
            stays,
            policy,
            branches: BranchWalk::default(),
            cpus: (0..self.cpus()).map(CpuRun::new).collect(),
            executes: 0,
            before: None,
            calendar: Calendar::default(),
            done: PolicyRun::new(policy.policy()),
        };
        EachExecution::new(std::slice::from_ref(self.machine), walk)
    }
}

/// A core while a recording runs.
struct SimulatedCore {
    id: CoreId,
    predictor: Option<PredictorRun>,
    /// The cycles of wrong predictions so far.
    branch_stall: f64,
}

/// A CPU of the recording.
#[derive(Clone, Debug, Default)]
struct CpuRun {
    executions: u64,
    /// The number of the stay that it is in, or of the next one.
    stay: usize,
    in_stay: bool,
    is_moved: bool,
    /// Cycles on its own core, and cycles on the operating system's core since the last move.
    own: f64,
    moved: f64,
    /// Cycles in which its own core did not execute.
    waited: u64,
    /// The core of its last execution. The next execution shows where the branches of the last one
    /// went.
    last_core: usize,
}

impl CpuRun {
    fn new(cpu: usize) -> CpuRun {
        CpuRun { last_core: cpu, ..CpuRun::default() }
    }

    /// The cycles since the recording began.
    fn clock(&self) -> u64 {
        self.own.round() as u64 + self.waited
    }
}

/// The branches of the executions of a piece, in order.
#[derive(Default)]
struct BranchWalk {
    /// The code stays where it is.
    placement: Placement,
    branches: FragmentBranches,
    /// The fragments that ended in the piece and, by execution, how many of them had ended by then.
    fragments: Vec<FragmentId>,
    ended: Vec<u32>,
    /// The number of executions that came.
    execution: usize,
}

impl BranchWalk {
    fn learn(&mut self, control: &PieceControl<'_>) {
        for fragment in &control.flow.fragments[self.branches.fragments()..] {
            let code = &control.flow.codes[fragment.translation.0 as usize];
            self.branches.push(&moved::run(code, fragment, &self.placement));
        }
        self.fragments.clear();
        self.fragments.extend_from_slice(control.fragments);
        self.ended.clear();
        self.ended.extend_from_slice(control.ended);
        self.execution = 0;
    }

    /// Runs the fragments that the next execution shows to have run.
    fn run(&mut self, predictor: &mut PredictorRun) {
        let ended = |execution: usize| self.ended.get(execution).map_or(0, |&end| end as usize);
        let begin = self.execution.checked_sub(1).map_or(0, ended);
        let end = ended(self.execution);
        self.execution += 1;
        predictor.run(&self.fragments[begin..end.max(begin)], &self.branches);
    }
}

/// A recording while it runs under a policy.
pub(crate) struct PolicyWalk<'a> {
    machine: &'a OsCoreMachine<'a>,
    caches: CoherentCaches,
    /// The application cores by CPU, then the operating system's.
    cores: Vec<SimulatedCore>,
    stays: &'a Stays,
    policy: &'a BoundPolicy,
    branches: BranchWalk,
    cpus: Vec<CpuRun>,
    /// The CPU that executes, and the one that had the turn before.
    executes: usize,
    before: Option<usize>,
    calendar: Calendar,
    done: PolicyRun,
}

impl ExecutionVisitor for PolicyWalk<'_> {
    const NEEDS_CONTROL: bool = true;

    fn define(&mut self, _: &Translation) {}

    fn control(&mut self, control: &PieceControl<'_>) {
        self.branches.learn(control);
    }

    fn stream(&mut self, _: &Accesses) {}

    fn executed(&mut self, executed: &Executed<'_>) {
        let cpu = usize::from(executed.execution.cpu.0);
        if cpu != self.executes {
            self.before = Some(std::mem::replace(&mut self.executes, cpu));
        }
        self.change_stay(cpu);
        let os = self.cores.len() - 1;
        let core = if self.cpus[cpu].is_moved { os } else { cpu };
        let cycles = self.predict(cpu, core, executed) + self.access(core, executed);
        let run = &mut self.cpus[cpu];
        run.executions += 1;
        *if run.is_moved { &mut run.moved } else { &mut run.own } += cycles;
    }
}

impl PolicyWalk<'_> {
    /// Ends the CPU's stay if it is over, and begins the next one.
    #[inline]
    fn change_stay(&mut self, cpu: usize) {
        let stays = self.stays;
        let Some(stays) = stays.cpus.get(cpu) else { return };
        while let Some(stay) = stays.get(self.cpus[cpu].stay) {
            let run = &mut self.cpus[cpu];
            if !run.in_stay {
                if run.executions == stay.begin {
                    run.in_stay = true;
                    let moves = self.policy.moves(stay);
                    self.done.stays += u64::from(moves);
                    self.done.moves += u64::from(moves && !run.is_moved);
                    run.is_moved = moves;
                }
                return;
            }
            if run.executions < stay.end {
                return;
            }
            run.in_stay = false;
            run.stay += 1;
            let next = stays.get(run.stay).filter(|next| next.begin == stay.end);
            if run.is_moved && !next.is_some_and(|next| self.policy.moves(next)) {
                self.move_back(cpu);
            }
            let service = stay.service.and_then(|id| self.stays.services.get(id.0 as usize));
            if service.is_some_and(|(kind, _)| *kind == ServiceKind::Idle) {
                self.was_idle(cpu);
            }
        }
    }

    /// A CPU leaves the operating system's core, so its time there is known.
    fn move_back(&mut self, cpu: usize) {
        let moving = self.machine.os_core.move_cycles().round() as u64;
        let run = &mut self.cpus[cpu];
        let (asked, cycles) = (run.clock() + moving, run.moved.round() as u64);
        let begin = self.calendar.take(asked, cycles);
        self.done.waiting += begin - asked;
        run.waited += begin - asked + cycles + 2 * moving;
        run.moved = 0.0;
        run.is_moved = false;
        if self.done.moves.is_multiple_of(FORGET_EVERY) {
            let earliest = self.cpus.iter().map(CpuRun::clock).min();
            self.calendar.forget_before(earliest.unwrap_or(0));
        }
    }

    /// A CPU was idle until another CPU or an interrupt woke it.
    fn was_idle(&mut self, cpu: usize) {
        let Some(before) = self.before else { return };
        let now = self.cpus[before].clock();
        let run = &mut self.cpus[cpu];
        run.waited += now.saturating_sub(run.clock());
    }

    /// Predicts the branches of the CPU's last execution. Returns the cycles of wrong predictions.
    fn predict(&mut self, cpu: usize, core: usize, executed: &Executed<'_>) -> f64 {
        let Some(prediction) = &self.machine.machine.branch else { return 0.0 };
        let last = std::mem::replace(&mut self.cpus[cpu].last_core, core);
        let SimulatedCore { predictor, branch_stall, .. } = &mut self.cores[last];
        let Some(predictor) = predictor else { return 0.0 };
        self.branches.run(predictor);
        predictor.arrives(executed.code.addr);
        let stall = stall_of(prediction, &predictor.counters);
        stall - std::mem::replace(branch_stall, stall)
    }

    /// Fetches the code and makes the accesses. Returns the cycles.
    fn access(&mut self, core: usize, executed: &Executed<'_>) -> f64 {
        let OsCoreMachine { memory, coherence, .. } = self.machine;
        let mut cycles = executed.instructions() as f64;
        coherent_step::run(&mut self.caches, self.cores[core].id, executed, |_, by| {
            cycles += by.cycles(memory, coherence);
        });
        cycles
    }

    /// What the policy did.
    pub(crate) fn finish(mut self) -> PolicyRun {
        for cpu in 0..self.cpus.len() {
            if self.cpus[cpu].is_moved {
                self.move_back(cpu);
            }
        }
        let work = |core: &SimulatedCore| CoreWork {
            counters: self.caches.counters(core.id),
            branches: core.predictor.as_ref().map(|run| run.counters).unwrap_or_default(),
        };
        let mut done = self.done;
        done.busy = self.cpus.iter().map(|cpu| cpu.own).sum();
        done.cycles = self.cpus.iter().map(CpuRun::clock).max().unwrap_or(0);
        if let Some((os, application)) = self.cores.split_last() {
            application.iter().for_each(|core| done.application += work(core));
            done.os = work(os);
        }
        done
    }
}

fn stall_of(prediction: &BranchPrediction, counters: &PerMode<BranchCounters>) -> f64 {
    let of_mode = |counters| prediction.stall(counters).unwrap_or(0.0);
    of_mode(&counters.kernel) + of_mode(&counters.user)
}
