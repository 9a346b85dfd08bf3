//! Runs the fragments of a recording on the out-of-order cores of a machine, under one layout.
//!
//! Each recorded CPU has a core of its own, with all its caches. Cores do not affect each other: no
//! line moves between them.
//!
//! Input: fragments in the order in which they ran, and the accesses of their executions. Output:
//! cycles and the cores' counters.

use crate::core_code::{CoreBlocks, FragmentBlock, UopCode};
use crate::flow::{ExecutionFlow, Fragment, FragmentId};
use crate::moved::MovedFragment;
use crate::per_cpu::PerCpu;
use crate::sampling::groups::{GroupCounts, SampledGroups};
use crate::sampling::ratios::{GroupSlots, Ratios, UnitGroups};
use crate::sampling::{Counted, SamplePlan, Sampled};
use crate::walk::FragmentAccesses;
use anyhow::{Context, Result};
use sim::core::{Core, CoreCounters, CoreDescription, CoreSlots};
use sim::{MachineModel, Mode, PerMode, PhysAddr};
use std::collections::BTreeMap;
use trace::{CpuId, RunAddr, Translation};

/// What a core counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CoreCounts {
    /// Cycles from the first instruction to the last. Of several CPUs: the sum of their cycles,
    /// without those in which they were halted.
    pub cycles: u64,
    /// The counters of each mode.
    pub counters: PerMode<CoreCounters>,
    /// Executions of instructions that the table of uops does not know, by mnemonic.
    pub unknown: BTreeMap<String, u64>,
    /// The slots by the old address of the translation block, ascending. Their sum is the sum of
    /// both modes. A lost slot counts for the block that ends the wait; the last lost slots count
    /// for the last block.
    pub slots_at: Vec<(RunAddr, CoreSlots)>,
    /// What was estimated; `None`: all was simulated in detail.
    pub sampled: Option<Sampled>,
}

/// The recorded code in uops, once for each maker of uops with its latencies.
#[derive(Default)]
pub struct UopCodes {
    codes: Vec<UopCode>,
}

impl UopCodes {
    /// No code yet, for all these machines.
    ///
    /// # Errors
    /// A machine's maker of uops gives no uops for a jump.
    pub fn new<'a>(machines: impl Iterator<Item = &'a MachineModel>) -> Result<UopCodes> {
        let mut codes = UopCodes::default();
        for core in machines.filter_map(|machine| machine.core.as_ref()) {
            if codes.of(core).is_none() {
                codes.codes.push(UopCode::new(core)?);
            }
        }
        Ok(codes)
    }

    /// Learns translations. They come in the order of their ids.
    pub fn define(&mut self, translations: &[Translation]) {
        for code in &mut self.codes {
            translations.iter().for_each(|translation| code.define(translation));
        }
    }

    fn of(&self, core: &CoreDescription) -> Option<&UopCode> {
        self.codes.iter().find(|code| code.is_of(core))
    }
}

/// The core of one CPU.
#[derive(Clone)]
struct CpuCore {
    core: Core,
    /// The fragment that ran last.
    last: Option<FragmentId>,
    /// The recorded instructions that ran.
    instructions: u64,
    /// How fragments are passed up to the instruction `until`.
    phase: Phase,
    until: u64,
    /// The number of the sample that comes next, or is under way.
    sample: u64,
    /// The counters when the unit began, and the unit's number.
    begun: PerMode<CoreCounters>,
    unit: u32,
    /// The counters up to which [`CoreRun::take`] has given counts, and parts of the unit.
    taken: PerMode<CoreCounters>,
    taken_of_unit: PerMode<CoreCounters>,
    /// What the functions of the caller ran in the unit.
    functions: UnitGroups,
}

/// How a fragment is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Without time.
    Warming,
    /// In detail, before a unit.
    Before,
    /// In detail, and its slots count.
    Measured,
}

impl CpuCore {
    /// Adds what was counted since the last call to `group`.
    fn take(&mut self, is_sampled: bool, group: &mut GroupCounts) {
        let now = self.core.counters();
        let since = since(&now, &std::mem::replace(&mut self.taken, now));
        if !is_sampled {
            for mode in [since.kernel, since.user] {
                group.slots += CoreSlots { dispatch: mode.slots, graduation: mode.graduation };
            }
            return;
        }
        group.add_known(&since);
        self.take_part(group);
    }

    /// Adds the part of the unit under way, since the last call, to `group`.
    fn take_part(&mut self, group: &mut GroupCounts) {
        if self.phase == Phase::Measured {
            let now = self.core.counters();
            let before = std::mem::replace(&mut self.taken_of_unit, now);
            group.add_part(self.unit, &since(&now, &before));
        }
    }

    /// Goes on to the phase of the next fragment. Returns the unit that has ended, if any. Its last
    /// part is added to `group`. `units`: the number of units that have begun.
    ///
    /// Both ends of a unit are the first fragments from a place on that does not depend on the
    /// code. If a unit were as long as its first fragment makes it, some fragments would come into
    /// units more often than others.
    fn turn(
        &mut self,
        plan: &SamplePlan,
        cpu: u8,
        units: &mut u32,
        group: &mut GroupCounts,
    ) -> Option<PerMode<CoreCounters>> {
        let mut unit = None;
        while self.instructions >= self.until {
            let begin = plan.begin(cpu, self.sample);
            (self.phase, self.until) = match self.phase {
                Phase::Warming if self.until < begin => (Phase::Warming, begin),
                Phase::Warming => {
                    self.core.resume();
                    (Phase::Before, begin + plan.before)
                }
                Phase::Before => {
                    self.begun = self.core.counters();
                    (self.taken_of_unit, self.unit) = (self.begun, *units);
                    *units += 1;
                    (Phase::Measured, begin + plan.before + plan.measured)
                }
                Phase::Measured => {
                    self.take_part(group);
                    unit = Some(since(&self.core.counters(), &self.begun));
                    self.sample += 1;
                    (Phase::Warming, plan.begin(cpu, self.sample))
                }
            };
        }
        unit
    }
}

/// What was counted between two states of the counters.
fn since(now: &PerMode<CoreCounters>, then: &PerMode<CoreCounters>) -> PerMode<CoreCounters> {
    PerMode { kernel: now.kernel - then.kernel, user: now.user - then.user }
}

/// The cores of a machine during a replay.
pub struct CoreRun {
    cores: PerCpu<CpuCore>,
    /// A core that has run nothing.
    fresh: CpuCore,
    blocks: CoreBlocks,
    cycles: u64,
    /// The slots of each fragment.
    slots: Vec<CoreSlots>,
    /// Where samples lie, if not everything is simulated in detail; the units, and whether the
    /// stream has data accesses.
    plan: Option<SamplePlan>,
    units: Vec<PerMode<CoreCounters>>,
    has_data: bool,
    /// The number of units that have begun, and the parts of units since the last `take`.
    begun: u32,
    group: GroupCounts,
    /// The function of each fragment, if the caller asks for them, and what units say of each.
    functions: Vec<Option<u32>>,
    ratios: Ratios,
}

impl CoreRun {
    /// The cores of a machine, if it describes one. `plan`: where they are simulated in detail;
    /// `None`: everywhere.
    ///
    /// # Errors
    /// The numbers of the core contradict each other.
    pub fn new(machine: &MachineModel, plan: Option<SamplePlan>) -> Result<Option<CoreRun>> {
        let core = Core::new(machine).with_context(|| machine.name.clone())?;
        let run = core.zip(CoreBlocks::new(machine));
        Ok(run.map(|(core, blocks)| {
            let fresh = CpuCore {
                core,
                last: None,
                instructions: 0,
                phase: if plan.is_some() { Phase::Warming } else { Phase::Measured },
                until: if plan.is_some() { 0 } else { u64::MAX },
                sample: 0,
                begun: PerMode::default(),
                unit: 0,
                taken: PerMode::default(),
                taken_of_unit: PerMode::default(),
                functions: UnitGroups::new(),
            };
            CoreRun {
                cores: PerCpu::new(fresh.clone()),
                fresh,
                blocks,
                cycles: 0,
                slots: Vec::new(),
                plan,
                units: Vec::new(),
                has_data: false,
                begun: 0,
                group: GroupCounts::default(),
                functions: Vec::new(),
                ratios: Ratios::default(),
            }
        }))
    }

    /// Adds the next fragment. `lies` gives the physical address of its code, if known.
    ///
    /// Recording begins when the workload is warm, so the levels behind the L1I already hold code
    /// that runs for the first time in the recording. Otherwise fetching this code from memory
    /// would cause half of the front end's losses in sixty million instructions.
    ///
    /// # Errors
    /// There is more code than a simulation can number.
    pub fn learn(
        &mut self,
        fragment: &Fragment,
        moved: &MovedFragment,
        mode: Mode,
        codes: &UopCodes,
        lies: &mut impl FnMut(RunAddr) -> Option<PhysAddr>,
    ) -> Result<()> {
        let code = codes.of(self.fresh.core.description()).context("the code is not in uops")?;
        self.slots.push(CoreSlots::default());
        self.blocks.push(fragment, moved, mode, code, lies)?;
        let FragmentBlock { block, .. } =
            self.blocks.block(FragmentId(self.slots.len() as u32 - 1));
        for CpuCore { core, .. } in self.cores.values_mut().chain([&mut self.fresh]) {
            core.ran_before(block.runs);
        }
        Ok(())
    }

    /// The fragment that was added last belongs to this function of the caller; `None`: to none.
    /// The caller says it of all fragments, or of none.
    pub fn belongs_to(&mut self, function: Option<u32>) {
        self.functions.push(function);
    }

    /// Runs fragments that were added before on the core of a CPU. `data`: the accesses of their
    /// executions, and those that come later.
    pub fn run(
        &mut self,
        cpu: CpuId,
        fragments_run: &[FragmentId],
        codes: &UopCodes,
        mut data: Option<&mut FragmentAccesses<'_>>,
    ) {
        // `learn` has refused code that is not in uops, and no fragment runs before it is learned.
        let Some(code) = codes.of(self.fresh.core.description()) else { return };
        self.cores.turn_to(cpu, || self.fresh.clone());
        let number = cpu.0;
        self.has_data |= data.is_some();
        let cpu = &mut self.cores.current;
        for &fragment in fragments_run {
            let FragmentBlock { block, interrupted, late, recorded } = self.blocks.block(fragment);
            let own = data.as_mut().map(|data| match late {
                true => &[][..],
                false => data.of_fragment().map_or(&[][..], |(_, own)| own),
            });
            if cpu.instructions >= cpu.until
                && let Some(plan) = &self.plan
            {
                let (begun, group) = (&mut self.begun, &mut self.group);
                if let Some(unit) = cpu.turn(plan, number, begun, group) {
                    self.units.push(unit);
                    self.ratios.end_unit(&mut cpu.functions);
                }
            }
            cpu.instructions += u64::from(recorded);
            let core = &mut cpu.core;
            if cpu.phase == Phase::Warming {
                core.warm(&block, code.uops(), own);
                if interrupted {
                    core.warm_interrupted();
                }
                continue;
            }
            let before = core.slots(block.mode);
            core.run(&block, code.uops(), own);
            if interrupted {
                core.interrupted();
            }
            if cpu.phase == Phase::Measured {
                let slots = core.slots(block.mode) - before;
                self.slots[fragment.0 as usize] += slots;
                if self.plan.is_some()
                    && let Some(Some(function)) = self.functions.get(fragment.0 as usize)
                {
                    let [ran, took] = cpu.functions.entry(*function).or_default();
                    *ran += u64::from(recorded);
                    *took += slots.dispatch.total();
                }
            }
        }
        cpu.last = fragments_run.last().copied().or(cpu.last);
    }

    /// Ends the recording. A unit under way ends here, without what is left in the core.
    pub fn finish(&mut self) {
        let is_sampled = self.plan.is_some();
        for cpu in self.cores.values_mut() {
            if is_sampled {
                cpu.take_part(&mut self.group);
                self.ratios.end_unit(&mut cpu.functions);
                cpu.phase = Phase::Warming;
            }
            let CpuCore { core, last, .. } = cpu;
            let Some(last) = *last else { continue };
            let mode = self.blocks.block(last).block.mode;
            let before = core.slots(mode);
            self.cycles += core.finish();
            self.slots[last.0 as usize] += core.slots(mode) - before;
        }
    }

    /// What was counted since the last call, on all CPUs and in both modes.
    pub fn take(&mut self) -> GroupCounts {
        let is_sampled = self.plan.is_some();
        let mut group = std::mem::take(&mut self.group);
        self.cores.values_mut().for_each(|cpu| cpu.take(is_sampled, &mut group));
        group
    }

    /// The slots of groups of executions, each with its mode and what [`CoreRun::take`] has given
    /// of it; and how far they may be off. `None`: everything was simulated in detail.
    pub fn estimates(
        &self,
        groups: &[(Mode, GroupCounts)],
    ) -> Option<(SampledGroups, Vec<CoreSlots>)> {
        let (units, most) = (u64::from(self.begun), self.fresh.core.most_slots());
        self.plan.map(|plan| SampledGroups::new(plan, units, most, groups))
    }

    /// The slots of the caller's functions, by their number. `instructions`: those that each ran in
    /// the whole recording.
    pub fn function_slots(&self, instructions: &[u64]) -> Vec<GroupSlots> {
        if let Some(plan) = self.plan {
            let all: u64 = self.cores.values().map(|cpu| cpu.instructions).sum();
            let in_units = u64::from(self.begun) * plan.measured;
            let left_out = (1.0 - in_units as f64 / all.max(1) as f64).max(0.0);
            return self.ratios.estimates(instructions, left_out);
        }
        let mut slots = vec![GroupSlots::default(); instructions.len()];
        for (function, of) in self.functions.iter().zip(&self.slots) {
            if let Some(slots) = function.and_then(|function| slots.get_mut(function as usize)) {
                slots.slots += of.dispatch.total() as f64;
            }
        }
        slots
    }

    /// The counters of each mode so far, of all CPUs.
    pub fn counters(&self) -> PerMode<CoreCounters> {
        let mut counters = PerMode::default();
        self.cores.values().for_each(|cpu| counters += cpu.core.counters());
        counters
    }

    /// What was counted.
    pub fn counts(&self, flow: &ExecutionFlow) -> CoreCounts {
        let mut slots_at = BTreeMap::<RunAddr, CoreSlots>::new();
        for (fragment, slots) in flow.fragments.iter().zip(&self.slots) {
            let code = &flow.codes[fragment.translation.0 as usize];
            *slots_at.entry(code.addr).or_default() += *slots;
        }
        slots_at.retain(|_, slots| *slots != CoreSlots::default());
        let mut slots_at: Vec<(RunAddr, CoreSlots)> = slots_at.into_iter().collect();
        let mut counters = self.counters();
        let mut cycles = self.cycles;
        let sampled = self.plan.map(|plan| {
            let instructions = self.cores.values().map(|cpu| cpu.instructions).sum();
            let (has_data, most) = (self.has_data, self.fresh.core.most_slots());
            Sampled::new(plan, &self.units, &Counted { counters, instructions, has_data, most })
        });
        if let Some(sampled) = &sampled {
            let width = self.fresh.core.description().window.dispatch;
            cycles = (sampled.all.value / f64::from(width)).round() as u64;
            counters = sampled.counters;
            sampled.scale(&mut slots_at);
        }
        CoreCounts {
            cycles,
            counters,
            sampled,
            unknown: self.blocks.unknown(&flow.counts, &*self.fresh.core.description().uops),
            slots_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_becomes_uops_once_for_each_table_and_its_latencies() {
        let mut machines = machines::models(&["zen4", "server-32k", "zen4", "zen5"]).unwrap();
        let codes = |machines: &[MachineModel]| UopCodes::new(machines.iter()).unwrap().codes.len();
        assert_eq!(codes(&machines), 2);
        machines[2].core.as_mut().unwrap().memory.atomic_latency += 1;
        assert_eq!(codes(&machines), 3);
    }

    #[test]
    fn instructions_without_an_entry_are_counted_by_their_mnemonic() {
        let machine = machines::find("simos-1996").unwrap().model;
        let golden = machines::find("golden-cove").unwrap().model;
        // ud0 has an entry in neither table; the simple one knows no gaps.
        let code: &[&[u8]] = &[&[0x0f, 0xff, 0xc0]];
        let made = |machine: &MachineModel| {
            let core = machine.core.as_ref().unwrap();
            let made = core.uops.translate(0, code, core.uop_latencies(), &mut Vec::new());
            made[0].unknown.map(|mnemonic| core.uops.mnemonic(mnemonic))
        };
        assert_eq!((made(&machine), made(&golden)), (None, Some("ud0".to_owned())));
    }
}
