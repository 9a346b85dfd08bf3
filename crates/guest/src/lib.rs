//! Boots guests: kernels, root file systems, workloads, QEMU and its monitor, checkpoints.
//!
//! `record` makes a recording. `run` runs a shell script under a kernel and returns what the script
//! printed, for example to try a changed kernel. Input: a kernel as a file. This crate changes no
//! kernel.
//!
//! ```
//! // A guest that runs a script and has one more file.
//! let mut contents = kernlane_guest::GuestContents::of_script("cat /greeting", Vec::new());
//! contents.file("/greeting", 0o644, "hello\n");
//! ```

#![warn(missing_docs, clippy::missing_errors_doc)]
#![deny(unsafe_code)]

pub mod benchmark;
mod boot;
mod brought;
mod bzimage;
mod cache;
pub mod checkpoint;
mod companion;
mod configuration;
mod container;
mod cpio;
mod draft;
mod find;
mod follow;
mod frame_facts;
mod headers;
mod host_files;
mod initramfs;
mod judge;
mod kernel;
mod kernel_branches;
mod like;
mod loaded_part;
mod marker;
pub mod module_files;
mod module_order;
mod monitor;
mod needs;
mod own;
mod own_program;
mod packages;
mod plugin;
mod qemu;
pub mod record;
pub mod recorded_module;
mod refused;
mod request;
mod rootfs;
mod state;
mod summary;
mod thunks;
mod trial;
mod turn;
mod typed;
mod user_programs;
mod workload;

pub use boot::{GuestEnd, GuestOutcome, HostCost};
pub use bzimage::BzImage;
pub use configuration::{Boot, GuestClock, QemuPlugin};
#[cfg(any(test, feature = "examples"))]
pub use container::examples;
#[doc(hidden)]
pub use container::try_image;
pub use find::SoughtKernel;
pub use initramfs::GuestContents;
pub use kernel::GuestKernel;
pub use kernel_branches::KernelBranches;
pub use like::OtherMitigations;
pub use module_order::KernelModule;
#[doc(hidden)]
pub use needs::try_program;
pub use own_program::{GuestFile, OwnProgram};
pub use plugin::{data_arguments, find as plugin_library};
pub use qemu::{Qemu, in_path};
pub use record::RecordingSummary;
pub use refused::{MissingKernel, RefusedRequest};
pub use request::{
    PreparedGuest, ProbeFiles, ProcessorRequest, RecordingConditions, RecordingRequest,
};
pub use trial::{Trial, TrialEvent, TrialFailure, trial};
pub use turn::{TURN, check_turn};
pub use typed::TypedWorkload;
pub use workload::{MEMORY_MB, SHIPPED, SeveralCpus, Workload, shipped_names};

use anyhow::{Context, Result};
use host::scratch;
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The instructions by which a program says where counting starts and ends.
pub const MARKS: [[u8; 8]; 2] =
    [marker::Mark::Start.instruction(), marker::Mark::GuestEnd.instruction()];

/// Boots `kernel` (a bzImage) with `contents`. `set` may change the machine before the boot.
/// Nothing is left behind.
///
/// # Errors
/// The guest cannot be made or started. If the script or the kernel fails, the `GuestOutcome` says
/// so.
pub fn run(
    kernel: &Path,
    contents: &GuestContents,
    set: impl FnOnce(&mut Boot),
) -> Result<GuestOutcome> {
    let qemu = Qemu::find()?;
    let directory = scratch::directory(&std::env::temp_dir(), "kernlane-guest-")?;
    let initramfs = contents.build(&cache::directory()?, directory.path())?;
    let mut boot = Boot::new(kernel.into(), initramfs.path);
    set(&mut boot);
    boot.run(&qemu, directory.path(), &mut |_| Ok(()))
}

/// The version of a Debian package that guests would get.
///
/// # Errors
/// There is no apt, apt does not know the package, or its lists are missing.
pub fn resolvable(package: &str) -> Result<String> {
    let packages = packages::resolve(&[package.to_string()])?;
    let found = packages.into_iter().find(|candidate| candidate.name == package);
    Ok(found.with_context(|| format!("apt resolved {package} to other packages"))?.version)
}

/// The cache directory, if it can be written to.
///
/// # Errors
/// It cannot be written to.
pub fn writable_cache() -> Result<PathBuf> {
    let directory = cache::directory()?;
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("making {}", directory.display()))?;
    tempfile::tempfile_in(&directory)
        .with_context(|| format!("writing into {}", directory.display()))?;
    Ok(directory)
}

/// The SHA-256 of a file, in hex.
fn sha256_of(path: &Path) -> Result<String> {
    let mut file =
        std::fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buffer);
        match read.with_context(|| format!("reading {}", path.display()))? {
            0 => return Ok(image::sealed::hex(&hash.finalize())),
            read => hash.update(&buffer[..read]),
        }
    }
}
