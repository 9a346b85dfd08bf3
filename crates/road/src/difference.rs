//! What changed between two recordings, service by service and function by function.
//!
//! Input: two recordings and their kernels. Output: the changes, with their parts.

use crate::kernel::kernel_of;
use crate::sampling::Sampling;
use anyhow::Result;
use execution::opened::OpenedRecording;
use host::note;
use host::recording::Recording;
use services::difference::RecordingDifference;
use services::{Attribution, ServicesAndFunctions};
use std::path::Path;

/// What is compared.
///
/// ```
/// use road::difference::Compared;
///
/// use road::sampling::Sampling;
///
/// let home = road::examples::home();
/// let [before, after] = ["loop.rec", "other.rec"].map(|name| home.path().join(name));
/// let (kernels, machine, annotations) = ([None; 2], None, None);
/// let sampling = Sampling::default();
/// let recordings = [&*before, &*after];
/// let compared = Compared { recordings, kernels, machine, annotations, sampling };
/// let difference = compared.difference()?;
/// assert_eq!(difference.over(0.5, 0.0).len(), 0, "nothing grew by 50 %");
/// # anyhow::Ok(())
/// ```
pub struct Compared<'a> {
    /// The recordings (directories): before, after.
    pub recordings: [&'a Path; 2],
    /// The kernel of each; `None`: it is found by its build id.
    pub kernels: [Option<&'a Path>; 2],
    /// The machine whose cycles are the costs; `None`: the costs are instructions.
    pub machine: Option<&'a str>,
    /// What the kernels' functions mean; `None`: as the shipped annotations say.
    pub annotations: Option<&'a Path>,
    /// Which instructions an out-of-order core simulates in detail.
    pub sampling: Sampling,
}

impl Compared<'_> {
    /// The changes. Warns when two different workloads have one name: then the kernel is not the
    /// only change.
    ///
    /// # Errors
    /// A recording is damaged or of another kernel, or a kernel is not found.
    pub fn difference(&self) -> Result<RecordingDifference> {
        let machines: Vec<String> = self.machine.iter().map(|&name| name.to_owned()).collect();
        let [before, after] = self.recordings;
        let kernel = kernel_of(self.kernels[0], before)?;
        let kernel_after = kernel_of(self.kernels[1], after)?;
        let old = Attribution::open(&kernel, self.annotations, &machines)?;
        let new = Attribution::open(&kernel_after, self.annotations, &machines)?;
        let machine = old.machines.first();
        warn_of_other_workload(before, after)?;
        let (before, after) = (self.simulated(&old, before)?, self.simulated(&new, after)?);
        Ok(RecordingDifference::new(&before, &after, machine))
    }

    fn simulated(
        &self,
        attribution: &Attribution,
        recording: &Path,
    ) -> Result<ServicesAndFunctions> {
        let Attribution { part, machines, .. } = attribution;
        if machines.iter().all(|machine| machine.core.is_none()) {
            return attribution.recorded(recording);
        }
        let simulate = |plan| attribution.recorded_on_cores(recording, plan);
        let widest = |simulated: &ServicesAndFunctions| simulated.table.widest();
        self.sampling.until_narrow(recording, part, machines, simulate, widest)
    }
}

/// Warns when two different workloads have one name.
fn warn_of_other_workload(before: &Path, after: &Path) -> Result<()> {
    let [before, after] = [workload(before)?, workload(after)?];
    let (name, old) = &before;
    let (other_name, new) = &after;
    if name == other_name && old.is_some() && new.is_some() && old != new {
        note!(
            "warning: the file of the workload {name} changed between the two recordings: \
             differences may come from the workload"
        );
    }
    Ok(())
}

/// The name of a recording's workload, and the hash of its file if the recording says it.
fn workload(recording: &Path) -> Result<(String, Option<String>)> {
    let opened = OpenedRecording::whole(&Recording::at(recording), "conditions")?;
    let header = opened.header();
    let hash = header.conditions.iter().find(|(key, _)| key == "workload_sha256");
    Ok((header.workload.clone(), hash.map(|(_, value)| value.clone())))
}
