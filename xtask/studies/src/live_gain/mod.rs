//! Measures what `kernlane live auto` brings, from the outside: each load runs on Debian's stock
//! 6.12 kernel before and after its hot functions are replaced.
//!
//! To add a benchmark: a workload beside this file that runs `/kl/load` and sources
//! `/kl/optimize.sh` and `/kl/tell.sh`, and its line in `BENCHMARKS`.
//!
//! Input: a directory. Output: two recordings for each benchmark, `gain.json`, and printed tables
//! like the paper's (Tamches 2001, figures 3 and 4). Both guests do the same up to the
//! installation. The guest without replaced functions also counts, but installs nothing
//! (`--dry-run`). Recordings that exist are not made again.

mod measure;
mod names;
mod tables;

use anyhow::{Context, Result, ensure};
use guest::{GuestKernel, RecordingRequest, Workload};
use lab::live_tool::{debian, make_tool};
use measure::{BenchmarkGain, MachineResults};
use names::GuestReport;
use road::record;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) struct GainBenchmark {
    pub name: &'static str,
    /// What the workload does `operations` times.
    pub operation: &'static str,
    pub operations: u64,
    /// Functions whose invocations are measured in addition to those of the roots.
    also: &'static [&'static str],
}

const BENCHMARKS: &[GainBenchmark] = &[
    GainBenchmark {
        name: "tcp",
        operation: "file fetched",
        operations: 340,
        // The receiving side of TCP. It corresponds to tcp_rput_data in the paper.
        also: &["tcp_v4_rcv"],
    },
    GainBenchmark { name: "ping-pong", operation: "round trip", operations: 4000, also: &[] },
    GainBenchmark { name: "files", operation: "file stated and read", operations: 4000, also: &[] },
];

/// The simulated machines: a server of today, and the processor of the paper.
const MACHINES: [&str; 2] = ["server-32k", "ultrasparc-16k"];

const OPTIMIZE: &str = include_str!("optimize.sh");
const TELL: &str = include_str!("tell.sh");

/// The file names, with the option of `kernlane live auto` for each.
const SIDES: [(&str, &str); 2] = [("before", "--dry-run"), ("after", "")];

/// The benchmarks.
pub fn names() -> impl Iterator<Item = &'static str> {
    BENCHMARKS.iter().map(|benchmark| benchmark.name)
}

/// `names` are the names of benchmarks. Without names, all run.
///
/// # Errors
/// A guest fails, or its recording says something else than it should.
pub fn live_gain(directory: &Path, names: &[String]) -> Result<()> {
    let kernel = debian::kernel(debian::Flavour::Cloud)?;
    let tool = tool(&GuestKernel::open(&kernel, None)?)?;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("making {}", directory.display()))?;
    let mut gains = Vec::new();
    let is_wanted =
        |b: &&GainBenchmark| names.is_empty() || names.iter().any(|name| name == b.name);
    for benchmark in BENCHMARKS.iter().filter(is_wanted) {
        let recordings =
            SIDES.map(|(side, _)| directory.join(format!("{}-{side}", benchmark.name)));
        std::thread::scope(|scope| {
            let made: Vec<_> = (SIDES.iter().zip(&recordings))
                .map(|(&(_, how), output)| {
                    scope.spawn(|| make(benchmark, &kernel, &tool, how, output))
                })
                .collect();
            made.into_iter().try_for_each(|thread| lab::joined(thread, benchmark.name))
        })?;
        let gain = measured(benchmark, &GuestKernel::open(&kernel, None)?, &recordings)?;
        print!("{}", tables::tables(&gain));
        gains.push(gain);
    }
    let mut text = serde_json::to_string_pretty(&gains)?;
    text.push('\n');
    let path = directory.join("gain.json");
    host::output::write(&path, text.as_bytes())?;
    println!("written: {}", path.display());
    Ok(())
}

/// Additional files of the guest: path, permissions, content.
fn tool(kernel: &GuestKernel) -> Result<Vec<(String, u32, Vec<u8>)>> {
    let directory = tempfile::Builder::new().prefix("kernlane-live-gain-").tempdir()?;
    let made = make_tool(kernel, directory.path())?;
    let read = |(name, permissions, path): &(&str, u32, PathBuf)| {
        let content = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        Ok((format!("/kl/{name}"), *permissions, content))
    };
    made.iter().map(read).collect()
}

fn make(
    benchmark: &GainBenchmark,
    kernel: &Path,
    tool: &[(String, u32, Vec<u8>)],
    how: &str,
    output: &Path,
) -> Result<()> {
    if output.is_dir() {
        return Ok(());
    }
    println!("recording {}", output.display());
    let mut files = tool.to_vec();
    for (path, text) in [("/kl/optimize.sh", OPTIMIZE), ("/kl/tell.sh", TELL), ("/kl/how", how)] {
        files.push((path.into(), 0o644, text.into()));
    }
    let workload = format!("xtask/studies/src/live_gain/{}.toml", benchmark.name);
    let workload = Workload::open(&workload)?;
    let request = RecordingRequest {
        files,
        time_limit: Duration::from_secs(7200),
        ..record::request(workload, GuestKernel::open(kernel, None)?, output)
    };
    lab::recording::record(&request).map(drop)
}

fn measured(
    benchmark: &GainBenchmark,
    kernel: &GuestKernel,
    recordings: &[PathBuf; 2],
) -> Result<BenchmarkGain> {
    let [before, after] = recordings;
    let (report_before, guest_report) = (GuestReport::read(before)?, GuestReport::read(after)?);
    ensure!(report_before.copies.is_empty(), "{}: something is installed", before.display());
    ensure!(!guest_report.copies.is_empty(), "{}: nothing is installed", after.display());
    let roots = guest_report.report.roots.iter().map(|root| root.function.as_str());
    let functions: Vec<&str> = roots.chain(benchmark.also.iter().copied()).collect();
    let side = |recording: &Path, guest_report: &GuestReport| -> Result<MachineResults> {
        let symbols = names::symbols(kernel, guest_report)?;
        MACHINES.iter().map(|name| measure::on(recording, name, &symbols, &functions)).collect()
    };
    Ok(BenchmarkGain {
        benchmark: benchmark.name.into(),
        kernel: kernel.release.clone(),
        operation: benchmark.operation.into(),
        operations: benchmark.operations,
        before: side(before, &report_before)?,
        after: side(after, &guest_report)?,
        group: guest_report.report.functions,
    })
}
