//! The parts of a guest: its kernel and files, its machine, its clock, QEMU's plugin.
//!
//! This module holds only data and starts nothing.

use crate::state::GuestState;
use std::path::PathBuf;
use std::time::Duration;

/// A guest to be booted.
#[derive(Clone, Debug)]
pub struct Boot {
    /// The boot image (bzImage).
    pub kernel: PathBuf,
    /// The root file system.
    pub initramfs: PathBuf,
    /// Further words for the kernel's command line.
    pub command_line: Vec<String>,
    /// The guest's memory in MB.
    pub memory_mb: u32,
    /// The number of CPUs. QEMU runs several CPUs round-robin on one host thread.
    pub cpus: u32,
    /// The longest turn of a CPU while others wait, in instructions. `None`: up to the next timer.
    /// Needs several CPUs and [`GuestClock::Instructions`].
    pub turn: Option<u32>,
    /// The value of QEMU's option `-cpu`.
    pub cpu_model: String,
    /// Whether the kernel randomizes its address.
    pub kaslr: bool,
    /// The guest's time.
    pub clock: GuestClock,
    /// A plugin for QEMU.
    pub plugin: Option<QemuPlugin>,
    /// Whether to save the guest where it stops itself, or to continue from a saved state instead
    /// of booting.
    pub state: Option<GuestState>,
    /// Whether the machine has two network cards of virtio, wired to each other. What they do is
    /// not the same in every run.
    pub network_cards: bool,
    /// Receives every byte that the guest writes to port 0xe9, at once. The bytes show what the
    /// guest was doing when it crashed.
    pub notes: Option<PathBuf>,
    /// The time limit by the host's clock, after which QEMU is killed.
    pub time_limit: Duration,
}

/// The source of the guest's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestClock {
    /// The host's clock: fast, but no two runs are equal.
    Host,
    /// Executed instructions: equal guests execute equal instructions in every run.
    Instructions {
        /// The number from which all randomness of the guest comes.
        seed: u64,
    },
}

/// A plugin for QEMU. The library must understand the arguments. Values may contain any character.
#[derive(Clone, Debug)]
pub struct QemuPlugin {
    /// The path of the library.
    pub library: PathBuf,
    /// The arguments: name and value.
    pub arguments: Vec<(String, String)>,
}

/// The CPU of recordings: everything that QEMU emulates, except the string operations that QEMU
/// would emulate byte by byte.
pub(crate) const CPU_OF_RECORDINGS: &str = "max,-erms,-fsrm";

impl Boot {
    /// A guest with one CPU, 512 MB, no KASLR, the host's clock, no plugin, and ten minutes.
    pub(crate) fn new(kernel: PathBuf, initramfs: PathBuf) -> Boot {
        Boot {
            kernel,
            initramfs,
            command_line: Vec::new(),
            memory_mb: 512,
            cpus: 1,
            turn: None,
            cpu_model: CPU_OF_RECORDINGS.into(),
            kaslr: false,
            clock: GuestClock::Host,
            plugin: None,
            state: None,
            network_cards: false,
            notes: None,
            time_limit: Duration::from_secs(600),
        }
    }
}
