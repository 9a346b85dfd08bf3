//! `kernlane evaluate`: Torrellas' figures from recordings.

use crate::application::{self, Application};
use crate::command::profile::{executed, from_recording, vmlinux_path};
use crate::command::replay::replay_trials;
use crate::evaluation::{Evaluation, Evaluator, PAPER, Shape, Test};
use crate::image::vmlinux;
use crate::machine;
use crate::part::Part;
use crate::profile::collect::Besides;
use crate::profile::{Merge, merge};
use crate::replay::Trials;
use crate::report::evaluation;
use anyhow::{Context, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::process::ExitCode;

/// Evaluate layouts as Torrellas, Xia and Daigle did (1998, figures 11 to 17)
///
/// The kernel is laid out by Chang-Hwu, OptS, OptL and Call, the user's code as OptA has it, for the average of the recordings, and each recording replayed over the
/// layouts on many instruction caches: misses by cause, by class of block, by address, by size, line and ways, by the size of the SelfConfFree area, with separate and
/// reserved caches. The paper's numbers stand beside them. The layouts are placed nearly as `kernlane relink` would.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane evaluate net.rec files.rec compile.rec --kernel ~/linux --machine torrellas-8k")]
pub struct EvaluateArgs {
    /// Recordings (directories) of one kernel
    #[arg(required = true, value_name = "RECORDING")]
    pub recordings: Vec<PathBuf>,

    /// The kernel that was recorded: its build tree, or its vmlinux
    #[arg(long, short, value_name = "TREE|VMLINUX")]
    pub kernel: PathBuf,

    /// The machine whose instruction cache is varied
    #[arg(long, short, value_name = "NAME|FILE.toml", default_value = "torrellas-8k")]
    pub machine: String,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &EvaluateArgs) -> Result<ExitCode> {
    let machine = machine::find(&args.machine)?;
    let image = vmlinux::read(&vmlinux_path(&args.kernel))?;
    let progress = ProgressBar::new(3 * args.recordings.len() as u64 + 1);
    progress.set_style(ProgressStyle::with_template("{msg} {wide_bar} {pos} of {len}")?);
    let (mut profiles, mut user_code) = (Vec::new(), Vec::new());
    for recording in &args.recordings {
        progress.set_message(format!("counts of {}", recording.display()));
        let trace = recording.join("trace.klt");
        profiles.push(from_recording(&trace, &image, &Part::WHOLE, Besides::Nothing)?);
        progress.inc(1);
        let user = executed(&trace).and_then(|mut reader| application::recorded(&mut reader));
        user_code.push(user.with_context(|| trace.display().to_string())?);
        progress.inc(1);
    }
    progress.set_message("layouts");
    let application = Application::new(&user_code)?;
    let average = merge(profiles.clone(), Merge::Average)?;
    let evaluator = Evaluator::new(&image, &machine, &average, &application)?;
    let tests = evaluator.tests()?;
    progress.inc(1);
    let trials: Vec<Trials<'_>> = tests.iter().map(Test::trials).collect();
    let mut workloads = Vec::new();
    for (recording, profile) in args.recordings.iter().zip(&profiles) {
        progress.set_message(format!("replay of {}", recording.display()));
        let replayed = replay_trials(recording, &trials, Some(&image.build_id), &Part::WHOLE)?;
        workloads.push(evaluator.evaluated(&tests, &replayed, profile));
        progress.inc(1);
    }
    progress.finish_and_clear();
    let evaluation = Evaluation {
        machine: machine.name.clone(),
        cache: Shape::of(&machine),
        kernel: image.build_id.clone(),
        areas: evaluator.areas()?,
        workloads,
        paper: PAPER.to_vec(),
    };
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&evaluation)?),
        false => print!("{}", evaluation::text(&evaluation)),
    }
    Ok(ExitCode::SUCCESS)
}
