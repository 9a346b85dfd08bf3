//! Format, libraries, lints and units: no kernel and no virtual machine.

use super::libraries;
use anyhow::{Context, Result};
use lab::run;
use std::process::Command;

/// Runs the tests that need neither a kernel nor a virtual machine.
pub(crate) fn quick() -> Result<()> {
    // Not `cargo fmt`: it does not see the modules that tables declare.
    run(Command::new("make").args(["format", "CHECK=--check"]))
        .context("run `make format`, which formats every file")?;
    libraries::check()?;
    // One build for lints and tests. `cargo clippy` would read every file a second time, and every
    // library, because what it makes cannot be linked.
    run(&mut linted(&["--all-targets", "--no-run"]))?;
    run(&mut linted(&[]))
}

/// `cargo test` of the whole workspace, compiled by clippy. A warning is an error. The variables
/// are those by which `cargo clippy` calls clippy's compiler.
fn linted(options: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(["test", "--workspace"]).args(options);
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
    command.env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
    command
}
