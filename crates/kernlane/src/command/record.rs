//! `kernlane record`: a kernel and a workload become a recording.

use crate::guest::record::{self, Conditions, Recording, Request};
use crate::guest::{self, Kernel, Workload};
use crate::interrupt;
use anyhow::Result;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Record every instruction that a kernel and a workload execute, in order
///
/// The kernel and the workload run under QEMU's emulation, on one CPU whose time is the number of executed instructions: recording the
/// same again gives the same bytes. The guest is made from Debian packages; nothing is installed on this machine. Counting starts and
/// ends where the workload says so.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane record net --kernel ~/linux -o net.rec")]
pub struct RecordArgs {
    #[arg(help = guest::argument_help())]
    pub workload: String,

    /// The directory to make
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,

    /// The kernel: its build tree, or a bzImage or vmlinuz
    #[arg(long, short, value_name = "TREE|BZIMAGE")]
    pub kernel: PathBuf,

    /// The vmlinux of a bzImage or vmlinuz, with symbols [default: where Debian's -dbg package has it]
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,

    /// Where all randomness of the guest comes from
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,

    /// Record the data accesses, too, and where their pages lie: for data caches and TLBs in `kernlane replay`
    #[arg(long)]
    pub data: bool,

    /// Memory of the guest, in MB [default: as the workload says]
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    pub memory: Option<u32>,

    /// When to end a guest that does not end
    #[arg(long, value_name = "SECONDS", default_value_t = 900, value_parser = clap::value_parser!(u64).range(1..))]
    pub time_limit: u64,

    /// Replace an existing recording
    #[arg(long)]
    pub force: bool,

    /// Print the conditions and totals as JSON
    #[arg(long)]
    pub json: bool,
}

/// The command.
pub fn run(args: &RecordArgs) -> Result<ExitCode> {
    let request = Request {
        workload: Workload::open(&args.workload)?,
        kernel: Kernel::open(&args.kernel, args.vmlinux.as_deref())?,
        output: args.output.clone(),
        seed: args.seed,
        data: args.data,
        memory_mb: args.memory,
        time_limit: Duration::from_secs(args.time_limit),
        force: args.force,
    };
    interrupt::catch()?;
    let recording = with_progress(&request)?;
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&recording.conditions)?),
        false => print(args, &recording),
    }
    Ok(ExitCode::SUCCESS)
}

/// Records, and shows how far it has come on a terminal.
pub fn with_progress(request: &Request) -> Result<Recording> {
    let bar = progress();
    let recording = record::record(request, &mut |phase, instructions| show(&bar, phase, instructions));
    bar.finish_and_clear();
    recording
}

fn progress() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {elapsed} {msg}").expect("a constant template"));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn show(bar: &ProgressBar, phase: &str, instructions: u64) {
    bar.set_message(match instructions {
        0 => phase.to_string(),
        _ => format!("{phase}, {} M instructions recorded", instructions / 1_000_000),
    });
}

fn print(args: &RecordArgs, recording: &Recording) {
    let Conditions {
        workload,
        kernel_release,
        kernel_build_id,
        seed,
        totals,
        ..
    } = &recording.conditions;
    let (instructions, bytes) = (totals.instructions as f64, totals.trace_bytes as f64);
    println!(
        "{}: {workload} on {kernel_release} (build id {kernel_build_id}), seed {seed}",
        args.output.display()
    );
    println!(
        "{:.1} M instructions, {:.1} % of them the kernel's; {} tasks; {:.1} MB, {:.2} bit an instruction; {:.0} s in the guest",
        instructions / 1e6,
        100.0 * totals.kernel_instructions as f64 / instructions,
        totals.tasks,
        bytes / 1e6,
        8.0 * bytes / instructions,
        recording.elapsed.as_secs_f64()
    );
    if let Some(data) = &totals.data {
        println!(
            "{:.1} M loads, {:.1} M stores, {} mappings of pages",
            data.loads as f64 / 1e6,
            data.stores as f64 / 1e6,
            data.mappings
        );
    }
}
