//! What a guest is made of: its kernel and files, its machine, its clock, QEMU's plugin.
//!
//! Only data. Starts nothing.

use crate::state::State;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Boot {
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    /// More words for the kernel's command line.
    pub command_line: Vec<String>,
    pub memory_mb: u32,
    /// More than one run in turns on one host thread.
    pub cpus: u32,
    /// As QEMU's `-cpu` takes it.
    pub cpu_model: String,
    pub kaslr: bool,
    pub clock: Clock,
    pub plugin: Option<Plugin>,
    /// Whether the guest is saved where it stops itself, or runs on from there instead of booting.
    pub state: Option<State>,
    /// Receives every byte that the guest writes to port 0xe9, at once: what it was doing when it
    /// crashed.
    pub notes: Option<PathBuf>,
    /// Of the host's clock; then QEMU is killed.
    pub time_limit: Duration,
}

/// What the guest's time is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The host's: fast, never twice the same.
    Host,
    /// Executed instructions: the same guest does the same, instruction by instruction, every time.
    Instructions { seed: u64 },
}

/// A plugin for QEMU. The library must understand the arguments; values may hold any character.
#[derive(Clone, Debug)]
pub struct Plugin {
    pub library: PathBuf,
    pub arguments: Vec<(String, String)>,
}

/// The CPU of recordings: everything that QEMU emulates, but not the string operations that QEMU
/// would emulate byte by byte.
pub const CPU_OF_RECORDINGS: &str = "max,-erms,-fsrm";

impl Boot {
    /// One CPU, 512 MB, no KASLR, the host's clock, no plugin, ten minutes.
    pub fn new(kernel: PathBuf, initramfs: PathBuf) -> Boot {
        Boot {
            kernel,
            initramfs,
            command_line: Vec::new(),
            memory_mb: 512,
            cpus: 1,
            cpu_model: CPU_OF_RECORDINGS.into(),
            kaslr: false,
            clock: Clock::Host,
            plugin: None,
            state: None,
            notes: None,
            time_limit: Duration::from_secs(600),
        }
    }
}
