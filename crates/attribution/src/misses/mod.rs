//! Which misses a recorded execution makes on simulated machines, why, and on what: by cause,
//! function, address and data structure.
//!
//! Takes a recording with data accesses, the kernel's vmlinux and machines; gives tables that add
//! up to what the machines' caches counted. The causes are those of SimOS (Rosenblum 1995, section
//! 4.4.1). Nothing is sampled, nothing is asked of the guest. Prints nothing.

mod collector;
mod memory;
pub mod table;
mod variables;
mod walk;

use crate::services::{self, symbols::Symbols};
use anyhow::{Context, Result};
use collector::Collector;
use memory::Memory;
use sim::MachineModel;
use std::io::Read;
use std::path::Path;
use table::MissTable;
use trace::RecordingReader;
use variables::Variables;

/// One table for each machine.
///
/// # Errors
/// The recording is damaged, has no data accesses or is of another kernel; a machine has no data
/// cache; `vmlinux` has no symbols.
pub fn misses<R: Read>(
    reader: &mut RecordingReader<R>,
    symbols: &Symbols,
    vmlinux: &Path,
    machines: &[MachineModel],
) -> Result<Vec<MissTable>> {
    services::check(reader, symbols)?;
    let variables = Variables::read(vmlinux).with_context(|| vmlinux.display().to_string())?;
    let header = reader.header().clone();
    let memory = Memory::new(&header, variables);
    let unknown = memory.unknown().map(str::to_owned);
    let mut collector = Collector::new(symbols, memory, machines.len());
    let counted = walk::walk(reader, machines, &mut collector)?;
    collector.finish();
    let tables = machines.iter().zip(counted).enumerate();
    Ok(tables
        .map(|(number, (machine, counted))| {
            MissTable::new(&header, machine, &collector, number, &counted, unknown.clone())
        })
        .collect())
}
