//! Torrellas' evaluation of layouts (1998, figures 11 to 17), on recordings.
//!
//! Input: recordings and their kernel. Output: the numbers of the figures, beside the paper's. The
//! layouts and trials are made by [`replay::evaluation`].

use crate::replayed::trials_of;
use anyhow::Result;
use execution::opened::OpenedRecording;
use execution::part::RecordingPart;
use host::progress::Progress;
use host::recording::Recording;
use image::Image;
use profile::collect::{self, ExtraCounts};
use profile::{ProfileMerge, merge};
use replay::ReplayTrial;
use replay::application::{self, Application};
use replay::evaluation::{CacheShape, CacheTest, Evaluation, Evaluator, PAPER};
use sim::MachineModel;
use std::path::PathBuf;

/// Lays the kernel and the users' code out for the average of the recordings (directories), and
/// replays each recording over the layouts on many instruction caches. `machine`: the one whose
/// instruction cache is varied.
///
/// ```
/// let home = road::examples::home();
/// let recordings = [home.path().join("loop.rec")];
/// let image = image::vmlinux::read(&home.path().join("vmlinux"))?;
/// let machine = machines::find("torrellas-8k")?.model;
/// let evaluation = road::evaluation::evaluate(&recordings, &image, &machine)?;
/// assert_eq!(evaluation.workloads[0].workload, "loop");
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// A recording is damaged or of another kernel, or the kernel cannot be laid out.
pub fn evaluate(
    recordings: &[PathBuf],
    image: &Image,
    machine: &MachineModel,
) -> Result<Evaluation> {
    let progress = Progress::of(3 * recordings.len() as u64 + 1, "counts");
    let (mut profiles, mut user_code) = (Vec::new(), Vec::new());
    for recording in recordings {
        progress.say(format!("counts of {}", recording.display()));
        let recording = Recording::at(recording);
        profiles.push(collect::of_recording(
            &recording,
            image,
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
    let evaluator = Evaluator::new(image, machine, &average, &application)?;
    let tests = evaluator.tests()?;
    progress.advance(1);
    let trials: Vec<ReplayTrial<'_>> = tests.iter().map(CacheTest::trials).collect();
    let mut workloads = Vec::new();
    for (recording, profile) in recordings.iter().zip(&profiles) {
        progress.say(format!("replay of {}", recording.display()));
        let replayed = trials_of(recording, &trials, Some(image), &RecordingPart::WHOLE)?;
        workloads.push(evaluator.evaluated(&tests, &replayed, profile));
        progress.advance(1);
    }
    Ok(Evaluation {
        machine: machine.name.clone(),
        cache: CacheShape::of(machine),
        kernel: image.build_id.clone(),
        areas: evaluator.areas()?,
        workloads,
        paper: PAPER.to_vec(),
    })
}
