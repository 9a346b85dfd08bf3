//! Makes checkpoints: guests that have booted, set up and warmed their workload, and stopped where
//! counting would start.
//!
//! Input: the same as for a recording. Output: a directory with the guest's whole state. Any number
//! of recordings start from it within seconds, and all execute the same instructions. A checkpoint
//! belongs to one kernel, workload, seed and version of QEMU, and is refused with others.

use crate::boot::GuestEnd;
use crate::draft::OutputDirectory;
use crate::judge::{explain, judge};
use crate::like::{self, EarlyCheck};
use crate::qemu::Qemu;
use crate::request::{RecordingConditions, RecordingRequest};
use crate::sha256_of;
use crate::state::GuestState;
use crate::summary;
use anyhow::{Context, Result, ensure};
use host::recording::Recording;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

const STATE: &str = "state";
const SUMMARY: &str = "checkpoint.json";
const FILES: &[&str] = &[STATE, SUMMARY, Recording::CONSOLE, Recording::OUTPUT];

/// `checkpoint.json`: the conditions of a checkpoint, and a description of its state.
#[derive(Debug, Serialize, Deserialize)]
pub struct CheckpointSummary {
    /// The number of the format.
    #[serde(default = "summary::oldest")]
    pub format: u32,
    /// The conditions under which the guest ran.
    #[serde(flatten)]
    pub conditions: RecordingConditions,
    /// What the guest's kernel said of each vulnerability, by the name of its file, if the guest is
    /// like a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vulnerabilities: Option<BTreeMap<String, String>>,
    /// The bytes of the state.
    pub state_bytes: u64,
    /// The SHA-256 of the state, hex.
    pub state_sha256: String,
}

/// A checkpoint that was just made.
pub struct NewCheckpoint {
    /// Its description.
    pub summary: CheckpointSummary,
    /// How long the guest ran, by the host's clock.
    pub elapsed: Duration,
    /// What may be wrong with the guest.
    pub warnings: Vec<String>,
}

/// Boots, sets up, warms and saves. `progress` gets the current step a few times a second.
///
/// # Errors
/// The errors of a recording. Also if the guest ran beyond the place where it should have stopped.
pub fn checkpoint(
    request: &RecordingRequest,
    progress: &mut dyn FnMut(&str),
) -> Result<NewCheckpoint> {
    let qemu = Qemu::find()?;
    let draft = OutputDirectory::reserve(&request.output, request.force, FILES)?;
    progress("making the guest from Debian packages");
    let state = draft.work.join(STATE);
    let guest = request.prepare(&qemu, Some(GuestState::SavedTo(state.clone())))?;
    let mut early = request.processor.like.as_ref().map(EarlyCheck::new);
    let outcome = guest.boot.run(&qemu, &draft.work, &mut |news| {
        progress(&format!("guest: {}", news.phase));
        early.as_mut().map_or(Ok(()), |early| early.hear(news.messages))
    })?;
    judge(&guest.boot, &outcome)?;
    ensure!(
        outcome.end == GuestEnd::Saved,
        explain("the guest did not stop where its state should have been saved", &outcome)
    );
    let vulnerabilities = request.processor.like.as_ref();
    let vulnerabilities =
        vulnerabilities.map(|processor| like::check(&outcome.console, processor)).transpose()?;
    let summary = CheckpointSummary {
        format: summary::FORMAT,
        conditions: guest.conditions,
        vulnerabilities,
        state_bytes: std::fs::metadata(&state)?.len(),
        state_sha256: sha256_of(&state)?,
    };
    std::fs::write(draft.work.join(SUMMARY), summary::to_json(&summary)?)
        .context("writing the conditions")?;
    draft.publish()?;
    Ok(NewCheckpoint { summary, elapsed: outcome.elapsed, warnings: guest.warnings })
}

/// A checkpoint in its directory.
pub struct Checkpoint {
    directory: PathBuf,
    /// Its description.
    pub summary: CheckpointSummary,
}

impl Checkpoint {
    /// Opens the checkpoint in `directory`.
    ///
    /// # Errors
    /// There is no checkpoint, or its state has changed since it was saved.
    pub fn open(directory: &Path) -> Result<Checkpoint> {
        let path = directory.join(SUMMARY);
        let named = || format!("{} is not a checkpoint: reading {SUMMARY}", directory.display());
        let text = std::fs::read_to_string(&path).with_context(named)?;
        let checkpoint = Checkpoint {
            directory: std::path::absolute(directory)?,
            summary: summary::from_json(&text).with_context(named)?,
        };
        ensure!(
            sha256_of(&checkpoint.path())? == checkpoint.summary.state_sha256,
            "{} was changed after it was saved: make the checkpoint again",
            checkpoint.path().display()
        );
        Ok(checkpoint)
    }

    /// The guest's state.
    pub fn state(&self) -> GuestState {
        GuestState::RestoredFrom(self.path())
    }

    fn path(&self) -> PathBuf {
        self.directory.join(STATE)
    }

    /// Checks the conditions of a recording.
    ///
    /// # Errors
    /// Names every condition in which the checkpoint differs from the recording.
    pub(crate) fn fits(&self, wanted: &RecordingConditions) -> Result<()> {
        let differences = differences(
            &serde_json::to_value(&self.summary.conditions)?,
            &serde_json::to_value(wanted)?,
        );
        ensure!(
            differences.is_empty(),
            "{} was made under other conditions: make it again\n{}",
            self.directory.display(),
            differences.join("\n")
        );
        Ok(())
    }
}

/// One line for each field that differs.
fn differences(made: &Value, wanted: &Value) -> Vec<String> {
    let fields = made.as_object().into_iter().flatten();
    fields
        .filter(|(name, value)| wanted[name.as_str()] != **value)
        .map(|(name, value)| format!("  {name}: {value}, now {}", wanted[name.as_str()]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(seed: u64) -> RecordingConditions {
        RecordingConditions {
            kernel_release: "6.12".into(),
            kernel_build_id: "00".into(),
            workload: "w".into(),
            workload_sha256: "11".into(),
            copied_sha256: None,
            image_sha256: None,
            operations: None,
            packages: Vec::new(),
            initramfs_sha256: "22".into(),
            seed,
            memory_mb: 512,
            cpus: 1,
            turn: None,
            like: None,
            qemu: "10.0.2".into(),
            qemu_arguments: vec!["-m".into()],
        }
    }

    #[test]
    fn a_checkpoint_of_other_conditions_or_bytes_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Checkpoint::open(directory.path()).is_err());
        std::fs::write(directory.path().join(STATE), "state").unwrap();
        let summary = CheckpointSummary {
            format: summary::FORMAT,
            conditions: conditions(1),
            vulnerabilities: None,
            state_bytes: 5,
            state_sha256: sha256_of(&directory.path().join(STATE)).unwrap(),
        };
        let text = summary::to_json(&summary).unwrap();
        std::fs::write(directory.path().join(SUMMARY), &text).unwrap();
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        checkpoint.fits(&conditions(1)).unwrap();
        let message = checkpoint.fits(&conditions(2)).unwrap_err().to_string();
        assert!(message.contains("seed: 1, now 2") && !message.contains("memory_mb"), "{message}");
        std::fs::write(directory.path().join(STATE), "stat").unwrap();
        assert!(Checkpoint::open(directory.path()).is_err());
    }

    #[test]
    fn damaged_conditions_are_refused() {
        let summary = CheckpointSummary {
            format: summary::FORMAT,
            conditions: conditions(1),
            vulnerabilities: None,
            state_bytes: 5,
            state_sha256: "33".into(),
        };
        let read = |text: &str| {
            let summary = summary::from_json::<CheckpointSummary>(text).ok()?;
            Some(serde_json::to_value(summary).unwrap())
        };
        let text = summary::to_json(&summary).unwrap();
        image::sealed::assert_damage_is_noticed(&text, read);
        // Files of older versions have neither number nor checksum.
        let old = serde_json::to_value(&summary).unwrap();
        let mut old = old.as_object().unwrap().clone();
        old.remove("format");
        let old = serde_json::to_string_pretty(&old).unwrap() + "\n";
        assert_eq!(read(&old).unwrap()["seed"], 1);
    }
}
