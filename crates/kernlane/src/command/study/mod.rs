//! `kernlane study`: a grid of workloads, kernels, layouts, machines and seeds.
//!
//! Input: a study's file. Output: a directory of recordings, layouts and results, and a table; or a
//! workflow of Snakemake. Every job is a command of this program.

mod file;
mod jobs;
mod snakemake;
mod table;
mod work;

use anyhow::{Context, Result, ensure};
use clap::Args;
use file::Study;
use host::{interrupt, note, out, outln};
use jobs::{Files, Plan};
use std::fs::{self, File};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Example of a file:
  description = \"What layouts bring on work that they were not made from\"
  workloads = [\"net\", \"files\"]   # also bench:NAME, and paths of .toml files
  kernels = [\"~/linux\"]          # build trees or boot images
  layouts = [\"ext-tsp\", \"call\"]  # beside the original
  machines = [\"zen4\"]
  train = \"others\"               # or \"own\" (the recording itself), a list of workloads, or
                                 # lists: {all = [\"net\", \"web\"]}
  seeds = [1, 2]                 # of the recordings; 1 if it is left out
  like = \"zen4\"                  # as `record --like`, or one for each of `machines`; also data,
                                 # cpus, branches, within

Examples:
  kernlane study study.toml -o study
  kernlane study study.toml -o study --snakemake &&
    snakemake -d study -s study/Snakefile -j 8";

/// Record, lay out and replay a grid of workloads, kernels, layouts, machines and seeds
///
/// The study's file has the lists; every combination is one result. Jobs run side by side, and a
/// study that was interrupted goes on where it stopped. The name of everything that is made says
/// what it was made of: the same job is never done twice in one directory, also by other studies,
/// and whatever changes is done again. With --snakemake, Snakemake does the jobs, on several
/// machines if you have them; afterwards the same command prints the table.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct StudyArgs {
    /// The file with the lists
    #[arg(value_name = "FILE.toml")]
    pub file: PathBuf,

    /// The directory of recordings, layouts and results
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,

    /// How many jobs to do at once [default: one for each processor]
    #[arg(long, short, value_name = "N")]
    pub jobs: Option<NonZero<usize>>,

    /// Print the jobs, and which of them are done; do nothing
    #[arg(long, conflicts_with_all = ["snakemake", "json"])]
    pub dry_run: bool,

    /// Write DIR/Snakefile, and do nothing
    #[arg(long, conflicts_with = "json")]
    pub snakemake: bool,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

pub(crate) fn run(args: &StudyArgs) -> Result<ExitCode> {
    let study = Study::read(&args.file)?;
    let plan = Plan::new(&study, &Files)?;
    if args.dry_run {
        out!("{}", listed(&plan, &args.output))?;
        return Ok(ExitCode::SUCCESS);
    }
    let directory = &args.output;
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    if args.snakemake {
        let program = std::env::current_exe().context("this program's file")?;
        let text = snakemake::snakefile(&plan, &program.display().to_string());
        let file = directory.join("Snakefile");
        host::output::write(&file, text.as_bytes())?;
        outln!("wrote {} ({} jobs)", file.display(), plan.jobs.len())?;
        return Ok(ExitCode::SUCCESS);
    }
    interrupt::catch()?;
    let _alone = locked(directory)?;
    let at_once = args.jobs.or_else(|| std::thread::available_parallelism().ok());
    work::work(&plan.jobs, directory, at_once.map_or(1, NonZero::get))?;
    let results = table::Results::read(&study, &plan, directory)?;
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&results)?)?,
        false => out!("{}", results.text())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Every job and whether it is done.
fn listed(plan: &Plan, directory: &Path) -> String {
    let mut text = String::new();
    let mut open = 0;
    for job in &plan.jobs {
        let is_done = directory.join(&job.output).exists();
        open += usize::from(!is_done);
        let state = if is_done { "done" } else { "open" };
        text += &format!("{state}  kernlane {}\n", job.words.join(" "));
    }
    text + &format!("{} jobs, {open} of them open\n", plan.jobs.len())
}

/// Keeps other studies out of the directory as long as the value lives.
fn locked(directory: &Path) -> Result<File> {
    let path = directory.join("lock");
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    if file.try_lock().is_err() {
        note!("another study works in {}: waiting for it", directory.display());
        while file.try_lock().is_err() {
            interrupt::check()?;
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }
    ensure!(path.exists(), "{}: the directory has gone", directory.display());
    Ok(file)
}
