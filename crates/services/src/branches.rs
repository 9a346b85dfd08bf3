//! The branch predictors and out-of-order cores of simulated machines while services run, beside
//! their caches. Each CPU has its own predictors and cores. Cores use the fixed data behaviour of
//! their machine for every recording.
//!
//! Takes the executions in their order; gives the counts of each machine since the last call of
//! `take`. The next execution shows what a branch did. The branch counts for the service that
//! executed it, or for the next task when a task switch comes in between.

use crate::annotations::ServiceKind;
use crate::caches::Machines;
use crate::ledger::{Account, ServiceMachineCounts};
use crate::meter::Meter;
use anyhow::{Error, Result};
use execution::branches::{FragmentBranches, PredictorRun};
use execution::code::TranslatedCode;
use execution::core_run::{CoreRun, UopCodes};
use execution::data::DataWish;
use execution::flow::{ExecutionFlow, Fragment, FragmentId};
use execution::moved::{self, MovedFragment};
use execution::per_cpu::PerCpu;
use execution::sampling::SamplePlan;
use execution::sampling::groups::{GroupCounts, SampledGroups};
use execution::sampling::ratios::GroupSlots;
use execution::walk::{Piece, PieceData};
use image::place::Placement;
use sim::{MachineModel, Mode};
use std::collections::VecDeque;
use std::ops::Range;
use trace::{CpuId, RunAddr, Translation};

pub(super) struct BranchMeter {
    machines: Machines,
    /// Where each translation block begins, and its function; no functions if none are asked for.
    starts: Vec<RunAddr>,
    functions: Vec<Option<u32>>,
    /// The code stays where it is.
    placement: Placement,
    branches: FragmentBranches,
    /// The predictors of each machine, by CPU. `None` for a machine that describes no branch
    /// prediction.
    predicting: PerCpu<Vec<Option<PredictorRun>>>,
    /// Predictors that have seen nothing.
    fresh: Vec<Option<PredictorRun>>,
    codes: UopCodes,
    /// The core of each machine; `None` for a machine that describes no core.
    cores: Vec<Option<CoreRun>>,
    /// The fragments that the cores have not learned yet, and the number that they have learned.
    coming: VecDeque<(Fragment, MovedFragment, Mode)>,
    learned: u32,
    /// Why a core could not learn a fragment.
    failure: Option<Error>,
    /// The CPU of the piece, the fragments that ended in it, and, by execution, how many of them
    /// had ended by then.
    cpu: CpuId,
    fragments: Vec<FragmentId>,
    ended: Vec<u32>,
    /// How many executions of the piece came, and how many fragments ran.
    execution: usize,
    ran: usize,
    /// The predictors have seen the current execution.
    already_followed: bool,
    taken: Vec<ServiceMachineCounts>,
}

impl BranchMeter {
    /// `predicts`: whether branch prediction is counted separately. `plan`: where cores are
    /// simulated in detail; `None`: everywhere.
    pub(super) fn new(
        machines: &[MachineModel],
        predicts: bool,
        plan: Option<SamplePlan>,
    ) -> Result<BranchMeter> {
        let core = |machine| CoreRun::new(machine, plan);
        let described = machines.iter().map(|machine| machine.branch.as_ref().filter(|_| predicts));
        let fresh: Vec<_> = described.map(|branch| branch.map(PredictorRun::new)).collect();
        Ok(BranchMeter {
            codes: UopCodes::new(machines.iter())?,
            cores: machines.iter().map(core).collect::<Result<_>>()?,
            machines: Machines::new(machines),
            starts: Vec::new(),
            functions: Vec::new(),
            placement: Placement::default(),
            branches: FragmentBranches::default(),
            predicting: PerCpu::new(fresh.clone()),
            fresh,
            coming: VecDeque::new(),
            learned: 0,
            failure: None,
            cpu: CpuId(0),
            fragments: Vec::new(),
            ended: Vec::new(),
            execution: 0,
            ran: 0,
            already_followed: false,
            taken: Vec::new(),
        })
    }

    /// The next execution comes, so the fragments that end with it have run.
    fn follow(&mut self, translation: u32) {
        if std::mem::replace(&mut self.already_followed, true) {
            return;
        }
        let begin = self.ran;
        self.ran = self.ended.get(self.execution).map_or(begin, |&end| end as usize);
        self.execution += 1;
        self.run_cores(begin..self.ran);
        let ran = &self.fragments[begin..self.ran];
        for predicting in self.predicting.current.iter_mut().flatten() {
            predicting.run(ran, &self.branches);
            predicting.arrives(self.starts[translation as usize]);
        }
    }

    /// Learns the branches of new fragments.
    fn learn(&mut self, flow: &ExecutionFlow) {
        for fragment in &flow.fragments[self.branches.fragments()..] {
            let code = &flow.codes[fragment.translation.0 as usize];
            let moved = moved::run(code, fragment, &self.placement);
            self.branches.push(&moved);
            if self.cores.iter().any(Option::is_some) {
                self.coming.push_back((*fragment, moved, code.mode()));
            }
        }
    }

    /// Runs fragments on the cores. A core learns a fragment when the fragment first runs, which
    /// puts its code into the levels behind the L1I.
    fn run_cores(&mut self, ran: Range<usize>) {
        let last = self.fragments[ran.clone()].iter().max();
        while last.is_some_and(|last| last.0 >= self.learned)
            && let Some((fragment, moved, mode)) = self.coming.pop_front()
        {
            self.learned += 1;
            for core in self.cores.iter_mut().flatten() {
                let learned = core.learn(&fragment, &moved, mode, &self.codes, &mut |_| None);
                if let Some(function) = self.functions.get(fragment.translation.0 as usize) {
                    core.belongs_to(*function);
                }
                self.failure = std::mem::take(&mut self.failure).or(learned.err());
            }
        }
        if self.failure.is_some() {
            return;
        }
        for core in self.cores.iter_mut().flatten() {
            core.run(self.cpu, &self.fragments[ran.clone()], &self.codes, None);
        }
    }
}

impl Meter for BranchMeter {
    const NEEDS_CONTROL: bool = true;

    fn wish(&self) -> Option<DataWish> {
        Some(self.machines.wish())
    }

    fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> Result<()> {
        self.starts.push(code.addr);
        self.codes.define(std::slice::from_ref(translation));
        self.machines.define(translation, code)
    }

    fn belongs_to(&mut self, function: Option<u32>) {
        self.functions.push(function);
    }

    fn function_slots(&self, instructions: &[u64]) -> Option<Vec<GroupSlots>> {
        Some(self.cores.first()?.as_ref()?.function_slots(instructions))
    }

    fn machines(&mut self) -> Option<&mut Machines> {
        Some(&mut self.machines)
    }

    fn piece(&mut self, piece: &Piece<'_>, data: Option<&PieceData<'_>>) -> Result<()> {
        if let Some(control) = &piece.control {
            self.learn(control.flow);
            self.cpu = piece.cpu;
            self.fragments.clear();
            self.fragments.extend_from_slice(control.fragments);
            self.ended.clear();
            self.ended.extend_from_slice(control.ended);
            (self.execution, self.ran) = (0, 0);
            if piece.is_tail {
                self.run_cores(0..self.fragments.len());
            }
        }
        match data {
            Some(data) => self.machines.accesses(piece.codes, data),
            None => Ok(()),
        }
    }

    fn failure(&mut self) -> Result<()> {
        self.failure.take().map_or(Ok(()), Err)
    }

    fn comes(&mut self, translation: u32, _: Option<u32>) {
        self.follow(translation);
    }

    fn executed(&mut self, translation: u32) {
        self.follow(translation);
        self.already_followed = false;
        self.machines.executed(translation);
    }

    fn left(&mut self, translation: u32, instructions: u32) {
        self.follow(translation);
        self.already_followed = false;
        self.machines.left(translation, instructions);
    }

    fn turned_to(&mut self, cpu: CpuId, _task: usize) {
        self.machines.turn_to(cpu);
        self.predicting.turn_to(cpu, || self.fresh.clone());
    }

    fn finish(&mut self) {
        self.cores.iter_mut().flatten().for_each(CoreRun::finish);
    }

    fn take(&mut self) -> &[ServiceMachineCounts] {
        let predicting = &mut self.predicting.current;
        let counted = self.machines.take().iter().zip(predicting).zip(&mut self.cores);
        let with_branches = counted.map(|((counts, predicting), core)| {
            let taken = core.as_mut().map(CoreRun::take);
            ServiceMachineCounts {
                slots: taken.as_ref().map(|taken| taken.slots),
                samples: taken.unwrap_or_default(),
                branches: predicting.as_mut().map(|predicting| {
                    let modes = std::mem::take(&mut predicting.counters);
                    let mut sum = modes.kernel;
                    sum += modes.user;
                    sum
                }),
                ..counts.clone()
            }
        });
        self.taken.clear();
        self.taken.extend(with_branches);
        &self.taken
    }

    fn estimate(&mut self, accounts: &mut [Account]) -> Vec<Option<SampledGroups>> {
        let cores = self.cores.iter().enumerate();
        let of_machine = |(at, core): (usize, &Option<CoreRun>)| {
            let groups: Vec<(Mode, GroupCounts)> = accounts
                .iter_mut()
                .map(|account| {
                    let mode = match account.kind {
                        ServiceKind::User => Mode::User,
                        _ => Mode::Kernel,
                    };
                    let counts = account.totals.machines.get_mut(at);
                    (mode, counts.map(|it| std::mem::take(&mut it.samples)).unwrap_or_default())
                })
                .collect();
            let (sampled, estimates) = core.as_ref()?.estimates(&groups)?;
            for (account, estimate) in accounts.iter_mut().zip(estimates) {
                if let Some(counts) = account.totals.machines.get_mut(at) {
                    counts.slots = Some(estimate);
                }
            }
            Some(sampled)
        };
        cores.map(of_machine).collect()
    }
}
