//! The command line of the system tests.

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use std::path::PathBuf;
use system_tests::live_fuzz::FuzzedKernel;
use system_tests::{
    ab_test, ask_test, book_test, check_test, diff_test, dist_test, fields_test, fleet_test,
    guest_test, in_tree_test, inline_test, known_case, like_test, live_fuzz, live_test, live_units,
    live_versions, matrix, module_test, optimize_live_test, package_test, page_test, profiled_test,
    python_test, record_test, relink_test, road_test, service_test, services_test, shift_test,
    study_test, uml_test, vm_test,
};

/// A system test, with its arguments.
#[derive(Debug, clap::Subcommand)]
pub(super) enum SystemTest {
    /// Relink the tree's kernel for a workload and in a random order, and record both; what was
    /// predicted must hold
    RoadTest(RoadTest),
    /// Test whether recordings are exactly what ran, and repeatable
    RecordTest {
        /// The kernel's build tree
        tree: PathBuf,
    },
    /// Test that recordings are bit-repeatable, and that failures are reported and leave nothing
    /// behind
    GuestTest {
        /// The kernel: a build tree, or a boot image
        kernel: PathBuf,
    },
    /// Test that guests like machines execute the code that the machines would execute
    LikeTest {
        /// The kernel: a build tree, or a boot image
        kernel: PathBuf,
    },
    /// Compare counts of services with the guest's own counts
    ServicesTest {
        /// The kernel: a build tree, or a boot image
        kernel: PathBuf,
    },
    /// Test that the original order gives the original kernel, that objtool accepts other orders,
    /// and that failures leave nothing behind
    RelinkTest {
        /// The kernel's build tree
        tree: PathBuf,
    },
    /// Boot Debian 12 with systemd and the units of kept groups, in a guest
    LiveUnits,
    /// Relink a small kernel as a part of its build: outside of its sources, by ccache, between
    /// runs of make
    InTreeTest,
    /// Inline every call that can be inlined, and those that pay; prove both; compare recordings
    InlineTest {
        /// The kernel's build tree
        tree: PathBuf,
    },
    /// Rewrite every module in its own order and in random orders, prove them, and load them in a
    /// guest
    ModuleTest {
        /// The kernel: a build tree, or an installed kernel's vmlinux
        kernel: PathBuf,
    },
    /// Replace functions of Debian's kernel while it runs in a guest, with a layout and with
    /// inlined calls, and compare recordings
    OptimizeLiveTest,
    /// Build a kernel by clang with a profile, whose hot functions lie in a section of their own,
    /// and send it down the whole road
    ProfiledTest,
    /// Make a wrong kernel for each kind of bug; `kernlane check` must refuse each
    CheckTest {
        /// The kernel's build tree
        tree: PathBuf,
    },
    /// Link the tree's kernel so that the data behind kallsyms moves by 0 to 63 bytes; `kernlane
    /// check` must accept each
    ShiftTest {
        /// The kernel's build tree
        tree: PathBuf,
    },
    /// Test whether the kernel of tree NEW works in a guest like that of tree OLD
    VmTest(VmTest),
    /// Test whether `kernlane diff` names the function that a patch changed, and the reason
    DiffTest {
        /// The kernel's build tree
        tree: PathBuf,
        /// The directory of the tree's kernel in another order
        shuffled: PathBuf,
    },
    /// Test the page in Chromium, and whether other tools read the same numbers
    PageTest {
        /// A recording
        recording: PathBuf,
        /// The kernel: a build tree, or a boot image
        kernel: PathBuf,
    },
    /// Test whether Perfetto's trace processor and the Firefox Profiler read the commands' numbers
    TimeLinesTest {
        /// A recording
        recording: PathBuf,
        /// The kernel: a build tree, or a vmlinux
        kernel: PathBuf,
    },
    /// Test whether the page and the commands have the same numbers of simulated cores; takes
    /// minutes
    GenerationsTest {
        /// A recording
        recording: PathBuf,
        /// The kernel: a build tree, or a boot image
        kernel: PathBuf,
    },
    /// Test whether answers of `kernlane ask` are the numbers of the reports
    AskTest {
        /// The kernel: a build tree
        kernel: PathBuf,
    },
    /// Test whether Kernlane works in Python: its wheel, its answers in other libraries, a notebook
    PythonTest {
        /// The kernel: a build tree
        kernel: PathBuf,
    },
    /// Test whether studies that were killed go on, here and by Snakemake, and find the same
    StudyTest {
        /// The kernel: a build tree, or a boot image
        kernel: PathBuf,
    },
    /// Build the book, test its links, and run the commands of its first hour
    BookTest {
        /// The results of `kernlane optimize`
        demo: PathBuf,
        /// The tree of their kernel
        tree: PathBuf,
    },
    /// Test whether a kernel for User Mode Linux, relinked in a random order or with counters,
    /// works like the original and counts right
    UmlTest,
    /// Test whether `kernlane report sharing` finds a field that Linux moved, and whether
    /// --what-if is within 10 % of the kernel that has moved it
    KnownCase {
        /// Where the recordings are made
        directory: PathBuf,
    },
    /// Test whether an order of fields that `report fields --suggest` finds brings, in a kernel
    /// that has it, what it predicts
    FieldsTest {
        /// Where the recordings are made
        directory: PathBuf,
    },
    /// Replace functions of the running stock kernel and restore them, in guests
    LiveTest(LiveTest),
    /// Replace functions of each of Debian's kernels; keep the results in bench/ and in the book;
    /// resumes
    LiveVersions(LiveVersions),
    /// Keep a group of replaced functions over reboots and upgrades of the kernel, in guests
    LiveBoots(LiveBoots),
    /// Fuzz the live module's interface in a guest, while kprobes, tracers, livepatches and modules
    /// come and go
    LiveFuzz(LiveFuzz),
    /// Test whether `kernlane bench --ab --kernels` boots two kernels of Debian 12 in turns, in
    /// guests whose boot loaders do it; makes the disk as root; resumes
    AbTest(AbTest),
    /// Make packages of a relinked kernel as the book says, twice with equal bytes; install one on
    /// Debian 12 in a guest, boot it by GRUB, and work in it; makes the disk as root; resumes
    PackageTest,
    /// Make what is published twice, with equal bytes; install the packages on clean Debian 12, 13
    /// and unstable, work with them, and remove them; makes the systems as root; resumes
    DistTest {
        /// Only work on these systems: bookworm, trixie or sid
        suites: Vec<String>,
    },
    /// Test systemd's units of what is published on a Debian 12 in a guest, over seven boots; makes
    /// the disk as root
    ServiceTest,
    /// Merge the profiles of many machines by SQL, by `kernlane ask` and by Spark, to equal bytes
    FleetTest {
        /// The profile (*.klp) from which those of the machines are made
        profile: PathBuf,
        /// Its kernel: a build tree, or a vmlinux
        kernel: PathBuf,
        /// How many machines
        #[arg(long, value_name = "N", default_value_t = 200)]
        machines: u64,
    },
    /// Lay out kernels of other versions, compilers and configurations, prove them and boot them;
    /// keep the results in bench/ and in the book; resumes
    Matrix(Matrix),
    /// One cell of the matrix, in this process
    MatrixCell {
        /// The cell, `6.1/gcc/demo`
        cell: String,
        /// How many processors its build keeps busy
        #[arg(long, default_value_t = 1)]
        processors: usize,
        /// As for `matrix`
        #[arg(long)]
        config: Option<PathBuf>,
    },
}

impl SystemTest {
    /// Runs the test.
    ///
    /// # Errors
    /// The test failed or could not run.
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::RoadTest(RoadTest { tree, drop_call_padding }) => {
                road_test::road_test(&tree, drop_call_padding)
            }
            Self::RecordTest { tree } => record_test::record_test(&tree),
            Self::GuestTest { kernel } => guest_test::guest_test(&kernel),
            Self::LikeTest { kernel } => like_test::like_test(&kernel),
            Self::ServicesTest { kernel } => services_test::services_test(&kernel),
            Self::RelinkTest { tree } => relink_test::relink_test(&tree),
            Self::LiveUnits => live_units::live_units(),
            Self::InTreeTest => in_tree_test::in_tree_test(),
            Self::InlineTest { tree } => inline_test::inline_test(&tree),
            Self::ModuleTest { kernel } => module_test::module_test(&kernel),
            Self::OptimizeLiveTest => optimize_live_test::optimize_live_test(),
            Self::ProfiledTest => profiled_test::profiled_test(),
            Self::CheckTest { tree } => check_test::check_test(&tree),
            Self::ShiftTest { tree } => shift_test::shift_test(&tree),
            Self::VmTest(VmTest { old, new, wanted }) => vm_test::vm_test(&old, &new, &wanted),
            Self::DiffTest { tree, shuffled } => diff_test::diff_test(&tree, &shuffled),
            Self::PageTest { recording, kernel } => page_test::page_test(&recording, &kernel),
            Self::TimeLinesTest { recording, kernel } => {
                page_test::time_lines_test(&recording, &kernel)
            }
            Self::GenerationsTest { recording, kernel } => {
                page_test::generations_test(&recording, &kernel)
            }
            Self::AskTest { kernel } => ask_test::ask_test(&kernel),
            Self::PythonTest { kernel } => python_test::python_test(&kernel),
            Self::StudyTest { kernel } => study_test::study_test(&kernel),
            Self::BookTest { demo, tree } => book_test::book_test(&demo, &tree),
            Self::UmlTest => uml_test::uml_test(),
            Self::KnownCase { directory } => known_case::known_case(&directory),
            Self::FieldsTest { directory } => fields_test::fields_test(&directory),
            Self::LiveTest(test) => test.run(),
            Self::LiveVersions(LiveVersions { kernels, cycles, again }) => {
                live_versions::live_versions(&live_versions::Request { kernels, cycles, again })
            }
            Self::LiveBoots(LiveBoots { kernel, boots, upgrade }) => {
                live_test::boots(kernel.as_deref(), boots, &upgrade)
            }
            Self::LiveFuzz(test) => test.run(),
            Self::AbTest(AbTest { trials }) => ab_test::ab_test(&trials),
            Self::PackageTest => package_test::package_test(),
            Self::DistTest { suites } => dist_test::dist_test(&suites),
            Self::FleetTest { profile, kernel, machines } => {
                fleet_test::fleet_test(&profile, &kernel, machines)
            }
            Self::ServiceTest => service_test::service_test(),
            Self::Matrix(Matrix { cells, jobs, again, config }) => {
                matrix::matrix(&matrix::Request { cells, jobs, again, config })
            }
            Self::MatrixCell { cell, processors, config } => {
                matrix::matrix_cell(&cell, processors, config.as_deref())
            }
        }
    }
}

/// Which kernels to try.
#[derive(Debug, clap::Args)]
pub(super) struct Matrix {
    /// Cells, each VERSION/COMPILER/CONFIGURATION; without, all
    cells: Vec<String>,
    /// How many cells at once; each needs 4 GB of disk
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Also cells that have a result
    #[arg(long)]
    again: bool,
    /// The configuration of cells with one that another project publishes
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What to relink.
#[derive(Debug, clap::Args)]
pub(super) struct RoadTest {
    /// The kernel's build tree
    tree: PathBuf,
    /// As for `kernlane optimize`
    #[arg(long)]
    drop_call_padding: bool,
}

/// Which kernels to compare, and where.
#[derive(Debug, clap::Args)]
pub(super) struct VmTest {
    /// The tree of the original kernel
    old: PathBuf,
    /// The directory of the relinked kernel
    new: PathBuf,
    /// Test only on these machines, or run only the shipped workloads
    #[arg(value_name = "MACHINE", value_parser = PossibleValuesParser::new(vm_test::names()))]
    wanted: Vec<String>,
}

/// What to test, and on which kernel.
#[derive(Debug, clap::Args)]
pub(super) struct LiveTest {
    /// A boot image, or one of Debian's kernels by its name, such as 6.1-cloud or newest-rt
    /// [default: the cloud and the generic flavour of 6.12]
    kernel: Option<String>,
    /// Run only this script, on two CPUs; it may source the other scripts in /kl
    script: Option<PathBuf>,
    /// Install and undo a large group this number of times under load, on two and on four CPUs;
    /// with a script, the number of cycles that it reads in /kl/cycles
    #[arg(long, value_name = "N", conflicts_with = "cost")]
    cycles: Option<u32>,
    /// Measure what installing and undoing a group of functions costs, in instructions and
    /// interrupts; with a script, run it on one CPU for which a nanosecond is an instruction
    #[arg(long)]
    cost: bool,
}

impl LiveTest {
    fn run(&self) -> Result<()> {
        let kernel = self.kernel.as_deref();
        match (&self.script, self.cycles) {
            (Some(script), _) if self.cost => live_test::counted_script(kernel, script),
            (Some(script), cycles) => live_test::script(kernel, script, cycles),
            (None, Some(count)) => live_test::cycles(kernel, count),
            (None, None) if self.cost => live_test::cost(kernel),
            (None, None) => live_test::live_test(kernel),
        }
    }
}

/// How often a kernel is booted with what is kept, and which kernels after it.
#[derive(Debug, clap::Args)]
pub(super) struct LiveBoots {
    /// A boot image, or one of Debian's kernels by its name [default: the cloud flavour of 6.12]
    kernel: Option<String>,
    /// How often it is booted again
    #[arg(long, value_name = "N", default_value_t = 10)]
    boots: u32,
    /// A kernel to boot after it, as an upgrade; any number
    #[arg(long, value_name = "KERNEL", default_value = "6.1-cloud")]
    upgrade: Vec<String>,
}

/// Which of Debian's kernels to try.
#[derive(Debug, clap::Args)]
pub(super) struct LiveVersions {
    /// Kernels by their names, such as 6.1-cloud or newest-rt; without, all
    kernels: Vec<String>,
    /// How often a large group is installed and undone under load
    #[arg(long, value_name = "N", default_value_t = 50)]
    cycles: u32,
    /// Also kernels that have a result
    #[arg(long)]
    again: bool,
}

/// Which kernel to fuzz, and how long.
#[derive(Debug, clap::Args)]
pub(super) struct LiveFuzz {
    /// Make the same few requests each time, for about two minutes, on Debian's cloud kernel
    #[arg(long, conflicts_with_all = ["kernel", "minutes", "seed"])]
    short: bool,
    /// One of Debian's kernels, or one that was built for the fuzzer, whose memory also fails
    #[arg(long, default_value = "debian")]
    #[arg(value_parser = PossibleValuesParser::new(fuzzed_kernels()))]
    kernel: String,
    /// How long to send requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// The same seed gives the same requests
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl LiveFuzz {
    fn run(&self) -> Result<()> {
        match self.short {
            true => live_fuzz::short(),
            false => live_fuzz::live_fuzz(&self.kernel, self.minutes, self.seed),
        }
    }
}

fn fuzzed_kernels() -> impl Iterator<Item = &'static str> {
    FuzzedKernel::ALL.iter().map(|(name, _)| *name)
}

/// Which trials to make.
#[derive(Debug, clap::Args)]
pub(super) struct AbTest {
    /// Make only these trials; each takes about 5 minutes
    #[arg(value_name = "TRIAL", value_parser = PossibleValuesParser::new(ab_test::names()))]
    trials: Vec<String>,
}
