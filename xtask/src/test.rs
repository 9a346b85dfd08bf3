//! `make test`: everything that must hold, the quick before the slow.

use crate::kernel::{self, Compiler};
use crate::{check_test, guest_test, record_test, run, vm_test};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn test() -> Result<()> {
    step("format, lints, units");
    run(Command::new("cargo").args(["fmt", "--all", "--check"]))?;
    run(Command::new("cargo").args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    run(Command::new("cargo").args(["test", "--workspace"]))?;

    step("the demo kernel, built by gcc");
    let kernlane = crate::kernlane()?;
    let gcc = kernel::tree(Compiler::Gcc)?;
    step("the checker finds wrong kernels");
    check_test::check_test(&gcc)?;
    step("recordings are exact");
    record_test::record_test(&gcc)?;
    step("recordings are repeatable, and failures are said");
    guest_test::guest_test(&gcc)?;
    step("the whole road: a layout made for a workload, and all blocks in a random order");
    let random = optimized(&kernlane, "files", &gcc, &["ext-tsp", "random"])?.join("random.kernel");
    step("the kernel in a random order does in a guest what the original does");
    vm_test::vm_test(&gcc, &random, None)
}

fn step(what: &str) {
    println!("\n== {what}");
}

/// Sends the workload down the whole road, which includes the proof of each relinked kernel; gives the directory.
fn optimized(kernlane: &Path, workload: &str, tree: &Path, layouts: &[&str]) -> Result<PathBuf> {
    let name = tree.file_name().unwrap_or_default().to_string_lossy();
    let directory = PathBuf::from(format!("target/test/{workload}-{name}"));
    let mut command = Command::new(kernlane);
    command.args(["optimize", workload, "--machine", "server-32k", "--tree"]).arg(tree);
    command.arg("--output").arg(&directory);
    for layout in layouts {
        command.args(["--layout", layout]);
    }
    run(&mut command)?;
    Ok(directory)
}
