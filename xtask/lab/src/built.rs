//! What cargo builds for tests: the program, the plugin, the suite's program for guests.
//!
//! Output: paths of programs, in the profile of this program or in release mode.

use crate::run;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;
use std::process::Command;

/// Builds Kernlane, and the plugin beside it. Returns the path of the program. This program is
/// built in the same command, though it is there already: so cargo chooses the same features for
/// all of them, and compiles no crate twice.
///
/// # Errors
/// Something cannot be built.
pub fn kernlane() -> Result<PathBuf> {
    let program = std::env::current_exe()?.with_file_name("kernlane");
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let packages = ["-p", "kernlane", "-p", "kernlane-plugin", "-p", "xtask"];
    run(Command::new("cargo").args(["build", "--profile", profile]).args(packages))?;
    ensure!(program.is_file(), "cargo did not build {}", program.display());
    Ok(program)
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
    in_target(&format!("{TARGET}/release/kernlane-bench"))
}

/// Builds the plugin in release mode. Returns its path.
///
/// # Errors
/// It cannot be built.
pub fn build_plugin() -> Result<PathBuf> {
    run(Command::new("cargo").args(["build", "--quiet", "--release", "-p", "kernlane-plugin"]))?;
    in_target("release/libkernlane_plugin.so")
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

fn in_target(path: &str) -> Result<PathBuf> {
    let file = target_directory()?.join(path);
    ensure!(file.is_file(), "{} does not exist after the build", file.display());
    Ok(file)
}
