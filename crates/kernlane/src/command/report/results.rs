//! The page, and reports of what layouts gain.
//!
//! Input: results; for the page also recordings and their kernel. Output: a page, or tables on
//! standard output.

use super::opening::{MachineArgs, OpeningArgs, TableArgs};
use crate::command::sampling::SamplingArgs;
use anyhow::{Result, bail, ensure};
use clap::Args;
use host::output;
use host::recording::Recording;
use replay::comparison::{self, Comparison};
use replay::results::{ResultFile, ResultRow};
use report::overview::Overview;
use report::text;
use road::overview::overview;
use std::path::PathBuf;

/// The machine of the page, unless others are named.
const MACHINE: &str = "server-32k";

/// Make one page of recordings and results
///
/// The page shows execution over time, services, misses by cause and by address, chains of calls,
/// the system's share and functions; for recordings made with --data also misses by data structure.
/// Without --machine the machine is server-32k. --layout adds the misses of another layout. Of
/// results it has the tables of `kernlane report layouts`.
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane report page net.rec -o net.html
  kernlane report page net.rec net.opt -o both.html
  kernlane report page net.rec --machine simos-1994,simos-1998,zen4 -o net.html")]
pub struct PageArgs {
    /// Recordings, result files, or directories with a results.json
    #[arg(required = true, value_name = "RECORDING|RESULTS")]
    pub inputs: Vec<PathBuf>,

    /// Where to write the page
    #[arg(long, short, value_name = "FILE.html", required_unless_present = "json")]
    pub output: Option<PathBuf>,

    /// Another layout to show, as for `kernlane replay`; may be given several times
    #[arg(long, short, value_name = "FILE")]
    pub layout: Vec<PathBuf>,

    #[command(flatten)]
    pub machines: MachineArgs,

    #[command(flatten)]
    pub sampling: SamplingArgs,

    #[command(flatten)]
    pub opening: OpeningArgs,

    /// Print what the page shows of recordings as JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn page(args: &PageArgs) -> Result<()> {
    let inputs = Inputs::sorted(&args.inputs)?;
    inputs.check_options(args)?;
    let sampling = args.sampling.sampling()?;
    let machines = args.machines.or(&[MACHINE]);
    let overviews: Vec<Overview> =
        args.opening.each(&inputs.recordings, &machines, |recording, kernel| {
            overview(recording, kernel, &args.layout, sampling)
        })?;
    let comparisons = inputs.comparisons()?;
    if let Some(path) = &args.output {
        output::write(path, report::page::page(&overviews, &comparisons)?.as_bytes())?;
    }
    if args.json {
        TableArgs { json: true }.print(&overviews, String::new)?;
    }
    Ok(())
}

/// Compare every layout, predicted and recorded, with the original
#[derive(Args)]
#[command(after_help = "Example:
  kernlane report layouts net.results files.opt")]
pub struct LayoutsArgs {
    /// Result files, or directories with a results.json
    #[arg(required = true, value_name = "RESULTS")]
    pub results: Vec<PathBuf>,

    #[command(flatten)]
    pub table: TableArgs,
}

pub(super) fn layouts(args: &LayoutsArgs) -> Result<()> {
    let comparisons = Inputs::of_results(&args.results)?.comparisons()?;
    args.table.print(&comparisons, || text::comparisons(&comparisons))
}

/// Print what one operation costs, of recordings that say their number of operations
///
/// `kernlane record bench:NAME` makes such recordings.
#[derive(Args)]
#[command(after_help = "Example:
  kernlane report per-operation getpid.results stat.results")]
pub struct PerOperationArgs {
    /// Result files, or directories with a results.json
    #[arg(required = true, value_name = "RESULTS")]
    pub results: Vec<PathBuf>,

    #[command(flatten)]
    pub table: TableArgs,
}

pub(super) fn per_operation(args: &PerOperationArgs) -> Result<()> {
    let rows = Inputs::of_results(&args.results)?.rows()?;
    let costs = replay::per_operation::per_operation(&rows)?;
    args.table.print(&costs, || report::per_operation::text(&costs))
}

/// Inputs by what they are.
struct Inputs<'a> {
    recordings: Vec<&'a PathBuf>,
    results: Vec<&'a PathBuf>,
}

impl<'a> Inputs<'a> {
    /// # Errors
    /// A path is neither a recording nor a file or directory of results.
    fn sorted(paths: &'a [PathBuf]) -> Result<Inputs<'a>> {
        let (recordings, results): (Vec<_>, Vec<_>) =
            paths.iter().partition(|path| Recording::at(*path).exists());
        for path in &results {
            ensure!(path.exists(), "{}: there is no such file or directory", path.display());
            ensure!(
                !path.is_dir() || path.join("results.json").is_file(),
                "{}: neither a recording (it has no trace.klt) nor results (it has no \
                 results.json)",
                path.display()
            );
        }
        Ok(Inputs { recordings, results })
    }

    /// # Errors
    /// A path is no file or directory of results.
    fn of_results(paths: &'a [PathBuf]) -> Result<Inputs<'a>> {
        let inputs = Inputs::sorted(paths)?;
        if let Some(recording) = inputs.recordings.first() {
            bail!(
                "{}: a recording; this report takes results, as `kernlane replay RECORDING --json` \
                 prints them",
                recording.display()
            );
        }
        Ok(inputs)
    }

    /// # Errors
    /// An option is for recordings, and there is none, or for a part of them, and there are
    /// results.
    fn check_options(&self, args: &PageArgs) -> Result<()> {
        let opening = &args.opening;
        let for_recordings = opening.kernel.is_some()
            || opening.annotations.is_some()
            || args.json
            || !(args.machines.machine.is_empty() && args.layout.is_empty());
        ensure!(
            !for_recordings || !self.recordings.is_empty(),
            "no recording is given, only results: --kernel, --machine, --layout, --annotations and \
             --json are for recordings"
        );
        if let Some(path) = self.results.first() {
            ensure!(
                opening.part.part()?.is_whole(),
                "{}: results; --from and --until cut a part out of recordings",
                path.display()
            );
        }
        Ok(())
    }

    fn rows(&self) -> Result<Vec<ResultRow>> {
        let mut rows = Vec::new();
        for path in &self.results {
            rows.extend(ResultFile::read(path)?.rows);
        }
        Ok(rows)
    }

    fn comparisons(&self) -> Result<Vec<Comparison>> {
        comparison::compare(&self.rows()?)
    }
}
