//! `kernlane profile`: makes counts per block, edge and call from recordings.
//!
//! Input: recordings or profiles and their kernel. Output: a profile, and a summary.

use crate::command::part::PartArgs;
use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use host::note;
use host::out;
use host::outln;
use host::output;
use host::progress::Progress;
use image::{BuildId, Image, vmlinux};
use profile::carry::CarriedShare;
use profile::collect::ExtraCounts;
use profile::{Profile, ProfileMerge};
use report::carried;
use report::profile::ProfileSummary;
use road::counts::{self, CarriedInput};
use road::kernel::kernel_of_all;
use road::modules;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Recordings, profiles, and how they are put together.
#[derive(Args)]
pub struct CountedArgs {
    /// Recordings (directories), profiles (*.klp), or both
    #[arg(required = true, value_name = "RECORDING")]
    pub recordings: Vec<PathBuf>,

    /// How the counts of several recordings are put together
    #[arg(long, value_enum, default_value_t = MergeArg::Sum)]
    pub merge: MergeArg,

    #[command(flatten)]
    pub part: PartArgs,
}

/// The value of `--merge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MergeArg {
    /// Counts are added: a longer recording weighs more
    Sum,
    /// Every recording weighs the same: counts are scaled to equal sums of block counts, then added
    /// (Torrellas 1998, section 5: "the average of the profiles of all the workloads")
    Average,
}

impl From<MergeArg> for ProfileMerge {
    fn from(merge: MergeArg) -> ProfileMerge {
        match merge {
            MergeArg::Sum => ProfileMerge::Sum,
            MergeArg::Average => ProfileMerge::Average,
        }
    }
}

/// Recordings and their kernel: the first arguments of several commands.
#[derive(Args)]
pub struct ProfileInputArgs {
    #[command(flatten)]
    pub counted: CountedArgs,

    /// The kernel that was recorded: its build tree, or its vmlinux [default: found by its build
    /// id: where it was recorded, in the cache, below /usr/lib/debug]
    #[arg(long, short, value_name = "TREE|VMLINUX")]
    pub kernel: Option<PathBuf>,
}

/// Count how often each block, edge and call of the kernel ran
///
/// The counts are exact: they come from a recording, not from samples. Prints how much of the
/// kernel ran, and where. --output writes the counts to a file that `kernlane layout` takes.
///
/// With --carry, profiles of earlier builds become one of this kernel: a function is found by its
/// name, and its blocks by how control leaves them.
#[derive(Args)]
#[command(after_help = "Examples:
  kernlane profile net.rec files.rec --merge average -o both.klp
  kernlane profile both.klp --carry --kernel ~/linux -o now.klp")]
pub struct ProfileArgs {
    #[command(flatten)]
    pub input: ProfileInputArgs,

    /// Where to write the profile
    #[arg(long, short, value_name = "FILE.klp")]
    pub output: Option<PathBuf>,

    /// Take profiles of other builds of the kernel, and give each count to the function and block
    /// that are what they were
    #[arg(long, requires = "kernel", conflicts_with_all = ["temporal_edges", "from", "until"])]
    pub carry: bool,

    /// Also count temporal-relationship edges, for the layout `gloy-smith`; takes longer
    #[arg(long, alias = "alternations")]
    pub temporal_edges: bool,

    /// How many functions, processes and addresses outside of functions to list
    #[arg(long, default_value_t = 10)]
    pub top: usize,

    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

impl ProfileInputArgs {
    /// The kernel that was named, or the one of all recordings and profiles.
    pub fn kernel(&self) -> Result<PathBuf> {
        kernel_of_all(self.kernel.as_deref(), &self.counted.recordings)
    }

    /// The merged profile of all recordings and profiles that were named.
    pub fn profile(&self, image: &Image, extra_counts: ExtraCounts) -> Result<Profile> {
        self.counted.profile(image, extra_counts)
    }
}

impl CountedArgs {
    /// As [`ProfileInputArgs::profile`].
    pub fn profile(&self, image: &Image, extra_counts: ExtraCounts) -> Result<Profile> {
        let (part, merge) = (self.part.part()?, self.merge.into());
        counts::profile(&self.recordings, image, &part, merge, extra_counts)
    }
}

/// The summary, and what became of profiles of other builds.
#[derive(Serialize)]
struct ProfileOutput {
    #[serde(flatten)]
    summary: ProfileSummary,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    carried: Vec<CarriedRow>,
}

/// A profile of another build.
#[derive(Serialize)]
struct CarriedRow {
    file: PathBuf,
    build_id: BuildId,
    #[serde(flatten)]
    fit: CarriedShare,
}

impl From<CarriedInput> for CarriedRow {
    fn from(CarriedInput { file, build_id, fit }: CarriedInput) -> CarriedRow {
        CarriedRow { file, build_id, fit }
    }
}

pub(crate) fn run(args: &ProfileArgs) -> Result<ExitCode> {
    let (image, profile, carried) = if args.carry { carried(args)? } else { counted(args)? };
    if let Some(path) = &args.output {
        output::write(path, profile.to_json().as_bytes())?;
    }
    let summary = ProfileSummary::new(&image, &profile, args.top);
    if args.json {
        let carried = carried.into_iter().map(CarriedRow::from).collect();
        let output = ProfileOutput { summary, carried };
        outln!("{}", serde_json::to_string_pretty(&output)?)?;
    } else {
        for input in &carried {
            out!("{}", carried::text(&input.file, &input.build_id, &input.fit))?;
        }
        out!("{}", summary.to_text())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The counts of recordings and profiles of one kernel.
fn counted(args: &ProfileArgs) -> Result<(Image, Profile, Vec<CarriedInput>)> {
    let progress = Progress::new("reading the kernel");
    let kernel = args.input.kernel()?;
    let image = modules::image_of(&kernel, &args.input.counted.recordings)?;
    drop(progress);
    let extra_counts =
        if args.temporal_edges { ExtraCounts::TemporalEdges } else { ExtraCounts::None };
    let profile = args.input.profile(&image, extra_counts)?;
    Ok((image, profile, Vec::new()))
}

/// Above this share of lost code, a profile of another build is doubtful.
const MOST_LOST: f64 = 0.1;

/// The counts of profiles of other builds.
fn carried(args: &ProfileArgs) -> Result<(Image, Profile, Vec<CarriedInput>)> {
    let counted = &args.input.counted;
    let kernel = args.input.kernel.as_deref().context("--carry needs --kernel")?;
    let progress = Progress::new("reading the kernel");
    let mut image = vmlinux::read(&vmlinux::path(kernel))?;
    modules::attach_own_builds(&mut image, kernel, &counted.recordings)?;
    drop(progress);
    let _progress = Progress::new("carrying the counts to the kernel");
    let (profile, others) = counts::carried(&counted.recordings, &image, counted.merge.into())?;
    for CarriedInput { file, fit, .. } in others.iter().filter(|it| it.fit.in_lost > MOST_LOST) {
        note!(
            "warning: {}: {:.1} % of the executed code is lost: record again on this kernel",
            file.display(),
            100.0 * fit.in_lost
        );
    }
    Ok((image, profile, others))
}
