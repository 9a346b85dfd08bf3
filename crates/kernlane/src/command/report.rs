//! `kernlane report`: makes a page from results, and tables of services from recordings.
//!
//! Input: results, or recordings and their kernel. Output: a page or tables.

use crate::command::replay::{read_layout, replay_recording};
use anyhow::{Context, Result, bail, ensure};
use attribution::Attribution;
use attribution::generations;
use attribution::locks::table::LockTable;
use attribution::misses::table::MissTable;
use attribution::os_core::policy::OsCorePolicy;
use attribution::os_core::table::OsCoreTable;
use attribution::services::locality::Locality;
use attribution::services::share::OsShare;
use attribution::services::table::ServiceTable;
use attribution::sharing::table::SharingTable;
use attribution::sharing::what_if::SharingChange;
use attribution::sizes::{self, Sizes};
use clap::Args;
use execution::machine;
use execution::part::RecordingPart;
use host::out;
use host::outln;
use host::output;
use host::recording::Recording;
use image::vmlinux;
use replay::comparison::{self, Comparison};
use replay::results::ResultFile;
use replay::{ReplayLayout, SimulationScope, per_operation, rows};
use report::generations::GenerationsBeside;
use report::multiprocessor::{self, MultiprocessorBeside};
use report::overview::{LayoutMisses, Overview, OverviewExtras, StructureMisses};
use report::{self, locality, locks, misses, os_core, page, services, sharing, text};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The machine of the page, unless --machine names others.
const MACHINE: &str = "server-32k";
/// The machines of --generations, unless --machine names others.
const GENERATIONS: [&str; 6] =
    ["i486", "simos-1994", "simos-1996", "simos-1998", "pentium4", "zen4"];
/// The machine of --sharing, unless --machine names others.
const SHARING_MACHINE: &str = "server-8";
/// The machine of --os-core, unless --machine names others.
const OS_CORE_MACHINE: &str = "os-core-8";

/// Show where a recording's time goes, and what layouts gain, as one page or as tables
///
/// Takes results: the output of `kernlane replay --json`, or the results.json of `kernlane
/// optimize`. Compares every layout, predicted and recorded, with the original. Prints tables, or
/// writes a page with --output.
///
/// With --output it also takes recordings and their kernel. The page then shows execution over
/// time, services, misses by cause and by address, chains of calls, the system's share and
/// functions; for recordings made with --data also misses by data structure. It simulates the
/// machine `server-32k` unless --machine names others. --layout adds the misses of another layout.
///
/// With --services, --misses, --sharing, --os-share or --locality it takes recordings and their
/// kernel, and no results. --services lists every service of the system: each system call, kind of
/// page fault, interrupt, softirq, kernel thread. With --sizes it takes recordings alone.
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
/// names a recording of the same workload on one CPU, with which each service is compared. Beside
/// it stand the numbers of Rosenblum 1995, section 5. It simulates the machine `server-8` unless
/// --machine names others.
///
/// --locks takes recordings with data accesses, of one or several CPUs. It lists the kernel's spin
/// locks, rwlocks, mutexes, rwsems and known sequence counters: how often they were acquired, how
/// long CPUs and tasks waited and held them, and who waited for whom. It simulates the machine
/// `server-8` unless --machine names others.
///
/// --os-core takes recordings with data accesses, of one or several CPUs. It simulates a core that
/// executes the operating system for all others, and lists for each policy the time, the misses of
/// user code and the energy, against no such core. Without --policy it moves everything, and then
/// only stays in the kernel with more than 100 to 25 000 instructions. It simulates the machine
/// `os-core-8` unless --machine names others.
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane report net.rec --kernel ~/linux -o net.html
  kernlane report net.results files.results -o report.html
  kernlane report --services net.rec --kernel ~/linux --machine torrellas-8k --machine server-32k
  kernlane report --services --branches net.rec --kernel ~/linux --machine server-32k
  kernlane report --os-share net.rec files.rec --kernel ~/linux --machine server-32k
  kernlane report --misses net.rec --kernel ~/linux --machine server-32k
  kernlane report --sharing files-4.rec --kernel ~/linux --machine server-8 --top 10
  kernlane report --sharing files-4.rec --kernel ~/linux --what-if 'tasklist_lock -> own line'
  kernlane report --multiprocessor files-4.rec --one-cpu files.rec --kernel ~/linux
  kernlane report --locks files-4.rec --kernel ~/linux --top 10
  kernlane report --os-core files.rec --kernel ~/linux --machine os-core-8,os-core-small
  kernlane report --os-core files.rec --kernel ~/linux --policy longer:1000 --move-cycles 5000
  kernlane report --locality net.rec files.rec --kernel ~/linux
  kernlane report --sizes net.rec
  kernlane report --generations net.rec --kernel ~/linux --machine i486,pentium4,zen4
  kernlane report net.rec --kernel ~/linux --machine simos-1994,simos-1998,zen4 -o net.html
  kernlane report --per-operation getpid.results stat.results")]
pub struct ReportArgs {
    /// Result files, or directories with a results.json; recordings for the tables of services
    #[arg(required = true, value_name = "RESULTS|RECORDING")]
    pub inputs: Vec<PathBuf>,

    /// Where to write the page
    #[arg(
        long,
        short,
        value_name = "FILE.html",
        conflicts_with_all =
            ["services", "os_share", "locality", "sizes", "misses", "sharing", "os_core",
             "generations"]
    )]
    pub output: Option<PathBuf>,

    /// Print the time by service of the system
    #[arg(long, requires = "kernel")]
    pub services: bool,

    /// With --services: print mispredictions by service, on machines with a branch predictor
    #[arg(long, requires = "services", requires = "machine")]
    pub branches: bool,

    /// Print the system's share of the work, and the length of each visit to the kernel
    #[arg(long, requires = "kernel", conflicts_with = "services")]
    pub os_share: bool,

    /// Print how much of the kernel's code runs, why it is entered, its branches, loops and popular
    /// functions, beside Torrellas' numbers
    #[arg(long, requires = "kernel", conflicts_with_all = ["services", "os_share"])]
    pub locality: bool,

    /// Print misses of kernel and user mode by cause, in caches of many sizes and associativities.
    /// Recordings made with --data add data caches and unified caches
    #[arg(long, conflicts_with_all = ["services", "os_share", "locality"])]
    pub sizes: bool,

    /// Print misses by function, address and data structure; needs a recording made with --data
    #[arg(
        long,
        requires = "kernel",
        conflicts_with_all = ["services", "os_share", "locality", "sizes"]
    )]
    pub misses: bool,

    /// Print each service on machines of several generations, and how many times faster each
    /// machine is than the first: by its clock (T), by its cycles for each instruction (A), and in
    /// all (P). Beside it the numbers of Nellans 2005 and Rosenblum 1995
    #[arg(
        long,
        requires = "kernel",
        conflicts_with_all =
            ["services", "os_share", "locality", "sizes", "misses", "sharing", "layout"]
    )]
    pub generations: bool,

    #[command(flatten)]
    pub part: RecordingPart,

    /// Print the lines that CPUs take from each other, by cost, with their fields and who uses
    /// them; needs a recording made with --cpus and --data
    #[arg(
        long,
        requires = "kernel",
        conflicts_with_all = ["services", "os_share", "locality", "sizes", "misses"]
    )]
    pub sharing: bool,

    /// With --sharing: print what coherence would cost with data in lines of its own. Takes
    /// 'SYMBOL -> own line', 'SYMBOL.FIELD -> own line' (needs BTF) or 'SYMBOL+OFFSET:BYTES -> own
    /// line'; may be given several times
    #[arg(long, value_name = "MOVE", requires = "sharing")]
    pub what_if: Vec<String>,

    /// Print the services of several CPUs: work, synchronization, coherence misses, upgrades and
    /// other stalls, beside Rosenblum 1995, section 5; needs a recording made with --cpus and
    /// --data
    #[arg(
        long,
        requires = "kernel",
        conflicts_with_all = [
            "services",
            "os_share",
            "locality",
            "sizes",
            "misses",
            "sharing",
            "generations",
            "os_core",
            "layout",
            "output",
        ]
    )]
    pub multiprocessor: bool,

    /// With --multiprocessor: a recording of the same workload on one CPU, made with --data
    #[arg(long, value_name = "RECORDING", requires = "multiprocessor")]
    pub one_cpu: Option<PathBuf>,

    /// Print the kernel's locks: acquisitions, waits, holds, and who waited for whom; needs a
    /// recording made with --data
    #[arg(
        long,
        requires = "kernel",
        conflicts_with_all = [
            "services",
            "os_share",
            "locality",
            "sizes",
            "misses",
            "sharing",
            "multiprocessor",
            "generations",
            "os_core",
            "layout",
            "output",
        ]
    )]
    pub locks: bool,

    /// Print what a core for the operating system would bring, by what moves there (Nellans 2005);
    /// needs a recording made with --data
    #[arg(
        long,
        requires = "kernel",
        conflicts_with_all = [
            "services",
            "os_share",
            "locality",
            "sizes",
            "misses",
            "sharing",
            "generations",
            "layout",
        ]
    )]
    pub os_core: bool,

    /// With --os-core: what moves there. `everything`, `longer:INSTRUCTIONS` (stays in the kernel
    /// with more instructions) or `services:NAME,NAME` (as --services names them); may be given
    /// several times
    #[arg(long, value_name = "POLICY", requires = "os_core")]
    pub policy: Vec<OsCorePolicy>,

    /// With --os-core: the cycles to move there, and as many back, instead of the machine's
    #[arg(long, value_name = "CYCLES", requires = "os_core")]
    pub move_cycles: Option<f64>,

    /// Print what one operation costs, from results of recordings that say their number of
    /// operations, as `kernlane record bench:NAME` does
    #[arg(
        long,
        conflicts_with_all = [
            "output",
            "services",
            "os_share",
            "locality",
            "sizes",
            "misses",
            "sharing",
            "generations",
            "os_core",
            "multiprocessor",
            "locks",
            "kernel",
        ]
    )]
    pub per_operation: bool,

    /// The kernel that was recorded: its build tree, its vmlinux, or its System.map
    #[arg(long, short, value_name = "TREE|VMLINUX|SYSTEM.MAP")]
    pub kernel: Option<PathBuf>,

    /// A machine to simulate beside, as for `kernlane replay`; may be given several times, or as a
    /// list with commas
    #[arg(
        long,
        short,
        alias = "machines",
        value_name = "NAME|FILE.toml",
        value_delimiter = ',',
        requires = "kernel"
    )]
    pub machine: Vec<String>,

    /// Another layout for the page, as for `kernlane replay`; may be given several times
    #[arg(long, short, value_name = "FILE", requires = "kernel")]
    pub layout: Vec<PathBuf>,

    /// What the kernel's functions mean, instead of annotations/linux.toml
    #[arg(long, value_name = "FILE.toml", requires = "kernel")]
    pub annotations: Option<PathBuf>,

    /// How many services, functions, lines or locks to print
    #[arg(long, default_value_t = 30)]
    pub top: usize,

    /// Print the tables as JSON
    #[arg(long)]
    pub json: bool,
}

pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode> {
    ensure!(
        args.generations || args.part.is_whole(),
        "--from and --until are for --generations; all other tables show whole recordings"
    );
    match args.services || args.os_share || args.locality || args.misses {
        true => of_recordings(args),
        false if args.sharing => of_sharing(args),
        false if args.multiprocessor => of_multiprocessor(args),
        false if args.locks => of_locks(args),
        false if args.os_core => of_os_core(args),
        false if args.sizes => of_sizes(args),
        false if args.generations => of_generations(args),
        false => of_results(args),
    }
}

fn of_sizes(args: &ReportArgs) -> Result<ExitCode> {
    let recordings = args.inputs.iter();
    let all: Vec<Sizes> = recordings
        .map(|path| attribution::read(path, "caches", sizes::sizes))
        .collect::<Result<_>>()?;
    print(args, &all, || all.iter().map(report::sizes::text).collect::<Vec<_>>().join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn of_generations(args: &ReportArgs) -> Result<ExitCode> {
    let (_, attribution) = opened(args, &GENERATIONS)?;
    generations::check(&attribution.machines)?;
    let of = |path: &PathBuf| {
        anyhow::Ok(GenerationsBeside::new(attribution.generations(path, &args.part)?))
    };
    let all: Vec<GenerationsBeside> = args.inputs.iter().map(of).collect::<Result<_>>()?;
    print(args, &all, || {
        let texts = all.iter().map(|one| report::generations::text(one, args.top));
        texts.collect::<Vec<_>>().join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The kernel, its annotations and the machines, or `usual` machines when none are named.
fn opened<'a>(args: &'a ReportArgs, usual: &[&str]) -> Result<(&'a Path, Attribution)> {
    let kernel =
        args.kernel.as_deref().context("give --kernel: it names the kernel's functions")?;
    let usual: Vec<String> = usual.iter().map(|&name| name.to_owned()).collect();
    let machines = if args.machine.is_empty() { &usual } else { &args.machine };
    Ok((kernel, Attribution::open(kernel, args.annotations.as_deref(), machines)?))
}

fn of_results(args: &ReportArgs) -> Result<ExitCode> {
    let (recordings, results): (Vec<&PathBuf>, Vec<&PathBuf>) =
        args.inputs.iter().partition(|path| Recording::at(*path).exists());
    let needs_page = args.output.is_none() && !args.json && !args.per_operation;
    if let (Some(recording), true) = (recordings.first(), needs_page) {
        bail!(
            "{}: a recording; give --output for a page, --json for what it shows, or --services, \
             --os-share or --locality for a table",
            recording.display()
        );
    }
    for path in &results {
        ensure!(path.exists(), "{}: there is no such file or directory", path.display());
        ensure!(
            !path.is_dir() || path.join("results.json").is_file(),
            "{}: neither a recording (it has no trace.klt) nor results (it has no results.json)",
            path.display()
        );
    }
    ensure!(
        args.kernel.is_none() || !recordings.is_empty(),
        "no recording is given, only results: --kernel, --machine and --layout are for recordings"
    );
    let mut rows = Vec::new();
    for path in results {
        rows.extend(ResultFile::read(path)?.rows);
    }
    if args.per_operation {
        let named = recordings.first().map(|recording| recording.display().to_string());
        ensure!(
            named.is_none(),
            "{}: a recording; --per-operation takes results: `kernlane replay RECORDING --json`",
            named.unwrap_or_default()
        );
        let costs = per_operation::per_operation(&rows)?;
        print(args, &costs, || report::per_operation::text(&costs))?;
        return Ok(ExitCode::SUCCESS);
    }
    let comparisons: Vec<Comparison> = comparison::compare(&rows)?;
    let overviews = overviews(args, &recordings)?;
    if let Some(path) = &args.output {
        output::write(path, page::page(&overviews, &comparisons)?.as_bytes())?;
    }
    if args.json && !recordings.is_empty() {
        print(args, &overviews, String::new)?;
    } else if args.json || args.output.is_none() {
        print(args, &comparisons, || text::comparisons(&comparisons))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The sections of the page that come from recordings.
fn overviews(args: &ReportArgs, recordings: &[&PathBuf]) -> Result<Vec<Overview>> {
    if recordings.is_empty() {
        return Ok(Vec::new());
    }
    let (kernel, attribution) = opened(args, &[MACHINE])?;
    let path = vmlinux::path(kernel);
    // Only a vmlinux tells the blocks of a layout.
    let image = (!args.layout.is_empty()).then(|| vmlinux::read(&path)).transpose()?;
    let mut layouts = vec![ReplayLayout::original()];
    for path in &args.layout {
        layouts.push(read_layout(path, Some(kernel), image.as_ref())?);
    }
    recordings
        .iter()
        .map(|recording| {
            let observed = attribution.observed(recording)?;
            let machines = &attribution.machines;
            let replayed = replay_recording(
                recording,
                &layouts,
                machines,
                SimulationScope::Caches,
                attribution.symbols.build_id.as_ref(),
                &RecordingPart::WHOLE,
            )?;
            let rows = rows::rows(&replayed, &layouts, machines, None);
            let misses: Vec<LayoutMisses<'_>> = layouts
                .iter()
                .zip(&replayed.layouts)
                .map(|(layout, counts)| LayoutMisses {
                    layout: &layout.name,
                    machine: &machines[0].name,
                    placement: &layout.placement,
                    misses_at: &counts.machines[0].misses_at,
                })
                .collect();
            let conditions = replayed.header.conditions.iter().cloned().collect();
            let extras = extras(&attribution, recording, kernel, &observed.table)?;
            Ok(Overview::new(observed, conditions, rows, &misses, extras))
        })
        .collect()
}

/// What the page shows of one CPU, or of several.
fn extras(
    attribution: &Attribution,
    recording: &Path,
    kernel: &Path,
    table: &ServiceTable,
) -> Result<OverviewExtras> {
    let machines = &attribution.machines;
    if table.cpus > 1 {
        let has_data =
            attribution::read(recording, "data", |reader| Ok(reader.accesses().is_some()))?;
        let usual = machine::find(SHARING_MACHINE)?;
        let coherent = machines.iter().find(|machine| machine.coherence.is_some());
        let on = coherent.unwrap_or(&usual);
        let counted = || attribution.multiprocessor_on(on, recording, None);
        let multiprocessor = has_data.then(counted).transpose()?.map(Into::into);
        return Ok(OverviewExtras { multiprocessor, ..OverviewExtras::default() });
    }
    let data = attribution.data_misses(recording, kernel, table)?.map(StructureMisses::from);
    let has_core = machines.iter().any(|machine| machine.core.is_some());
    let counted = || attribution.generations(recording, &RecordingPart::WHOLE);
    Ok(OverviewExtras {
        sizes: Some(attribution::read(recording, "caches", sizes::sizes)?),
        data,
        generations: has_core.then(counted).transpose()?,
        multiprocessor: None,
    })
}

fn of_sharing(args: &ReportArgs) -> Result<ExitCode> {
    let kernel = args.kernel.as_deref().context("give --kernel: it names the kernel's data")?;
    let machines =
        if args.machine.is_empty() { &[SHARING_MACHINE.to_owned()][..] } else { &args.machine };
    let attribution = Attribution::open(kernel, args.annotations.as_deref(), machines)?;
    if !args.what_if.is_empty() {
        let changes: Vec<SharingChange> = in_one_list(
            args.inputs.iter().map(|path| attribution.sharing_what_if(path, kernel, &args.what_if)),
        )?;
        let text = || changes.iter().map(sharing::change).collect::<Vec<_>>().join("\n");
        print(args, &changes, text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let of_recording = |path: &PathBuf| attribution.sharing(path, kernel, args.top);
    let tables: Vec<SharingTable> = in_one_list(args.inputs.iter().map(of_recording))?;
    print(args, &tables, || tables.iter().map(sharing::text).collect::<Vec<_>>().join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn of_multiprocessor(args: &ReportArgs) -> Result<ExitCode> {
    let (_, attribution) = opened(args, &[SHARING_MACHINE])?;
    let of_recording = |path: &PathBuf| attribution.multiprocessor(path, args.one_cpu.as_deref());
    let tables: Vec<MultiprocessorBeside> =
        in_one_list(args.inputs.iter().map(of_recording))?.into_iter().map(Into::into).collect();
    print(args, &tables, || {
        let texts = tables.iter().map(|table| multiprocessor::text(table, args.top));
        texts.collect::<Vec<_>>().join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

fn of_locks(args: &ReportArgs) -> Result<ExitCode> {
    let (kernel, attribution) = opened(args, &[SHARING_MACHINE])?;
    let of_recording = |path: &PathBuf| attribution.locks(path, kernel);
    let tables: Vec<LockTable> = in_one_list(args.inputs.iter().map(of_recording))?;
    let text = |table: &LockTable| locks::text(table, args.top);
    print(args, &tables, || tables.iter().map(text).collect::<Vec<_>>().join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn of_os_core(args: &ReportArgs) -> Result<ExitCode> {
    let (_, attribution) = opened(args, &[OS_CORE_MACHINE])?;
    let sweep = OsCorePolicy::sweep();
    let policies = if args.policy.is_empty() { &sweep } else { &args.policy };
    let of_recording = |path: &PathBuf| attribution.os_core(path, policies, args.move_cycles);
    let tables: Vec<OsCoreTable> = in_one_list(args.inputs.iter().map(of_recording))?;
    print(args, &tables, || tables.iter().map(os_core::text).collect::<Vec<_>>().join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// The results of all recordings, one list for each.
fn in_one_list<T>(lists: impl Iterator<Item = Result<Vec<T>>>) -> Result<Vec<T>> {
    let lists: Vec<Vec<T>> = lists.collect::<Result<_>>()?;
    Ok(lists.into_iter().flatten().collect())
}

fn of_recordings(args: &ReportArgs) -> Result<ExitCode> {
    let (kernel, attribution) = opened(args, &[])?;
    if args.locality {
        let image = vmlinux::read(&vmlinux::path(kernel))?;
        let localities: Vec<Locality> = args
            .inputs
            .iter()
            .map(|path| attribution.locality(path, &image))
            .collect::<Result<_>>()?;
        print(args, &localities, || locality::text(&localities))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.misses {
        let of_recording = |path: &PathBuf| attribution.misses(path, kernel);
        let tables: Vec<MissTable> = in_one_list(args.inputs.iter().map(of_recording))?;
        let texts = || {
            tables.iter().map(|table| misses::text(table, args.top)).collect::<Vec<_>>().join("\n")
        };
        print(args, &tables, texts)?;
        return Ok(ExitCode::SUCCESS);
    }
    let table = |path: &PathBuf| match args.branches {
        true => attribution.table_with_branches(path),
        false => attribution.table(path),
    };
    let tables: Vec<ServiceTable> = args.inputs.iter().map(table).collect::<Result<_>>()?;
    if args.os_share {
        let shares: Vec<OsShare> = tables.iter().map(OsShare::new).collect();
        print(args, &shares, || services::shares(&shares, args.top))?;
    } else {
        print(args, &tables, || {
            tables
                .iter()
                .map(|table| services::table(table, args.top))
                .collect::<Vec<_>>()
                .join("\n")
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print<T: Serialize>(args: &ReportArgs, value: &T, text: impl FnOnce() -> String) -> Result<()> {
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(value)?)?,
        false => out!("{}", text())?,
    }
    Ok(())
}
