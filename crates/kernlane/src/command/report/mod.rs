//! `kernlane report`: makes a page from results, and tables of services from recordings.
//!
//! Input: results, or recordings and their kernel. Output: a page or tables.

mod recordings;
mod results;

use crate::command::order::OrderArg;
use crate::command::part::PartArgs;
use crate::command::record::warn_unlike;
use crate::command::sampling::SamplingArgs;
use anyhow::Result;
use clap::Args;
use coherence::os_core::policy::OsCorePolicy;
use host::out;
use host::outln;
use road::opened::{OpenedKernel, Opening};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Show where a recording's time goes, and what layouts gain, as one page or as tables
///
/// Takes results: the output of `kernlane replay --json`, or the results.json of `kernlane
/// optimize`. Compares every layout, predicted and recorded, with the original. Prints tables, or
/// writes a page with --output.
///
/// With --output it also takes recordings. The page then shows execution over
/// time, services, misses by cause and by address, chains of calls, the system's share and
/// functions; for recordings made with --data also misses by data structure. It simulates the
/// machine `server-32k` unless --machine names others. --layout adds the misses of another layout.
///
/// With --services, --misses, --sharing, --os-share or --locality it takes recordings, and
/// no results. --services lists every service of the system: each system call, kind of page fault,
/// interrupt, softirq, kernel thread. --from and --until take a part of each recording.
///
/// --generations lists every service on machines of several generations, and splits P, how many
/// times faster each machine is than the first, into the ratio of the clocks (T) and that of the
/// cycles (A): P = T × A. Without --machine these are i486, simos-1994, simos-1996, simos-1998,
/// pentium4 and zen4.
///
/// --sharing takes recordings of several CPUs with data accesses (`kernlane record --cpus N
/// --data`). It ranks the lines that CPUs take from each other, names the fields, and says which
/// functions read and write them on which CPU. It simulates the machine `server-8` unless --machine
/// names others.
///
/// --multiprocessor takes recordings of several CPUs with data accesses, and lists for each service
/// where its cycles go: work, synchronization, coherence misses, upgrades, other stalls. --one-cpu
/// names a recording of the same workload on one CPU, with which each service is compared. The
/// numbers of Rosenblum 1995, section 5, stand beside them. It simulates the machine `server-8`
/// unless --machine names others.
///
/// --locks takes recordings with data accesses, of one or several CPUs. It lists the kernel's spin
/// locks, rwlocks, mutexes, rwsems and known sequence counters: how often they were acquired, how
/// long CPUs and tasks waited and held them, and who waited for whom. It simulates the machine
/// `server-8` unless --machine names others.
///
/// --os-core takes recordings with data accesses, of one or several CPUs. It simulates a core that
/// executes the operating system for all others. For each policy it compares the time, the misses
/// of user code and the energy with a machine that moves nothing there. Without --policy it moves
/// everything, and then only stays in the kernel with more than 100 to 25 000 instructions. It
/// simulates the machine `os-core-8` unless --machine names others.
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane report net.rec -o net.html
  kernlane report net.results files.results -o report.html
  kernlane report --services net.rec --machine torrellas-8k --machine server-32k
  kernlane report --services net.rec --machine zen4 --within 0.5
  kernlane report --services --branches net.rec --machine server-32k
  kernlane report --os-share net.rec files.rec --machine server-32k
  kernlane report --misses net.rec --machine server-32k
  kernlane report --sharing files-4.rec --machine server-8 --top 10
  kernlane report --sharing files-4.rec --what-if 'tasklist_lock -> own line'
  kernlane report --sharing files-4.rec --what-if 'dentry.d_lockref -> own line'
  kernlane report --multiprocessor files-4.rec --one-cpu files.rec
  kernlane report --locks files-4.rec --top 10
  kernlane report --os-core files.rec --machine os-core-8,os-core-small
  kernlane report --os-core files.rec --policy longer:1000 --move-cycles 5000
  kernlane report --locality net.rec files.rec
  kernlane report --sizes net.rec
  kernlane report --generations net.rec --machine i486,pentium4,zen4
  kernlane report net.rec --machine simos-1994,simos-1998,zen4 -o net.html
  kernlane report --per-operation getpid.results stat.results")]
pub struct ReportArgs {
    /// Result files, or directories with a results.json; recordings for the tables of services
    #[arg(required = true, value_name = "RESULTS|RECORDING")]
    pub inputs: Vec<PathBuf>,

    /// Where to write the page
    #[arg(long, short, value_name = "FILE.html", conflicts_with = "table")]
    pub output: Option<PathBuf>,

    /// Print the time by service of the system
    #[arg(long, group = "table")]
    pub services: bool,

    /// With --services: print mispredictions by service, on machines with a branch predictor
    #[arg(long, requires = "services", requires = "machine")]
    pub branches: bool,

    /// Print the system's share of the work, and the length of each visit to the kernel
    #[arg(long, group = "table")]
    pub os_share: bool,

    /// Print how much of the kernel's code runs, why it is entered, its branches, loops and popular
    /// functions, beside Torrellas' numbers
    #[arg(long, group = "table")]
    pub locality: bool,

    /// Print misses of kernel and user mode by cause, in caches of many sizes and associativities.
    /// Recordings made with --data add data caches and unified caches
    #[arg(long, group = "table")]
    pub sizes: bool,

    /// Print misses by function, address and data structure; needs a recording made with --data
    #[arg(long, group = "table")]
    pub misses: bool,

    /// Print each service on machines of several generations, and how many times faster each
    /// machine is than the first: by its clock (T), by its cycles for each instruction (A), and in
    /// all (P). Beside it the numbers of Nellans 2005 and Rosenblum 1995
    #[arg(long, group = "table")]
    pub generations: bool,

    #[command(flatten)]
    pub part: PartArgs,

    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// Print the lines that CPUs take from each other, by cost, with their fields and who uses
    /// them; needs a recording made with --cpus and --data
    #[arg(long, groups = ["table", "ordered"])]
    pub sharing: bool,

    /// With --sharing: print what coherence would cost with data in lines of its own. Takes
    /// 'NAME -> own line', 'NAME.FIELD -> own line' (needs BTF) or 'NAME+OFFSET:BYTES -> own line';
    /// NAME is a symbol, a slab cache or its structure, with 'static' or 'slab' in front if it is
    /// both; may be given several times
    #[arg(long, value_name = "MOVE", requires = "sharing")]
    pub what_if: Vec<String>,

    /// Print the services of several CPUs: work, synchronization, coherence misses, upgrades and
    /// other stalls, beside Rosenblum 1995, section 5; needs a recording made with --cpus and
    /// --data
    #[arg(long, groups = ["table", "ordered"])]
    pub multiprocessor: bool,

    /// With --multiprocessor: a recording of the same workload on one CPU, made with --data
    #[arg(long, value_name = "RECORDING", requires = "multiprocessor")]
    pub one_cpu: Option<PathBuf>,

    /// Print the kernel's locks: acquisitions, waits, holds, and who waited for whom; needs a
    /// recording made with --data
    #[arg(long, groups = ["table", "ordered"])]
    pub locks: bool,

    /// With --sharing, --multiprocessor and --locks: how several CPUs run on the machine
    #[arg(
        long,
        value_enum,
        default_value = "side-by-side",
        value_name = "ORDER",
        requires = "ordered"
    )]
    pub order: OrderArg,

    /// Print what a core for the operating system would bring, by what moves there (Nellans 2005);
    /// needs a recording made with --data
    #[arg(long, group = "table")]
    pub os_core: bool,

    /// With --os-core: what moves there. `everything`, `longer:INSTRUCTIONS` (stays in the kernel
    /// with more instructions) or `services:NAME,NAME` (as --services names them); may be given
    /// several times
    #[arg(long, value_name = "POLICY", requires = "os_core")]
    pub policy: Vec<OsCorePolicy>,

    /// With --os-core: the cycles to move there, and the cycles to move back, instead of the
    /// machine's
    #[arg(long, value_name = "CYCLES", requires = "os_core")]
    pub move_cycles: Option<f64>,

    /// Print what one operation costs, from results of recordings that say their number of
    /// operations, as `kernlane record bench:NAME` does
    #[arg(long, group = "table", conflicts_with = "kernel")]
    pub per_operation: bool,

    /// The kernel that was recorded: its build tree, its vmlinux, or its System.map [default: found
    /// by its build id: where it was recorded, in the cache, below /usr/lib/debug]
    #[arg(long, short, value_name = "TREE|VMLINUX|SYSTEM.MAP")]
    pub kernel: Option<PathBuf>,

    /// A machine to simulate beside, as for `kernlane replay`; may be given several times, or as a
    /// list with commas
    #[arg(long, short, alias = "machines", value_name = "NAME|FILE.toml", value_delimiter = ',')]
    pub machine: Vec<String>,

    /// Another layout for the page, as for `kernlane replay`; may be given several times
    #[arg(long, short, value_name = "FILE", conflicts_with = "table")]
    pub layout: Vec<PathBuf>,

    /// What the kernel's functions mean, instead of annotations/linux.toml
    #[arg(long, value_name = "FILE.toml")]
    pub annotations: Option<PathBuf>,

    /// How many services, functions, lines or locks to print
    #[arg(long, default_value_t = 30)]
    pub top: usize,

    /// Print the tables as JSON
    #[arg(long)]
    pub json: bool,
}

/// The tables, each with the option that asks for it. At most one is asked for.
fn asked(args: &ReportArgs) -> Option<fn(&ReportArgs) -> Result<()>> {
    let tables: [(bool, fn(&ReportArgs) -> Result<()>); 11] = [
        (args.services, recordings::services),
        (args.os_share, recordings::os_share),
        (args.locality, recordings::locality),
        (args.sizes, recordings::sizes),
        (args.misses, recordings::misses),
        (args.generations, recordings::generations),
        (args.sharing, recordings::sharing),
        (args.multiprocessor, recordings::multiprocessor),
        (args.locks, recordings::locks),
        (args.os_core, recordings::os_core),
        (args.per_operation, results::per_operation),
    ];
    tables.into_iter().find_map(|(is_asked, print)| is_asked.then_some(print))
}

pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode> {
    args.part.part()?;
    args.sampling.sampling()?;
    match asked(args) {
        Some(print) => print(args)?,
        None => results::comparisons_and_page(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Calls `make` for each recording and its kernel, in order. `usual`: the machines if none are
/// named.
fn each_opened<T>(
    args: &ReportArgs,
    recordings: &[impl AsRef<Path>],
    usual: &[&str],
    make: impl FnMut(&Path, &OpenedKernel) -> Result<T>,
) -> Result<Vec<T>> {
    let usual: Vec<String> = usual.iter().map(|&name| name.to_owned()).collect();
    let opening = Opening {
        kernel: args.kernel.as_deref(),
        annotations: args.annotations.as_deref(),
        machines: if args.machine.is_empty() { &usual } else { &args.machine },
        part: args.part.part()?,
    };
    for recording in recordings {
        warn_unlike(recording.as_ref(), opening.machines)?;
    }
    opening.each(recordings, make)
}

fn print<T: Serialize>(args: &ReportArgs, value: &T, text: impl FnOnce() -> String) -> Result<()> {
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(value)?)?,
        false => out!("{}", text())?,
    }
    Ok(())
}
