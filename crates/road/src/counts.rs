//! Profiles: how often each block, edge and call of a kernel ran.
//!
//! Input: recordings and profiles of one kernel. Output: one profile.

use crate::input_file::text_of;
use anyhow::{Context, Result, bail};
use exchange::kinds::FileKind;
use execution::part::RecordingPart;
use host::recording::Recording;
use image::{BuildId, Image};
use layout::Algorithm;
use profile::collect::{self, ExtraCounts};
use profile::{Profile, ProfileMerge, merge, merge_weighted};
use std::path::{Path, PathBuf};

/// The counts of `inputs`, which are recordings (directories) and profiles, put together as `how`
/// says. `part`: the part of each recording that counts.
///
/// ```
/// use execution::part::RecordingPart;
/// use profile::ProfileMerge;
/// use profile::collect::ExtraCounts;
///
/// let home = road::examples::home();
/// let recordings = ["loop.rec", "other.rec"].map(|name| home.path().join(name));
/// let image = image::vmlinux::read(&home.path().join("vmlinux"))?;
/// let (whole, sum) = (RecordingPart::WHOLE, ProfileMerge::Sum);
/// let profile = road::counts::profile(&recordings, &image, &whole, sum, ExtraCounts::None)?;
/// assert_eq!(profile.blocks[&image.functions[0].addr], 600, "300 system calls in each");
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// An input cannot be read, is damaged, or is of another kernel; or a part is cut out of a profile.
pub fn profile(
    inputs: &[PathBuf],
    image: &Image,
    part: &RecordingPart,
    how: ProfileMerge,
    extra: ExtraCounts,
) -> Result<Profile> {
    let one = |path: &PathBuf| of_input(path, image, part, extra);
    merge(inputs.iter().map(one).collect::<Result<_>>()?, how)
}

/// The counts of whole recordings and profiles of one kernel, averaged: each counts as often as its
/// weight says.
///
/// # Errors
/// As [`profile()`]; or an input has no weight.
pub fn weighted(
    inputs: &[PathBuf],
    weights: &[u32],
    image: &Image,
    extra: ExtraCounts,
) -> Result<Profile> {
    let one = |path: &PathBuf| of_input(path, image, &RecordingPart::WHOLE, extra);
    merge_weighted(inputs.iter().map(one).collect::<Result<_>>()?, weights)
}

fn of_input(
    path: &Path,
    image: &Image,
    part: &RecordingPart,
    extra: ExtraCounts,
) -> Result<Profile> {
    if path.is_dir() {
        return collect::of_recording(&Recording::at(path), image, part, extra);
    }
    if !part.is_whole() {
        bail!("{}: a profile has no parts: cut the part out of the recording", path.display());
    }
    of_file(path, &image.build_id)
}

/// Reads the profile of a kernel.
///
/// # Errors
/// The file is not a profile, or is one of another kernel.
pub(crate) fn of_file(path: &Path, kernel: &BuildId) -> Result<Profile> {
    let text = text_of(path, &[FileKind::Profile])?;
    let profile = Profile::from_json(&text).with_context(|| path.display().to_string())?;
    if profile.build_id != *kernel {
        bail!(
            "{}: the recording's kernel has build id {}, but the kernel has build id {}",
            path.display(),
            profile.build_id.0,
            kernel.0
        );
    }
    Ok(profile)
}

/// The counts that these algorithms need and that not every profile has.
///
/// ```
/// use layout::Algorithm;
/// use profile::collect::ExtraCounts;
///
/// let of = |name: &str| anyhow::Ok(road::counts::extra_counts(&[name.parse::<Algorithm>()?]));
/// assert_eq!(of("gloy-smith")?, ExtraCounts::TemporalEdges);
/// assert_eq!(of("ext-tsp")?, ExtraCounts::None);
/// # anyhow::Ok(())
/// ```
pub fn extra_counts(algorithms: &[Algorithm]) -> ExtraCounts {
    match algorithms.iter().any(|algorithm| algorithm.uses_temporal_edges()) {
        true => ExtraCounts::TemporalEdges,
        false => ExtraCounts::None,
    }
}
