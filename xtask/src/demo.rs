//! `make demo`: from a workload to a faster kernel, one that runs or one that is built; and the
//! kernels that the demo and tests are made of.

use anyhow::Result;
use lab::kernel::{self, Compiler};
use lab::live_tool::debian;
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
    /// For User Mode Linux, by gcc, with return thunks and side tables as for x86
    UmlLikeX86,
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
            Self::UmlLikeX86 => kernel::tree(Compiler::GccUserModeLikeX86),
            Self::Modules => kernel::tree(Compiler::GccModules),
            Self::Kasan => kernel::tree(Compiler::GccKasan),
            Self::Kcsan => kernel::tree(Compiler::GccKcsan),
            Self::OldOrder => kernel::old_order(),
        }
    }
}

/// Replaces functions of Debian's kernel while it runs in a guest, or relinks a kernel that is
/// built first.
pub(crate) fn demo(relink: bool) -> Result<()> {
    // The demo is what a user types.
    let mut optimize = Command::new(lab::kernlane()?);
    optimize.args(["optimize", "net"]);
    if relink {
        optimize.args(["-o", "target/demo", "--tree"]).arg(kernel::tree(Compiler::Gcc)?);
        return run(&mut optimize);
    }
    let (kernel, headers) = debian::kernel_with_headers(debian::Flavour::Cloud)?;
    optimize.args(["--live", "--inline", "--machine", "zen4"]);
    optimize.args(["-o", "target/demo-live", "--kernel"]);
    run(optimize.arg(kernel).arg("--headers").arg(headers))
}
