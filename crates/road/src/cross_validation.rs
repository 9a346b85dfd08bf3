//! Layouts on workloads that they were not made from (Torrellas 1998, section 5).
//!
//! Input: recordings of several workloads on one kernel. Output: misses and jumps of each layout on
//! each recording, beside the original's. Addresses are nearly those that relinking would give.

use crate::counts::extra_counts;
use crate::ground::Ground;
use crate::replayed::ReplayRequest;
use anyhow::{Context, Result, ensure};
use execution::part::RecordingPart;
use host::progress::Progress;
use host::recording::Recording;
use image::{Image, estimate};
use layout::Algorithm;
use profile::collect;
use profile::{Profile, ProfileMerge, merge, noise};
use replay::ReplayLayout;
use replay::results::{ORIGINAL, TestedLayout};
use sim::MachineModel;
use std::path::{Path, PathBuf};

/// What is tested.
///
/// ```
/// use layout::Algorithm;
/// use road::cross_validation::CrossValidation;
///
/// let home = road::examples::home();
/// let recordings = ["loop.rec", "other.rec"].map(|name| home.path().join(name));
/// let image = image::vmlinux::read(&home.path().join("vmlinux"))?;
/// let tested = CrossValidation {
///     recordings: &recordings,
///     image: &image,
///     machines: &[machines::find("server-32k")?.model],
///     algorithms: &[Algorithm::default()],
///     sampling: &[1000],
///     seed: 1,
/// }
/// .run()?;
/// let on_loop = |trained: &str| {
///     tested.iter().any(|layout| layout.tested == "loop" && layout.trained == trained)
/// };
/// assert!(on_loop("itself") && on_loop("only other") && on_loop("first half, on the second"));
/// # anyhow::Ok(())
/// ```
pub struct CrossValidation<'a> {
    /// Recordings (directories) of one kernel, each of another workload.
    pub recordings: &'a [PathBuf],
    /// The kernel.
    pub image: &'a Image,
    /// The machines to simulate.
    pub machines: &'a [MachineModel],
    /// The algorithms.
    pub algorithms: &'a [Algorithm],
    /// Sampling periods: one sample in this number of executions.
    pub sampling: &'a [u64],
    /// The seed of the sampling, and of random orders.
    pub seed: u64,
}

const FIRST_HALF: RecordingPart = RecordingPart { from: 0.0, until: 0.5 };
const SECOND_HALF: RecordingPart = RecordingPart { from: 0.5, until: 1.0 };

impl CrossValidation<'_> {
    /// Tests each recording with layouts made from itself, from each other recording, from averages
    /// and from less exact counts of itself; and its second half with one made from its first half.
    ///
    /// # Errors
    /// A recording is damaged or of another kernel, or two are of one workload.
    pub fn run(&self) -> Result<Vec<TestedLayout>> {
        let progress = Progress::of(3 * self.recordings.len() as u64, "counts");
        let extra = extra_counts(self.algorithms);
        let counts = |recording: &PathBuf, part: &RecordingPart| {
            collect::of_recording(&Recording::at(recording), self.image, part, extra)
        };
        let mut whole = Vec::new();
        for recording in self.recordings {
            progress.say(format!("counts of {}", recording.display()));
            whole.push(counts(recording, &RecordingPart::WHOLE)?);
            progress.advance(1);
        }
        let names: Vec<String> = whole.iter().map(workload).collect();
        for (at, name) in names.iter().enumerate() {
            ensure!(
                !names[..at].contains(name),
                "{}: another recording is also of the workload {name}: give recordings of \
                 different workloads",
                self.recordings[at].display()
            );
        }
        let mut tested = Vec::new();
        for (at, recording) in self.recordings.iter().enumerate() {
            progress.say(format!("tests on {}", names[at]));
            let trainings = self.trainings(&whole, &names, at)?;
            tested.extend(self.test(recording, RecordingPart::WHOLE, trainings)?);
            progress.advance(1);
            let first = counts(recording, &FIRST_HALF)?;
            let halves = vec![("first half, on the second".to_owned(), first)];
            tested.extend(self.test(recording, SECOND_HALF, halves)?);
            progress.advance(1);
        }
        Ok(tested)
    }

    /// The profiles that recording `at` is tested with, and what they are called.
    fn trainings(
        &self,
        whole: &[Profile],
        names: &[String],
        at: usize,
    ) -> Result<Vec<(String, Profile)>> {
        let own = &whole[at];
        let others: Vec<Profile> = whole
            .iter()
            .enumerate()
            .filter(|&(n, _)| n != at)
            .map(|(_, profile)| profile.clone())
            .collect();
        let mut trainings = vec![("itself".to_owned(), own.clone())];
        for (profile, name) in whole.iter().zip(names).filter(|(_, name)| **name != names[at]) {
            trainings.push((format!("only {name}"), profile.clone()));
        }
        trainings.push(("the others, averaged".to_owned(), merge(others, ProfileMerge::Average)?));
        let all = merge(whole.to_vec(), ProfileMerge::Average)?;
        trainings.push(("all, averaged".to_owned(), all));
        let blocks = noise::blocks_only(own, self.image);
        trainings.push(("itself, blocks counted alone".to_owned(), blocks));
        for &rate in self.sampling {
            let sampled = noise::sampled(own, rate, self.seed);
            trainings.push((format!("itself, 1 in {rate} sampled"), sampled));
        }
        Ok(trainings)
    }

    /// Tests every training with every algorithm on a part of a recording, in one pass through it.
    fn test(
        &self,
        recording: &Path,
        part: RecordingPart,
        trainings: Vec<(String, Profile)>,
    ) -> Result<Vec<TestedLayout>> {
        let mut layouts = vec![ReplayLayout::original()];
        let mut made = Vec::new();
        for (trained, profile) in trainings {
            let ground = Ground::new(self.image, &profile).with_context(|| trained.clone())?;
            // Less exact counts have no temporal-relationship edges: skip algorithms that need
            // them.
            let possible = |algorithm: &&Algorithm| {
                !algorithm.uses_temporal_edges() || !profile.temporal_edges.is_empty()
            };
            for &algorithm in self.algorithms.iter().filter(possible) {
                let (order, _) = ground.lay_out(algorithm, self.seed)?;
                let name = format!("{} {}", algorithm.name(), made.len());
                let placement = estimate::placement(self.image, &order)?;
                let kernel = self.image.build_id.clone();
                layouts.push(ReplayLayout::predicted(&name, kernel, placement));
                made.push((name, algorithm, trained.clone()));
            }
        }
        let rows = ReplayRequest { part, ..ReplayRequest::new(recording, &layouts, self.machines) }
            .rows()?;
        let mut tested = Vec::new();
        for machine in self.machines {
            let row = |name: &str| {
                let found =
                    rows.iter().find(|row| row.machine == machine.name && row.layout == name);
                found.with_context(|| format!("no row of {name}"))
            };
            let original = row(ORIGINAL)?;
            for (name, algorithm, trained) in &made {
                let row = row(name)?;
                tested.push(TestedLayout {
                    algorithm: algorithm.name().to_owned(),
                    trained: trained.clone(),
                    tested: row.workload.clone(),
                    machine: machine.name.clone(),
                    misses: [original, row].map(|row| row.counters.misses()),
                    jumps: [original, row].map(|row| row.counters.kernel_jumps()),
                });
            }
        }
        Ok(tested)
    }
}

fn workload(profile: &Profile) -> String {
    profile.sources.first().map_or(String::new(), |source| source.workload.clone())
}
