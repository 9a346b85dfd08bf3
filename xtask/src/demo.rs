//! `make demo`: from a workload to a faster kernel; and the kernels that the demo and tests are
//! made of.

use anyhow::Result;
use lab::kernel::{self, Compiler};
use lab::run;
use std::path::PathBuf;
use std::process::Command;

/// A demo kernel, as it is named on the command line.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum DemoKernel {
    /// By gcc
    Gcc,
    /// By clang
    Clang,
    /// For User Mode Linux, by gcc
    Uml,
    /// For User Mode Linux, by clang
    UmlClang,
    /// By gcc, with file systems and a firewall in modules
    Modules,
    /// With KASAN, for the fuzzer of the live module
    Kasan,
    /// With KCSAN, for the fuzzer of the live module
    Kcsan,
    /// By gcc, with the dentries of Linux 6.10
    OldOrder,
}

impl DemoKernel {
    /// Its built tree.
    pub(crate) fn tree(self) -> Result<PathBuf> {
        match self {
            Self::Gcc => kernel::tree(Compiler::Gcc),
            Self::Clang => kernel::tree(Compiler::Clang),
            Self::Uml => kernel::tree(Compiler::GccUserMode),
            Self::UmlClang => kernel::tree(Compiler::ClangUserMode),
            Self::Modules => kernel::tree(Compiler::GccModules),
            Self::Kasan => kernel::tree(Compiler::GccKasan),
            Self::Kcsan => kernel::tree(Compiler::GccKcsan),
            Self::OldOrder => kernel::old_order(),
        }
    }
}

pub(crate) fn demo() -> Result<()> {
    // The demo is what a user types.
    let kernlane = lab::kernlane()?;
    let tree = kernel::tree(Compiler::Gcc)?;
    run(Command::new(kernlane).args(["optimize", "net", "-o", "target/demo", "--tree"]).arg(tree))
}
