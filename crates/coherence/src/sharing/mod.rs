//! The lines that CPUs take from each other, down to fields and the functions that use them: what
//! `perf c2c` samples, in exact counts.
//!
//! Takes a recording of several CPUs with data accesses, the kernel's vmlinux and a machine with
//! coherent caches; gives lines by cost. Reads the recording twice: the first pass simulates, ranks
//! all lines and keeps a log of the requests (about 4 bytes for each), the second collects the
//! fields of the first few lines.
//! Samples nothing, asks the guest nothing, prints nothing.

pub(crate) mod caches;
pub(crate) mod costs;
mod counts;
mod cure;
mod details;
mod functions;
mod moved;
mod ranking;
mod rows;
pub mod table;
#[cfg(test)]
mod tests;
pub mod what_if;

use anyhow::{Result, ensure};
use caches::SharedMachine;
use execution::cpu_order::CpuOrder;
use image::programs::UserPrograms;
use memory::objects::names::DataNames;
use ranking::{MOST_LINES, Ranking};
use services::{self, symbols::KernelSymbols};
use sim::MachineModel;
use std::io::Read;
use table::{RowNames, SharingTable};
use trace::{RecordingHeader, RecordingReader};
use what_if::{MovableData, MoveRequest, SharingChange};

/// The largest number of lines whose fields are collected.
const MOST_ROWS: usize = 10_000;
/// The smallest number of lines that are added up by what they hold.
const DATA_LINES: usize = 1000;

/// What the passes over a recording share.
pub(crate) struct SharingStudy<'a> {
    symbols: &'a KernelSymbols,
    names: &'a DataNames,
    machine: &'a MachineModel,
    order: CpuOrder,
}

impl<'a> SharingStudy<'a> {
    /// `symbols`: those of the code; `names`: those of the data.
    pub(crate) fn new(
        symbols: &'a KernelSymbols,
        names: &'a DataNames,
        machine: &'a MachineModel,
        order: CpuOrder,
    ) -> SharingStudy<'a> {
        SharingStudy { symbols, names, machine, order }
    }

    /// The first pass: ranks the lines.
    ///
    /// # Errors
    /// The recording is damaged, of another kernel, of one CPU or without data accesses; the
    /// machine has too few cores.
    pub(crate) fn rank<R: Read>(&self, reader: RecordingReader<R>) -> Result<Ranking> {
        services::check(reader.header(), self.symbols)?;
        let machine = SharedMachine::new(self.machine, reader.header().cpus, self.order)?;
        let owners = self.names.owners(reader.header());
        ranking::rank(reader, &machine, MOST_LINES, owners)
    }

    /// The second pass: the first `top` lines of a ranking with their fields, and what the first
    /// lines hold. `programs`: those of the recording's tasks.
    ///
    /// # Errors
    /// As [`SharingStudy::rank`]; the kernel's BTF is damaged.
    pub(crate) fn table<R: Read>(
        &self,
        reader: RecordingReader<R>,
        ranking: &Ranking,
        top: usize,
        programs: &UserPrograms,
    ) -> Result<SharingTable> {
        let header = reader.header().clone();
        let machine = SharedMachine::new(self.machine, header.cpus, self.order)?;
        let lines = ranking.lines.iter().take(top.max(DATA_LINES));
        let numbers: Vec<u64> = lines.map(|&(line, _)| line).collect();
        let owners = self.names.owners(&header);
        let found = details::collect(reader, &machine, &ranking.log, owners, &numbers)?;
        let types = self.names.types()?;
        let slabs = ranking.slab_objects(&types)?;
        let names = RowNames {
            symbols: self.symbols,
            owners: &found.owners,
            tasks: &found.tasks,
            types: &types,
            slabs: &slabs,
            programs,
        };
        let counted = (found.lines, &found.blocks);
        SharingTable::new(&header, &machine, ranking, counted, top, &names)
    }

    /// The pass with moved data. `ranking`: that of the first pass.
    ///
    /// # Errors
    /// As [`SharingStudy::rank`]; a request names no data.
    pub(crate) fn what_if<R: Read>(
        &self,
        reader: RecordingReader<R>,
        ranking: &Ranking,
        requests: &[String],
    ) -> Result<SharingChange> {
        let RecordingHeader { workload, build_id, seed, .. } = reader.header().clone();
        let machine = SharedMachine::new(self.machine, reader.header().cpus, self.order)?;
        let requests: Vec<MoveRequest<'_>> =
            requests.iter().map(|text| MoveRequest::parse(text)).collect::<Result<_>>()?;
        let owners = self.names.owners(reader.header());
        let line_bytes = 1 << machine.line_log2();
        let types = self.names.types()?;
        let known = MovableData { owners, types: &types, slabs: &ranking.slab_objects(&types)? };
        let (places, rows) = what_if::moves(&requests, known, line_bytes, ranking.end)?;
        let (after, _, places) = costs::run(reader, &machine, places, 0, false)?;
        Ok(SharingChange {
            workload,
            kernel_build_id: build_id,
            seed,
            cpus: machine.cpus(),
            machine: machine.name().to_owned(),
            order: machine.order(),
            moved: what_if::moved(rows, &places),
            before: ranking.totals.total,
            after: after.total,
            recorded: ranking.totals.recorded.zip(after.recorded),
        })
    }
}

/// Checks that the second pass can follow the `top` lines.
///
/// # Errors
/// There are more lines than it follows.
pub fn check_top(top: usize) -> Result<()> {
    ensure!(
        top <= MOST_ROWS,
        "the fields of at most {MOST_ROWS} lines are collected, not of {top}"
    );
    Ok(())
}
