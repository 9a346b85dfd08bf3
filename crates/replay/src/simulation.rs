//! Simulates one layout on all machines: fragments become fetches, and fetches become hits and
//! misses.
//!
//! The fetches of a fragment are computed once for each layout and each size of line or page. The
//! simulation then walks through these lists.
//!
//! Input: fragments, and for data caches the accesses. Output: counters for each machine.

use crate::ReplayTrial;
use crate::amounts::FragmentAmounts;
use crate::application::Spaces;
use crate::slices::{CountedSoFar, MachineSlices, SliceCounts, SliceStay};
use anyhow::{Context, Result};
use execution::branches::{FragmentBranches, PredictorRun};
use execution::code::TranslatedCode;
use execution::coherent_run::{CoherenceCounts, CoherentRun, StepFetches};
use execution::core_run::{CoreCounts, CoreRun, UopCodes};
use execution::cpu_order::{Stretch, Window};
use execution::data::{DataAccess, DataFlow, Execution};
use execution::fetched::FetchedUnits;
use execution::flow::{ExecutionFlow, FragmentExit, FragmentId};
use execution::hierarchy_run::{HierarchyRun, MissedUnit, RunStep};
use execution::moved;
use execution::numbering::FetchUnit;
use execution::per_cpu::PerCpu;
use execution::walk::{PairedAccesses, PieceData};
use image::place::Placement;
use rayon::prelude::*;
use sim::{
    BranchCounters, InstructionCache, MachineCounters, MachineModel, Mode, PerMode, Requester,
    TakenBranches, Tlb,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use trace::{CpuCount, CpuId, RunAddr, Translation, TranslationId};

/// What to simulate of each machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulationScope {
    /// Caches and TLBs.
    Caches,
    /// Caches, TLBs and, where the machine describes it, branch prediction.
    CachesAndBranches,
}

/// What a CPU has for itself.
struct CpuCaches {
    l1i: InstructionCache,
    itlb: Option<Tlb>,
    predicting: Option<PredictorRun>,
}

impl CpuCaches {
    fn new(machine: &MachineModel, scope: SimulationScope) -> CpuCaches {
        CpuCaches {
            l1i: InstructionCache::new(machine.l1i),
            itlb: machine.itlb.map(|itlb| Tlb::new(itlb.geometry())),
            predicting: match scope {
                SimulationScope::Caches => None,
                SimulationScope::CachesAndBranches => {
                    machine.branch.as_ref().map(PredictorRun::new)
                }
            },
        }
    }
}

/// The caches and predictors of one machine during a replay.
struct MachineSimulation<'a> {
    machine: &'a MachineModel,
    scope: SimulationScope,
    cpus: PerCpu<CpuCaches>,
    /// Replaces the caches of the one core when the recording has data accesses and the machine has
    /// data caches.
    hierarchy: Option<HierarchyRun>,
    /// Misses of the L1D and of the L2, by the instruction that missed.
    data_misses: HashMap<(TranslationId, u16), DataMissCounts>,
    /// Index into `Simulation::fetched`.
    lines: usize,
    pages: Option<usize>,
    /// The number of misses of each entry of `FetchedUnits::lines`.
    misses: Vec<u64>,
    /// The caches of all cores, when the machine has several and the recording several CPUs.
    coherent: Option<CoherentRun>,
    /// The out-of-order cores, if the machine describes one.
    core: Option<CoreRun>,
    /// `None`: slices are not counted.
    slices: Option<MachineSlices>,
}

/// Data misses of one instruction or function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataMissCounts {
    pub l1d: u64,
    pub l2: u64,
}

impl MachineSimulation<'_> {
    fn cpu(&mut self, cpu: CpuId) -> &mut CpuCaches {
        self.cpus.turn_to(cpu, || CpuCaches::new(self.machine, self.scope));
        &mut self.cpus.current
    }

    /// The coherent caches of several cores, and what a fragment fetches there.
    fn coherent<'f>(
        &mut self,
        fetched: &'f [FetchedUnits],
        fragments: &'f [FragmentAmounts],
    ) -> Option<(&mut CoherentRun, impl Fn(FragmentId) -> StepFetches<'f> + use<'f>)> {
        let (lines, pages) = (&fetched[self.lines], self.pages.map(|pages| &fetched[pages]));
        let fetches = move |fragment: FragmentId| StepFetches {
            instructions: fragments[fragment.0 as usize].instructions,
            lines: &lines.physical()[lines.span(fragment.0).all()],
            pages: pages.map_or(&[][..], |pages| &pages.ids()[pages.span(fragment.0).all()]),
        };
        Some((self.coherent.as_mut()?, fetches))
    }

    /// Runs fragments with their accesses, or without them when the machine describes no data
    /// cache.
    fn run_with_data(
        &mut self,
        cpu: CpuId,
        (fragments_run, stays): (&[FragmentId], &[SliceStay]),
        fetched: &[FetchedUnits],
        fragments: &[FragmentAmounts],
        (steps, accesses): (&FragmentSteps, &[DataAccess]),
    ) {
        let MachineSimulation { hierarchy: Some(hierarchy), data_misses, misses, slices, .. } =
            self
        else {
            return self.run(cpu, (fragments_run, stays), fetched);
        };
        let (lines, pages) = (&fetched[self.lines], self.pages.map(|pages| &fetched[pages]));
        hierarchy.look_ahead(&steps.steps, lines, pages, accesses);
        for (mode, amounts) in
            [(Mode::Kernel, steps.amounts.kernel), (Mode::User, steps.amounts.user)]
        {
            hierarchy.executed(mode, amounts);
        }
        for stay in stays {
            if let Some(slices) = slices {
                slices.reach(stay.slice, || counted(hierarchy), misses);
            }
            hierarchy.catch_up(stay.end as u32, |missed| match missed.what {
                MissedUnit::Code(at) => misses[at as usize] += 1,
                MissedUnit::Data { access, .. } => {
                    let fragment = fragments_run[missed.step as usize];
                    let translation = fragments[fragment.0 as usize].translation;
                    let instruction = accesses[access as usize].instruction;
                    let misses = data_misses.entry((translation, instruction)).or_default();
                    misses.l1d += 1;
                    misses.l2 += u64::from(missed.levels.l2.is_some());
                }
            });
        }
    }

    fn run(
        &mut self,
        cpu: CpuId,
        (fragments_run, stays): (&[FragmentId], &[SliceStay]),
        fetched: &[FetchedUnits],
    ) {
        let (lines, pages) = (&fetched[self.lines], self.pages);
        let mut misses = std::mem::take(&mut self.misses);
        let mut slices = self.slices.take();
        let mut begin = 0;
        for stay in stays {
            if let Some(slices) = &mut slices {
                slices.reach(stay.slice, || self.counted(), &misses);
            }
            let l1i = &mut self.cpu(cpu).l1i;
            for &fragment in &fragments_run[begin..stay.end] {
                let at = lines.span(fragment.0).all();
                for (&line, misses) in lines.ids()[at.clone()].iter().zip(&mut misses[at]) {
                    if l1i.fetch(line) {
                        *misses += 1;
                    }
                }
            }
            begin = stay.end;
        }
        self.slices = slices;
        if let (Some(itlb), Some(pages)) = (&mut self.cpu(cpu).itlb, pages) {
            let pages = &fetched[pages];
            for &fragment in fragments_run {
                for &page in &pages.ids()[pages.span(fragment.0).all()] {
                    itlb.access(page);
                }
            }
        }
        self.misses = misses;
    }
}

/// What a hierarchy counted so far.
fn counted(hierarchy: &HierarchyRun) -> CountedSoFar {
    let counters = hierarchy.counters();
    let l1i = PerMode { kernel: counters.kernel.l1i, user: counters.user.l1i };
    CountedSoFar { l1i, memory: Some(counters) }
}

/// The fragments of a piece with their accesses, as steps of every machine.
struct FragmentSteps {
    steps: Vec<RunStep>,
    /// Instructions, loads and stores.
    amounts: PerMode<[u64; 3]>,
}

impl FragmentSteps {
    fn new(
        fragments_run: &[FragmentId],
        fragments: &[FragmentAmounts],
        data: &PairedAccesses<'_>,
    ) -> FragmentSteps {
        let mut data = data.by_fragment();
        let mut amounts = PerMode::<[u64; 3]>::default();
        let step = |&fragment: &FragmentId| {
            let FragmentAmounts { mode, instructions, late, .. } = fragments[fragment.0 as usize];
            // Of one CPU, no accesses are made ahead: only late fragments have none.
            let made = if late { None } else { data.of_fragment() };
            let execution = made.map_or(&Execution::NONE, |(execution, _)| execution);
            let requester = match mode {
                Mode::Kernel => Requester::KERNEL,
                Mode::User => execution.process,
            };
            let mode = if requester == Requester::KERNEL { Mode::Kernel } else { Mode::User };
            let [of_mode, loads, stores] = amounts.get_mut(mode);
            *of_mode += instructions;
            *loads += u64::from(execution.loads);
            *stores += u64::from(execution.stores);
            RunStep { code: fragment.0, bytes: None, requester, accesses: execution.accesses }
        };
        FragmentSteps { steps: fragments_run.iter().map(step).collect(), amounts }
    }
}

/// The amounts of the whole recording under a layout, which are the same on every machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutAmounts {
    pub instructions: PerMode<u64>,
    pub fetched_bytes: PerMode<u64>,
    pub taken: PerMode<TakenBranches>,
    /// Pages of 4 KB from which at least one byte was fetched.
    pub touched_pages: PerMode<u64>,
    /// See [`moved::MovedFragment::breaks`].
    pub breaks: u64,
}

/// The counts of one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayMachineCounts {
    pub l1i: PerMode<sim::MissCounts>,
    pub itlb: Option<PerMode<u64>>,
    pub touched_lines: PerMode<u64>,
    /// L1I misses by the old address at which the fetch began; ascending, without zeros.
    pub misses_at: Vec<(RunAddr, u64)>,
    /// Counters of the whole hierarchy; `None` without data accesses, or when the machine describes
    /// no data cache.
    pub memory: Option<PerMode<MachineCounters>>,
    /// Data misses by the old address of the instruction; ascending.
    pub data_misses_at: Vec<(RunAddr, DataMissCounts)>,
    /// Counters of branch prediction; `None` when it was not simulated, or the machine describes
    /// none.
    pub branches: Option<PerMode<BranchCounters>>,
    /// `None` when the machine describes no out-of-order core.
    pub core: Option<CoreCounts>,
    /// `None` when the machine or the recording has one CPU, or there are no data accesses.
    pub coherence: Option<CoherenceCounts>,
    /// The misses of each slice in which fragments ran, in order; empty unless they were counted.
    pub slices: Vec<SliceCounts>,
}

/// One layout during a replay.
pub(crate) struct Simulation<'a> {
    placement: &'a Placement,
    application: Option<&'a Spaces>,
    /// User code at the addresses that the placement uses; empty unless user code moves.
    codes: HashMap<TranslationId, TranslatedCode>,
    fragments: Vec<FragmentAmounts>,
    pages: BTreeSet<u64>,
    fetched: Vec<FetchedUnits>,
    /// Filled only when a machine predicts branches.
    branches: FragmentBranches,
    recorded: CpuCount,
    running: Vec<MachineSimulation<'a>>,
}

impl<'a> Simulation<'a> {
    /// # Errors
    /// The numbers of a machine's core contradict each other, or a machine has fewer cores than
    /// the recording has CPUs.
    pub(crate) fn new(trials: &ReplayTrial<'a>, recorded: CpuCount) -> Result<Simulation<'a>> {
        let ReplayTrial { machines, scope, .. } = *trials;
        let mut sets = BTreeMap::new();
        for (unit, number) in machines.iter().flat_map(units) {
            let largest = sets.entry(unit).or_insert(number);
            *largest = number.max(*largest);
        }
        let index_of = |unit| sets.keys().position(|&known| known == unit);
        let mut running = Vec::new();
        for machine in machines {
            running.push(MachineSimulation {
                machine,
                scope,
                cpus: PerCpu::new(CpuCaches::new(machine, scope)),
                hierarchy: HierarchyRun::new(machine).filter(|_| recorded == CpuCount::ONE),
                data_misses: HashMap::new(),
                lines: index_of(lines_of(machine)).context("lines of a machine have no numbers")?,
                pages: machine.itlb.and_then(|itlb| index_of(FetchUnit::of_pages(&itlb))),
                misses: Vec::new(),
                coherent: (machine.coherence.is_some() && recorded != CpuCount::ONE)
                    .then(|| CoherentRun::new(machine, recorded, trials.order, ()))
                    .transpose()?,
                core: CoreRun::new(machine, trials.plan)?,
                slices: None,
            });
        }
        Ok(Simulation {
            placement: &trials.layout.placement,
            application: trials.application,
            codes: HashMap::new(),
            fragments: Vec::new(),
            pages: BTreeSet::new(),
            branches: FragmentBranches::default(),
            recorded,
            running,
            fetched: sets
                .iter()
                .map(|(&unit, &sets)| FetchedUnits::divided(unit, sets, trials.division))
                .collect(),
        })
    }

    /// Adds translation blocks, before their first fragment.
    pub(crate) fn define(&mut self, translations: &[Translation]) -> Result<()> {
        let Some(spaces) = self.application else { return Ok(()) };
        for translation in translations.iter().filter(|translation| !translation.is_kernel()) {
            self.codes.insert(translation.id, spaces.code(translation)?);
        }
        Ok(())
    }

    /// Adds the fragments that were first seen since the last call and, for a recording with data
    /// accesses, their physical addresses.
    pub(crate) fn learn(
        &mut self,
        flow: &ExecutionFlow,
        codes: &UopCodes,
        data: Option<&PieceData<'_>>,
    ) -> Result<()> {
        let predicts = self.running.iter().any(|running| running.cpus.current.predicting.is_some());
        for fragment in &flow.fragments[self.fragments.len()..] {
            let id = fragment.translation;
            let moved_user = self.codes.get(&id);
            let code = moved_user.unwrap_or(&flow.codes[id.0 as usize]);
            let moved = moved::run(code, fragment, self.placement);
            let mut lies = |addr| {
                let PieceData { flow, patterns, .. } = data?;
                Some(match moved_user {
                    Some(_) => DataFlow::stand_in(addr),
                    None => flow.code(addr, code, id, patterns),
                })
            };
            let mut fetched = self.fetched.iter_mut();
            fetched.try_for_each(|fetched| fetched.push(&moved.fetches, &mut lies))?;
            for core in self.running.iter_mut().filter_map(|running| running.core.as_mut()) {
                core.learn(fragment, &moved, code.mode(), codes, &mut lies)?;
            }
            if predicts {
                self.branches.push(&moved);
            }
            for fetch in moved.fetches.iter().filter(|fetch| fetch.bytes > 0) {
                let last = fetch.start.0.wrapping_add(u64::from(fetch.bytes) - 1);
                self.pages.extend(fetch.start.0 >> 12..=last >> 12);
            }
            self.fragments.push(FragmentAmounts {
                translation: fragment.translation,
                late: matches!(fragment.exit, FragmentExit::LateNext | FragmentExit::LateTaken),
                mode: code.mode(),
                instructions: moved.instructions,
                bytes: moved.bytes(),
                taken: moved.taken,
                breaks: moved.breaks,
            });
        }
        for running in &mut self.running {
            running.misses.resize(self.fetched[running.lines].ids().len(), 0);
        }
        Ok(())
    }

    /// Counts the misses of each slice from now on.
    pub(crate) fn keep_slices(&mut self) {
        self.running.iter_mut().for_each(|running| running.slices = Some(MachineSlices::default()));
    }

    /// Runs fragments that were added before, in their slices, on a CPU of every machine. `data`:
    /// the accesses of their executions. `stretch`: their steps, when the recording has several
    /// CPUs.
    pub(crate) fn run(
        &mut self,
        cpu: CpuId,
        (fragments_run, stays): (&[FragmentId], &[SliceStay]),
        codes: &UopCodes,
        data: Option<&PairedAccesses<'_>>,
        stretch: Option<&Stretch>,
    ) {
        let (fetched, fragments, branches) = (&self.fetched, &self.fragments, &self.branches);
        // The accesses of several CPUs meet in caches that the core does not simulate: its data
        // behave as the machine's file says.
        let one_cpu = self.recorded == CpuCount::ONE;
        let has_hierarchy = self.running.iter().any(|running| running.hierarchy.is_some());
        let with_data = data.filter(|_| has_hierarchy);
        let steps = with_data.map(|data| FragmentSteps::new(fragments_run, fragments, data));
        let with_data = steps.as_ref().zip(with_data.map(|data| data.accesses));
        self.running.par_iter_mut().for_each(|running| {
            match with_data {
                None => running.run(cpu, (fragments_run, stays), fetched),
                Some(made) => {
                    running.run_with_data(cpu, (fragments_run, stays), fetched, fragments, made)
                }
            }
            if let Some(stretch) = stretch
                && let Some((coherent, fetches)) = running.coherent(fetched, fragments)
            {
                coherent.run(stretch, fetches);
            }
            if let Some(predicting) = &mut running.cpu(cpu).predicting {
                predicting.run(fragments_run, branches);
            }
            if let Some(core) = &mut running.core {
                let mut data = data.filter(|_| one_cpu).map(PairedAccesses::by_fragment);
                core.run(cpu, fragments_run, codes, data.as_mut());
            }
        });
    }

    /// Whether a machine simulates the caches of several cores.
    pub(crate) fn is_coherent(&self) -> bool {
        self.running.iter().any(|running| running.coherent.is_some())
    }

    /// Lets the machines on which CPUs run side by side make the steps of a window.
    pub(crate) fn advance(&mut self, window: &Window) {
        let (fetched, fragments) = (&self.fetched, &self.fragments);
        self.running.par_iter_mut().for_each(|running| {
            if let Some((coherent, fetches)) = running.coherent(fetched, fragments) {
                coherent.advance(window, fetches);
            }
        });
    }

    /// The number of the first stretch of a CPU that a machine has to make; `None`: no machine
    /// makes steps side by side.
    pub(crate) fn stretch(&self, cpu: usize) -> Option<u64> {
        let coherent = self.running.iter().filter_map(|running| running.coherent.as_ref());
        coherent.filter_map(|coherent| coherent.stretch(cpu)).min()
    }

    /// Ends the recording.
    pub(crate) fn finish(&mut self) {
        self.running
            .iter_mut()
            .filter_map(|running| running.core.as_mut())
            .for_each(CoreRun::finish);
    }

    /// The amounts of the whole recording. `counts`: how often each fragment ran.
    pub(crate) fn amounts(&self, counts: &[u64]) -> LayoutAmounts {
        let mut amounts = LayoutAmounts::default();
        for (fragment, &times) in self.fragments.iter().zip(counts) {
            *amounts.instructions.get_mut(fragment.mode) += fragment.instructions * times;
            *amounts.fetched_bytes.get_mut(fragment.mode) += fragment.bytes * times;
            *amounts.taken.get_mut(fragment.mode) += fragment.taken.times(times);
            amounts.breaks += fragment.breaks * times;
        }
        for &page in &self.pages {
            let mode = if RunAddr(page << 12).is_kernel() { Mode::Kernel } else { Mode::User };
            *amounts.touched_pages.get_mut(mode) += 1;
        }
        amounts
    }

    /// One for each machine, in their order.
    pub(crate) fn machine_counts(&self, flow: &ExecutionFlow) -> Vec<ReplayMachineCounts> {
        self.running
            .iter()
            .map(|running| {
                let lines = &self.fetched[running.lines];
                let mut misses_at = BTreeMap::new();
                for (&origin, &misses) in
                    lines.addrs().iter().zip(&running.misses).filter(|(_, misses)| **misses > 0)
                {
                    *misses_at.entry(origin).or_insert(0) += misses;
                }
                let hierarchy = running.hierarchy.as_ref().filter(|_| !lines.physical().is_empty());
                let memory = hierarchy.map(HierarchyRun::counters);
                let so_far = hierarchy.map_or_else(|| running.counted(), counted);
                let per_mode = |field: fn(&MachineCounters) -> u64| {
                    memory.map(|counters| PerMode {
                        kernel: field(&counters.kernel),
                        user: field(&counters.user),
                    })
                };
                ReplayMachineCounts {
                    l1i: so_far.l1i,
                    itlb: running
                        .itlb_misses()
                        .map(|misses| per_mode(|counters| counters.itlb).unwrap_or(misses)),
                    touched_lines: lines.touched(),
                    misses_at: misses_at.into_iter().collect(),
                    memory,
                    data_misses_at: data_misses_at(&running.data_misses, flow),
                    branches: running.branches(),
                    core: running.core.as_ref().map(|core| core.counts(flow)),
                    coherence: (running.coherent.as_ref())
                        .filter(|_| !lines.physical().is_empty())
                        .map(CoherentRun::counts),
                    slices: running.slices.as_ref().map_or_else(Vec::new, |slices| {
                        slices.counts(so_far, &running.misses, lines.addrs())
                    }),
                }
            })
            .collect()
    }
}

/// The counts of all CPUs together.
impl MachineSimulation<'_> {
    /// What the L1Is counted, when there is no hierarchy.
    fn counted(&self) -> CountedSoFar {
        let mut l1i = PerMode::default();
        self.cpus.values().for_each(|cpu| l1i += cpu.l1i.misses());
        CountedSoFar { l1i, memory: None }
    }

    fn itlb_misses(&self) -> Option<PerMode<u64>> {
        let mut sum = PerMode::default();
        for cpu in self.cpus.values() {
            sum += cpu.itlb.as_ref()?.misses();
        }
        Some(sum)
    }

    fn branches(&self) -> Option<PerMode<BranchCounters>> {
        let mut sum = PerMode::default();
        for cpu in self.cpus.values() {
            sum += cpu.predicting.as_ref()?.counters;
        }
        Some(sum)
    }
}

/// Turns counts by translation block and instruction into counts by address.
fn data_misses_at(
    misses: &HashMap<(TranslationId, u16), DataMissCounts>,
    flow: &ExecutionFlow,
) -> Vec<(RunAddr, DataMissCounts)> {
    let mut at = BTreeMap::<RunAddr, DataMissCounts>::new();
    for (&(translation, instruction), misses) in misses {
        let sum = at.entry(flow.codes[translation.0 as usize].addr_of(instruction)).or_default();
        sum.l1d += misses.l1d;
        sum.l2 += misses.l2;
    }
    at.into_iter().collect()
}

fn lines_of(machine: &MachineModel) -> FetchUnit {
    FetchUnit::Lines(machine.l1i_line)
}

/// The lines and pages to number for a machine, with the number of sets of their cache.
fn units(machine: &MachineModel) -> impl Iterator<Item = (FetchUnit, u32)> {
    let pages = machine.itlb.map(|itlb| (FetchUnit::of_pages(&itlb), itlb.geometry().sets()));
    std::iter::once((lines_of(machine), machine.l1i.sets())).chain(pages)
}
