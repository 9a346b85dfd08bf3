//! What cargo builds for tests: the program, the plugin, the suite's program for guests.
//!
//! Output: paths of programs, in the profile of this program. The suite's is always optimized.

use crate::run;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::Command;

/// The profile of this program.
const PROFILE: &str = if cfg!(debug_assertions) { "dev" } else { "release" };

/// Builds Kernlane, and the plugin beside it. Returns the path of the program. This program is
/// built in the same command, though it is there already: so cargo chooses the same features for
/// all of them, and compiles no crate twice.
///
/// # Errors
/// Something cannot be built.
pub fn kernlane() -> Result<PathBuf> {
    let packages = ["-p", "kernlane", "-p", "kernlane-plugin", "-p", "xtask"];
    run(Command::new("cargo").args(["build", "--profile", PROFILE]).args(packages))?;
    built(std::env::current_exe()?.with_file_name("kernlane"))
}

/// The suite's program for guests, built without shared libraries.
///
/// # Errors
/// It cannot be built.
pub fn static_suite() -> Result<PathBuf> {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let mut command = Command::new("cargo");
    command.args(["build", "--quiet", "--release", "-p", "kernlane-suite", "--target", TARGET]);
    run(command.env("RUSTFLAGS", "-C target-feature=+crt-static"))?;
    built(target_directory()?.join(TARGET).join("release/kernlane-bench"))
}

/// Builds the plugin beside this program, where recording looks for it. Returns its path.
///
/// # Errors
/// It cannot be built.
pub fn build_plugin() -> Result<PathBuf> {
    let arguments = ["build", "--quiet", "--profile", PROFILE, "-p", "kernlane-plugin"];
    run(Command::new("cargo").args(arguments))?;
    built(std::env::current_exe()?.with_file_name("libkernlane_plugin.so"))
}

/// The directory of all that cargo builds.
///
/// # Errors
/// This program does not lie in it.
pub fn target_directory() -> Result<PathBuf> {
    let executable = std::env::current_exe()?;
    let target = executable.ancestors().nth(2).context("xtask is not in a target directory")?;
    Ok(target.to_owned())
}

/// A file that cargo should have built.
fn built(file: PathBuf) -> Result<PathBuf> {
    ensure!(file.is_file(), "cargo did not build {}", file.display());
    Ok(file)
}
