//! `kernlane profile`: makes counts per block, edge and call from recordings.
//!
//! Input: recordings or profiles and their kernel. Output: a profile, and a summary.

use crate::command::kernel::kernel_of_all;
use crate::command::text_file::text_of;
use anyhow::{Context, Result, bail};
use clap::Args;
use exchange::kinds::FileKind;
use execution::part::RecordingPart;
use host::out;
use host::outln;
use host::output;
use host::progress::Progress;
use host::recording::Recording;
use image::{Image, vmlinux};
use profile::collect::{self, ExtraCounts};
use profile::{Profile, ProfileMerge, merge};
use report::profile::ProfileSummary;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Recordings, profiles, and how they are put together.
#[derive(Args)]
pub struct CountedArgs {
    /// Recordings (directories), profiles (*.klp), or both
    #[arg(required = true, value_name = "RECORDING")]
    pub recordings: Vec<PathBuf>,

    /// How the counts of several recordings are put together
    #[arg(long, value_enum, default_value_t = ProfileMerge::Sum)]
    pub merge: ProfileMerge,

    #[command(flatten)]
    pub part: RecordingPart,
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
#[derive(Args)]
#[command(
    after_help = "Example:\n  kernlane profile net.rec files.rec --merge average -o both.klp"
)]
pub struct ProfileArgs {
    #[command(flatten)]
    pub input: ProfileInputArgs,

    /// Where to write the profile
    #[arg(long, short, value_name = "FILE.klp")]
    pub output: Option<PathBuf>,

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
        let one = |path: &PathBuf| one_profile(path, image, &self.part, extra_counts);
        merge(self.recordings.iter().map(one).collect::<Result<_>>()?, self.merge)
    }
}

fn one_profile(
    path: &Path,
    image: &Image,
    part: &RecordingPart,
    extra_counts: ExtraCounts,
) -> Result<Profile> {
    let named = || path.display().to_string();
    if path.is_dir() {
        return collect::of_recording(&Recording::at(path), image, part, extra_counts);
    }
    if !part.is_whole() {
        bail!(
            "{}: a profile has no parts; give --from and --until with the recording",
            path.display()
        );
    }
    let text = text_of(path, &[FileKind::Profile])?;
    let profile = Profile::from_json(&text).with_context(named)?;
    if profile.build_id != image.build_id {
        bail!(
            "{}: the recording's kernel has build id {}, but the kernel has build id {}",
            path.display(),
            profile.build_id.0,
            image.build_id.0
        );
    }
    Ok(profile)
}

pub(crate) fn run(args: &ProfileArgs) -> Result<ExitCode> {
    let progress = Progress::new("reading the kernel");
    let image = vmlinux::read(&vmlinux::path(&args.input.kernel()?))?;
    drop(progress);
    let extra_counts =
        if args.temporal_edges { ExtraCounts::TemporalEdges } else { ExtraCounts::None };
    let profile = args.input.profile(&image, extra_counts)?;
    if let Some(path) = &args.output {
        output::write(path, profile.to_json().as_bytes())?;
    }
    let summary = ProfileSummary::new(&image, &profile, args.top);
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&summary)?)?;
    } else {
        out!("{}", summary.to_text())?;
    }
    Ok(ExitCode::SUCCESS)
}
