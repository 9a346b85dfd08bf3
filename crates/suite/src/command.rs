//! `kernlane bench` and `kernlane-bench`: one set of options, one function.

use crate::benchmark::Benchmark;
use crate::compare::Comparison;
use crate::measure::{Settings, measure};
use crate::result::{Outcome, Results};
use crate::{list, table, worker};
use anyhow::{Context, Result, ensure};
use clap::Args;
use host::{interrupt, note, out, output};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Measure what each service of the running kernel costs, or compare two measurements
///
/// Runs more than 100 small benchmarks on one CPU, without root, until each figure's 95 % interval
/// is narrow or the time is over. Each benchmark checks its result. With --compare it says which
/// benchmarks became faster or slower. Exit status 1: a check failed, or --limit was exceeded.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  kernlane bench --output before.json
  kernlane bench --quick --filter tcp/ --filter udp/
  kernlane bench --compare before.json after.json --limit 2 || echo slower")]
pub struct BenchArgs {
    /// List the benchmarks, what they stress and where they come from
    #[arg(long)]
    pub list: bool,

    /// Take only benchmarks whose name contains this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub filter: Vec<String>,

    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,

    /// Write the result to a file, too
    #[arg(long, short, value_name = "FILE.json", conflicts_with_all = ["list", "compare"])]
    pub output: Option<PathBuf>,

    /// Take at most 50 s, for intervals of ± 3 %
    #[arg(long)]
    pub quick: bool,

    /// Stop measuring a benchmark when its interval is as narrow as ± this many percent [default:
    /// 1, with --quick 3]
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true)]
    pub precision: Option<f64>,

    /// Begin no round that would end later than this many seconds after the start [default: 840,
    /// with --quick 50]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub time: Option<f64>,

    /// The order of the slices comes from this number
    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    /// Measure on this CPU [default: the last one that may be used]
    #[arg(long, value_name = "NUMBER")]
    pub cpu: Option<usize>,

    /// Make files here: the file system that is measured [default: the directory for temporary
    /// files]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,

    /// Compare two results that --output wrote
    #[arg(long, num_args = 2, value_names = ["BEFORE.json", "AFTER.json"],
        conflicts_with_all = ["list", "filter", "quick", "precision", "time", "seed", "cpu",
            "directory"])]
    pub compare: Option<Vec<PathBuf>>,

    /// With --compare: exit with 1 if a benchmark is slower by more than this many percent
    #[arg(long, value_name = "PERCENT", requires = "compare")]
    pub limit: Option<f64>,

    /// Be the process of one benchmark (internal)
    #[arg(long, hide = true, value_name = "NAME")]
    pub worker: Option<String>,
}

/// Does what the options say. `words`: the program's words before its options, for its own workers.
///
/// # Errors
/// See the stages; bad options.
pub fn run(args: &BenchArgs, words: &[&str]) -> Result<ExitCode> {
    if let Some(name) = &args.worker {
        let directory = args.directory.as_deref().context("a worker needs --directory")?;
        worker::serve(name, directory, args.cpu)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some([before, after]) = args.compare.as_deref() {
        return compare([before, after], args);
    }
    let benchmarks = chosen(&args.filter)?;
    if args.list {
        match args.json {
            true => out!("{}\n", serde_json::to_string_pretty(&described(&benchmarks))?)?,
            false => out!("{}", table::list(&benchmarks))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let results = measure(&settings(args, benchmarks, words)?)?;
    if let Some(path) = &args.output {
        output::write(path, results.text()?.as_bytes())?;
    }
    match args.json {
        true => out!("{}", results.text()?)?,
        false => out!("{}", table::results(&results))?,
    }
    let wrong = |outcome: &Outcome| matches!(outcome, Outcome::Wrong { .. });
    let failed = results.benchmarks.iter().any(|entry| wrong(&entry.outcome));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn settings(
    args: &BenchArgs,
    benchmarks: Vec<&'static Benchmark>,
    words: &[&str],
) -> Result<Settings> {
    let precision_percent = args.precision.unwrap_or(if args.quick { 3.0 } else { 1.0 });
    let seconds = args.time.unwrap_or(if args.quick { 50.0 } else { 840.0 });
    ensure!(
        precision_percent.is_finite() && precision_percent > 0.0,
        "--precision {precision_percent} is no percentage above 0"
    );
    ensure!(
        (0.0..=1e6).contains(&seconds),
        "--time {seconds} is no number of seconds from 0 to 1000000"
    );
    interrupt::catch()?;
    // The program that runs, even if its file was replaced in the meantime.
    let program = [OsString::from("/proc/self/exe")];
    Ok(Settings {
        benchmarks,
        seed: args.seed,
        precision_percent,
        budget: Duration::from_secs_f64(seconds),
        directory: args.directory.clone().unwrap_or_else(std::env::temp_dir),
        cpu: args.cpu,
        program: program.into_iter().chain(words.iter().map(OsString::from)).collect(),
    })
}

/// Benchmarks whose names contain one of the texts; all, if there is none.
fn chosen(filters: &[String]) -> Result<Vec<&'static Benchmark>> {
    let all = list::all();
    for filter in filters {
        ensure!(
            all.iter().any(|benchmark| benchmark.name.contains(filter.as_str())),
            "--filter {filter}: no benchmark's name contains that; --list shows the names"
        );
    }
    let wanted = |name: &str| {
        filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
    };
    Ok(all.into_iter().filter(|benchmark| wanted(benchmark.name)).collect())
}

fn described(benchmarks: &[&Benchmark]) -> serde_json::Value {
    let one = |benchmark: &&Benchmark| {
        serde_json::json!({
            "name": benchmark.name,
            "stresses": benchmark.stresses,
            "source": benchmark.source.title(),
            "version": benchmark.version,
        })
    };
    benchmarks.iter().map(one).collect()
}

fn compare([before, after]: [&PathBuf; 2], args: &BenchArgs) -> Result<ExitCode> {
    if let Some(limit) = args.limit {
        ensure!(limit.is_finite() && limit >= 0.0, "--limit {limit} is no percentage");
    }
    let comparison = Comparison::new(&Results::read(before)?, &Results::read(after)?);
    match args.json {
        true => out!("{}\n", serde_json::to_string_pretty(&comparison)?)?,
        false => out!("{}", table::comparison(&comparison))?,
    }
    let Some(limit) = args.limit else { return Ok(ExitCode::SUCCESS) };
    ensure!(
        !comparison.rows.is_empty(),
        "no benchmark can be compared: the two results share none that was measured"
    );
    let over: Vec<_> = comparison.over(limit).collect();
    for row in &over {
        note!("over the limit: {} is slower by {:.2} %", row.name, row.percent[0]);
    }
    Ok(if over.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
