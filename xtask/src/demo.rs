//! `make demo`: from a workload to a faster kernel.

use crate::kernel::{self, Compiler};
use crate::run;
use anyhow::Result;
use std::process::Command;

pub fn demo() -> Result<()> {
    build_release()?;
    let tree = kernel::tree(Compiler::Gcc)?;
    run(Command::new("target/release/kernlane")
        .args(["optimize", "net", "-o", "target/demo", "--tree"])
        .arg(tree))
}

/// The tool and the plugin that QEMU loads, beside each other.
pub fn build_release() -> Result<()> {
    run(Command::new("cargo").args(["build", "--release", "-p", "kernlane", "-p", "kernlane-plugin"]))
}
