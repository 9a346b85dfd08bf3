//! `cargo xtask service-test`: systemd's units of the packages, on a Debian 12 in a guest.
//!
//! Input: the disk of a Debian 12 with two kernels, and the packages of `cargo xtask dist`. Output:
//! a line for each test. The service is enabled, and the guest booted again and again: with the
//! same kernel, with another one, after a loss of power, and with `kernlane=off`. At last the
//! package is removed. The console goes to `target/service-test/console`.

use crate::debian::console::Guest;
use crate::debian::disk::{self, Image};
use crate::dist_test;
use crate::machine::is_complaint;
use ::guest::GuestKernel;
use anyhow::{Context, Result, bail, ensure};
use lab::live_tool::debian::{Flavour, StockKernel, Version};
use lab::live_tool::make_tool;
use lab::run;
use lab::score::TestScore;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPT: &str = include_str!("guest.sh");
/// What the console says once in each boot.
const LOGIN: &str = "ab login: root (automatic login)";
const PROMPT: &str = "root@ab:~#";
/// The kernels of the disk.
const VERSIONS: [Version; 2] = [Version::V6_12, Version::V6_1];
/// Of the packages' disk, whose archive has no end of its own.
const SECTOR: u64 = 512;

/// How a boot ends, and what the next one is.
enum Next {
    /// Another boot of the kernel that GRUB boots by default.
    Reboot,
    /// One boot of the other kernel.
    Other,
    /// The power is lost, and comes again.
    PowerLoss,
    /// One boot with this word more on the command line.
    With(&'static str),
    Off,
}

/// The steps of `guest.sh`, one for each boot.
const BOOTS: [(&str, Next); 7] = [
    ("install", Next::Reboot),
    ("working", Next::Other),
    ("other", Next::Reboot),
    ("installed", Next::PowerLoss),
    ("crashed", Next::With("kernlane=off")),
    ("off", Next::Reboot),
    ("purge", Next::Off),
];

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn service_test() -> Result<()> {
    host::interrupt::catch()?;
    let image = disk::image()?;
    let packages = dist_test::published()?;
    let directory = tempfile::tempdir_in(::guest::writable_cache()?)?;
    let [disk, files] = ["disk", "files"].map(|name| directory.path().join(name));
    // What a guest wrote is in it even when QEMU is killed: an overlay keeps its tables in memory.
    run(Command::new("cp").arg("--sparse=always").arg(&image.disk).arg(&disk))?;
    archive(&image, &packages, directory.path(), &files)?;
    let log = std::path::absolute("target/service-test/console")?;
    fs::create_dir_all(log.parent().context("target has no parent")?)?;
    let _ = fs::remove_file(&log);

    let machine = Machine { disk, files, log, other: image.kernels[1].clone() };
    let mut score = TestScore::default();
    let mut guest = machine.start()?;
    for (number, (step, next)) in BOOTS.into_iter().enumerate() {
        host::interrupt::check()?;
        guest.wait_for(&[LOGIN])?;
        guest.wait_for(&[PROMPT])?;
        if number == 0 {
            guest.type_line("tar -C / --no-same-owner -xf /dev/vdb; cp guest.sh run.sh")?;
        }
        guest.type_line(&format!("sh run.sh {step}"))?;
        let said = guest.said_until(&format!("step {step}: done\r\n"))?;
        tell(&mut score, step, &said)?;
        guest = match machine.next(guest, next)? {
            Some(guest) => guest,
            None => break,
        };
    }
    score.finish("the units do not work; see target/service-test/console")
}

/// Counts the tests that a step printed. The kernel must not have complained.
fn tell(score: &mut TestScore, step: &str, said: &str) -> Result<()> {
    let mut found = false;
    for line in said.lines().map(str::trim_end) {
        if let Some(what) = line.strip_prefix("passed: ") {
            found = true;
            score.holds(what, true);
        } else if let Some(what) = line.strip_prefix("FAILED: ") {
            score.holds(what, false);
        } else if is_complaint(line) {
            bail!("{step}: the kernel says {line}");
        }
    }
    ensure!(found, "{step}: no test ran; it said:\n{said}");
    Ok(())
}

/// The guest's disks, and how it is booted.
struct Machine {
    disk: PathBuf,
    files: PathBuf,
    log: PathBuf,
    /// The release that GRUB does not boot by default.
    other: String,
}

impl Machine {
    fn start(&self) -> Result<Guest> {
        let mut qemu = Command::new("qemu-system-x86_64");
        for file in [&self.disk, &self.files] {
            qemu.arg("-drive");
            qemu.arg(format!("file={},format=raw,if=virtio,cache=unsafe", file.display()));
        }
        Guest::start(&mut qemu, &self.log)
    }

    /// Ends a boot, and begins the next.
    fn next(&self, mut guest: Guest, next: Next) -> Result<Option<Guest>> {
        match next {
            Next::Reboot => guest.type_line("systemctl reboot")?,
            Next::Other => {
                let entry = format!(
                    "Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux {}",
                    self.other
                );
                guest.type_line(&format!("grub-reboot '{entry}' && systemctl reboot"))?;
            }
            Next::With(word) => {
                // As typed at the menu. The script takes it away.
                let menu = "/boot/grub/grub.cfg";
                let change = format!("sed -i.was 's|^[[:space:]]*linux.*|& {word}|' {menu}");
                guest.type_line(&format!("{change} && systemctl reboot"))?;
            }
            Next::PowerLoss => {
                guest.kill()?;
                return self.start().map(Some);
            }
            Next::Off => {
                guest.type_line("systemctl poweroff")?;
                guest.wait_until_off()?;
                return Ok(None);
            }
        }
        Ok(Some(guest))
    }
}

/// The archive that the guest unpacks: the package with what it depends on, and for each kernel the
/// module, as DKMS would build it, and the vmlinux.
fn archive(image: &Image, packages: &Path, directory: &Path, to: &Path) -> Result<()> {
    let root = directory.join("tree/root");
    fs::create_dir_all(&root)?;
    fs::write(root.join("guest.sh"), SCRIPT)?;
    let package = dist_test::package(packages, "kernlane_")?;
    fs::copy(&package, root.join("kernlane.deb")).with_context(|| package.display().to_string())?;
    for version in VERSIONS {
        let stock = StockKernel { version, flavour: Flavour::Cloud };
        let kernel = GuestKernel::open(&stock.boot_image()?, None)?;
        let release = &kernel.release;
        ensure!(
            image.kernels.contains(release),
            "the disk has the kernels {}, and the cache {release}: remove one of both from the \
             cache, {}",
            image.kernels.join(" and "),
            ::guest::writable_cache()?.display()
        );
        let made = directory.join(release);
        fs::create_dir(&made)?;
        for (name, _, path) in make_tool(&kernel, &made)? {
            match name {
                "vmlinux" => fs::rename(path, root.join(format!("vmlinux-{release}")))?,
                "kernlane.ko" => fs::rename(path, root.join(format!("{release}.ko")))?,
                _ => {}
            }
        }
    }
    run(Command::new("tar").arg("-cf").arg(to).arg("-C").arg(directory.join("tree")).arg("root"))?;
    let file = File::options().write(true).open(to)?;
    let size = file.metadata()?.len();
    file.set_len(size.next_multiple_of(SECTOR))?;
    fs::remove_dir_all(directory.join("tree")).context("removing what is in the archive")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_of_the_script_is_a_boot() {
        for (step, _) in BOOTS {
            assert!(SCRIPT.contains(&format!("#   guest.sh {step} ")), "{step}");
        }
    }

    #[test]
    fn a_failure_and_a_complaint_are_told() {
        let mut score = TestScore::default();
        tell(&mut score, "off", "passed: off: one\r\nFAILED: off: two: why\r\n").unwrap();
        assert_eq!(score.failed(), 1);
        assert!(tell(&mut score, "off", "nothing\r\n").is_err());
        let complaint = "[  1.5] BUG: kernel NULL pointer dereference\r\n";
        assert!(tell(&mut score, "off", &format!("passed: one\r\n{complaint}")).is_err());
    }
}
