//! Reports of cache misses.
//!
//! Input: recordings, and for causes their kernel. Output: tables on standard output.

use super::opening::{MachineArgs, RecordingsArgs, TableArgs, TopArgs};
use crate::command::part::PartArgs;
use anyhow::{Result, ensure};
use clap::Args;
use execution::opened::OpenedRecording;
use host::recording::Recording;
use memory::misses::table::MissTable;
use memory::sizes::{self, Sizes};
use std::path::PathBuf;

/// Print why caches miss: by function, address and data structure
///
/// Takes recordings made with --data.
#[derive(Args)]
#[command(after_help = "Example:
  kernlane report misses net-data.rec --machine server-32k")]
pub struct MissesArgs {
    #[command(flatten)]
    pub recordings: RecordingsArgs,

    #[command(flatten)]
    pub machines: MachineArgs,

    #[command(flatten)]
    pub top: TopArgs,
}

pub(super) fn misses(args: &MissesArgs) -> Result<()> {
    let machines = &args.machines.machine;
    ensure!(!machines.is_empty(), "misses need a --machine: server-32k, for example");
    let tables: Vec<MissTable> = args.recordings.each_several(machines, |path, kernel| {
        memory::misses(&kernel.attribution, path, &kernel.path)
    })?;
    args.recordings.table.print_each(&tables, |table| report::misses::text(table, args.top.top))
}

/// Print misses of kernel and user mode by cause, in caches of many sizes and associativities
///
/// Recordings made with --data add data caches and unified caches.
#[derive(Args)]
#[command(after_help = "Example:
  kernlane report sizes net.rec")]
pub struct SizesArgs {
    /// A recording; may be given several times
    #[arg(required = true, value_name = "RECORDING")]
    pub recordings: Vec<PathBuf>,

    #[command(flatten)]
    pub part: PartArgs,

    #[command(flatten)]
    pub table: TableArgs,
}

pub(super) fn sizes(args: &SizesArgs) -> Result<()> {
    let part = args.part.part()?;
    let of_recording = |path: &PathBuf| {
        let opened = OpenedRecording::open(&Recording::at(path), &part, "caches")?;
        opened.named_by(&part).read(sizes::sizes)
    };
    let all: Vec<Sizes> = args.recordings.iter().map(of_recording).collect::<Result<_>>()?;
    args.table.print_each(&all, report::sizes::text)
}
