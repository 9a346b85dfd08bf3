//! The locks of the kernel: who acquired them, who waited for whom, and for how long (Rosenblum
//! 1995, section 5.2).
//!
//! Takes a recording with data accesses, the kernel's symbols and a machine with coherent caches;
//! gives locks by the time that CPUs and tasks waited for them. Reads the recording once. Asks the
//! guest nothing, prints nothing.

mod book;
mod follow;
mod functions;
mod names;
pub mod table;
mod tasks;
#[cfg(test)]
mod tests;

use crate::sharing::caches::SharedMachine;
use crate::sharing::names::DataNames;
use anyhow::{Context, Result, ensure};
use follow::LockFollower;
use functions::{LockFunctions, LockKind, SEQUENCES};
use services::{self, symbols::KernelSymbols};
use sim::MachineModel;
use std::io::Read;
use table::LockTable;
use trace::RecordingReader;

/// Follows the locks of a recording. `symbols`: those of the code; `names`: those of the data.
///
/// # Errors
/// The recording is damaged, of another kernel or without data accesses; the kernel has no lock
/// functions; the machine has too few cores.
pub(crate) fn locks<R: Read>(
    reader: RecordingReader<R>,
    symbols: &KernelSymbols,
    names: &DataNames,
    machine: &MachineModel,
) -> Result<LockTable> {
    services::check(reader.header(), symbols)?;
    let header = reader.header().clone();
    let machine = SharedMachine::for_any(machine, header.cpus)?;
    let latencies = machine.latencies().context("a machine with coherent caches has memory")?;
    let owners = names.owners(&header);
    let sequences = SEQUENCES.iter().flat_map(|symbol| owners.objects(symbol));
    let sequences = sequences.map(|object| object.start).collect();
    let functions = LockFunctions::new(symbols, sequences);
    ensure!(
        !functions.missing().contains(&LockKind::Spin),
        "the kernel has no function that acquires a spin lock (_raw_spin_lock and others): it is \
         made for one CPU, or its functions have other names"
    );
    let mut follower =
        LockFollower::new(functions, owners, latencies, machine.line_log2(), machine.cpus());
    machine.run(reader, &mut follower)?;
    let waiting = follower.finish();
    LockTable::new(&header, &machine, &follower, &names.types()?, waiting)
}
