//! Runs the fragments of a recording on the out-of-order core of a machine, under one layout.
//!
//! Input: fragments in the order in which they ran, and the accesses of their executions. Output:
//! cycles and the core's counters.

use crate::core_code::{CoreBlocks, UopCode};
use crate::data::{DataFlow, Execution};
use crate::flow::{ExecutionFlow, Fragment, FragmentId};
use crate::moved::MovedFragment;
use anyhow::{Context, Result};
use sim::core::{Core, CoreCounters, CoreDescription, CoreSlots};
use sim::{MachineModel, Mode, PerMode, PhysAddr};
use std::collections::BTreeMap;
use trace::{RunAddr, Translation};

/// What a core counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreCounts {
    /// Cycles from the first instruction to the last.
    pub cycles: u64,
    /// The counters of each mode.
    pub counters: PerMode<CoreCounters>,
    /// Executions of instructions that the table of uops does not know, by mnemonic.
    pub unknown: BTreeMap<String, u64>,
    /// The slots by the old address of the translation block, ascending. Their sum is that of both
    /// modes. A lost slot counts for the block that ends the wait, the last ones for the last
    /// block.
    pub slots_at: Vec<(RunAddr, CoreSlots)>,
}

/// The recorded code in uops, once for each table of uops.
#[derive(Default)]
pub struct UopCodes {
    codes: Vec<(String, u32, UopCode)>,
}

impl UopCodes {
    /// No code yet, for all these machines.
    ///
    /// # Errors
    /// A machine names a table of uops that does not exist.
    pub fn new<'a>(machines: impl Iterator<Item = &'a MachineModel>) -> Result<UopCodes> {
        let mut codes = UopCodes::default();
        for core in machines.filter_map(|machine| machine.core.as_ref()) {
            if codes.place(core).is_none() {
                let latency = core.memory.atomic_latency;
                codes.codes.push((core.uop_table.clone(), latency, UopCode::new(core)?));
            }
        }
        Ok(codes)
    }

    /// Learns translations. They come in the order of their ids.
    pub fn define(&mut self, translations: &[Translation]) {
        for (_, _, code) in &mut self.codes {
            translations.iter().for_each(|translation| code.define(translation));
        }
    }

    fn place(&self, core: &CoreDescription) -> Option<usize> {
        self.codes.iter().position(|(table, latency, _)| {
            *table == core.uop_table && *latency == core.memory.atomic_latency
        })
    }

    fn of(&self, core: &Core) -> Option<&UopCode> {
        let place = self.place(core.description())?;
        self.codes.get(place).map(|(_, _, code)| code)
    }
}

/// A core during a replay.
pub struct CoreRun {
    core: Core,
    blocks: CoreBlocks,
    cycles: u64,
    /// The slots of each fragment.
    slots: Vec<CoreSlots>,
    /// The fragment that ran last.
    last: Option<FragmentId>,
}

impl CoreRun {
    /// The core of a machine, if it has one.
    ///
    /// # Errors
    /// The numbers of the core contradict each other.
    pub fn new(machine: &MachineModel) -> Result<Option<CoreRun>> {
        let core = Core::new(machine).with_context(|| machine.name.clone())?;
        let run = core.zip(CoreBlocks::new(machine));
        Ok(run.map(|(core, blocks)| CoreRun {
            core,
            blocks,
            cycles: 0,
            slots: Vec::new(),
            last: None,
        }))
    }

    /// Adds the next fragment. `lies` gives the physical address of its code, if known.
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
        let code = codes.of(&self.core).context("the code is not in uops")?;
        self.slots.push(CoreSlots::default());
        self.blocks.push(fragment, moved, mode, code, lies)
    }

    /// Runs fragments that were added before. `data`: the accesses of their executions.
    pub fn run(&mut self, fragments_run: &[FragmentId], codes: &UopCodes, data: Option<&DataFlow>) {
        let Some(code) = codes.of(&self.core) else { return };
        let mut executions = data.map_or(&[][..], |data| &data.executions).iter();
        let mut accesses = data.map(DataFlow::accesses);
        for &fragment in fragments_run {
            let (block, interrupted, late) = self.blocks.block(fragment);
            let own = accesses.as_mut().map(|accesses| {
                let execution = match late {
                    true => &Execution::NONE,
                    false => executions.next().unwrap_or(&Execution::NONE),
                };
                let (own, rest) =
                    accesses.split_at((execution.accesses as usize).min(accesses.len()));
                *accesses = rest;
                own
            });
            let before = self.core.slots(block.mode);
            self.core.run(&block, code.uops(), own);
            if interrupted {
                self.core.interrupted();
            }
            self.slots[fragment.0 as usize] += self.core.slots(block.mode) - before;
        }
        self.last = fragments_run.last().copied().or(self.last);
    }

    /// Ends the recording.
    pub fn finish(&mut self) {
        let Some(last) = self.last else { return };
        let mode = self.blocks.block(last).0.mode;
        let before = self.core.slots(mode);
        self.cycles = self.core.finish();
        self.slots[last.0 as usize] += self.core.slots(mode) - before;
    }

    /// The slots so far, of both modes.
    pub fn slots(&self) -> CoreSlots {
        let mut slots = self.core.slots(Mode::Kernel);
        slots += self.core.slots(Mode::User);
        slots
    }

    /// What was counted.
    pub fn counts(&self, flow: &ExecutionFlow) -> CoreCounts {
        let mut slots_at = BTreeMap::<RunAddr, CoreSlots>::new();
        for (fragment, slots) in flow.fragments.iter().zip(&self.slots) {
            let code = &flow.codes[fragment.translation.0 as usize];
            *slots_at.entry(code.addr).or_default() += *slots;
        }
        slots_at.retain(|_, slots| *slots != CoreSlots::default());
        CoreCounts {
            cycles: self.cycles,
            counters: self.core.counters(),
            unknown: self.blocks.unknown(&flow.counts),
            slots_at: slots_at.into_iter().collect(),
        }
    }
}
