//! A recording on disk: a directory, and the names of the files in it.
//!
//! Output: paths. This module never reads the files: `docs/reference/recording-format.md` describes
//! the trace.

use std::path::PathBuf;

/// The directory of a recording, whether it exists or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    directory: PathBuf,
}

impl Recording {
    /// The guest kernel's log.
    pub const CONSOLE: &str = "console.log";
    /// The workload's output.
    pub const OUTPUT: &str = "output.log";
    /// The names of all files.
    pub const FILES: &[&str] =
        &["trace.klt", "recording.json", Recording::CONSOLE, Recording::OUTPUT];

    /// The recording in a directory, which need not exist.
    pub fn at(directory: impl Into<PathBuf>) -> Recording {
        Recording { directory: directory.into() }
    }

    /// Whether there is a recording.
    pub fn exists(&self) -> bool {
        self.trace().is_file()
    }

    /// The trace: the recorded execution.
    pub fn trace(&self) -> PathBuf {
        self.directory.join("trace.klt")
    }

    /// The recording's conditions and totals, as JSON.
    pub fn summary(&self) -> PathBuf {
        self.directory.join("recording.json")
    }

    /// The workload's output.
    pub fn output(&self) -> PathBuf {
        self.directory.join(Recording::OUTPUT)
    }
}
