//! `cargo xtask live-boots`: a kept group over reboots, and over upgrades of the kernel, in guests.
//!
//! Input: the number of reboots, and kernels to upgrade to. Each guest gets what the one before it
//! kept, as a disk would hold it. Output: a line a test, and an error if one failed.

use super::{Guest, STEADY, Tried, judge, named};
use crate::machine::Machine;
use anyhow::{Context, Result, ensure};
use lab::run;
use std::path::PathBuf;
use std::process::Command;

const BOOT: Tried = Tried::new(Machine::new("2 CPUs, preemptible", 2, "max", &STEADY), "boots.sh");
/// What stands in front of what is kept, in the output of a guest.
const STATE: &str = "state ";

/// Keeps a group in a kernel, and boots it `reboots` times, then each kernel of `upgrades` once.
/// `kernel` and `upgrades` are boot images, or names of Debian's kernels.
///
/// # Errors
/// A test fails or cannot run.
pub fn boots(kernel: Option<&str>, reboots: u32, upgrades: &[String]) -> Result<()> {
    let guest = Guest::new(&kernel.map_or_else(super::cloud, named)?)?;
    let mut state = boot(&guest, "first", None)?;
    for n in 1..=reboots {
        println!("-- reboot {n} of {reboots}");
        state = boot(&guest, "reboot", Some(state))?;
    }
    drop(guest);
    for upgrade in upgrades {
        let image: PathBuf = named(upgrade)?;
        println!("-- upgrade to {}", image.display());
        state = boot(&Guest::new(&image)?, "upgrade", Some(state))?;
    }
    Ok(())
}

/// Boots a guest with what was kept. Gives what is kept when it has ended.
fn boot(guest: &Guest, which: &str, state: Option<Vec<u8>>) -> Result<Vec<u8>> {
    let mut contents = guest.contents.clone();
    contents.file("/kl/boot", 0o644, which);
    if let Some(state) = state {
        contents.file("/kl/state.tar.gz", 0o644, state);
    }
    let mut outcome = guest.run_contents(contents, &BOOT, |_| {})?;
    let (state, told): (Vec<&str>, Vec<&str>) =
        outcome.output.lines().partition(|line| line.starts_with(STATE));
    let state = state.first().map(|line| line.trim_start_matches(STATE).to_owned());
    outcome.output = told.iter().map(|line| format!("{line}\n")).collect();
    judge(&BOOT, &outcome)?;
    decoded(&state.context("the guest did not say what it keeps")?)
}

fn decoded(base64: &str) -> Result<Vec<u8>> {
    let directory = tempfile::tempdir()?;
    let [text, bytes] = ["text", "bytes"].map(|name| directory.path().join(name));
    std::fs::write(&text, base64)?;
    let script = "base64 -d \"$1\" >\"$2\"";
    run(Command::new("sh").args(["-c", script, "-"]).arg(&text).arg(&bytes))?;
    let bytes = std::fs::read(bytes)?;
    ensure!(!bytes.is_empty(), "the guest keeps nothing");
    Ok(bytes)
}
