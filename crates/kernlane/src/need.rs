//! What commands need from the machine in addition to their input, and how each need is tried.
//!
//! Input: a need. Output: what was found, or what is missing and how to get it. Every need is
//! tried, not looked up. To add a need: write a variant of `Need`, its name and its attempt, and
//! add it to the group of the commands that have it (`cli.rs`).

use anyhow::{Context, Result};
use guest::{self, Qemu};
use live::device::Device;
use live::sample;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

/// Something outside of Kernlane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Qemu,
    /// A QEMU with which two recordings of several CPUs are equal.
    SeveralCpus,
    /// The timer with which QEMU shortens the turns of several CPUs.
    ShortTurns,
    Plugin,
    Apt,
    Cache,
    /// To read the running kernel's memory.
    KernelMemory,
    /// To find out which functions the running kernel is in.
    Sampling,
    /// Kernlane's own kernel module.
    Module,
    /// A program, its Debian package, and the part of the command's work that needs it (empty: all
    /// of the work).
    Program(&'static str, &'static str, &'static str),
}

/// To boot a guest.
pub(crate) const GUEST: &[Need] =
    &[Need::Qemu, Need::Apt, Need::Program("dpkg-deb", "dpkg", ""), Need::Cache];

/// To record what a guest does.
pub(crate) const PLUGIN: &[Need] = &[Need::Plugin];

/// To record several CPUs, also in short turns.
pub(crate) const TURNS: &[Need] = &[Need::SeveralCpus, Need::ShortTurns];

/// To relink a kernel with its tree's own build. The tree's compiler is not tried here.
pub(crate) const RELINK: &[Need] = &[
    Need::Program("make", "make", ""),
    Need::Program("gcc", "gcc", ""),
    Need::Program("ld", "binutils", ""),
    Need::Program("objcopy", "binutils", ""),
    Need::Program("nm", "binutils", ""),
    Need::Program("ar", "binutils", ""),
    Need::Program("bash", "bash", ""),
];

pub(crate) const OBJTOOL: &[Need] = &[Need::Program("objcopy", "binutils", "")];

/// Some formats are made with LLVM's tools.
pub(crate) const EXPORT: &[Need] = &[
    Need::Program("llvm-symbolizer-22", "llvm-22", "--format llvm-samples and gcc-samples"),
    Need::Program("llvm-readobj-22", "llvm-22", "--format propeller-cc and propeller-ld"),
];

/// Sample profiles are read with LLVM's tools.
pub(crate) const IMPORT: &[Need] = &[
    Need::Program("llvm-symbolizer-22", "llvm-22", "sample profiles"),
    Need::Program("llvm-profdata-22", "llvm-22", "binary sample profiles"),
];

/// To change the running kernel.
pub(crate) const LIVE: &[Need] = &[Need::KernelMemory, Need::Sampling, Need::Module];

impl Need {
    /// The name in the output.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Need::Qemu => "QEMU",
            Need::SeveralCpus => "equal recordings of several CPUs",
            Need::ShortTurns => "QEMU's timer for short turns",
            Need::Plugin => "the library that QEMU loads to record",
            Need::Apt => "Debian packages for guests",
            Need::Cache => "a cache directory",
            Need::KernelMemory => "the running kernel's memory",
            Need::Sampling => "samples of the running kernel",
            Need::Module => "Kernlane's kernel module",
            Need::Program(program, ..) => program,
        }
    }

    /// The part of a command's work that has the need. `None`: all of the work.
    pub(crate) fn only_for(self) -> Option<&'static str> {
        match self {
            Need::SeveralCpus => Some("--cpus"),
            Need::ShortTurns => Some("--turn"),
            Need::Sampling => Some("watch and auto without --root"),
            Need::Program(_, _, what) => Some(what).filter(|what| !what.is_empty()),
            _ => None,
        }
    }

    /// Tries the need, and says what was found.
    ///
    /// # Errors
    /// Something is missing. The message says how to get it.
    pub(crate) fn attempt(self) -> Result<String> {
        match self {
            Need::Qemu => {
                Qemu::find().map(|qemu| format!("{} ({})", qemu.version, qemu.program.display()))
            }
            Need::SeveralCpus => {
                let qemu = Qemu::find()?;
                qemu.repeats_several_cpus().map(|()| qemu.version.to_string())
            }
            Need::ShortTurns => Qemu::find()?.shortens_turns().map(str::to_owned),
            Need::Plugin => guest::plugin_library().map(|path| path.display().to_string()),
            Need::Apt => guest::resolvable("busybox-static")
                .map(|version| format!("busybox-static {version}")),
            Need::Cache => guest::writable_cache().map(|path| path.display().to_string()),
            Need::KernelMemory => kernel_memory(),
            Need::Sampling => {
                sample::sample(Duration::from_millis(1)).map(|_| "perf_event_open".to_owned())
            }
            Need::Module => Device::open().map(|_| "loaded".to_owned()),
            Need::Program(name, package, _) => program(name, package),
        }
    }
}

fn kernel_memory() -> Result<String> {
    const CORE: &str = "/proc/kcore";
    File::open(Path::new(CORE)).with_context(|| {
        format!("opening {CORE}: this needs root, and a kernel with CONFIG_PROC_KCORE")
    })?;
    Ok(CORE.to_owned())
}

fn program(name: &str, package: &str) -> Result<String> {
    let path =
        guest::in_path(name).with_context(|| format!("not in PATH (apt-get install {package})"))?;
    Ok(path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_comes_with_its_package() {
        let error = program("kernlane-has-no-such-program", "some-package").unwrap_err();
        assert!(error.to_string().contains("apt-get install some-package"));
        assert!(program("sh", "dash").unwrap().ends_with("/sh"));
    }

    #[test]
    fn a_program_that_only_some_work_needs_says_so() {
        assert_eq!(Need::Program("sh", "dash", "").only_for(), None);
        assert_eq!(EXPORT[0].only_for(), Some("--format llvm-samples and gcc-samples"));
    }
}
