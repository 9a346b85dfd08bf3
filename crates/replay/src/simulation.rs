//! One layout on all machines: the fragments that ran become fetches, and the fetches hits and
//! misses.
//!
//! What a fragment fetches is worked out once for each layout and each size of line or page; the
//! execution then is a walk through these lists.

use crate::Trials;
use crate::application::Spaces;
use anyhow::Result;
use execution::branches::{FragmentBranches, PredictorRun};
use execution::code::TranslatedCode;
use execution::data::{DataAccess, DataFlow, Execution};
use execution::division::SetDivision;
use execution::flow::{ExecutionFlow, FragmentExit, FragmentId};
use execution::moved::{self, MovedFragment};
use execution::numbering::{FetchUnit, Numbering};
use image::place::Placement;
use rayon::prelude::*;
use sim::{
    BranchCounters, Hierarchy, InstructionCache, LineId, MachineCounters, MachineModel, Mode,
    PerMode, PhysAddr, Requester, TakenBranches, Tlb,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use trace::{AccessPatterns, RunAddr, Translation, TranslationId};

/// The lines (or pages) that each fragment uses, in order; one directly behind the same one is left
/// out.
#[derive(Clone, Debug)]
struct Uses {
    numbering: Numbering,
    /// Fragment f uses `lines[starts[f]..starts[f + 1]]`.
    starts: Vec<u32>,
    lines: Vec<LineId>,
    /// The old address of the first byte that is fetched from each of `lines`.
    origins: Vec<RunAddr>,
    /// Where each of `lines` lies; only for recordings with data accesses.
    physical: Vec<PhysAddr>,
}

impl Uses {
    fn new(unit: FetchUnit, sets: u32, division: &SetDivision) -> Uses {
        let division = match unit {
            FetchUnit::Lines(_) => division.clone(),
            FetchUnit::Pages { .. } => SetDivision::Whole,
        };
        Uses {
            numbering: Numbering::divided(unit, sets, division),
            starts: vec![0],
            lines: Vec::new(),
            origins: Vec::new(),
            physical: Vec::new(),
        }
    }

    /// Appends the next fragment. `lies`: where an address of its code lies, if that is known at
    /// all.
    fn push(
        &mut self,
        moved: &MovedFragment,
        lies: &mut impl FnMut(RunAddr) -> Option<PhysAddr>,
    ) -> Result<()> {
        let first = self.lines.len();
        let mut units = Vec::new();
        for fetch in &moved.fetches {
            units.clear();
            self.numbering.units(fetch.start, fetch.bytes, &mut units)?;
            for &(line, addr) in &units {
                if self.lines.len() == first || self.lines.last() != Some(&line) {
                    self.lines.push(line);
                    self.physical.extend(lies(addr));
                    self.origins.push(RunAddr(
                        fetch.origin.0.wrapping_add(addr.0.wrapping_sub(fetch.start.0)),
                    ));
                }
            }
        }
        self.starts.push(self.lines.len() as u32);
        Ok(())
    }

    #[inline]
    fn of(&self, fragment: FragmentId) -> std::ops::Range<usize> {
        let at = fragment.0 as usize;
        self.starts[at] as usize..self.starts[at + 1] as usize
    }

    fn touched(&self) -> PerMode<u64> {
        let mut lines = self.lines.clone();
        lines.sort_unstable();
        lines.dedup();
        let mut touched = PerMode::default();
        lines.iter().for_each(|line| *touched.get_mut(line.mode()) += 1);
        touched
    }
}

/// What is simulated of each machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Caches and TLBs.
    Caches,
    /// And branch prediction, where the machine says how it predicts.
    Branches,
}

/// One machine's caches while they run.
struct Running {
    l1i: InstructionCache,
    itlb: Option<Tlb>,
    /// Takes the place of `l1i` and `itlb` where a recording has data accesses and the machine data
    /// caches.
    hierarchy: Option<Hierarchy>,
    /// Misses of the L1D and of the level behind it, by the instruction that missed.
    data_misses: HashMap<(TranslationId, u16), DataMisses>,
    /// Indices into `Simulation::uses`.
    lines: usize,
    pages: Option<usize>,
    /// Misses of each entry of `Uses::lines`.
    misses: Vec<u64>,
    predicting: Option<PredictorRun>,
}

/// Data misses of one instruction or function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataMisses {
    pub l1d: u64,
    pub l2: u64,
}

impl Running {
    fn run_with_data(&mut self, ran: &[FragmentId], uses: &[Uses], once: &[Once], data: &DataFlow) {
        let Running { hierarchy: Some(hierarchy), data_misses, .. } = self else {
            return self.run(ran, uses);
        };
        let (lines, pages) = (&uses[self.lines], self.pages.map(|pages| &uses[pages]));
        let mut executions = data.executions.iter();
        let mut accesses = data.accesses();
        for &fragment in ran {
            let Once { mode, instructions, late, translation, .. } = once[fragment.0 as usize];
            let execution =
                if late { Execution::NONE } else { *executions.next().unwrap_or(&Execution::NONE) };
            hierarchy.runs(if mode == Mode::Kernel {
                Requester::KERNEL
            } else {
                execution.process
            });
            hierarchy.executed(instructions, execution.loads.into(), execution.stores.into());
            if let Some(pages) = pages {
                pages.lines[pages.of(fragment)].iter().for_each(|&page| hierarchy.fetch_page(page));
            }
            for at in lines.of(fragment) {
                if hierarchy.fetch(lines.lines[at], lines.physical[at]).is_some() {
                    self.misses[at] += 1;
                }
            }
            let (own, rest) = accesses.split_at((execution.accesses as usize).min(accesses.len()));
            accesses = rest;
            own.iter().for_each(|access| access_data(hierarchy, access, translation, data_misses));
        }
    }

    fn run(&mut self, ran: &[FragmentId], uses: &[Uses]) {
        let lines = &uses[self.lines];
        let (l1i, misses) = (&mut self.l1i, &mut self.misses[..]);
        for &fragment in ran {
            let at = lines.of(fragment);
            for (&line, misses) in lines.lines[at.clone()].iter().zip(&mut misses[at]) {
                if l1i.fetch(line) {
                    *misses += 1;
                }
            }
        }
        let (Some(itlb), Some(pages)) = (&mut self.itlb, self.pages) else {
            return;
        };
        let pages = &uses[pages];
        for &fragment in ran {
            for &page in &pages.lines[pages.of(fragment)] {
                itlb.access(page);
            }
        }
    }
}

#[inline]
fn access_data(
    hierarchy: &mut Hierarchy,
    access: &DataAccess,
    translation: TranslationId,
    misses: &mut HashMap<(TranslationId, u16), DataMisses>,
) {
    hierarchy.data_page(access.page);
    let log2 = hierarchy.data_line_log2();
    let (first, last) =
        (access.physical.0 >> log2, (access.physical.0 + u64::from(access.size) - 1) >> log2);
    for line in first..=last {
        if let Some(missed) = hierarchy.data(PhysAddr(line << log2)) {
            let misses = misses.entry((translation, access.instruction)).or_default();
            misses.l1d += 1;
            misses.l2 += u64::from(missed.l2.is_some());
        }
    }
}

/// What one run of a fragment amounts to on any machine.
struct Once {
    translation: TranslationId,
    /// Nothing of its translation runs: it is no execution.
    late: bool,
    mode: Mode,
    instructions: u64,
    bytes: u64,
    taken: TakenBranches,
    breaks: u64,
}

/// What the whole recording amounts to under a layout, on any machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub instructions: PerMode<u64>,
    pub fetched_bytes: PerMode<u64>,
    pub taken: PerMode<TakenBranches>,
    /// Pages of 4 KB from which something was fetched.
    pub touched_pages: PerMode<u64>,
    /// See [`MovedFragment::breaks`].
    pub breaks: u64,
}

/// What one machine's caches counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineCounts {
    pub l1i: PerMode<sim::MissCounts>,
    pub itlb: Option<PerMode<u64>>,
    pub touched_lines: PerMode<u64>,
    /// Misses by the old address at which the missing fetch began; ascending, none with 0.
    pub misses_at: Vec<(RunAddr, u64)>,
    /// What the whole hierarchy did; of a recording with data accesses, where the machine describes
    /// a data cache.
    pub memory: Option<PerMode<MachineCounters>>,
    /// Data misses by the old address of the instruction; ascending.
    pub data_misses_at: Vec<(RunAddr, DataMisses)>,
    /// How branches were predicted; where that was asked for and the machine says how it predicts.
    pub branches: Option<PerMode<BranchCounters>>,
}

/// One layout, while the recording runs.
pub struct Simulation<'a> {
    placement: &'a Placement,
    application: Option<&'a Spaces>,
    /// User code as the placement knows it; only where it moves.
    codes: HashMap<TranslationId, TranslatedCode>,
    once: Vec<Once>,
    pages: BTreeSet<u64>,
    uses: Vec<Uses>,
    /// Known only where something predicts them.
    branches: FragmentBranches,
    running: Vec<Running>,
}

impl<'a> Simulation<'a> {
    pub fn new(trials: &Trials<'a>) -> Simulation<'a> {
        let Trials { machines, asked, .. } = *trials;
        let mut sets = BTreeMap::new();
        for (unit, number) in machines.iter().flat_map(units) {
            let largest = sets.entry(unit).or_insert(number);
            *largest = number.max(*largest);
        }
        let index_of = |unit| sets.keys().position(|&known| known == unit);
        let running = machines.iter().map(|machine| Running {
            l1i: InstructionCache::new(machine.l1i),
            itlb: machine.itlb.map(|itlb| Tlb::new(itlb.geometry())),
            hierarchy: Hierarchy::new(machine),
            data_misses: HashMap::new(),
            lines: index_of(lines_of(machine)).unwrap_or_default(),
            pages: machine.itlb.and_then(|itlb| index_of(FetchUnit::of_pages(&itlb))),
            misses: Vec::new(),
            predicting: match asked {
                Asked::Caches => None,
                Asked::Branches => machine.branch.as_ref().map(PredictorRun::new),
            },
        });
        Simulation {
            placement: &trials.layout.placement,
            application: trials.application,
            codes: HashMap::new(),
            once: Vec::new(),
            pages: BTreeSet::new(),
            branches: FragmentBranches::default(),
            running: running.collect(),
            uses: sets
                .iter()
                .map(|(&unit, &sets)| Uses::new(unit, sets, trials.division))
                .collect(),
        }
    }

    /// Learns what translations are; before their first fragment.
    pub fn define(&mut self, translations: &[Translation]) -> Result<()> {
        let Some(spaces) = self.application else { return Ok(()) };
        for translation in translations.iter().filter(|translation| !translation.is_kernel()) {
            self.codes.insert(translation.id, spaces.code(translation)?);
        }
        Ok(())
    }

    /// Learns the fragments that were first seen since the last call; of a recording with data
    /// accesses also where they lie.
    pub fn learn(
        &mut self,
        flow: &ExecutionFlow,
        mut data: Option<(&mut DataFlow, &AccessPatterns)>,
    ) -> Result<()> {
        let predicts = self.running.iter().any(|running| running.predicting.is_some());
        for fragment in &flow.fragments[self.once.len()..] {
            let code = self.codes.get(&fragment.translation);
            let code = code.unwrap_or(&flow.codes[fragment.translation.0 as usize]);
            let moved = moved::run(code, fragment, self.placement);
            let id = fragment.translation;
            let mut lies =
                |addr| data.as_mut().map(|(data, patterns)| data.code(addr, code, id, patterns));
            self.uses.iter_mut().try_for_each(|uses| uses.push(&moved, &mut lies))?;
            if predicts {
                self.branches.push(&moved);
            }
            for fetch in moved.fetches.iter().filter(|fetch| fetch.bytes > 0) {
                let last = fetch.start.0.wrapping_add(u64::from(fetch.bytes) - 1);
                self.pages.extend(fetch.start.0 >> 12..=last >> 12);
            }
            self.once.push(Once {
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
            running.misses.resize(self.uses[running.lines].lines.len(), 0);
        }
        Ok(())
    }

    /// Runs fragments, all of them learnt, on every machine; `data`: what their executions
    /// accessed.
    pub fn run(&mut self, ran: &[FragmentId], data: Option<&DataFlow>) {
        let (uses, once, branches) = (&self.uses, &self.once, &self.branches);
        self.running.par_iter_mut().for_each(|running| {
            match data {
                None => running.run(ran, uses),
                Some(data) => running.run_with_data(ran, uses, once, data),
            }
            if let Some(predicting) = &mut running.predicting {
                predicting.run(ran, branches);
            }
        });
    }

    /// How many of these fragments are executions.
    pub fn executions(&self, ran: &[FragmentId]) -> usize {
        ran.iter().filter(|fragment| !self.once[fragment.0 as usize].late).count()
    }

    /// `counts`: how often each fragment ran.
    pub fn amounts(&self, counts: &[u64]) -> Amounts {
        let mut amounts = Amounts::default();
        for (once, &times) in self.once.iter().zip(counts) {
            *amounts.instructions.get_mut(once.mode) += once.instructions * times;
            *amounts.fetched_bytes.get_mut(once.mode) += once.bytes * times;
            *amounts.taken.get_mut(once.mode) += once.taken.times(times);
            amounts.breaks += once.breaks * times;
        }
        for &page in &self.pages {
            let mode = if RunAddr(page << 12).is_kernel() { Mode::Kernel } else { Mode::User };
            *amounts.touched_pages.get_mut(mode) += 1;
        }
        amounts
    }

    /// One for each machine, in their order.
    pub fn machine_counts(&self, flow: &ExecutionFlow) -> Vec<MachineCounts> {
        self.running
            .iter()
            .map(|running| {
                let lines = &self.uses[running.lines];
                let mut misses_at = BTreeMap::new();
                for (&origin, &misses) in
                    lines.origins.iter().zip(&running.misses).filter(|(_, misses)| **misses > 0)
                {
                    *misses_at.entry(origin).or_insert(0) += misses;
                }
                let memory = running
                    .hierarchy
                    .as_ref()
                    .map(Hierarchy::counters)
                    .filter(|_| !lines.physical.is_empty());
                let per_mode = |field: fn(&MachineCounters) -> u64| {
                    memory.map(|counters| PerMode {
                        kernel: field(&counters.kernel),
                        user: field(&counters.user),
                    })
                };
                MachineCounts {
                    l1i: memory.map_or(running.l1i.misses(), |counters| PerMode {
                        kernel: counters.kernel.l1i,
                        user: counters.user.l1i,
                    }),
                    itlb: running
                        .itlb
                        .as_ref()
                        .map(|itlb| per_mode(|counters| counters.itlb).unwrap_or(itlb.misses())),
                    touched_lines: lines.touched(),
                    misses_at: misses_at.into_iter().collect(),
                    memory,
                    data_misses_at: data_misses_at(&running.data_misses, flow),
                    branches: running.predicting.as_ref().map(|predicting| predicting.counters),
                }
            })
            .collect()
    }
}

/// By address, from by translation and instruction.
fn data_misses_at(
    misses: &HashMap<(TranslationId, u16), DataMisses>,
    flow: &ExecutionFlow,
) -> Vec<(RunAddr, DataMisses)> {
    let mut at = BTreeMap::<RunAddr, DataMisses>::new();
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

/// What has to be numbered for a machine, and the sets of the cache that takes it.
fn units(machine: &MachineModel) -> impl Iterator<Item = (FetchUnit, u32)> {
    let pages = machine.itlb.map(|itlb| (FetchUnit::of_pages(&itlb), itlb.geometry().sets()));
    std::iter::once((lines_of(machine), machine.l1i.sets())).chain(pages)
}
