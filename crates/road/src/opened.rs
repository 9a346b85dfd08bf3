//! Recordings opened with their kernels, for the tables of services, misses, locks and others.
//!
//! Input: recordings, and the kernel, annotations and machines if they are named. Output: each
//! recording with its kernel, which [`attribution`] takes.

use crate::kernel::kernel_of;
use crate::modules;
use anyhow::Result;
use execution::part::RecordingPart;
use guest::SoughtKernel;
use image::BuildId;
use services::Attribution;
use std::path::{Path, PathBuf};

/// A kernel with its annotations and the machines to simulate.
pub struct OpenedKernel {
    /// The build tree, the vmlinux or the System.map.
    pub path: PathBuf,
    /// Makes the tables of the kernel's recordings.
    pub attribution: Attribution,
}

/// The settings with which recordings are opened.
///
/// ```
/// use execution::part::RecordingPart;
/// use road::opened::Opening;
///
/// let home = road::examples::home();
/// let recordings = ["loop.rec", "other.rec"].map(|name| home.path().join(name));
/// let machines = ["server-32k".to_owned()];
/// let part = RecordingPart::WHOLE;
/// let opening = Opening { kernel: None, annotations: None, machines: &machines, part };
/// let kernel = opening.open(&recordings[0])?;
/// assert_eq!(kernel.path, home.path().join("vmlinux"));
///
/// let tables = opening.each(&recordings, |path, kernel| kernel.attribution.table(path, None))?;
/// assert_eq!([&tables[0].workload, &tables[1].workload], ["loop", "other"]);
/// # anyhow::Ok(())
/// ```
#[derive(Clone, Copy)]
pub struct Opening<'a> {
    /// The kernel's build tree, its vmlinux or its System.map. `None`: it is found by its build id.
    pub kernel: Option<&'a Path>,
    /// What the kernel's functions mean. `None`: as the shipped annotations say.
    pub annotations: Option<&'a Path>,
    /// The names or files of the machines to simulate.
    pub machines: &'a [String],
    /// The part of each recording.
    pub part: RecordingPart,
}

impl Opening<'_> {
    /// Opens the kernel of a recording (a directory).
    ///
    /// # Errors
    /// The kernel is not found, or kernel, annotations or a machine cannot be read.
    pub fn open(&self, recording: &Path) -> Result<OpenedKernel> {
        let path = kernel_of(self.kernel, recording)?;
        let mut attribution = Attribution::open(&path, self.annotations, self.machines)?;
        attribution.symbols.set_modules(modules::symbols(&path, recording)?);
        Ok(OpenedKernel { path, attribution: Attribution { part: self.part, ..attribution } })
    }

    /// Calls `make` for each recording and its kernel, in order. A kernel is opened once for
    /// recordings that follow one another.
    ///
    /// # Errors
    /// As [`Opening::open`]; or `make` fails.
    pub fn each<T>(
        &self,
        recordings: &[impl AsRef<Path>],
        mut make: impl FnMut(&Path, &OpenedKernel) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut opened: Option<(BuildId, OpenedKernel)> = None;
        let mut all = Vec::new();
        for recording in recordings {
            let recording = recording.as_ref();
            let build_id = SoughtKernel::of_recording(recording)?.build_id;
            let kernel = match opened.take().filter(|(known, _)| *known == build_id) {
                Some((_, mut kernel)) => {
                    let modules = modules::symbols(&kernel.path, recording)?;
                    kernel.attribution.symbols.set_modules(modules);
                    kernel
                }
                None => self.open(recording)?,
            };
            all.push(make(recording, &kernel)?);
            opened = Some((build_id, kernel));
        }
        Ok(all)
    }
}
