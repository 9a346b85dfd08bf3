//! What every road does with a kernel: records the workloads on it in each guest, counts what ran,
//! and simulates the machines on the recordings.
//!
//! Input: an [`Optimization`] and a kernel. Output: recordings, a profile, result rows. A recording
//! that exists is not made again.

use crate::counts::extra_counts;
use crate::guests::RecordedGuest;
use crate::optimization::{Optimization, WeightedWorkload};
use crate::replayed::ReplayRequest;
use crate::said::say;
use crate::{counts, record, workload};
use anyhow::Result;
use execution::part::RecordingPart;
use guest::record::is_made;
use guest::{GuestKernel, RecordingRequest};
use host::output;
use image::Image;
use profile::{Profile, ProfileMerge};
use replay::ReplayLayout;
use replay::results::{ORIGINAL, ResultRow};
use std::path::{Path, PathBuf};

/// A kernel, and how its recordings are made.
pub(crate) struct RecordedKernel<'a> {
    /// The name that its recordings and rows have.
    pub name: &'a str,
    /// Its build tree, or its boot image.
    pub path: &'a Path,
    /// Its vmlinux, if it lies elsewhere.
    pub vmlinux: Option<&'a Path>,
    /// What the guest has beside the workload.
    pub equip: &'a dyn Fn(&mut RecordingRequest) -> Result<()>,
}

impl Optimization {
    /// Records each workload in each guest on the kernel of a build tree. Returns the paths: for
    /// each guest, those of all workloads.
    ///
    /// # Errors
    /// As [`record::record`].
    pub(crate) fn record_tree(&self, name: &str, tree: &Path) -> Result<Vec<PathBuf>> {
        let kernel = RecordedKernel { name, path: tree, vmlinux: None, equip: &|_| Ok(()) };
        self.record_kernel(&kernel)
    }

    /// Records each workload in each guest on a kernel. Returns the paths: for each guest, those of
    /// all workloads.
    ///
    /// # Errors
    /// As [`record::record`]; or the guest cannot be equipped.
    pub(crate) fn record_kernel(&self, kernel: &RecordedKernel<'_>) -> Result<Vec<PathBuf>> {
        let mut recordings = Vec::new();
        for guest in &self.guests {
            for WeightedWorkload { workload, .. } in &self.workloads {
                recordings.push(self.recording_of(kernel, guest, workload)?);
            }
        }
        Ok(recordings)
    }

    fn recording_of(
        &self,
        kernel: &RecordedKernel<'_>,
        guest: &RecordedGuest,
        workload: &str,
    ) -> Result<PathBuf> {
        let workload = workload::open(workload)?;
        let several = self.workloads.len() > 1;
        let directory = self.path(&guest.recording(kernel.name, several.then_some(&workload.name)));
        let name = kernel.name;
        let kernel_files = GuestKernel::open(kernel.path, kernel.vmlinux)?;
        let mut request = RecordingRequest {
            seed: self.seed,
            cpus: self.cpus,
            processor: guest.processor.clone(),
            time_limit: self.time_limit,
            force: true,
            ..record::request(workload, kernel_files, &directory)
        };
        (kernel.equip)(&mut request)?;
        if is_made(&request) {
            say(&format!("using the existing recording {}", directory.display()))?;
            return Ok(directory);
        }
        let like = guest.processor.like.as_ref();
        let like = like.map_or(String::new(), |like| format!(", in a guest like {}", like.name));
        let order = match name == ORIGINAL {
            true => "its own order".to_owned(),
            false => format!("the order by {name}"),
        };
        say(&format!("recording {} on the kernel in {order}{like}", request.workload.name))?;
        let recorded = record::record(&request, None);
        if !request.files.is_empty() {
            // Nobody needs this guest again, and it is larger than everything else here.
            let _ = std::fs::remove_dir_all(directory.with_extension("guest"));
        }
        recorded?;
        Ok(directory)
    }

    /// The counts of recordings of a kernel, averaged by the weights of their workloads, with all
    /// that the algorithms need; kept as `profile.klp`.
    ///
    /// # Errors
    /// A recording is damaged or of another kernel.
    pub(crate) fn count(&self, recordings: &[PathBuf], image: &Image) -> Result<Profile> {
        say("counting blocks, edges and calls")?;
        let (whole, extra) = (RecordingPart::WHOLE, extra_counts(&self.algorithms));
        let weights = self.workloads.iter().map(|workload| workload.weight);
        let weights: Vec<u32> = weights.cycle().take(recordings.len()).collect();
        let profile = match recordings.len() {
            1 => counts::profile(recordings, image, &whole, ProfileMerge::Sum, extra)?,
            _ => counts::weighted(recordings, &weights, image, extra)?,
        };
        output::write(&self.path("profile.klp"), profile.to_json().as_bytes())?;
        Ok(profile)
    }

    /// The rows of the machines of each guest on its recordings.
    ///
    /// # Errors
    /// As [`ReplayRequest::rows`].
    pub(crate) fn rows(
        &self,
        recordings: &[PathBuf],
        layouts: &[ReplayLayout],
        image: Option<&Image>,
    ) -> Result<Vec<ResultRow>> {
        let mut rows = Vec::new();
        for (guest, recordings) in self.guests.iter().zip(recordings.chunks(self.workloads.len())) {
            for recording in recordings {
                let replay = ReplayRequest::new(recording, layouts, &guest.machines);
                let (scope, sampling) = (self.scope, self.sampling);
                rows.extend(ReplayRequest { scope, image, sampling, ..replay }.rows()?);
            }
        }
        Ok(rows)
    }
}
