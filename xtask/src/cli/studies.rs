//! The command line of the studies.

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use std::path::PathBuf;
use studies::{import_study, live_gain, sampling, speer};

/// A study, with its arguments.
#[derive(Debug, clap::Subcommand)]
pub(super) enum StudyCommand {
    /// Make the study of bench/studies/speer.toml, and print its tables beside Speer's figures;
    /// resumes
    Speer {
        /// Where everything is made and kept
        directory: PathBuf,
    },
    /// Compare the times that samples of recordings give with those of simulating every
    /// instruction; resumes
    Sampling(Sampling),
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
            Self::Sampling(Sampling { directory, workloads }) => {
                let shipped = || sampling::shipped().map(str::to_owned).collect();
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
pub(super) struct Sampling {
    /// Where everything is made and kept
    directory: PathBuf,
    /// Make only the tables of these shipped workloads
    #[arg(value_name = "WORKLOAD")]
    #[arg(value_parser = PossibleValuesParser::new(sampling::shipped()))]
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
