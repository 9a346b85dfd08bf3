//! `kernlane report`: results become a page; recordings become tables of services.

use crate::command::attribution::{self, Attribution};
use crate::command::profile::vmlinux_path;
use crate::comparison::{self, Comparison};
use crate::image::vmlinux;
use crate::output;
use crate::report::{self, locality, page, services, text};
use crate::results::Results;
use crate::services::locality::Locality;
use crate::services::share::OsShare;
use crate::services::table::ServiceTable;
use crate::sizes::{self, Sizes};
use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Show what layouts brought, as one self-contained page; or where a recording's time goes
///
/// Takes results (what `kernlane replay --json` prints, or the results.json that `kernlane optimize` leaves in its directory) and sets
/// the original beside every layout, predicted and recorded. Without --output and --json it prints the tables.
///
/// With --services, --os-share or --locality it takes recordings instead, and the kernel that was recorded, and says for every service of the system
/// (each system call, kind of page fault, interrupt, softirq, kernel thread …) what it came to. With --sizes it takes recordings alone.
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane report net.results files.results -o report.html
  kernlane report --services net.rec --kernel ~/linux --machine torrellas-8k --machine server-32k
  kernlane report --os-share net.rec files.rec --kernel ~/linux --machine server-32k
  kernlane report --locality net.rec files.rec --kernel ~/linux
  kernlane report --sizes net.rec")]
pub struct ReportArgs {
    /// Result files, or directories with a results.json; recordings for the tables of services
    #[arg(required = true, value_name = "RESULTS|RECORDING")]
    pub inputs: Vec<PathBuf>,

    /// Where to write the page
    #[arg(long, short, value_name = "FILE.html", conflicts_with_all = ["services", "os_share", "locality", "sizes"])]
    pub output: Option<PathBuf>,

    /// Where the time goes, by service of the system
    #[arg(long, requires = "kernel")]
    pub services: bool,

    /// The system's share of the work, and how long each visit to the kernel is
    #[arg(long, requires = "kernel", conflicts_with = "services")]
    pub os_share: bool,

    /// How much of the kernel's code runs, why it is entered, its branches, loops and popular functions, beside Torrellas' numbers
    #[arg(long, requires = "kernel", conflicts_with_all = ["services", "os_share"])]
    pub locality: bool,

    /// Misses of the kernel and of user code, by cause, in caches of many sizes and associativities; of recordings made with --data in data
    /// caches and unified ones, too
    #[arg(long, conflicts_with_all = ["services", "os_share", "locality"])]
    pub sizes: bool,

    /// The kernel that was recorded: its build tree, its vmlinux, or its System.map
    #[arg(long, short, value_name = "TREE|VMLINUX|SYSTEM.MAP")]
    pub kernel: Option<PathBuf>,

    /// A machine to simulate beside, as for `kernlane replay`; may be given several times
    #[arg(long, short, value_name = "NAME|FILE.toml", requires = "kernel")]
    pub machine: Vec<String>,

    /// What the kernel's functions mean, instead of annotations/linux.toml
    #[arg(long, value_name = "FILE.toml", requires = "kernel")]
    pub annotations: Option<PathBuf>,

    /// How many services to print
    #[arg(long, default_value_t = 30)]
    pub top: usize,

    /// Print what is shown as JSON
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &ReportArgs) -> Result<ExitCode> {
    match args.services || args.os_share || args.locality {
        true => of_recordings(args),
        false if args.sizes => of_sizes(args),
        false => of_results(args),
    }
}

fn of_sizes(args: &ReportArgs) -> Result<ExitCode> {
    let recordings = args.inputs.iter();
    let all: Vec<Sizes> = recordings
        .map(|path| attribution::read(path, "caches", |reader| sizes::sizes(reader)))
        .collect::<Result<_>>()?;
    print(args, &all, || all.iter().map(report::sizes::text).collect::<Vec<_>>().join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn of_results(args: &ReportArgs) -> Result<ExitCode> {
    let mut rows = Vec::new();
    for path in &args.inputs {
        rows.extend(Results::read(path)?.rows);
    }
    let comparisons: Vec<Comparison> = comparison::compare(&rows)?;
    if let Some(path) = &args.output {
        output::write(path, page::page(&comparisons)?.as_bytes())?;
    }
    if args.json || args.output.is_none() {
        print(args, &comparisons, || text::comparisons(&comparisons))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn of_recordings(args: &ReportArgs) -> Result<ExitCode> {
    let kernel = args.kernel.as_deref().context("give --kernel, to know the kernel's functions")?;
    let attribution = Attribution::open(kernel, args.annotations.as_deref(), &args.machine)?;
    if args.locality {
        let image = vmlinux::read(&vmlinux_path(kernel))?;
        let localities: Vec<Locality> = args
            .inputs
            .iter()
            .map(|path| attribution.locality(path, &image))
            .collect::<Result<_>>()?;
        print(args, &localities, || locality::text(&localities))?;
        return Ok(ExitCode::SUCCESS);
    }
    let tables: Vec<ServiceTable> = args.inputs.iter().map(|path| attribution.table(path)).collect::<Result<_>>()?;
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
        true => println!("{}", serde_json::to_string_pretty(value)?),
        false => print!("{}", text()),
    }
    Ok(())
}
