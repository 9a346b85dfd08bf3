//! Debian's stock 6.12 kernels, each with its -dbg vmlinux and its headers.
//!
//! Input: apt's package lists. Output: the path of the boot image, unpacked in the cache beside its
//! vmlinux. The headers are installed, since they name each other by absolute paths; that needs
//! root, once.

use crate::{run, succeeded};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

const PREFIX: &str = "linux-image-";

/// Which of Debian's kernels.
#[derive(Clone, Copy)]
pub enum Flavour {
    /// For virtual machines of clouds: fewer drivers.
    Cloud,
    /// For everything else.
    Generic,
}

impl Flavour {
    /// Its directory in the cache.
    fn directory(self) -> &'static str {
        match self {
            Flavour::Cloud => "debian",
            Flavour::Generic => "debian-generic",
        }
    }

    /// What the names of its packages match.
    fn packages(self) -> &'static str {
        match self {
            Flavour::Cloud => "^linux-image-6[.]12[.][0-9]+[+]deb[0-9.]+-cloud-amd64$",
            Flavour::Generic => "^linux-image-6[.]12[.][0-9]+[+]deb[0-9.]+-amd64$",
        }
    }
}

/// The boot image, downloaded if it is not there.
///
/// # Errors
/// apt knows no such kernel, or it cannot be downloaded.
pub fn kernel(flavour: Flavour) -> Result<PathBuf> {
    let directory = guest::writable_cache()?.join(flavour.directory());
    if let Some(image) = unpacked(&directory) {
        return Ok(image);
    }
    let release = newest(flavour)?;
    println!("downloading Debian's kernel {release} and its symbols");
    let scratch = tempfile::tempdir_in(guest::writable_cache()?)?;
    let packages = [format!("linux-image-{release}"), format!("linux-image-{release}-dbg")];
    run(Command::new("apt-get").arg("download").args(&packages).current_dir(scratch.path()))?;
    let root = scratch.path().join("root");
    for entry in std::fs::read_dir(scratch.path())? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "deb") {
            run(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(&root))?;
        }
    }
    std::fs::rename(&root, &directory)
        .with_context(|| format!("making {}", directory.display()))?;
    unpacked(&directory).context("the package has no kernel")
}

fn unpacked(directory: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory.join("boot")).ok()?;
    let mut images: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    images.retain(|path| {
        path.file_name().is_some_and(|n| {
            n.to_string_lossy().starts_with("vmlinuz-") && n.to_string_lossy().ends_with("-amd64")
        })
    });
    images.sort();
    images.pop()
}

/// The release of the newest such kernel that apt knows.
fn newest(flavour: Flavour) -> Result<String> {
    let mut search = Command::new("apt-cache");
    let output = succeeded(search.args(["search", "--names-only", flavour.packages()]))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    names.sort_by_key(|name| {
        name.split(|c: char| !c.is_ascii_digit())
            .filter_map(|n| n.parse::<u32>().ok())
            .collect::<Vec<_>>()
    });
    let name = names.pop().context("apt knows no such kernel 6.12: run apt-get update")?;
    Ok(name.trim_start_matches(PREFIX).to_owned())
}

/// The directory to build modules against.
///
/// # Errors
/// They cannot be installed.
pub fn headers(release: &str) -> Result<PathBuf> {
    let headers = PathBuf::from(format!("/usr/src/linux-headers-{release}"));
    if !headers.is_dir() {
        let package = format!("linux-headers-{release}");
        println!("installing {package}");
        run(Command::new("apt-get").args([
            "install",
            "-y",
            "-q",
            "--no-install-recommends",
            &package,
        ]))?;
    }
    ensure!(headers.is_dir(), "{} is missing", headers.display());
    Ok(headers)
}
