//! The command line of the studies.

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use std::path::PathBuf;
use studies::{import_study, layout_times, live_gain, sampling, speer};

/// A study, with its arguments.
#[derive(Debug, clap::Subcommand)]
pub(super) enum StudyCommand {
    /// Make Speer's tables for Linux: a kernel for each of the paper's benchmarks, tested on all of
    /// them; resumes
    Speer {
        /// Where everything is made and kept
        directory: PathBuf,
    },
    /// Simulate every layout on processors of today, each workload with layouts made for the
    /// others: tables of kernel time; resumes
    LayoutTimes(LayoutTimes),
    /// Compare the times that samples of recordings give with those of simulating every
    /// instruction; resumes
    Sampling(LayoutTimes),
    /// Measure what replacing hot functions of the running stock kernel brings: recordings before
    /// and after, tables, gain.json
    LiveGain(LiveGain),
    /// Compare layouts of imported branch stacks with the layout of the same executions, for
    /// several mitigations; resumes
    ImportStudy {
        /// Where everything is made and kept
        directory: PathBuf,
    },
    /// Test whether an import uses the branches of a recording, as processors with several
    /// mitigations would sample them
    ImportTest {
        /// The kernel's build tree
        tree: PathBuf,
        /// A recording
        recording: PathBuf,
    },
}

impl StudyCommand {
    /// Makes the study.
    ///
    /// # Errors
    /// Something could not be made, or a result is not what the study expects.
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Speer { directory } => speer::speer(&directory),
            Self::LayoutTimes(LayoutTimes { directory, workloads }) => {
                layout_times::layout_times(&directory, &workloads)
            }
            Self::Sampling(LayoutTimes { directory, workloads }) => {
                let shipped = || layout_times::shipped().map(str::to_owned).collect();
                let names = if workloads.is_empty() { shipped() } else { workloads };
                sampling::sampling(&directory, &names)
            }
            Self::LiveGain(LiveGain { directory, benchmarks }) => {
                live_gain::live_gain(&directory, &benchmarks)
            }
            Self::ImportStudy { directory } => import_study::import_study(&directory),
            Self::ImportTest { tree, recording } => import_study::import_test(&tree, &recording),
        }
    }
}

/// Where, and of which workloads.
#[derive(Debug, clap::Args)]
pub(super) struct LayoutTimes {
    /// Where everything is made and kept
    directory: PathBuf,
    /// Make only the tables of these shipped workloads
    #[arg(value_name = "WORKLOAD")]
    #[arg(value_parser = PossibleValuesParser::new(layout_times::shipped()))]
    workloads: Vec<String>,
}

/// Where, and which benchmarks.
#[derive(Debug, clap::Args)]
pub(super) struct LiveGain {
    /// Where everything is made and kept
    directory: PathBuf,
    /// Run only these benchmarks
    #[arg(value_name = "BENCHMARK", value_parser = PossibleValuesParser::new(live_gain::names()))]
    benchmarks: Vec<String>,
}
