//! Judges: Kernlane's numbers beside those of this machine's processor and of other tools.
//!
//! Input: recordings, kernels, programs of others. Output: tables, and an error if the numbers
//! differ by more than they may. To add a judge: a module with its function, and a line in
//! [`Judge`] and in [`Judge::run`].

mod bench_uml;
mod champsim_test;
mod drmemtrace_test;
mod export_test;
mod judge_processor;
mod layout_test;
mod memory_test;
mod slowdown_test;

use anyhow::Result;
use std::path::PathBuf;

/// A judge, with its arguments.
#[derive(Debug, clap::Subcommand)]
pub enum Judge {
    /// Compare the model of a processor with this one: the same points and programs of Debian,
    /// timed here and simulated from recordings; resumes; needs perf
    JudgeProcessor(judge_processor::JudgeProcessor),
    /// Measure layouts on this processor: kernels for User Mode Linux and BOLT's, in slices;
    /// resumes
    BenchUml(bench_uml::BenchUml),
    /// Make a kernel for User Mode Linux whose umask(2) is 2 % slower; `kernlane bench --compare`
    /// must find that and nothing else; resumes
    SlowdownTest(slowdown_test::SlowdownTest),
    /// Compare simulated caches with valgrind's cachegrind
    MemoryTest {
        /// The kernel's build tree
        tree: PathBuf,
    },
    /// Compare layouts with LLVM's own code, and orders of functions with lld's
    LayoutTest {
        /// The kernel's build tree
        tree: PathBuf,
        /// A profile of the tree's kernel
        profile: PathBuf,
    },
    /// Test whether clang, lld and BOLT accept the files of `kernlane export`
    ExportTest,
    /// Compare cache misses and cycles with ChampSim, which takes minutes for a recording of 20
    /// million instructions
    ChampsimTest(champsim_test::ChampsimTest),
    /// Test whether DynamoRIO's tools accept what `kernlane export` writes, and compare
    /// instructions and cache misses
    DrmemtraceTest {
        /// DynamoRIO's drmemtrace_launcher
        launcher: PathBuf,
        /// A recording
        recording: PathBuf,
    },
}

impl Judge {
    /// Judges.
    ///
    /// # Errors
    /// The numbers differ, or something could not run.
    pub fn run(self) -> Result<()> {
        match self {
            Self::JudgeProcessor(judge) => judge.run(),
            Self::BenchUml(judge) => judge.run(),
            Self::SlowdownTest(judge) => judge.run(),
            Self::MemoryTest { tree } => memory_test::memory_test(&tree),
            Self::LayoutTest { tree, profile } => layout_test::layout_test(&tree, &profile),
            Self::ExportTest => export_test::export_test(),
            Self::ChampsimTest(judge) => judge.run(),
            Self::DrmemtraceTest { launcher, recording } => {
                drmemtrace_test::drmemtrace_test(&launcher, &recording)
            }
        }
    }
}
