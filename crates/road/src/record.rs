//! Boots guests: recordings, checkpoints and trials of workloads.
//!
//! Input: a request, which says kernel, workload and conditions. Output: the files of a recording
//! or a checkpoint. What the guest does is reported; so is every warning.
//!
//! ```no_run
//! use guest::{GuestKernel, RecordingRequest};
//!
//! let kernel = GuestKernel::open("linux".as_ref(), None)?;
//! let request = road::record::request(road::workload::open("net")?, kernel, "net.rec");
//! let request = RecordingRequest { data: true, ..request };
//! let recording = road::record::record(&request, None)?;
//! assert!(recording.summary.totals.instructions > 0);
//!
//! // A warm guest, from which recordings of the same request start.
//! let warm = RecordingRequest { output: "net.checkpoint".into(), ..request };
//! assert!(road::record::checkpoint(&warm)?.summary.state_bytes > 0);
//! # anyhow::Ok(())
//! ```

use anyhow::Result;
use guest::checkpoint::{self, NewCheckpoint};
use guest::record::{self, FinishedRecording};
use guest::{GuestKernel, ProcessorRequest, RecordingRequest, Workload};
use host::note;
use host::progress::Progress;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trace::CpuCount;

/// The longest time that a guest may run, unless a request says otherwise.
pub const TIME_LIMIT: Duration = Duration::from_secs(900);

/// The request to record a workload as `kernlane record` does it without options: on one CPU, from
/// seed 1, without data accesses. `output`: the directory to create, which must not exist. The
/// module has an example.
pub fn request(
    workload: Workload,
    kernel: GuestKernel,
    output: impl Into<PathBuf>,
) -> RecordingRequest {
    RecordingRequest {
        workload,
        kernel,
        files: Vec::new(),
        output: output.into(),
        seed: 1,
        cpus: CpuCount::ONE,
        turn: None,
        processor: ProcessorRequest::default(),
        data: false,
        memory_mb: None,
        time_limit: TIME_LIMIT,
        force: false,
        probes: None,
    }
}

/// Records, from the guest's boot or from the checkpoint `from`. The module has an example.
///
/// # Errors
/// As [`guest::record::record`]: the guest cannot be made, or its workload fails.
pub fn record(request: &RecordingRequest, from: Option<&Path>) -> Result<FinishedRecording> {
    let progress = Progress::new("preparing");
    let recording = record::record(request, from, &mut |phase, instructions| {
        progress.say(match instructions {
            0 => phase.to_owned(),
            _ => format!("{phase}, {} M instructions recorded", instructions / 1_000_000),
        });
    })?;
    drop(progress);
    warn(&recording.warnings);
    Ok(recording)
}

/// Boots, sets up and warms a workload, and saves the guest where counting would start. The module
/// has an example.
///
/// # Errors
/// As [`guest::checkpoint::checkpoint`].
pub fn checkpoint(request: &RecordingRequest) -> Result<NewCheckpoint> {
    let progress = Progress::new("preparing");
    let made = checkpoint::checkpoint(request, &mut |phase| progress.say(phase))?;
    drop(progress);
    warn(&made.warnings);
    Ok(made)
}

fn warn(warnings: &[String]) {
    warnings.iter().for_each(|warning| note!("warning: {warning}"));
}
