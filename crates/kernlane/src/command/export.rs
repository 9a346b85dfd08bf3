//! `kernlane export`: writes counts for other tools.
//!
//! Input: recordings or profiles and their kernel. Output: a file or a directory. The formats are
//! those of `exchange::FORMATS`.

use crate::command::layout::algorithms;
use crate::command::profile::CountedArgs;
use ::layout::Algorithm;
use anyhow::{Result, bail, ensure};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use exchange::compressed::write_compressed;
use exchange::llvm_samples::{SampleCoverage, Samples};
use exchange::stacks::StackFile;
use exchange::walk::TracedAmounts;
use exchange::{ExportSubject, FORMATS, Format, Make};
use execution::part::RecordingPart;
use host::interrupt;
use host::note;
use host::outln;
use host::output;
use image::vmlinux;
use road::counts::extra_counts;
use road::export;
use road::kernel::kernel_of_all;
use road::opened::Opening;
use road::tables;
use road::window::window;
use serde::Serialize;
use services::Attribution;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write counts for BOLT, clang, Propeller and lld, calls for profile viewers, or a trace
///
/// Exact counts, taken without a processor that records branches, can feed a build by clang.
/// --algorithm makes the order in formats that carry one. Formats of services and calls take one
/// recording; --machine adds its misses. champsim and drmemtrace take one recording of one CPU, and
/// no --kernel; champsim needs data accesses (`kernlane record --data`). --from and --until cut a
/// part out of the recording for these two formats and for formats over time.
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane export net.rec --format bolt -o net.preagg
  llvm-bolt-22 ~/linux/vmlinux -p net.preagg -pa -o vmlinux.bolt --reorder-blocks=ext-tsp
  kernlane export net.rec --machine server-32k --format callgrind \
  -o callgrind.out.net
  kernlane export net.rec --format folded -o net.folded \
  && inferno-flamegraph net.folded >net.svg
  kernlane export net.rec --format pprof -o net.pb.gz && go tool pprof -top net.pb.gz
  kernlane export net.rec --machine server-32k --format perfetto --until 0.1 \
  -o net.pftrace    open in ui.perfetto.dev
  kernlane export net.rec --format firefox -o net.json    load in profiler.firefox.com
  kernlane export net.rec --format parquet -o net.tables && \
  duckdb -c \"FROM 'net.tables/services.parquet'\"
  kernlane export net.rec --format champsim --until 0.1 -o net.trace.xz && champsim net.trace.xz
  kernlane export net.rec --format drmemtrace --until 0.1 -o net.trace.gz \
  && drmemtrace_launcher -infile net.trace.gz -tool basic_counts")]
pub struct ExportArgs {
    #[command(flatten)]
    pub counted: CountedArgs,

    /// The kernel that was recorded: its build tree, or its vmlinux [default: found by its build
    /// id: where it was recorded, in the cache, below /usr/lib/debug]. champsim and drmemtrace do
    /// not need it
    #[arg(long, short, value_name = "TREE|VMLINUX")]
    pub kernel: Option<PathBuf>,

    /// What to write
    #[arg(long, short, value_parser = formats())]
    pub format: &'static Format,

    /// The algorithm of the formats that carry an order
    #[arg(long, short, default_value_t = Algorithm::default(), value_parser = algorithms())]
    pub algorithm: Algorithm,

    /// A machine to simulate, for the formats of services and calls
    #[arg(long, value_name = "NAME|FILE.toml")]
    pub machine: Option<String>,

    /// What the kernel's functions mean, instead of annotations/linux.toml, for the formats of
    /// services and calls
    #[arg(long, value_name = "FILE.toml")]
    pub annotations: Option<PathBuf>,

    /// Where to write it. For parquet this is a directory, which is created if it is missing
    #[arg(long, short, value_name = "FILE|DIR")]
    pub output: PathBuf,

    /// Print what was written as JSON
    #[arg(long)]
    pub json: bool,
}

/// Reads the name of a format; help, man pages and completions list the names.
fn formats() -> impl TypedValueParser<Value = &'static Format> {
    let value = |format: &Format| PossibleValue::new(format.name).help(format.about);
    PossibleValuesParser::new(FORMATS.iter().map(value)).try_map(|name| export::format(&name))
}

/// What was written.
#[derive(Serialize)]
struct Written<'a> {
    format: &'static str,
    output: &'a Path,
    #[serde(flatten)]
    amount: Amount,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Amount {
    Lines(u64),
    Stacks(u64),
    Events(u64),
    Bytes(u64),
    Trace(TracedAmounts),
    /// Files in the directory, without their ending.
    Tables(Vec<&'static str>),
    /// A sample profile.
    #[serde(untagged)]
    Samples {
        functions: u64,
        coverage: SampleCoverage,
    },
}

pub(crate) fn run(args: &ExportArgs) -> Result<ExitCode> {
    interrupt::catch()?;
    let amount = match args.format.make {
        Make::Counts(_) | Make::Order(_) => {
            let (algorithm, format) = (args.algorithm, args.format);
            let text = of_counts(args, |subject| export::counts(format, subject, algorithm))?;
            lines(args, &text)?
        }
        Make::Samples(make) => sample_profile(args, of_counts(args, make)?)?,
        Make::Calls(make) => {
            let recording = whole_recording(args)?;
            lines(args, &make(&attribution(args)?.observed(recording)?)?)?
        }
        Make::Stacks(make) => {
            let recording = whole_recording(args)?;
            let StackFile { contents, stacks } = make(&attribution(args)?.observed(recording)?)?;
            output::write(&args.output, &contents)?;
            Amount::Stacks(stacks)
        }
        Make::Instructions(make) => Amount::Trace(instructions(args, make)?),
        Make::OverTime(make) => Amount::Events(over_time(args, make)?),
        Make::Profile(make) => {
            let table = of_counts(args, |subject| make(subject.profile))?;
            output::write(&args.output, &table)?;
            Amount::Bytes(table.len() as u64)
        }
        Make::Tables => {
            let recording = whole_recording(args)?;
            Amount::Tables(tables::write(&attribution(args)?, recording, &args.output)?)
        }
    };
    print(args, amount)?;
    Ok(ExitCode::SUCCESS)
}

fn lines(args: &ExportArgs, text: &str) -> Result<Amount> {
    output::write(&args.output, text.as_bytes())?;
    Ok(Amount::Lines(text.lines().count() as u64))
}

fn sample_profile(args: &ExportArgs, samples: Samples) -> Result<Amount> {
    let Samples { contents, functions, coverage } = samples;
    output::write(&args.output, &contents)?;
    coverage.notes().iter().for_each(|text| note!("{text}"));
    Ok(Amount::Samples { functions, coverage })
}

fn print(args: &ExportArgs, amount: Amount) -> Result<()> {
    let path = args.output.display();
    match (args.json, &amount) {
        (true, _) => {
            let written = Written { format: args.format.name, output: &args.output, amount };
            outln!("{}", serde_json::to_string_pretty(&written)?)
        }
        (false, Amount::Lines(lines)) => outln!("{path}: {lines} lines"),
        (false, Amount::Stacks(stacks)) => outln!("{path}: {stacks} stacks"),
        (false, Amount::Samples { functions, .. }) => outln!("{path}: {functions} functions"),
        (false, Amount::Bytes(bytes)) => outln!("{path}: {bytes} bytes"),
        (false, Amount::Events(events)) => outln!("{path}: {events} events"),
        (false, Amount::Trace(TracedAmounts { instructions, records, .. })) => {
            outln!("{path}: {instructions} instructions in {records} records")
        }
        (false, Amount::Tables(tables)) => {
            outln!("{path}: {} (docs/reference/exports.md)", tables.join(", "))
        }
    }
}

/// The one recording of formats of services and calls.
fn recording(args: &ExportArgs) -> Result<&Path> {
    let [recording] = &args.counted.recordings[..] else {
        let given = args.counted.recordings.len();
        bail!("{} takes one recording, {given} are given", args.format.name);
    };
    ensure!(
        recording.is_dir(),
        "{}: not a recording (a directory): counts have no calls",
        recording.display()
    );
    Ok(recording)
}

/// The kernel that was recorded.
fn kernel(args: &ExportArgs) -> Result<PathBuf> {
    kernel_of_all(args.kernel.as_deref(), &args.counted.recordings)
}

fn attribution(args: &ExportArgs) -> Result<Attribution> {
    let machines: Vec<String> = args.machine.iter().cloned().collect();
    let opening = Opening {
        kernel: args.kernel.as_deref(),
        annotations: args.annotations.as_deref(),
        machines: &machines,
        part: RecordingPart::WHOLE,
    };
    Ok(opening.open(recording(args)?)?.attribution)
}

/// Written as the recording is read: it may be longer than memory.
fn instructions(
    args: &ExportArgs,
    make: fn(&Path, &RecordingPart, &mut dyn Write) -> Result<TracedAmounts>,
) -> Result<TracedAmounts> {
    ensure!(
        args.machine.is_none() && args.annotations.is_none(),
        "{} holds what ran, which no machine and no annotation changes",
        args.format.name
    );
    let (recording, part) = (recording(args)?, args.counted.part.part()?);
    output::write_with(&args.output, |out| {
        write_compressed(&args.output, out, |out| make(recording, &part, out))
    })
}

/// Written as the recording is read.
fn over_time(
    args: &ExportArgs,
    make: fn(&Attribution, &Path, Range<u64>, &mut dyn Write) -> Result<u64>,
) -> Result<u64> {
    let recording = recording(args)?;
    let part = args.counted.part.part()?;
    let attribution = attribution(args)?;
    let window = window(recording, &part)?;
    output::write_with(&args.output, |out| make(&attribution, recording, window, out))
}

/// Like `recording`, for a format that cannot take a part of a recording.
fn whole_recording(args: &ExportArgs) -> Result<&Path> {
    ensure!(
        args.counted.part.part()?.is_whole(),
        "calls are followed through a whole recording: leave out --from and --until"
    );
    recording(args)
}

/// What a format that holds counts makes of them.
fn of_counts<T>(args: &ExportArgs, make: impl FnOnce(&ExportSubject) -> Result<T>) -> Result<T> {
    ensure!(
        args.machine.is_none() && args.annotations.is_none(),
        "{} holds counts, which no machine and no annotation changes",
        args.format.name
    );
    let path = vmlinux::path(&kernel(args)?);
    let image = vmlinux::read(&path)?;
    let profile = args.counted.profile(&image, extra_counts(&[args.algorithm]))?;
    make(&ExportSubject { image: &image, profile: &profile, path: &path })
}
