//! Whether a recording is of a guest like a machine.
//!
//! Input: a recording's conditions, and what a machine's file says of guests. Output: a sentence
//! for each machine that would have executed other code. This module reads no trace.

use guest::RecordingSummary;
use host::recording::Recording;
use machines::Machine;
use std::path::Path;

/// What the kernel of a recording would have executed otherwise on machines, a sentence each. Empty
/// where nobody knows: the machine's file describes no guest, or the recording is of a version that
/// did not count how branches were executed.
///
/// ```
/// // This small recording does not say how its kernel's branches were executed.
/// let home = road::examples::home();
/// let machines = [machines::find("zen4")?, machines::find("server-32k")?];
/// assert!(road::likeness::differences(&home.path().join("loop.rec"), &machines).is_empty());
/// # anyhow::Ok(())
/// ```
pub fn differences(recording: &Path, machines: &[Machine]) -> Vec<String> {
    let summary = RecordingSummary::read(&Recording::at(recording));
    let Some(branches) = summary.ok().and_then(|summary| summary.kernel_branches) else {
        return Vec::new();
    };
    let guests = machines.iter().filter_map(|machine| machine.guest.as_ref());
    let unlike = guests.filter_map(|guest| branches.check(guest).err());
    unlike.map(|error| format!("{}: {error}", recording.display())).collect()
}
