//! A recording that is asked, with its kernel.

use crate::probe::{ProbeView, RecordedProbes};
use services::Attribution;
use sim::MachineModel;
use std::ops::Range;
use std::path::PathBuf;

/// A recording with what its tables need.
pub struct AskedRecording {
    /// Its directory.
    pub path: PathBuf,
    /// The kernel's build tree, vmlinux or System.map.
    pub kernel: PathBuf,
    /// The kernel's symbols with annotations, and the machines to simulate. The first machine is
    /// that of `services` and `misses`.
    pub attribution: Attribution,
    /// The machine with coherent caches for `locks`.
    pub lock_machine: Option<MachineModel>,
    /// The addresses at which modules ran, and their names.
    pub modules: Vec<(Range<u64>, String)>,
    /// The probes whose values are at hand.
    pub probes: Option<RecordedProbes>,
}

impl AskedRecording {
    /// The views of the probes whose values are at hand.
    pub fn views(&self) -> Vec<ProbeView> {
        self.probes.as_ref().map_or_else(Vec::new, |probes| probes.set.views())
    }

    /// The module that has the code at an address of the kernel.
    pub fn module(&self, address: u64) -> &str {
        let module = self.modules.iter().find(|(range, _)| range.contains(&address));
        module.map_or("vmlinux", |(_, name)| name)
    }
}
