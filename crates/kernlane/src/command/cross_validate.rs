//! `kernlane cross-validate`: tests layouts on other workloads than they were made from.
//!
//! Input: recordings and their kernel. Output: tables.

use crate::command::kernel::kernel_of_all;
use crate::command::layout::{Ground, algorithms, extra_counts};
use crate::command::replay::replay_rows;
use ::layout::Algorithm;
use anyhow::{Context, Result, ensure};
use clap::Args;
use execution::part::RecordingPart;
use host::out;
use host::outln;
use host::progress::Progress;
use host::recording::Recording;
use image::estimate;
use image::{Image, vmlinux};
use profile::collect;
use profile::{Profile, ProfileMerge, merge, noise};
use replay::results::{ORIGINAL, TestedLayout};
use replay::{CpuOrder, ReplayLayout, SimulationScope};
use report::cross_validation;
use sim::MachineModel;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Test layouts on workloads that they were not made from: what a wrong profile costs
///
/// Tests each recording with layouts made from itself, from each other recording, from the average
/// of the others and from the average of all (Torrellas 1998, section 5). Also with layouts made
/// from less exact counts of itself: branches sampled at several rates, and block counts without
/// edges. Last, tests its second half with a layout made from its first half. Addresses are nearly
/// those that `kernlane relink` would give.
#[derive(Args)]
#[command(after_help = "Example:\n  kernlane cross-validate net.rec files.rec compile.rec \
                  --algorithm joint --algorithm ext-tsp")]
pub struct CrossValidateArgs {
    /// Recordings (directories) of one kernel, each of another workload
    #[arg(required = true, num_args = 2.., value_name = "RECORDING")]
    pub recordings: Vec<PathBuf>,

    /// The kernel that was recorded: its build tree, or its vmlinux [default: found by its build
    /// id: where it was recorded, in the cache, below /usr/lib/debug]
    #[arg(long, short, value_name = "TREE|VMLINUX")]
    pub kernel: Option<PathBuf>,

    /// A layout algorithm; may be given several times
    #[arg(long, short, default_values_t = [Algorithm::default()], value_parser = algorithms())]
    pub algorithm: Vec<Algorithm>,

    /// A machine; may be given several times
    #[arg(long, short, value_name = "NAME|FILE.toml", default_value = "server-32k")]
    pub machine: Vec<String>,

    /// The sampling period: one sample in N executions; may be given several times
    #[arg(
        long,
        value_name = "N",
        default_values_t = [1_000, 10_000, 100_000],
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub sample: Vec<u64>,

    /// Seed of the sampling, and of random orders
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

const FIRST_HALF: RecordingPart = RecordingPart { from: 0.0, until: 0.5 };
const SECOND_HALF: RecordingPart = RecordingPart { from: 0.5, until: 1.0 };

pub(crate) fn run(args: &CrossValidateArgs) -> Result<ExitCode> {
    let machines: Vec<MachineModel> = machines::models(&args.machine)?;
    let kernel = kernel_of_all(args.kernel.as_deref(), &args.recordings)?;
    let image = vmlinux::read(&vmlinux::path(&kernel))?;
    let progress = Progress::of(3 * args.recordings.len() as u64, "counts");
    let extra_counts = extra_counts(&args.algorithm);
    let mut whole = Vec::new();
    for recording in &args.recordings {
        progress.say(format!("counts of {}", recording.display()));
        whole.push(collect::of_recording(
            &Recording::at(recording),
            &image,
            &RecordingPart::WHOLE,
            extra_counts,
        )?);
        progress.advance(1);
    }
    let names: Vec<String> = whole.iter().map(workload).collect();
    for (at, name) in names.iter().enumerate() {
        ensure!(
            !names[..at].contains(name),
            "{}: another recording is also of the workload {name}: give recordings of different \
             workloads",
            args.recordings[at].display()
        );
    }
    let mut tested = Vec::new();
    for (at, recording) in args.recordings.iter().enumerate() {
        progress.say(format!("tests on {}", names[at]));
        let rows = test(
            args,
            &image,
            &machines,
            recording,
            &RecordingPart::WHOLE,
            trainings(args, &image, &whole, &names, at)?,
        )?;
        tested.extend(rows);
        progress.advance(1);
        let first =
            collect::of_recording(&Recording::at(recording), &image, &FIRST_HALF, extra_counts)?;
        let halves = vec![("first half, on the second".to_owned(), first)];
        tested.extend(test(args, &image, &machines, recording, &SECOND_HALF, halves)?);
        progress.advance(1);
    }
    drop(progress);
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&tested)?)?,
        false => out!("{}", cross_validation::text(&tested))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn workload(profile: &Profile) -> String {
    profile.sources.first().map_or(String::new(), |source| source.workload.clone())
}

/// The profiles that recording `at` is tested with, and what they are called.
fn trainings(
    args: &CrossValidateArgs,
    image: &Image,
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
    trainings.push(("all, averaged".to_owned(), merge(whole.to_vec(), ProfileMerge::Average)?));
    trainings.push(("itself, blocks counted alone".to_owned(), noise::blocks_only(own, image)));
    for &rate in &args.sample {
        trainings
            .push((format!("itself, 1 in {rate} sampled"), noise::sampled(own, rate, args.seed)));
    }
    Ok(trainings)
}

/// Every training by every algorithm, on a part of a recording: one pass through it.
fn test(
    args: &CrossValidateArgs,
    image: &Image,
    machines: &[MachineModel],
    recording: &Path,
    part: &RecordingPart,
    trainings: Vec<(String, Profile)>,
) -> Result<Vec<TestedLayout>> {
    let mut layouts = vec![ReplayLayout::original()];
    let mut made = Vec::new();
    for (trained, profile) in trainings {
        let ground = Ground::new(image, &profile).with_context(|| trained.clone())?;
        // Less exact counts have no temporal-relationship edges: skip algorithms that need them.
        let possible = |algorithm: &&Algorithm| {
            !algorithm.uses_temporal_edges() || !profile.temporal_edges.is_empty()
        };
        for &algorithm in args.algorithm.iter().filter(possible) {
            let (order, _) = ground.lay_out(algorithm, args.seed)?;
            let name = format!("{} {}", algorithm.name(), made.len());
            let placement = estimate::placement(image, &order)?;
            layouts.push(ReplayLayout::predicted(&name, image.build_id.clone(), placement));
            made.push((name, algorithm, trained.clone()));
        }
    }
    let (scope, order) = (SimulationScope::Caches, CpuOrder::SideBySide);
    let rows = replay_rows(recording, &layouts, machines, scope, order, None, part)?;
    let mut tested = Vec::new();
    for machine in machines {
        let row = |name: &str| {
            let found = rows.iter().find(|row| row.machine == machine.name && row.layout == name);
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
