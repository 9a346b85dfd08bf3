//! `kernlane evaluate`: makes Torrellas' figures from recordings.
//!
//! Input: recordings and their kernel. Output: tables.

use crate::command::kernel::kernel_of_all;
use crate::command::replay::replay_trials;
use anyhow::Result;
use clap::Args;
use execution::opened::OpenedRecording;
use execution::part::RecordingPart;
use host::out;
use host::outln;
use host::progress::Progress;
use host::recording::Recording;
use image::vmlinux;
use profile::collect::{self, ExtraCounts};
use profile::{ProfileMerge, merge};
use replay::ReplayTrial;
use replay::application::{self, Application};
use replay::evaluation::{CacheShape, CacheTest, Evaluation, Evaluator, PAPER};
use report::evaluation;
use std::path::PathBuf;
use std::process::ExitCode;

/// Evaluate layouts as Torrellas, Xia and Daigle did (1998, figures 11 to 17)
///
/// Lays the kernel out with Chang-Hwu, OptS, OptL and Call, and the user's code with OptA, for the
/// average of the recordings. Replays each recording over the layouts on many instruction caches.
/// Prints misses by cause, by class of block, by address, by size, line and ways, by the size of
/// the SelfConfFree area, and with separate and reserved caches, beside the paper's numbers.
/// Addresses are nearly those that `kernlane relink` would give.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane evaluate net.rec files.rec compile.rec \
                  --machine torrellas-8k")]
pub struct EvaluateArgs {
    /// Recordings (directories) of one kernel
    #[arg(required = true, value_name = "RECORDING")]
    pub recordings: Vec<PathBuf>,

    /// The kernel that was recorded: its build tree, or its vmlinux [default: found by its build
    /// id: where it was recorded, in the cache, below /usr/lib/debug]
    #[arg(long, short, value_name = "TREE|VMLINUX")]
    pub kernel: Option<PathBuf>,

    /// The machine whose instruction cache is varied
    #[arg(long, short, value_name = "NAME|FILE.toml", default_value = "torrellas-8k")]
    pub machine: String,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

pub(crate) fn run(args: &EvaluateArgs) -> Result<ExitCode> {
    let machine = machines::find(&args.machine)?.model;
    let kernel = kernel_of_all(args.kernel.as_deref(), &args.recordings)?;
    let image = vmlinux::read(&vmlinux::path(&kernel))?;
    let progress = Progress::of(3 * args.recordings.len() as u64 + 1, "counts");
    let (mut profiles, mut user_code) = (Vec::new(), Vec::new());
    for recording in &args.recordings {
        progress.say(format!("counts of {}", recording.display()));
        let recording = Recording::at(recording);
        profiles.push(collect::of_recording(
            &recording,
            &image,
            &RecordingPart::WHOLE,
            ExtraCounts::None,
        )?);
        progress.advance(1);
        let opened = OpenedRecording::whole(&recording, "user code")?.without_data();
        user_code.push(opened.read(application::recorded)?);
        progress.advance(1);
    }
    progress.say("layouts");
    let application = Application::new(&user_code)?;
    let average = merge(profiles.clone(), ProfileMerge::Average)?;
    let evaluator = Evaluator::new(&image, &machine, &average, &application)?;
    let tests = evaluator.tests()?;
    progress.advance(1);
    let trials: Vec<ReplayTrial<'_>> = tests.iter().map(CacheTest::trials).collect();
    let mut workloads = Vec::new();
    for (recording, profile) in args.recordings.iter().zip(&profiles) {
        progress.say(format!("replay of {}", recording.display()));
        let replayed =
            replay_trials(recording, &trials, Some(&image.build_id), &RecordingPart::WHOLE)?;
        workloads.push(evaluator.evaluated(&tests, &replayed, profile));
        progress.advance(1);
    }
    drop(progress);
    let evaluation = Evaluation {
        machine: machine.name.clone(),
        cache: CacheShape::of(&machine),
        kernel: image.build_id.clone(),
        areas: evaluator.areas()?,
        workloads,
        paper: PAPER.to_vec(),
    };
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&evaluation)?)?,
        false => out!("{}", evaluation::text(&evaluation))?,
    }
    Ok(ExitCode::SUCCESS)
}
