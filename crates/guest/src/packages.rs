//! Gets Debian packages for a guest through the host's own apt, with its suites, keys and mirrors.
//!
//! Input: names of packages. Output: the `.deb` files of these packages and of everything that they
//! depend on, resolved as for an empty system. The files come from the cache or are downloaded into
//! it. This module installs nothing on the host and needs no privileges.

use anyhow::{Context, Result, bail, ensure};
use host::interrupt;
use host::scratch;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A package as apt resolved it. `file` contains its name, version and architecture.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Package {
    pub name: String,
    pub version: String,
    /// Its file name in the cache, for example `dash_0.5.12-2_amd64.deb`.
    pub file: String,
    pub bytes: u64,
}

/// Resolves `names` and their dependencies, without recommended packages, sorted by name. This
/// needs apt's lists, but no network.
pub(crate) fn resolve(names: &[String]) -> Result<Vec<Package>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let output = apt_get()
        // With an empty status file no package counts as installed, so apt lists all that are
        // needed.
        .args([
            "-o",
            "Dir::State::status=/dev/null",
            "--no-install-recommends",
            "--print-uris",
            "install",
            "--",
        ])
        .args(names)
        .output()
        .context(
            "running apt-get: guests are made from Debian packages, on Debian or a system \
             derived from it",
        )?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "apt cannot resolve {}: {}\n(run `apt-get update` to fetch the lists of packages)",
        names.join(" "),
        errors.trim()
    );
    let mut packages = parse_uris(&String::from_utf8_lossy(&output.stdout))?;
    packages.sort();
    ensure!(!packages.is_empty(), "apt found no packages for {}", names.join(" "));
    Ok(packages)
}

/// Whether apt can install a package of this name.
pub(crate) fn is_known(name: &str) -> bool {
    crate::workload::is_package_name(name) && resolve(&[name.to_owned()]).is_ok()
}

/// Downloads the packages that are not in `cache`, and returns all files in the order of
/// `packages`. apt verifies what it downloads.
pub(crate) fn fetch(packages: &[Package], cache: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(cache).with_context(|| format!("making {}", cache.display()))?;
    let path = |package: &Package| cache.join(&package.file);
    let is_there =
        |package: &Package| path(package).metadata().is_ok_and(|file| file.len() == package.bytes);
    let missing: Vec<&Package> = packages.iter().filter(|package| !is_there(package)).collect();
    if !missing.is_empty() {
        let bytes: u64 = missing.iter().map(|package| package.bytes).sum();
        let directory = scratch::directory(cache, ".download-")?;
        let mut download = apt_get();
        download
            .current_dir(directory.path())
            .args(["download", "--"])
            .args(missing.iter().map(|package| format!("{}={}", package.name, package.version)))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(directory.path().join("errors"))?);
        let download = interrupt::spawn(&mut download).context("running apt-get download")?;
        let status = download.wait()?;
        if !status.success() {
            let errors =
                std::fs::read_to_string(directory.path().join("errors")).unwrap_or_default();
            bail!(
                "downloading {} packages ({} MB) failed: {}",
                missing.len(),
                bytes >> 20,
                errors.trim()
            );
        }
        for package in &missing {
            let from = directory.path().join(&package.file);
            std::fs::rename(&from, path(package))
                .with_context(|| format!("apt-get download left no {}", package.file))?;
        }
    }
    Ok(packages.iter().map(path).collect())
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    // apt runs as the caller, because its user `_apt` may not write to the caller's cache. It takes
    // no lock, because it changes nothing in the system.
    command
        .args(["-qq", "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1"])
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    command
}

/// Reads lines of `'URI' FILE SIZE HASH`, which `apt-get --print-uris` prints. `%3a` stands for a
/// colon in FILE.
fn parse_uris(text: &str) -> Result<Vec<Package>> {
    let mut packages = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('\'')) {
        let package = || -> Option<Package> {
            let mut fields = line[1..].split_once('\'')?.1.split_whitespace();
            let (file, size) = (fields.next()?, fields.next()?);
            let mut parts = file.strip_suffix(".deb")?.split('_');
            let (name, version, architecture) = (parts.next()?, parts.next()?, parts.next()?);
            let plain = |text: &str| !text.is_empty() && !text.contains('/');
            if !plain(name) || !plain(version) || !plain(architecture) || parts.next().is_some() {
                return None;
            }
            let version = version.replace("%3a", ":");
            Some(Package {
                name: name.into(),
                version,
                file: file.into(),
                bytes: size.parse().ok()?,
            })
        };
        packages.push(
            package().with_context(|| {
                format!("apt-get --print-uris printed an unexpected line: {line}")
            })?,
        );
    }
    Ok(packages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_read_with_epochs() {
        let text = "'http://x/zlib1g_1.2.13.dfsg-1_amd64.deb' zlib1g_1%3a1.2.13.dfsg-1_amd64.deb \
                    86684 MD5Sum:ec42\n\
                    'http://x/d.deb' dash_0.5.12-2_amd64.deb 91848 \n";
        let packages = parse_uris(text).unwrap();
        assert_eq!(packages[0].version, "1:1.2.13.dfsg-1");
        assert_eq!(packages[0].file, "zlib1g_1%3a1.2.13.dfsg-1_amd64.deb");
        assert_eq!((packages[1].name.as_str(), packages[1].bytes), ("dash", 91848));
    }

    #[test]
    fn unexpected_lines_are_refused() {
        for line in [
            "'x",
            "'x' a",
            "'x' a_1_amd64.deb many",
            "'x' ../a_1_amd64.deb 3",
            "'x' a_1.deb 3",
            "'x' a_1_amd64.rpm 3",
        ] {
            assert!(parse_uris(line).is_err(), "{line}");
        }
        assert_eq!(parse_uris("Reading lists\n").unwrap(), []);
    }
}
