//! `kernlane replay`: a recording runs again over layouts and machines.

use crate::command::profile::vmlinux_path;
use crate::image::{Image, vmlinux};
use crate::machine;
use crate::replay::{self, Layout, Replayed, rows};
use crate::report::text;
use crate::results::{Results, Row};
use anyhow::{Context, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use sim::Machine;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Run a recorded execution again over layouts and machines
///
/// Prints for each layout, the original first, what a simulated machine sees: L1I misses by cause, iTLB misses, taken branches, what was
/// fetched and touched, and time by a simple model. The recording is read once for all layouts and machines.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane replay net.rec --kernel ~/linux --layout net.kll --machine server-32k --machine torrellas-8k")]
pub struct ReplayArgs {
    /// A recording (directory)
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,

    /// A machine: torrellas-8k, ultrasparc-16k, server-32k, or a file
    #[arg(long, short, value_name = "NAME|FILE.toml", default_value = "server-32k")]
    pub machine: Vec<String>,

    /// The kernel that was recorded: its build tree, or its vmlinux; names functions
    #[arg(long, short, alias = "tree", value_name = "TREE|VMLINUX")]
    pub kernel: Option<PathBuf>,

    /// Print the result rows as JSON, as `kernlane report` takes them
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &ReplayArgs) -> Result<ExitCode> {
    let machines: Vec<Machine> = args.machine.iter().map(|name| machine::find(name)).collect::<Result<_>>()?;
    let image = args
        .kernel
        .as_deref()
        .map(|kernel| vmlinux::read(&vmlinux_path(kernel)))
        .transpose()?;
    let layouts = vec![Layout::original()];
    let rows = replay_rows(&args.recording, &layouts, &machines, image.as_ref())?;
    if args.json {
        print!("{}", Results::new(rows).to_json()?);
    } else {
        print!("{}", text::rows(&rows));
    }
    Ok(ExitCode::SUCCESS)
}

/// The result rows of a recording, see [`rows::rows`]. Shows progress on a terminal.
pub fn replay_rows(recording: &Path, layouts: &[Layout], machines: &[Machine], image: Option<&Image>) -> Result<Vec<Row>> {
    let replayed = replay_recording(recording, layouts, machines)?;
    Ok(rows::rows(&replayed, layouts, machines, image))
}

fn replay_recording(recording: &Path, layouts: &[Layout], machines: &[Machine]) -> Result<Replayed> {
    let path = recording.join("trace.klt");
    let named = || path.display().to_string();
    let file = File::open(&path).with_context(named)?;
    let progress = ProgressBar::new(file.metadata().with_context(named)?.len());
    progress.set_style(ProgressStyle::with_template("replay {wide_bar} {percent:>3} %  {eta} left")?);
    let reader = trace::Reader::new(progress.wrap_read(BufReader::with_capacity(1 << 20, file))).with_context(named)?;
    let replayed = replay::replay(reader, layouts, machines).with_context(named);
    progress.finish_and_clear();
    replayed
}
