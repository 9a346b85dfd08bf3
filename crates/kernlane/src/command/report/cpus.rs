//! Reports of what CPUs do to each other.
//!
//! Input: recordings with data accesses, and their kernel. Output: tables on standard output.

use super::opening::{MachineArgs, RecordingsArgs, TopArgs};
use crate::command::order::OrderArg;
use anyhow::{Context, Result};
use clap::Args;
use coherence::locks::table::LockTable;
use coherence::os_core::policy::OsCorePolicy;
use coherence::os_core::table::OsCoreTable;
use coherence::sharing::check_top;
use coherence::sharing::table::SharingTable;
use coherence::sharing::what_if::SharingChange;
use guest::RecordingSummary;
use host::recording::Recording;
use image::programs::UserPrograms;
use report::multiprocessor::MultiprocessorBeside;
use std::path::PathBuf;

/// The machine of these reports, unless others are named.
const MACHINE: &str = "server-8";
/// The machine of `os-core`, unless others are named.
const OS_CORE_MACHINE: &str = "os-core-8";

/// How several CPUs run.
#[derive(Args)]
pub struct CpuOrderArgs {
    /// How several CPUs run on the machine
    #[arg(long, value_enum, default_value = "side-by-side", value_name = "ORDER")]
    pub order: OrderArg,
}

/// Print the lines that CPUs take from each other, by cost, with their fields and who uses them
///
/// Takes recordings made with --cpus and --data. It names the fields, and says which functions read
/// and write them on which CPU. Without --machine the machine is server-8.
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane report sharing files-4.rec --machine server-8 --top 10
  kernlane report sharing files-4.rec --what-if 'tasklist_lock -> own line'
  kernlane report sharing files-4.rec --what-if 'dentry.d_lockref -> own line'")]
pub struct SharingArgs {
    #[command(flatten)]
    pub recordings: RecordingsArgs,

    /// Print what coherence would cost with data in lines of its own. Takes 'NAME -> own line',
    /// 'NAME.FIELD -> own line' (needs BTF) or 'NAME+OFFSET:BYTES -> own line'; NAME is a symbol, a
    /// slab cache or its structure, with 'static' or 'slab' in front if it is both; may be given
    /// several times
    #[arg(long, value_name = "MOVE")]
    pub what_if: Vec<String>,

    #[command(flatten)]
    pub order: CpuOrderArgs,

    #[command(flatten)]
    pub machines: MachineArgs,

    #[command(flatten)]
    pub top: TopArgs,
}

pub(super) fn sharing(args: &SharingArgs) -> Result<()> {
    let (order, machines) = (args.order.order.into(), args.machines.or(&[MACHINE]));
    if args.what_if.is_empty() {
        let top = args.top.top;
        check_top(top).with_context(|| format!("--top {top}"))?;
        let tables: Vec<SharingTable> =
            args.recordings.each_several(&machines, |path, kernel| {
                // What the plugin recorded by itself has no summary; a damaged one is an error.
                let files = Recording::at(path);
                let programs = match files.summary().exists() {
                    true => RecordingSummary::read(&files)?.programs.unwrap_or_default(),
                    false => UserPrograms::default(),
                };
                coherence::sharing(&kernel.attribution, order, path, &kernel.path, &programs, top)
            })?;
        return args.recordings.table.print_each(&tables, report::sharing::text);
    }
    let changes: Vec<SharingChange> = args.recordings.each_several(&machines, |path, kernel| {
        coherence::what_if(&kernel.attribution, order, path, &kernel.path, &args.what_if)
    })?;
    args.recordings.table.print_each(&changes, report::sharing::change)
}

/// Print the services of several CPUs: work, synchronization, coherence misses, upgrades and other
/// stalls, beside Rosenblum 1995, section 5
///
/// Takes recordings made with --cpus and --data. Without --machine the machine is server-8.
#[derive(Args)]
#[command(after_help = "Example:
  kernlane report multiprocessor files-4.rec --one-cpu files.rec")]
pub struct MultiprocessorArgs {
    #[command(flatten)]
    pub recordings: RecordingsArgs,

    /// A recording of the same workload on one CPU, made with --data, to compare each service with
    #[arg(long, value_name = "RECORDING")]
    pub one_cpu: Option<PathBuf>,

    #[command(flatten)]
    pub order: CpuOrderArgs,

    #[command(flatten)]
    pub machines: MachineArgs,

    #[command(flatten)]
    pub top: TopArgs,
}

pub(super) fn multiprocessor(args: &MultiprocessorArgs) -> Result<()> {
    let (order, machines) = (args.order.order.into(), args.machines.or(&[MACHINE]));
    let tables = args.recordings.each_several(&machines, |path, kernel| {
        coherence::multiprocessor(&kernel.attribution, order, path, args.one_cpu.as_deref())
    })?;
    let tables: Vec<MultiprocessorBeside> = tables.into_iter().map(Into::into).collect();
    args.recordings
        .table
        .print_each(&tables, |table| report::multiprocessor::text(table, args.top.rows()))
}

/// Print the kernel's locks: acquisitions, waits, holds, and who waited for whom
///
/// Takes recordings made with --data, of one or several CPUs. Lists the kernel's spin locks,
/// rwlocks, mutexes, rwsems and known sequence counters: how often they were acquired, how long
/// CPUs and tasks waited and held them. Without --machine the machine is server-8.
#[derive(Args)]
#[command(after_help = "Example:
  kernlane report locks files-4.rec --top 10")]
pub struct LocksArgs {
    #[command(flatten)]
    pub recordings: RecordingsArgs,

    #[command(flatten)]
    pub order: CpuOrderArgs,

    #[command(flatten)]
    pub machines: MachineArgs,

    #[command(flatten)]
    pub top: TopArgs,
}

pub(super) fn locks(args: &LocksArgs) -> Result<()> {
    let (order, machines) = (args.order.order.into(), args.machines.or(&[MACHINE]));
    let tables: Vec<LockTable> = args.recordings.each_several(&machines, |path, kernel| {
        coherence::locks(&kernel.attribution, order, path, &kernel.path)
    })?;
    args.recordings.table.print_each(&tables, |table| report::locks::text(table, args.top.rows()))
}

/// Print what a core for the operating system would bring, by what moves there (Nellans 2005)
///
/// Takes recordings made with --data, of one or several CPUs. It simulates a core that executes the
/// operating system for all others. For each policy it compares the time, the misses of user code
/// and the energy with a machine that moves nothing there. Without --policy it moves everything,
/// and then only stays in the kernel with more than 100 to 25 000 instructions. Without --machine
/// the machine is os-core-8.
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane report os-core files.rec --machine os-core-8,os-core-small
  kernlane report os-core files.rec --policy longer:1000 --move-cycles 5000")]
pub struct OsCoreArgs {
    #[command(flatten)]
    pub recordings: RecordingsArgs,

    /// What moves there. `everything`, `longer:INSTRUCTIONS` (stays in the kernel with more
    /// instructions) or `services:NAME,NAME` (as `kernlane report services` names them); may be
    /// given several times
    #[arg(long, value_name = "POLICY")]
    pub policy: Vec<OsCorePolicy>,

    /// The cycles to move there, and the cycles to move back, instead of the machine's
    #[arg(long, value_name = "CYCLES")]
    pub move_cycles: Option<f64>,

    #[command(flatten)]
    pub machines: MachineArgs,
}

pub(super) fn os_core(args: &OsCoreArgs) -> Result<()> {
    let sweep = OsCorePolicy::sweep();
    let policies = if args.policy.is_empty() { &sweep } else { &args.policy };
    let machines = args.machines.or(&[OS_CORE_MACHINE]);
    let tables: Vec<OsCoreTable> = args.recordings.each_several(&machines, |path, kernel| {
        coherence::os_core(&kernel.attribution, path, policies, args.move_cycles)
    })?;
    args.recordings.table.print_each(&tables, report::os_core::text)
}
