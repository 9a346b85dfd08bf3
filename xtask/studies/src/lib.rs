//! Studies: what layouts and live replacement bring, as tables.
//!
//! Input: a directory. Output: files in it, which the next run does not make again. To add a study:
//! a module with its function, and a line in [`Study`] and in [`Study::run`].

mod directory;
mod import_study;
mod layout_times;
mod live_gain;
mod speer;

use anyhow::Result;
use std::path::PathBuf;

/// A study, with its arguments.
#[derive(Debug, clap::Subcommand)]
pub enum Study {
    /// Make Speer's tables for Linux: a kernel for each of his benchmarks, tested on all of them;
    /// resumes
    Speer {
        /// Where everything is made and kept
        directory: PathBuf,
    },
    /// Simulate every layout on processors of today, each workload with layouts made for the
    /// others: tables of kernel time; resumes
    LayoutTimes(layout_times::LayoutTimes),
    /// Measure what replacing hot functions of the running stock kernel brings: recordings before
    /// and after, tables, gain.json
    LiveGain(live_gain::LiveGain),
    /// Compare layouts of imported branch stacks with the layout of the same executions, for
    /// several mitigations; resumes
    ImportStudy {
        /// Where everything is made and kept
        directory: PathBuf,
    },
    /// Test whether `kernlane import` uses the branches of a recording, as processors with several
    /// mitigations would sample them
    ImportTest {
        /// The kernel's build tree
        tree: PathBuf,
        /// A recording
        recording: PathBuf,
    },
}

impl Study {
    /// Makes the study.
    ///
    /// # Errors
    /// Something could not be made, or a result is not what the study expects.
    pub fn run(self) -> Result<()> {
        match self {
            Self::Speer { directory } => speer::speer(&directory),
            Self::LayoutTimes(study) => study.run(),
            Self::LiveGain(study) => study.run(),
            Self::ImportStudy { directory } => import_study::import_study(&directory),
            Self::ImportTest { tree, recording } => import_study::import_test(&tree, &recording),
        }
    }
}
