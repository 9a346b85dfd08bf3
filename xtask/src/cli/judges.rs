//! The command line of the judges.

use anyhow::{Context, Result};
use judges::bench_uml::Comparison;
use judges::{
    bench_uml, champsim_test, drmemtrace_test, export_test, judge_processor, layout_test,
    memory_test, sample_profile, slowdown_test,
};
use lab::session::Minutes;
use std::path::PathBuf;

/// A judge, with its arguments.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Judge {
    /// Compare the model of a processor with this one: the same points and programs of Debian,
    /// timed here and simulated from recordings; resumes; needs perf
    JudgeProcessor(JudgeProcessor),
    /// Measure layouts on this processor: kernels for User Mode Linux and BOLT's, in slices;
    /// resumes
    BenchUml(BenchUml),
    /// Make a kernel for User Mode Linux whose umask(2) is 2 % slower; `kernlane bench --compare`
    /// must find that and nothing else; resumes
    SlowdownTest(SlowdownTest),
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
    /// Test whether clang, lld and BOLT accept exported counts
    ExportTest,
    /// Compare exported sample profiles with clang's counters, on SQLite
    SampleProfile {
        /// The directory with sqlite3.c and sqlite3.h
        sqlite: PathBuf,
    },
    /// Compare cache misses and cycles with ChampSim, which takes minutes for a recording of 20
    /// million instructions
    ChampsimTest(ChampsimTest),
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
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::JudgeProcessor(judge) => judge.run(),
            Self::BenchUml(judge) => judge.run(),
            Self::SlowdownTest(SlowdownTest { directory, minutes }) => {
                slowdown_test::slowdown_test(&directory, minutes)
            }
            Self::MemoryTest { tree } => memory_test::memory_test(&tree),
            Self::LayoutTest { tree, profile } => layout_test::layout_test(&tree, &profile),
            Self::ExportTest => export_test::export_test(),
            Self::SampleProfile { sqlite } => sample_profile::sample_profile(&sqlite),
            Self::ChampsimTest(judge) => judge.run(),
            Self::DrmemtraceTest { launcher, recording } => {
                drmemtrace_test::drmemtrace_test(&launcher, &recording)
            }
        }
    }
}

/// Where, how long, and what to compare.
#[derive(Debug, clap::Args)]
pub(super) struct JudgeProcessor {
    /// Where results are kept
    #[arg(default_value = judge_processor::DIRECTORY)]
    directory: PathBuf,
    /// The machine to compare with [default: the described one that is nearest to this processor]
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// How long to measure
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(default_value_t = judge_processor::MINUTES)]
    minutes: Minutes,
    /// Leave the programs out
    #[arg(long, conflicts_with = "programs")]
    points: bool,
    /// Leave the points out
    #[arg(long)]
    programs: bool,
    /// Only the points with this name before the slash, in DIRECTORY/NAME; several with commas
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "programs")]
    only: Vec<String>,
    /// Measure nothing; FILE is what --json printed of an earlier run (bench/judge-processor*.json)
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl JudgeProcessor {
    fn run(self) -> Result<()> {
        let JudgeProcessor {
            directory,
            machine,
            minutes,
            points,
            programs,
            only: curves,
            measured,
            json,
        } = self;
        judge_processor::judge_processor(&judge_processor::Options {
            directory,
            machine,
            minutes,
            points,
            programs,
            curves,
            measured,
            json,
        })
    }
}

/// What to compare, where, how long, and whether to simulate.
#[derive(Debug, clap::Args)]
pub(super) struct BenchUml {
    /// Where kernels and ratios are kept [default: target/bench-uml, with -profile or -inlined]
    directory: Option<PathBuf>,
    /// Instead of layouts, compare the compiler's profile and a layout, each alone and together
    #[arg(long)]
    profile: bool,
    /// Instead of layouts, compare inlined calls and a layout, each alone and together, in a kernel
    /// with return thunks
    #[arg(long, conflicts_with = "profile")]
    inline: bool,
    /// How long to measure
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(default_value_t = bench_uml::MINUTES)]
    minutes: Minutes,
    /// Also simulate the kernels on the described machine that is nearest to this processor
    #[arg(long)]
    simulate: bool,
    /// Simulate on this machine
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BenchUml {
    fn run(self) -> Result<()> {
        let BenchUml { directory, profile, inline, minutes, simulate, machine, json } = self;
        let comparison = match (profile, inline) {
            (true, _) => Comparison::Profile,
            (_, true) => Comparison::Inlined,
            _ => Comparison::Layouts,
        };
        let directory = directory.unwrap_or_else(|| comparison.directory().to_owned());
        bench_uml::bench(&bench_uml::Options {
            comparison,
            directory,
            minutes,
            simulate,
            machine,
            json,
        })
    }
}

/// Where, and how long.
#[derive(Debug, clap::Args)]
pub(super) struct SlowdownTest {
    /// Where results are kept
    #[arg(default_value = slowdown_test::DIRECTORY)]
    directory: PathBuf,
    /// How long to measure
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    #[arg(default_value_t = slowdown_test::MINUTES)]
    minutes: Minutes,
}

/// What to compare.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct ChampsimTest {
    /// ChampSim's program, made with what `configuration` prints
    #[arg(required = true)]
    champsim: Option<PathBuf>,
    /// A recording of one CPU, with data accesses
    #[arg(required = true)]
    recording: Option<PathBuf>,
    #[command(subcommand)]
    instead: Option<Instead>,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Instead {
    /// Print the configuration to make ChampSim with
    Configuration,
}

impl ChampsimTest {
    fn run(&self) -> Result<()> {
        if let Some(Instead::Configuration) = self.instead {
            return champsim_test::configuration();
        }
        let given = self.champsim.as_deref().zip(self.recording.as_deref());
        let (champsim, recording) = given.context("give CHAMPSIM and RECORDING")?;
        champsim_test::champsim_test(champsim, recording)
    }
}
