//! `kernlane record`: a kernel and a workload become a recording.

use crate::guest::record::{self, Recording, Summary};
use crate::guest::{self, Conditions, Kernel, Request, Workload};
use crate::interrupt;
use anyhow::Result;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
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
    #[command(flatten)]
    pub guest: GuestArgs,

    /// Start from what `kernlane checkpoint` has made of the same workload, kernel and seed
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,

    /// Record the data accesses, too, and where their pages lie: for data caches and TLBs in `kernlane replay`
    #[arg(long)]
    pub data: bool,
}

/// What is run, and on what conditions.
#[derive(Args)]
pub struct GuestArgs {
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

    /// Memory of the guest, in MB [default: as the workload says]
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(64..=1 << 20))]
    pub memory: Option<u32>,

    /// When to end a guest that does not end
    #[arg(long, value_name = "SECONDS", default_value_t = 900, value_parser = clap::value_parser!(u64).range(1..))]
    pub time_limit: u64,

    /// Replace what was made before
    #[arg(long)]
    pub force: bool,

    /// Print the conditions and totals as JSON
    #[arg(long)]
    pub json: bool,
}

impl GuestArgs {
    /// As far as recordings and checkpoints are asked for in the same words.
    pub fn request(&self) -> Result<Request> {
        Ok(Request {
            workload: Workload::open(&self.workload)?,
            kernel: Kernel::open(&self.kernel, self.vmlinux.as_deref())?,
            files: Vec::new(),
            output: self.output.clone(),
            seed: self.seed,
            data: false,
            memory_mb: self.memory,
            time_limit: Duration::from_secs(self.time_limit),
            force: self.force,
        })
    }
}

/// The command.
pub fn run(args: &RecordArgs) -> Result<ExitCode> {
    let mut request = args.guest.request()?;
    request.data = args.data;
    interrupt::catch()?;
    let recording = with_progress(&request, args.from.as_deref())?;
    match args.guest.json {
        true => println!("{}", serde_json::to_string_pretty(&recording.summary)?),
        false => print(args, &recording),
    }
    Ok(ExitCode::SUCCESS)
}

/// Records, and shows how far it has come on a terminal.
pub fn with_progress(request: &Request, from: Option<&Path>) -> Result<Recording> {
    let bar = progress();
    let recording = record::record(request, from, &mut |phase, instructions| show(&bar, phase, instructions));
    bar.finish_and_clear();
    recording
}

pub fn progress() -> ProgressBar {
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
    let Summary { conditions, totals, .. } = &recording.summary;
    let (instructions, bytes) = (totals.instructions as f64, totals.trace_bytes as f64);
    println!("{}: {}", args.guest.output.display(), on(conditions));
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

/// On what a result depends, in a line.
pub fn on(conditions: &Conditions) -> String {
    format!(
        "{} on {} (build id {}), seed {}",
        conditions.workload, conditions.kernel_release, conditions.kernel_build_id, conditions.seed
    )
}
