//! `kernlane live time`: how long functions of the running kernel take.

use super::ModuleArgs;
use anyhow::{Context, Result};
use clap::Args;
use host::table::{Column, TextTable};
use host::{out, outln};
use image::linked::LinkedKernel;
use live::choice;
use live::device::Device;
use live::running::RunningKernel;
use live::timing::{self, TimeReport};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Measure how long invocations of functions take
///
/// An invocation lasts from entry to return, with the functions that it calls. Prints its time with
/// and without the time in which the task was switched out. The command inserts probes and removes
/// them again. A probe costs the same on every call, so compare two runs of this command, and do
/// not add times up.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane live time tcp_v4_rcv,vfs_read --time 5")]
pub struct TimeArgs {
    /// The functions
    #[arg(value_name = "FUNCTION", required = true, value_delimiter = ',')]
    pub functions: Vec<String>,

    /// The running kernel's vmlinux; by default where distributions put it
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,

    #[command(flatten)]
    pub modules: ModuleArgs,

    /// For how many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    pub time: f64,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &TimeArgs) -> Result<ExitCode> {
    let device = Device::open()?;
    let modules = args.modules.with(Some(&device));
    super::on_running_kernel(args.vmlinux.as_deref(), modules, |kernel, running| {
        print_times(args, kernel, running, &device)
    })
}

fn print_times(
    args: &TimeArgs,
    kernel: &LinkedKernel<'_>,
    running: &RunningKernel,
    device: &Device,
) -> Result<ExitCode> {
    let chosen: Vec<usize> =
        (args.functions.iter()).map(|name| choice::find(kernel, name)).collect::<Result<_>>()?;
    let time = Duration::try_from_secs_f64(args.time).context("--time")?;
    let times = timing::measure(kernel, running, device, &chosen, time)?;
    let report = TimeReport::new(kernel, &chosen, times);
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&report)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = TextTable::of([
        Column::right("calls").fixed(12),
        Column::right("ns on a CPU").fixed(14).gap(1),
        Column::right("ns in all").fixed(14).gap(1),
        Column::left("function"),
    ]);
    for row in report.functions {
        let mean = |mean: Option<f64>| mean.map_or("-".into(), |ns| format!("{ns:.0}"));
        let missed = match row.time.missed {
            0 => String::new(),
            missed => format!("  ({missed} not followed)"),
        };
        table.push(vec![
            row.time.entered.to_string(),
            mean(row.time.mean_on_cpu()),
            mean(row.time.mean()),
            format!("{}{missed}", row.function),
        ]);
    }
    out!("{}", table.to_text())?;
    if report.missed > 0 {
        outln!(
            "{} more invocations of these functions were not followed: too many were under way at \
             once",
            report.missed
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
