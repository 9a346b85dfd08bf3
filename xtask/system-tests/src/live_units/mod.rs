//! `cargo xtask live-units`: the systemd units of the packages, in a guest with Debian 12 that
//! boots by GRUB and systemd.
//!
//! Input: the disk in the cache, which stays as it is. Output: a line for each test. A group is
//! kept and the units enabled; the guest is booted again, and again with `kernlane=off`. The
//! console goes to `target/live-units.console`.

use crate::debian::console::Guest;
use crate::debian::disk;
use anyhow::{Context, Result, ensure};
use guest::GuestKernel;
use lab::live_tool::debian::{self, Flavour};
use lab::live_tool::make_tool;
use lab::run;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = include_str!("guest.sh");
const UNITS: &str = "packaging/systemd";
const CONSOLE: &str = "target/live-units.console";
/// What the console says once in each boot.
const LOGIN: &str = "ab login: root (automatic login)";
const PROMPT: &str = "root@ab:~#";
/// The second disk carries an archive into the guest.
const EXCHANGE_BYTES: u64 = 256 << 20;
/// The steps of the script, each in a boot of its own.
const STEPS: [&str; 3] = ["keep", "booted", "off"];

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn live_units() -> Result<()> {
    host::interrupt::catch()?;
    let image = disk::image()?;
    let kernel = GuestKernel::open(&debian::kernel(Flavour::Cloud)?, None)?;
    let is_default = image.kernels[0].contains(&kernel.release);
    ensure!(is_default, "the disk boots {}, and not {}", image.kernels[0], kernel.release);
    let directory = tempfile::tempdir_in(guest::writable_cache()?)?;
    let path = |name: &str| directory.path().join(name);
    let (overlay, exchange, root) = (path("disk"), path("exchange"), path("tree/root"));
    let mut create = Command::new("qemu-img");
    create.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(&image.disk);
    run(create.arg(&overlay))?;
    fs::create_dir_all(&root)?;
    let tool = path("tool");
    fs::create_dir(&tool)?;
    for (name, _, file) in make_tool(&kernel, &tool)? {
        fs::copy(&file, root.join(name)).with_context(|| file.display().to_string())?;
    }
    run(Command::new("cp").arg("-r").arg(UNITS).arg(root.join("systemd")))?;
    fs::write(root.join("guest.sh"), SCRIPT)?;
    let tree = path("tree");
    run(Command::new("tar").arg("-cf").arg(&exchange).arg("-C").arg(&tree).arg("root"))?;
    File::options().write(true).open(&exchange)?.set_len(EXCHANGE_BYTES)?;
    let console = Path::new(CONSOLE);
    let _ = fs::remove_file(console);
    let mut qemu = Command::new("qemu-system-x86_64");
    for (file, format) in [(&overlay, "qcow2"), (&exchange, "raw")] {
        qemu.arg("-drive");
        qemu.arg(format!("file={},format={format},if=virtio,cache=unsafe", file.display()));
    }
    let mut guest = Guest::start(&mut qemu, console)?;
    let mut failed = 0;
    for (number, step) in STEPS.iter().enumerate() {
        guest.wait_for(&[LOGIN])?;
        guest.wait_for(&[PROMPT])?;
        if number == 0 {
            guest.type_line("tar -C / --no-same-owner -xf /dev/vdb")?;
            guest.wait_for(&[PROMPT])?;
        }
        guest.type_line(&format!("sh guest.sh {step}"))?;
        failed += told(&guest.said_until(&format!("units: {step} is done"))?);
        let is_last = number + 1 == STEPS.len();
        guest.type_line(if is_last { "systemctl poweroff" } else { "systemctl reboot" })?;
    }
    guest.wait_until_off()?;
    ensure!(failed == 0, "{failed} tests of the units failed; see {CONSOLE}");
    Ok(())
}

/// Prints what the guest said of its tests, and counts those that failed. A step without a result
/// is one.
fn told(said: &str) -> usize {
    let lines = said.lines().map(str::trim_end);
    let results: Vec<&str> = lines
        .filter(|line| ["passed: ", "FAILED: "].iter().any(|it| line.starts_with(it)))
        .collect();
    results.iter().for_each(|line| println!("{line}"));
    let failed = results.iter().filter(|line| line.starts_with("FAILED: ")).count();
    if results.is_empty() { 1 } else { failed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_without_results_has_failed() {
        let said = "sh guest.sh keep\r\npassed: one\r\nFAILED: two: why\r\njournal: passed: no\r\n";
        assert_eq!(told(said), 1);
        assert_eq!(told("sh guest.sh keep\r\nsh: 0: cannot open guest.sh\r\n"), 1);
        assert_eq!(told("passed: one\r\n"), 0);
    }
}
