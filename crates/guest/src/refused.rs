//! What a caller can change in a request that was refused.
//!
//! Output: errors that say in words of this crate what to change. A program that knows how its user
//! asked finds them by `anyhow::Error::downcast_ref`, and adds its own words. This module decides
//! nothing.

use image::BuildId;
use std::fmt;
use std::path::PathBuf;

/// A request that cannot be done as it is.
#[derive(Debug, thiserror::Error)]
pub enum RefusedRequest {
    /// The output exists, and the request does not allow to replace it.
    #[error("{} is not empty: name another directory, or let it be replaced", .0.display())]
    OutputNotEmpty(PathBuf),
    /// No place has the kernel.
    #[error("{0}")]
    NoKernel(MissingKernel),
    /// A build tree and a vmlinux were named together.
    #[error(
        "a build tree contains its vmlinux: name the tree alone, or a boot image and its vmlinux"
    )]
    TreeAndVmlinux,
    /// No place has the vmlinux of a boot image.
    #[error(
        "no vmlinux for {}: install Debian's (apt-get install linux-image-{release}-dbg), or name it",
        .boot_image.display()
    )]
    NoVmlinux {
        /// The boot image that was named.
        boot_image: PathBuf,
        /// The output of `uname -r` in its kernel.
        release: String,
    },
    /// A length of turns for one CPU; in instructions.
    #[error(
        "turns of {0} instructions: one CPU takes no turns; record several CPUs, or set no turn"
    )]
    TurnsOfOneCpu(u32),
    /// A checkpoint for a recording of several CPUs.
    #[error("a checkpoint has one CPU: record one CPU, or record without the checkpoint")]
    CheckpointOfOneCpu,
    /// The guest's memory cannot hold its files while it boots. Amounts in MB.
    #[error(
        "the guest's files have {files} MB and its memory {memory} MB, which must hold them twice \
         while it boots: leave files out, or give it {enough} MB"
    )]
    TooLittleMemory {
        /// The unpacked files.
        files: u64,
        /// The memory of the guest.
        memory: u32,
        /// A memory that is enough.
        enough: u64,
    },
}

/// A kernel that no place has.
#[derive(Debug)]
pub struct MissingKernel {
    pub(crate) build_id: BuildId,
    pub(crate) release: Option<String>,
    /// The places that were looked at, each with the reason why it was not taken.
    pub(crate) looked: Vec<(PathBuf, String)>,
}

impl fmt::Display for MissingKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let release = self.release.iter().map(|release| format!(" ({release})"));
        write!(
            f,
            "no kernel with the build id {}{} was found. These places were looked at:",
            self.build_id.0,
            release.collect::<String>()
        )?;
        for (place, why) in &self.looked {
            write!(f, "\n  {}: {why}", place.display())?;
        }
        write!(
            f,
            "\ninstall the package with its debugging information (on Debian linux-image-…-dbg of \
             the same version), or name the kernel's build tree or its vmlinux"
        )
    }
}
