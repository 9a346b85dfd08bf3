//! What boots: kernels, root file systems, workloads, QEMU.
//!
//! `record` makes a recording; `run` runs a shell script under a kernel and gives back what it printed, which is how a changed
//! kernel is tried. Takes a kernel as a file and never looks into its code.

mod boot;
mod bzimage;
mod cache;
mod cpio;
mod follow;
mod initramfs;
mod kernel;
mod marker;
mod packages;
mod plugin;
mod qemu;
pub mod record;
mod rootfs;
mod workload;

pub use boot::{Boot, Clock, End, Outcome, Plugin};
pub use initramfs::Contents;
pub use kernel::{Kernel, Module};
pub use qemu::Qemu;
pub use workload::Workload;

use anyhow::{Context, Result};
use std::path::Path;

/// Boots `kernel` (a bzImage) with `contents`, after `set` has had its say about the machine. Nothing is left behind.
///
/// # Errors
/// The guest cannot be made or started. That its script failed, or that the kernel did, is in the `Outcome`.
pub fn run(kernel: &Path, contents: &Contents, set: impl FnOnce(&mut Boot)) -> Result<Outcome> {
    let qemu = Qemu::find()?;
    let directory = tempfile::Builder::new()
        .prefix("kernlane-guest-")
        .tempdir()
        .context("making a temporary directory")?;
    let initramfs = contents.build(&cache::directory()?, directory.path())?;
    let mut boot = Boot::new(kernel.into(), initramfs.path);
    set(&mut boot);
    boot.run(&qemu, directory.path(), &mut |_| {})
}
