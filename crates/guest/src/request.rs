//! What is asked of a guest that runs a workload, and the conditions that decide what it does.
//!
//! Takes a workload, a kernel, a seed; gives what QEMU is to boot, and the conditions as they are
//! written beside every result. Runs nothing.

use crate::cache;
use crate::configuration::{Boot, Clock};
use crate::initramfs::Contents;
use crate::kernel::Kernel;
use crate::qemu::{self, Qemu};
use crate::state::State;
use crate::workload::Workload;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// A workload to be run on a kernel, and where the result goes to.
pub struct Request {
    pub workload: Workload,
    pub kernel: Kernel,
    /// What the guest has besides: path, permissions, content. Such a guest is not kept in the
    /// cache, but made beside the output (`OUTPUT.guest`).
    pub files: Vec<(String, u32, Vec<u8>)>,
    /// The directory to make. Its parents are made, too.
    pub output: PathBuf,
    pub seed: u64,
    /// Data accesses are recorded, too.
    pub data: bool,
    /// Else what the workload says.
    pub memory_mb: Option<u32>,
    pub time_limit: Duration,
    /// Whether an existing result may be replaced.
    pub force: bool,
}

/// All that decides what the guest does. Holds no path and no time of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    pub kernel_release: String,
    pub kernel_build_id: String,
    pub workload: String,
    pub workload_sha256: String,
    /// `NAME_VERSION_ARCHITECTURE.deb`, sorted.
    pub packages: Vec<String>,
    pub initramfs_sha256: String,
    pub seed: u64,
    pub memory_mb: u32,
    pub qemu: String,
    pub qemu_arguments: Vec<String>,
}

impl Request {
    /// Makes the guest, and says how it is to be booted and on what conditions it then runs.
    ///
    /// # Errors
    /// A package cannot be had or unpacked, the cache cannot be written to.
    pub fn prepare(&self, qemu: &Qemu, state: Option<State>) -> Result<(Boot, Conditions)> {
        let (workload, kernel) = (&self.workload, &self.kernel);
        let cache = cache::directory()?;
        let mut contents = Contents::of_workload(workload, kernel)?;
        for (path, permissions, content) in &self.files {
            contents.file(path, *permissions, content.as_slice());
        }
        let place = match self.files.is_empty() {
            true => cache.join("guest"),
            false => self.output.with_extension("guest"),
        };
        let initramfs = contents.build(&cache, &place)?;
        let mut boot = Boot::new(kernel.boot_image.clone(), initramfs.path.clone());
        boot.clock = Clock::Instructions { seed: self.seed };
        boot.memory_mb = self.memory_mb.unwrap_or(workload.memory_mb);
        boot.time_limit = self.time_limit;
        boot.state = state;
        // Where user programs lie would differ with any change of the kernel that draws one random
        // number more or less.
        boot.command_line.push("norandmaps".into());
        let conditions = Conditions {
            kernel_release: kernel.release.clone(),
            kernel_build_id: kernel.build_id.0.clone(),
            workload: workload.name.clone(),
            workload_sha256: workload.sha256.clone(),
            packages: initramfs.packages.iter().map(|package| package.file.clone()).collect(),
            initramfs_sha256: initramfs.sha256.clone(),
            seed: self.seed,
            memory_mb: boot.memory_mb,
            qemu: qemu.version.to_string(),
            qemu_arguments: qemu::arguments(&boot)?,
        };
        Ok((boot, conditions))
    }
}
