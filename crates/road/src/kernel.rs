//! The kernel of recordings: the one that was named, or the one that is found.
//!
//! Input: a named kernel or none, and recordings or profiles. Output: a build tree or a vmlinux.
//! [`guest::SoughtKernel`] says where a kernel is looked for. Whether a named kernel is the right
//! one is checked where it is used.

use crate::input_file::text_of;
use anyhow::{Context, Result, ensure};
use exchange::kinds::FileKind;
use guest::SoughtKernel;
use profile::Profile;
use std::path::{Path, PathBuf};

/// The kernel of a recording (a directory) or a profile.
///
/// ```
/// let home = road::examples::home();
/// let recording = home.path().join("loop.rec");
/// assert_eq!(road::kernel::kernel_of(None, &recording)?, home.path().join("vmlinux"));
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// No kernel was named, and none is found; or the recording or profile cannot be read.
pub fn kernel_of(named: Option<&Path>, input: &Path) -> Result<PathBuf> {
    match named {
        Some(kernel) => Ok(kernel.to_owned()),
        None => found(&sought(input)?, input),
    }
}

/// The one kernel of several recordings and profiles.
///
/// ```
/// let home = road::examples::home();
/// let recordings = ["loop.rec", "other.rec"].map(|name| home.path().join(name));
/// assert_eq!(road::kernel::kernel_of_all(None, &recordings)?, home.path().join("vmlinux"));
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// As [`kernel_of`]; or the inputs are of several kernels.
pub fn kernel_of_all(named: Option<&Path>, inputs: &[PathBuf]) -> Result<PathBuf> {
    if let Some(kernel) = named {
        // A file that is not a profile is named before the kernel is opened, which takes long.
        for input in inputs.iter().filter(|input| input.is_file()) {
            text_of(input, &[FileKind::Profile])?;
        }
        return Ok(kernel.to_owned());
    }
    let first = inputs.first().context("no recording is named")?;
    let kernel = sought(first)?;
    for input in &inputs[1..] {
        let other = sought(input)?.build_id;
        ensure!(
            other == kernel.build_id,
            "{} is of the kernel with build id {}, and {} of {}: give recordings of one kernel",
            first.display(),
            kernel.build_id.0,
            input.display(),
            other.0
        );
    }
    found(&kernel, first)
}

fn found(kernel: &SoughtKernel, input: &Path) -> Result<PathBuf> {
    kernel.find().with_context(|| format!("the kernel of {}", input.display()))
}

fn sought(input: &Path) -> Result<SoughtKernel> {
    let is_profile = input.is_file() || input.extension().is_some_and(|name| name == "klp");
    if !is_profile {
        return SoughtKernel::of_recording(input);
    }
    let text = text_of(input, &[FileKind::Profile])?;
    let profile = Profile::from_json(&text).with_context(|| input.display().to_string())?;
    Ok(SoughtKernel::with_build_id(profile.build_id))
}
