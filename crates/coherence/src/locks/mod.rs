//! The locks of the kernel: who acquired them, who waited for whom, and for how long (Rosenblum
//! 1995, section 5.2).
//!
//! Takes a recording with data accesses, the kernel's symbols and a machine with coherent caches;
//! gives locks by the time that CPUs and tasks waited for them. Reads the recording twice: the
//! first pass runs the caches, the second follows the locks. Asks the guest nothing, prints
//! nothing.

mod book;
mod follow;
mod functions;
mod names;
pub mod table;
#[cfg(test)]
mod tests;

use crate::sharing::caches::SharedMachine;
use crate::sharing::costs::{self, OrderedTotals};
use anyhow::{Context, Result, ensure};
use execution::cpu_order::CpuOrder;
use execution::served_log::ServedLog;
use follow::LockFollower;
use functions::{LockFunctions, LockKind, SEQUENCES};
use memory::objects::names::DataNames;
use services::{self, symbols::KernelSymbols};
use sim::MachineModel;
use std::io::Read;
use table::LockTable;
use trace::RecordingReader;

/// What the passes over a recording share.
pub(crate) struct LockStudy<'a> {
    symbols: &'a KernelSymbols,
    names: &'a DataNames,
    machine: &'a MachineModel,
    order: CpuOrder,
}

/// The first pass: what coherence costs, and the log of all requests.
pub(crate) struct LockCosts {
    pub totals: OrderedTotals,
    log: ServedLog,
}

impl<'a> LockStudy<'a> {
    /// `symbols`: those of the code; `names`: those of the data.
    pub(crate) fn new(
        symbols: &'a KernelSymbols,
        names: &'a DataNames,
        machine: &'a MachineModel,
        order: CpuOrder,
    ) -> LockStudy<'a> {
        LockStudy { symbols, names, machine, order }
    }

    /// The first pass: runs the caches.
    ///
    /// # Errors
    /// The recording is damaged, of another kernel or without data accesses; the machine has too
    /// few cores.
    pub(crate) fn simulate<R: Read>(&self, reader: RecordingReader<R>) -> Result<LockCosts> {
        services::check(reader.header(), self.symbols)?;
        let machine = SharedMachine::for_any(self.machine, reader.header().cpus, self.order)?;
        let (totals, costs, ()) = costs::run(reader, &machine, (), 0, true)?;
        Ok(LockCosts { totals, log: costs.log.unwrap_or_default() })
    }

    /// The second pass: follows the locks.
    ///
    /// # Errors
    /// As [`LockStudy::simulate`]; the kernel has no lock functions.
    pub(crate) fn table<R: Read>(
        &self,
        reader: RecordingReader<R>,
        simulated: &LockCosts,
    ) -> Result<LockTable> {
        let header = reader.header().clone();
        let machine = SharedMachine::for_any(self.machine, header.cpus, self.order)?;
        let latencies = machine.latencies().context("a machine with coherent caches has memory")?;
        let owners = self.names.owners(&header);
        let sequences = SEQUENCES.iter().flat_map(|symbol| owners.objects(symbol));
        let sequences = sequences.map(|object| object.start).collect();
        let functions = LockFunctions::new(self.symbols, sequences);
        ensure!(
            !functions.missing().contains(&LockKind::Spin),
            "the kernel has no function that acquires a spin lock (_raw_spin_lock and others): it \
             is made for one CPU, or its functions have other names"
        );
        let mut follower =
            LockFollower::new(functions, owners, latencies, machine.line_log2(), machine.cpus());
        machine.observe(reader, &simulated.log, &mut follower)?;
        let waiting = follower.finish();
        let (totals, types) = (simulated.totals, self.names.types()?);
        LockTable::new(&header, &machine, totals, &follower, &types, waiting)
    }
}
