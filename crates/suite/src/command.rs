//! `kernlane bench` and `kernlane-bench`: one set of options, one function.

use crate::ab::arguments::{AbArgs, Asked};
use crate::ab::boots::{self, Boot, Ended};
use crate::ab::state::{AbRun, Measurement, Method};
use crate::ab::steps::Step;
use crate::ab::switch::Switch;
use crate::benchmark::Benchmark;
use crate::compare::Comparison;
use crate::generations::split::Generations;
use crate::generations::text;
use crate::measure::{Settings, measure};
use crate::public::list as public;
use crate::public::run::{self as public_run, PublicSettings};
use crate::result::{Outcome, Results};
use crate::{counted, list, page, served, table, worker};
use anyhow::{Context, Result, ensure};
use clap::Args;
use host::{interrupt, note, out, output};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Measure what each service of the running kernel costs, or compare two measurements
///
/// Runs more than 100 small benchmarks on one CPU, without root, until each figure's 95 % interval
/// is narrow or the time is over. Each benchmark checks its result. With --compare it says which
/// benchmarks became faster or slower. Exit status 1: a check failed, or --limit was exceeded.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  kernlane bench --output before.json
  kernlane bench --quick --filter tcp/ --filter udp/
  kernlane bench --compare before.json after.json --page change.html
  kernlane bench --compare before.json after.json --limit 2 || echo slower
  kernlane bench --ab turns --on 'kernlane live apply --profile net.klp --root tcp_v4_rcv' \\
    --off 'kernlane live undo'
  kernlane bench --ab /var/lib/ab --kernels /boot/vmlinuz-6.12.1 /boot/vmlinuz-6.12.2 --dry-run
  kernlane bench --public
  kernlane bench --generations 2015.json 2025.json --technology-ratio 2.5")]
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

    /// Also write the result to a file
    #[arg(long, short, value_name = "FILE.json", conflicts_with_all = ["list", "compare"])]
    pub output: Option<PathBuf>,

    /// Take at most 50 s, for intervals of ± 3 %
    #[arg(long)]
    pub quick: bool,

    /// Stop measuring a benchmark when its interval is at most ± this many percent [default: 1;
    /// with --quick and --public 3]
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true)]
    pub precision: Option<f64>,

    /// Begin no round that would end later than this many seconds after the start [default: 840,
    /// with --quick 50, with --public 300]
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

    /// Run the public suites that are installed: perf bench, hackbench, stress-ng, sockperf,
    /// iperf3, netperf, fio, sysbench, wrk
    #[arg(long, conflicts_with_all = ["quick", "cpu", "compare", "generations"])]
    pub public: bool,

    /// Compare two results that --output wrote
    #[arg(long, num_args = 2, value_names = ["BEFORE.json", "AFTER.json"], group = "comparison",
        conflicts_with_all = ["list", "filter", "quick", "precision", "time", "seed", "cpu",
            "directory"])]
    pub compare: Option<Vec<PathBuf>>,

    /// Compare two machines of different generations, P = T × A: tables 3 and 4 and figure 1 of
    /// Nellans 2005, with the paper's numbers
    #[arg(long, num_args = 2, value_names = ["OLDER.json", "NEWER.json"],
        requires = "technology_ratio", conflicts_with_all = ["list", "filter", "quick",
            "precision", "time", "seed", "cpu", "directory", "output", "compare"])]
    pub generations: Option<Vec<PathBuf>>,

    /// With --generations: T, how many times faster the newer technology is, by clock or by FO4
    #[arg(long, value_name = "NUMBER", requires = "generations", allow_negative_numbers = true)]
    pub technology_ratio: Option<f64>,

    /// With --compare or --ab: exit with 1 if a benchmark is slower by more than this many percent
    #[arg(long, value_name = "PERCENT", requires = "comparison")]
    pub limit: Option<f64>,

    /// With --compare or --ab: also write a page with a picture of all changes and their intervals
    #[arg(long, value_name = "FILE.html", requires = "comparison")]
    pub page: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) ab: AbArgs,

    /// Run as the process of one benchmark (internal)
    #[arg(long, hide = true, value_name = "NAME")]
    pub worker: Option<String>,

    /// Let commands from outside of the machine choose the benchmark of each slice (internal)
    #[arg(long, hide = true)]
    pub served: bool,

    /// With --worker: run N operations between marks, for a recorder (internal)
    #[arg(long, hide = true, value_name = "N", requires = "worker")]
    pub operations: Option<u64>,
}

/// Runs the command. `words`: the program's words before its options, for its own workers.
///
/// # Errors
/// The options are wrong, or a stage fails.
pub fn run(args: &BenchArgs, words: &[&str]) -> Result<ExitCode> {
    if let Some(name) = &args.worker {
        let directory = args.directory.as_deref().context("a worker needs --directory")?;
        match args.operations {
            Some(operations) => counted::run(name, directory, operations)?,
            None => worker::serve(name, directory, args.cpu)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.served {
        served::serve(&directory(args))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some([before, after]) = args.compare.as_deref() {
        return compare([before.clone(), after.clone()], args);
    }
    if let (Some([older, newer]), Some(ratio)) =
        (args.generations.as_deref(), args.technology_ratio)
    {
        return two_generations([older, newer], ratio, args.json);
    }
    if args.public {
        return public(args);
    }
    if let Some(directory) = &args.ab.ab {
        return ab(args, directory, words);
    }
    let benchmarks = benchmarks(&args.filter)?;
    if args.list {
        match args.json {
            true => out!("{}\n", serde_json::to_string_pretty(&described(&benchmarks))?)?,
            false => out!("{}", table::list(&benchmarks))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    done(args, &measure(&settings(args, benchmarks, words)?)?)
}

fn public(args: &BenchArgs) -> Result<ExitCode> {
    let suites = chosen(public::LIST.iter().collect(), |public| public.name, &args.filter)?;
    if args.list {
        let described = |public: &&public::Public| {
            serde_json::json!({
                "name": public.name,
                "stresses": public.stresses,
                "command_line": public.line.join(" "),
                "package": public.package,
            })
        };
        match args.json {
            true => {
                let all: serde_json::Value = suites.iter().map(described).collect();
                out!("{}\n", serde_json::to_string_pretty(&all)?)?;
            }
            false => out!("{}", table::public(&suites))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (precision_percent, budget) = limits(args, 3.0, 300.0)?;
    interrupt::catch()?;
    let results = public_run::measure(&PublicSettings {
        suites,
        seed: args.seed,
        precision_percent,
        budget,
        directory: directory(args),
    })?;
    done(args, &results)
}

/// Writes and prints results.
fn done(args: &BenchArgs, results: &Results) -> Result<ExitCode> {
    if let Some(path) = &args.output {
        keep(path, results)?;
    }
    match args.json {
        true => out!("{}", results.text()?)?,
        false => out!("{}", table::results(results))?,
    }
    let wrong = |outcome: &Outcome| matches!(outcome, Outcome::Wrong { .. });
    let failed = results.benchmarks.iter().any(|entry| wrong(&entry.outcome));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Writes a result. A run takes minutes, so a result that cannot be written is printed instead.
fn keep(path: &Path, results: &Results) -> Result<()> {
    let text = results.text()?;
    let written = output::write(path, text.as_bytes());
    if written.is_err() {
        out!("{text}")?;
    }
    written.context("the result is on standard output instead")
}

/// The precision in percent and the time: from the options, otherwise these defaults.
fn limits(args: &BenchArgs, percent: f64, seconds: f64) -> Result<(f64, Duration)> {
    let precision_percent = args.precision.unwrap_or(percent);
    let seconds = args.time.unwrap_or(seconds);
    ensure!(
        precision_percent.is_finite() && precision_percent > 0.0,
        "--precision {precision_percent} is not a percentage above 0"
    );
    ensure!(
        (0.0..=1e6).contains(&seconds),
        "--time {seconds} is not a number of seconds from 0 to 1000000"
    );
    Ok((precision_percent, Duration::from_secs_f64(seconds)))
}

/// Where files are made.
fn directory(args: &BenchArgs) -> PathBuf {
    args.directory.clone().unwrap_or_else(std::env::temp_dir)
}

fn ab(args: &BenchArgs, directory: &Path, words: &[&str]) -> Result<ExitCode> {
    let directory = std::path::absolute(directory).context("the working directory is unknown")?;
    match args.ab.asked()? {
        Asked::Stop => {
            boots::stop(&directory)?;
            return Ok(ExitCode::SUCCESS);
        }
        Asked::Resume => {}
        Asked::Switch { on, off } => {
            let switch = Switch { on: on.into(), off: off.into() };
            let benchmarks = benchmarks(&args.filter)?;
            if args.ab.dry_run {
                out!("{}\n", switch.steps().join("\n"))?;
                return Ok(ExitCode::SUCCESS);
            }
            std::fs::create_dir_all(&directory)
                .with_context(|| format!("{}: cannot be made", directory.display()))?;
            let results = switch.measure(&settings(args, benchmarks, words)?)?;
            for (name, results) in ["before.json", "after.json"].iter().zip(&results) {
                keep(&directory.join(name), results)?;
            }
            return compare(["before.json", "after.json"].map(|name| directory.join(name)), args);
        }
        Asked::Kernels(kernels) => {
            let state = begun(args, kernels, words)?;
            if args.ab.dry_run {
                out!("{}", boots::plan(&state, &directory)?)?;
                return Ok(ExitCode::SUCCESS);
            }
            boots::may_reboot(&state)?;
            boots::begin(&state, &directory)?;
        }
    }
    interrupt::catch()?;
    let measured = |work: &Measurement| {
        settle(Duration::from_secs_f64(work.settle_seconds))?;
        measure(&Settings {
            benchmarks: benchmarks(&work.filter)?,
            seed: work.seed,
            precision_percent: work.precision_percent,
            budget: Duration::from_secs_f64(work.seconds),
            directory: work.directory.clone(),
            cpu: work.cpu,
            program: program(words),
        })
    };
    let boot = Boot {
        directory: &directory,
        id: &boots::boot_id()?,
        running: &boots::running()?,
        carry_out: &Step::carry_out,
    };
    match boot.resume(measured)? {
        Ended::Reboots => Ok(ExitCode::SUCCESS),
        Ended::Whole => {
            compare(["before.json", "after.json"].map(|name| directory.join(name)), args)
        }
    }
}

/// Waits until a machine that has just booted has settled.
fn settle(patience: Duration) -> Result<()> {
    const TICK: Duration = Duration::from_millis(100);
    let begun = Instant::now();
    while begun.elapsed() < patience {
        interrupt::check()?;
        std::thread::sleep(TICK.min(patience.saturating_sub(begun.elapsed())));
    }
    interrupt::check()
}

/// A run over several boots, as the options describe it.
fn begun(args: &BenchArgs, kernels: [&str; 2], words: &[&str]) -> Result<AbRun> {
    benchmarks(&args.filter)?;
    let (precision_percent, budget) = limits(args, 3.0, 50.0)?;
    let work = Measurement {
        filter: args.filter.clone(),
        seed: args.seed,
        precision_percent,
        seconds: budget.as_secs_f64(),
        cpu: args.cpu,
        directory: std::path::absolute(directory(args)).context("--directory")?,
        settle_seconds: args.ab.settle,
    };
    let is_file = args.ab.boot_by == Method::Kexec;
    let [before, after] = kernels.map(|kernel| boots::kernel(kernel, is_file));
    let mut state = AbRun::new(args.ab.boot_by, [before?, after?], args.ab.boots.into(), work);
    state.unit = !args.ab.no_unit;
    let executable = std::env::current_exe().context("the path of this program is unknown")?;
    state.program.push(executable.into());
    state.program.extend(words.iter().map(OsString::from));
    let line = std::fs::read_to_string("/proc/cmdline").context("/proc/cmdline")?;
    state.command_line = line.trim().to_owned();
    AbRun::begin(state, &boots::running()?)
}

/// The words that start the program that runs, even if its file was replaced in the meantime.
fn program(words: &[&str]) -> Vec<OsString> {
    let program = [OsString::from("/proc/self/exe")];
    program.into_iter().chain(words.iter().map(OsString::from)).collect()
}

fn settings(
    args: &BenchArgs,
    benchmarks: Vec<&'static Benchmark>,
    words: &[&str],
) -> Result<Settings> {
    let (percent, seconds) = if args.quick { (3.0, 50.0) } else { (1.0, 840.0) };
    let (precision_percent, budget) = limits(args, percent, seconds)?;
    interrupt::catch()?;
    Ok(Settings {
        benchmarks,
        seed: args.seed,
        precision_percent,
        budget,
        directory: directory(args),
        cpu: args.cpu,
        program: program(words),
    })
}

fn benchmarks(filters: &[String]) -> Result<Vec<&'static Benchmark>> {
    chosen(list::all(), |benchmark| benchmark.name, filters)
}

/// The entries whose names contain one of the texts; all entries if there is no text.
fn chosen<T: 'static>(
    all: Vec<&'static T>,
    name: fn(&T) -> &'static str,
    filters: &[String],
) -> Result<Vec<&'static T>> {
    for filter in filters {
        ensure!(
            all.iter().any(|one| name(one).contains(filter.as_str())),
            "--filter {filter}: no benchmark's name contains that; --list shows the names"
        );
    }
    let wanted = |name: &str| {
        filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
    };
    Ok(all.into_iter().filter(|one| wanted(name(one))).collect())
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

fn two_generations([older, newer]: [&PathBuf; 2], ratio: f64, as_json: bool) -> Result<ExitCode> {
    ensure!(
        ratio.is_finite() && ratio > 0.0,
        "--technology-ratio {ratio} is not a number above 0: give the newer machine's clock by the \
         older one's, for example"
    );
    let found = Generations::new([&Results::read(older)?, &Results::read(newer)?], ratio);
    match as_json {
        true => out!("{}\n", serde_json::to_string_pretty(&found)?)?,
        false => out!("{}", text::text(&found))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn compare([before, after]: [PathBuf; 2], args: &BenchArgs) -> Result<ExitCode> {
    if let Some(limit) = args.limit {
        ensure!(limit.is_finite() && limit >= 0.0, "--limit {limit} is not a percentage");
    }
    let comparison = Comparison::new(&Results::read(&before)?, &Results::read(&after)?);
    if let Some(path) = &args.page {
        output::write(path, page::page(&comparison).as_bytes())?;
    }
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
