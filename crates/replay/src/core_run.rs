//! Runs the fragments of a recording on the out-of-order core of a machine, under one layout.
//!
//! Input: fragments in the order in which they ran, and the accesses of their executions. Output:
//! cycles and the core's counters.

use crate::ReplayTrial;
use anyhow::{Context, Result};
use execution::core_code::{CoreBlocks, UopCode};
use execution::data::{DataFlow, Execution};
use execution::flow::{Fragment, FragmentId};
use execution::moved::MovedFragment;
use sim::core::{Core, CoreCounters, CoreDescription};
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
}

/// The recorded code in uops, once for each table of uops.
#[derive(Default)]
pub(crate) struct UopCodes {
    codes: Vec<(String, u32, UopCode)>,
}

impl UopCodes {
    /// No code yet, for all machines of these trials.
    ///
    /// # Errors
    /// A machine names a table of uops that does not exist.
    pub(crate) fn new(trials: &[ReplayTrial<'_>]) -> Result<UopCodes> {
        let mut codes = UopCodes::default();
        let machines = trials.iter().flat_map(|trial| trial.machines);
        for core in machines.filter_map(|machine| machine.core.as_ref()) {
            if codes.place(core).is_none() {
                let latency = core.memory.atomic_latency;
                codes.codes.push((core.uop_table.clone(), latency, UopCode::new(core)?));
            }
        }
        Ok(codes)
    }

    /// Learns translations. They come in the order of their ids.
    pub(crate) fn define(&mut self, translations: &[Translation]) {
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
pub(crate) struct CoreRun {
    core: Core,
    blocks: CoreBlocks,
    cycles: u64,
}

impl CoreRun {
    /// The core of a machine, if it has one.
    ///
    /// # Errors
    /// The numbers of the core contradict each other.
    pub(crate) fn new(machine: &MachineModel) -> Result<Option<CoreRun>> {
        let core = Core::new(machine).with_context(|| machine.name.clone())?;
        let run = core.zip(CoreBlocks::new(machine));
        Ok(run.map(|(core, blocks)| CoreRun { core, blocks, cycles: 0 }))
    }

    /// Adds the next fragment. `lies` gives the physical address of its code, if known.
    ///
    /// # Errors
    /// There is more code than a simulation can number.
    pub(crate) fn learn(
        &mut self,
        fragment: &Fragment,
        moved: &MovedFragment,
        mode: Mode,
        codes: &UopCodes,
        lies: &mut impl FnMut(RunAddr) -> Option<PhysAddr>,
    ) -> Result<()> {
        let code = codes.of(&self.core).context("the code is not in uops")?;
        self.blocks.push(fragment, moved, mode, code, lies)
    }

    /// Runs fragments that were added before. `data`: the accesses of their executions.
    pub(crate) fn run(
        &mut self,
        fragments_run: &[FragmentId],
        codes: &UopCodes,
        data: Option<&DataFlow>,
    ) {
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
            self.core.run(&block, code.uops(), own);
            if interrupted {
                self.core.interrupted();
            }
        }
    }

    /// Ends the recording.
    pub(crate) fn finish(&mut self) {
        self.cycles = self.core.finish();
    }

    /// What was counted. `counts`: how often each fragment ran.
    pub(crate) fn counts(&self, counts: &[u64]) -> CoreCounts {
        CoreCounts {
            cycles: self.cycles,
            counters: self.core.counters(),
            unknown: self.blocks.unknown(counts),
        }
    }
}
