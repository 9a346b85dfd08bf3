//! The disk of a Debian 12 with two kernels, GRUB and systemd-boot.
//!
//! Input: apt's package lists. Output: a directory in the cache, made once: again only when a
//! script here changes. Never changes the disk of a directory that is whole: guests run on copies.

use super::console::Guest;
use anyhow::{Context, Result, bail, ensure};
use lab::run;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

const IMAGE: &str = include_str!("disk.sh");
const SETUP: &str = include_str!("setup.sh");
const SUITES: [&str; 4] =
    ["bookworm", "bookworm-updates", "bookworm-security", "bookworm-backports"];
/// What makes the image, or runs it, and Debian's package of it.
const NEEDED: &[(&str, &str)] = &[
    ("/usr/bin/mmdebstrap", "mmdebstrap"),
    ("/usr/sbin/sfdisk", "fdisk"),
    ("/usr/sbin/mke2fs", "e2fsprogs"),
    ("/usr/bin/qemu-img", "qemu-utils"),
    ("/usr/bin/qemu-system-x86_64", "qemu-system-x86"),
    (UEFI, "ovmf"),
];
/// The firmware.
pub(crate) const UEFI: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
/// The variables of a machine that was never booted.
pub(crate) const UEFI_VARIABLES: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";

pub(crate) struct Image {
    pub disk: PathBuf,
    /// Names the scripts that made it.
    pub made_by: String,
    /// The releases of its kernels; GRUB and systemd-boot boot the first one by default.
    pub kernels: [String; 2],
}

/// The image, made if it is not there.
///
/// # Errors
/// A package is missing and cannot be installed; the image cannot be made.
pub(crate) fn image() -> Result<Image> {
    install(NEEDED)?;
    let made_by = image::sealed::sha256(format!("{IMAGE}{SETUP}").as_bytes())[..12].to_owned();
    let directory = guest::writable_cache()?.join(format!("ab-test-{made_by}"));
    if !directory.is_dir() {
        println!("making a disk with Debian 12 and two kernels: takes about 5 minutes");
        host::output::whole_directory(&directory, make)?;
    }
    let kernels = kernels(&directory.join("boot"))?;
    Ok(Image { disk: directory.join("disk.raw"), made_by, kernels })
}

/// Installs what is missing of `needed`: files, each with Debian's package of it.
///
/// # Errors
/// A package cannot be installed.
pub(crate) fn install(needed: &[(&str, &'static str)]) -> Result<()> {
    let missing: Vec<&str> = needed
        .iter()
        .filter(|(path, _)| !Path::new(path).is_file())
        .map(|&(_, package)| package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("installing {}", missing.join(", "));
    let mut apt = Command::new("apt-get");
    apt.args(["install", "-y", "-q", "--no-install-recommends"]).args(&missing);
    run(&mut apt).with_context(|| format!("install as root: {}", missing.join(" ")))
}

fn make(directory: &Path) -> Result<()> {
    // SAFETY: the call has no arguments and cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    ensure!(is_root, "the files of a Debian belong to several users: run this as root, once");
    let scripts = tempfile::tempdir()?;
    let [script, setup] = [("disk.sh", IMAGE), ("setup.sh", SETUP)].map(|(name, text)| {
        let path = scripts.path().join(name);
        std::fs::write(&path, text).map(|()| path)
    });
    let sources = scripts.path().join("sources.list");
    std::fs::write(&sources, sources_list()?)?;
    let mut command = Command::new("sh");
    command.arg(script?).arg(setup?).current_dir(directory).stdin(File::open(&sources)?);
    run(&mut command)?;
    install_loaders(directory)
}

/// Debian's archives, from where this machine gets its own packages.
fn sources_list() -> Result<String> {
    let format = "$(REPO_URI) $(CODENAME) $(COMPONENT)";
    let words = ["indextargets", "--format", format, "Created-By: Packages"];
    let output = lab::succeeded(Command::new("apt-get").args(words))?;
    let known = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = |suite: &str| {
        let found = known.lines().find_map(|line| {
            let (site, rest) = line.split_once(' ')?;
            (rest == format!("{suite} main")).then(|| format!("deb {site} {suite} main\n"))
        });
        found.with_context(|| format!("apt knows no {suite}: run xtask/setup.sh"))
    };
    SUITES.into_iter().map(line).collect()
}

/// Boots the disk once, to install the boot loaders.
fn install_loaders(directory: &Path) -> Result<()> {
    let [release, _] = kernels(&directory.join("boot"))?;
    let boot = |name: &str| directory.join("boot").join(format!("{name}-{release}"));
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.arg("-kernel").arg(boot("vmlinuz")).arg("-initrd").arg(boot("initrd.img"));
    let words = "root=LABEL=system console=ttyS0 quiet no_timer_check init=/root/setup.sh";
    qemu.args(["-append", words]);
    let disk = directory.join("disk.raw");
    qemu.arg("-drive").arg(format!("file={},format=raw,if=virtio,cache=unsafe", disk.display()));
    let log = directory.join("setup.console");
    let mut guest = Guest::start(qemu.arg("-no-reboot"), &log)?;
    guest.wait_for(&["setup: done\r\n"])?;
    guest.wait_until_off()
}

/// The releases of the kernels in a directory, the newest first.
fn kernels(boot: &Path) -> Result<[String; 2]> {
    let entries = std::fs::read_dir(boot).with_context(|| boot.display().to_string())?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let mut releases: Vec<String> = names
        .filter_map(|name| Some(name.to_str()?.strip_prefix("vmlinuz-")?.to_owned()))
        .collect();
    releases.sort_by_key(|release| {
        let numbers = release.split(|c: char| !c.is_ascii_digit());
        numbers.filter_map(|number| number.parse::<u32>().ok()).collect::<Vec<_>>()
    });
    releases.reverse();
    match <[String; 2]>::try_from(releases) {
        Ok(kernels) => Ok(kernels),
        Err(other) => bail!("{}: has the kernels {other:?}, not two", boot.display()),
    }
}
