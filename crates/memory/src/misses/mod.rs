//! The misses of a recorded execution on simulated machines, by cause, function, address and data
//! structure.
//!
//! Takes a recording with data accesses, the kernel's vmlinux and machines; gives tables that add
//! up to the counters of the machines' caches. The causes are those of SimOS (Rosenblum 1995,
//! section 4.4.1). Samples nothing, asks the guest nothing, prints nothing.

pub mod collector;
pub mod events;
pub(crate) mod hierarchy_walk;
pub mod owners;
pub mod table;
pub mod uses;
pub mod variables;

use anyhow::{Context, Result};
use collector::MissCollector;
use execution::code::TranslatedCode;
use execution::slices::SliceStarts;
use execution::walk::{Observer, Piece, Wants, walk};
use hierarchy_walk::HierarchyWalk;
use image::mapping::map_file;
use owners::DataOwners;
use services::symbols::KernelSymbols;
use sim::MachineModel;
use std::io::Read;
use std::path::Path;
use table::MissTable;
use trace::{Accesses, RecordingHeader, RecordingReader, Translation};
use variables::Variables;

/// The misses of a recording, one table for each machine.
///
/// # Errors
/// The recording is damaged, has no data accesses, comes from another kernel or was made on several
/// CPUs; a machine has no data cache; `vmlinux` has no symbols.
pub fn misses<R: Read>(
    reader: RecordingReader<R>,
    symbols: &KernelSymbols,
    vmlinux: &Path,
    machines: &[MachineModel],
) -> Result<Vec<MissTable>> {
    let whole = SliceStarts::default();
    let mut walked = MissesWalk::new(reader.header(), symbols, vmlinux, machines, &whole)?;
    walk(reader, &mut walked)?;
    Ok(walked.tables())
}

/// Counts misses, as an observer of a recording.
pub struct MissesWalk<'a> {
    header: RecordingHeader,
    machines: &'a [MachineModel],
    unknown: Option<String>,
    walk: HierarchyWalk<MissCollector<'a>>,
}

impl<'a> MissesWalk<'a> {
    /// Prepares to count the misses of the recording with this header. `starts`: where the slices
    /// of its rows begin.
    ///
    /// # Errors
    /// As [`misses`].
    pub fn new(
        header: &RecordingHeader,
        symbols: &'a KernelSymbols,
        vmlinux: &Path,
        machines: &'a [MachineModel],
        starts: &SliceStarts,
    ) -> Result<MissesWalk<'a>> {
        services::check(header, symbols)?;
        header.one_cpu().context(
            "the caches of several CPUs depend on each other: the table of shared lines has their \
             misses by data structure, the table of several CPUs by service",
        )?;
        let bytes = map_file(vmlinux)?;
        let variables = Variables::read(&bytes).with_context(|| vmlinux.display().to_string())?;
        let memory = DataOwners::new(header, variables);
        let unknown = memory.unknown().map(str::to_owned);
        let collector = MissCollector::new(symbols, memory, machines.len(), starts);
        let walk = HierarchyWalk::new(machines, collector)?;
        Ok(MissesWalk { header: header.clone(), machines, unknown, walk })
    }

    /// One table for each machine.
    pub fn tables(self) -> Vec<MissTable> {
        let counted = self.walk.counters();
        let mut collector = self.walk.observer;
        collector.finish();
        let tables = self.machines.iter().zip(counted).enumerate();
        tables
            .map(|(number, (machine, counted))| {
                let unknown = self.unknown.clone();
                MissTable::new(&self.header, machine, &collector, number, &counted, unknown)
            })
            .collect()
    }
}

impl Observer for MissesWalk<'_> {
    fn begin(&mut self, header: &RecordingHeader, has_data: bool) -> Result<Wants> {
        self.walk.begin(header, has_data)
    }

    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()> {
        self.walk.define(translations, codes)
    }

    fn stream(&mut self, accesses: &Accesses) {
        self.walk.stream(accesses);
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        self.walk.piece(piece)
    }
}
