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
use profile::carry::{CarriedShare, carry};
use profile::collect::{self, ExtraCounts};
use profile::{Profile, ProfileMerge, merge, merge_weighted};
use std::path::{Path, PathBuf};

/// A profile is of another build of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the profile is of the kernel with build id {profile}, but the kernel has build id {kernel}; \
     its counts can be carried to this kernel"
)]
pub struct OtherBuild {
    /// The build id of the profile.
    pub profile: String,
    /// The build id of the kernel.
    pub kernel: String,
}

/// A profile that was carried to another build of its kernel.
#[derive(Clone, Debug)]
pub struct CarriedInput {
    /// The profile's file.
    pub file: PathBuf,
    /// The build that the file is of.
    pub build_id: BuildId,
    /// How much of it fits.
    pub fit: CarriedShare,
}

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

/// The counts of profiles of any builds of a kernel in the build of `image`, put together as `how`
/// says; and what became of each profile of another build.
///
/// ```
/// use profile::ProfileMerge;
/// use profile::collect::ExtraCounts;
///
/// let home = road::examples::home();
/// let mut image = image::vmlinux::read(&home.path().join("vmlinux"))?;
/// let (whole, sum) = (execution::part::RecordingPart::WHOLE, ProfileMerge::Sum);
/// let recording = [home.path().join("loop.rec")];
/// let profile = road::counts::profile(&recording, &image, &whole, sum, ExtraCounts::None)?;
/// let file = home.path().join("loop.klp");
/// std::fs::write(&file, profile.to_json())?;
/// // The same code under another build id.
/// image.build_id.0 = "another".into();
/// let (carried, inputs) = road::counts::carried(&[file], &image, sum)?;
/// assert_eq!(carried.blocks, profile.blocks);
/// assert_eq!((inputs[0].fit.in_same, &inputs[0].build_id), (1.0, &profile.build_id));
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// An input is no profile, or one that does not know what its functions look like.
pub fn carried(
    inputs: &[PathBuf],
    image: &Image,
    how: ProfileMerge,
) -> Result<(Profile, Vec<CarriedInput>)> {
    let mut others = Vec::new();
    let mut profiles = Vec::new();
    for file in inputs {
        let named = || file.display().to_string();
        if file.is_dir() {
            bail!("{}: a recording; only a profile can be carried to another build", named());
        }
        let profile = read_file(file)?;
        if profile.build_id == image.build_id {
            profiles.push(profile);
            continue;
        }
        let carried = carry(&profile, image).with_context(named)?;
        let (file, build_id) = (file.clone(), profile.build_id);
        others.push(CarriedInput { file, build_id, fit: carried.fit });
        profiles.push(carried.profile);
    }
    Ok((merge(profiles, how)?, others))
}

fn read_file(path: &Path) -> Result<Profile> {
    let text = text_of(path, &[FileKind::Profile])?;
    Profile::from_json(&text).with_context(|| path.display().to_string())
}

/// Reads the profile of a kernel.
///
/// # Errors
/// The file is not a profile, or is one of another kernel.
pub(crate) fn of_file(path: &Path, kernel: &BuildId) -> Result<Profile> {
    let profile = read_file(path)?;
    if profile.build_id != *kernel {
        let (profile, kernel) = (profile.build_id.0, kernel.0.clone());
        let other = OtherBuild { profile, kernel };
        return Err(anyhow::Error::new(other).context(path.display().to_string()));
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
