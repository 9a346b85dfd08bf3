//! Tests of the program on real kernels: most of them boot guests.
//!
//! Input: trees of kernels, recordings, results. Output: a line for each test, and an error if one
//! failed. To add a test: a file with its function, and a line in [`SystemTest`] and in
//! [`SystemTest::run`].

mod ab_test;
mod book_test;
mod check_test;
mod diff_test;
mod guest_test;
mod known_case;
mod live_fuzz;
mod live_test;
mod machine;
mod page_test;
mod record_test;
mod relink_test;
pub mod road_test;
mod services_test;
mod shift_test;
mod uml_test;
mod vm_test;

use anyhow::Result;
use std::path::PathBuf;

/// A system test, with its arguments.
#[derive(Debug, clap::Subcommand)]
pub enum SystemTest {
    /// Relink the tree's kernel for a workload and in a random order, and record both; what was
    /// predicted must hold
    RoadTest(road_test::RoadTest),
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
    VmTest(vm_test::VmTest),
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
    /// Test whether the page and the commands have the same numbers of simulated cores; takes
    /// minutes
    GenerationsTest {
        /// A recording
        recording: PathBuf,
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
    /// Test whether `kernlane report --sharing` finds a field that Linux moved, and whether
    /// --what-if is within 10 % of the kernel that has moved it
    KnownCase {
        /// Where the recordings are made
        directory: PathBuf,
    },
    /// Replace functions of the running stock kernel and restore them, in guests
    LiveTest(live_test::LiveTest),
    /// Fuzz the live module's interface in a guest, while kprobes, tracers, livepatches and modules
    /// come and go
    LiveFuzz(live_fuzz::LiveFuzz),
    /// Test whether `kernlane bench --ab --kernels` boots two kernels of Debian 12 in turns, in
    /// guests whose boot loaders do it; makes the disk as root; resumes
    AbTest(ab_test::AbTest),
}

impl SystemTest {
    /// Runs the test.
    ///
    /// # Errors
    /// The test failed or could not run.
    pub fn run(self) -> Result<()> {
        match self {
            Self::RoadTest(test) => test.run(),
            Self::RecordTest { tree } => record_test::record_test(&tree),
            Self::GuestTest { kernel } => guest_test::guest_test(&kernel),
            Self::ServicesTest { kernel } => services_test::services_test(&kernel),
            Self::RelinkTest { tree } => relink_test::relink_test(&tree),
            Self::CheckTest { tree } => check_test::check_test(&tree),
            Self::ShiftTest { tree } => shift_test::shift_test(&tree),
            Self::VmTest(test) => test.run(),
            Self::DiffTest { tree, shuffled } => diff_test::diff_test(&tree, &shuffled),
            Self::PageTest { recording, kernel } => page_test::page_test(&recording, &kernel),
            Self::GenerationsTest { recording, kernel } => {
                page_test::generations_test(&recording, &kernel)
            }
            Self::BookTest { demo, tree } => book_test::book_test(&demo, &tree),
            Self::UmlTest => uml_test::uml_test(),
            Self::KnownCase { directory } => known_case::known_case(&directory),
            Self::LiveTest(test) => test.run(),
            Self::LiveFuzz(test) => test.run(),
            Self::AbTest(test) => test.run(),
        }
    }
}
