//! `make demo`: from a workload to a faster kernel.

use crate::kernel::{self, Compiler};
use crate::run;
use anyhow::Result;
use std::process::Command;

pub(crate) fn demo() -> Result<()> {
    let kernlane = crate::kernlane()?;
    let tree = kernel::tree(Compiler::Gcc)?;
    run(Command::new(kernlane).args(["optimize", "net", "-o", "target/demo", "--tree"]).arg(tree))
}
