//! The misses of a recorded execution on simulated machines, by cause, function, address and data
//! structure.
//!
//! Takes a recording with data accesses, the kernel's vmlinux and machines; gives tables that add
//! up to the counters of the machines' caches. The causes are those of SimOS (Rosenblum 1995,
//! section 4.4.1). Samples nothing, asks the guest nothing, prints nothing.

pub(crate) mod collector;
pub(crate) mod memory;
pub mod table;
pub(crate) mod uses;
pub(crate) mod variables;
mod walk;

use crate::services::{self, symbols::KernelSymbols};
use anyhow::{Context, Result};
use collector::MissCollector;
use image::mapping::map_file;
use memory::DataOwners;
use sim::MachineModel;
use std::io::Read;
use std::path::Path;
use table::MissTable;
use trace::RecordingReader;
use variables::Variables;

/// The misses of a recording, one table for each machine.
///
/// # Errors
/// The recording is damaged, has no data accesses, is of another kernel or of several CPUs; a
/// machine has no data cache; `vmlinux` has no symbols.
pub(crate) fn misses<R: Read>(
    reader: &mut RecordingReader<R>,
    symbols: &KernelSymbols,
    vmlinux: &Path,
    machines: &[MachineModel],
) -> Result<Vec<MissTable>> {
    services::check(reader, symbols)?;
    reader.header().one_cpu().context(
        "the caches of several CPUs depend on each other: --sharing has their misses by data \
         structure, --multiprocessor by service",
    )?;
    let bytes = map_file(vmlinux)?;
    let variables = Variables::read(&bytes).with_context(|| vmlinux.display().to_string())?;
    let header = reader.header().clone();
    let memory = DataOwners::new(&header, variables);
    let unknown = memory.unknown().map(str::to_owned);
    let mut collector = MissCollector::new(symbols, memory, machines.len());
    let counted = walk::walk(reader, machines, &mut collector)?;
    collector.finish();
    let tables = machines.iter().zip(counted).enumerate();
    Ok(tables
        .map(|(number, (machine, counted))| {
            MissTable::new(&header, machine, &collector, number, &counted, unknown.clone())
        })
        .collect())
}
