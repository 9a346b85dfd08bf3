//! Recordings of guests with files of their own.
//!
//! Input: a request. Output: the recording in its directory. The guest's root file system, which is
//! made beside it, is removed.

use anyhow::{Context, Result};
use guest::{RecordingRequest, RecordingSummary, record};

/// Makes a recording from the guest's boot.
///
/// # Errors
/// The guest fails, or the recording cannot be written.
pub fn record(request: &RecordingRequest) -> Result<RecordingSummary> {
    let made = record::record(request, None, &mut |_, _| {});
    let guest = request.output.with_extension("guest");
    if guest.is_dir() {
        std::fs::remove_dir_all(&guest).with_context(|| format!("removing {}", guest.display()))?;
    }
    let made = made.with_context(|| request.output.display().to_string())?;
    made.warnings.iter().for_each(|warning| println!("warning: {warning}"));
    Ok(made.summary)
}
