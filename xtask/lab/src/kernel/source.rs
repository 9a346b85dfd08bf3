//! Where the sources of kernels come from: Debian's packages `linux-source-…`.
//!
//! Input: a version. Output: an archive of sources, and the version of its package. Packages of
//! other suites are unpacked into the cache; nothing of them is installed.

use super::cache;
use crate::apt::{Apt, NEWEST_SUITE};
use crate::made::make;
use crate::{run, succeeded};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The suites that may have the newest sources: backports are ahead of unstable at times.
const NEWEST_SOURCES: [&str; 2] = [NEWEST_SUITE, "trixie-backports"];

/// An archive of sources.
#[derive(Clone, Debug)]
pub struct Source {
    /// `linux-source-6.12`
    pub package: String,
    /// The package's version.
    pub version: String,
    pub archive: PathBuf,
}

impl Source {
    /// The sources of an installed package.
    ///
    /// # Errors
    /// It is not installed.
    pub fn installed(version: &str) -> Result<Source> {
        let package = format!("linux-source-{version}");
        let archive = PathBuf::from(format!("/usr/src/{package}.tar.xz"));
        let output = Command::new("dpkg-query")
            .args(["-W", "-f", "${Version}", &package])
            .output()
            .context("dpkg-query cannot be run; the kernels are made from Debian's packages")?;
        let is_there = output.status.success() && archive.exists();
        ensure!(is_there, "{package} is not installed; run xtask/setup.sh");
        let version = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(Source { package, version, archive })
    }

    /// The sources of a version that this machine's suites have, from the cache or the archive.
    ///
    /// # Errors
    /// The archive cannot be reached, or does not have the version.
    pub fn fetched(version: &str) -> Result<Source> {
        unpacked(&Apt::default(), &format!("linux-source-{version}"))
    }

    /// The newest sources in Debian's archive. As long as the cache has some, these.
    ///
    /// # Errors
    /// The archive cannot be reached.
    pub fn newest() -> Result<Source> {
        let chosen = cache()?.join("sources/newest");
        let apt = Apt::of_suites(&NEWEST_SOURCES, &cache()?.join("sources/apt"))?;
        make(&chosen, || {
            apt.update()?;
            let listed = succeeded(apt.command("apt-cache").args(["pkgnames", "linux-source-"]))?;
            let names = String::from_utf8_lossy(&listed.stdout).into_owned();
            let newest = newest(names.lines()).context("the archive has no sources of Linux")?;
            host::output::write(&chosen, newest.as_bytes())?;
            Ok(())
        })?;
        unpacked(&apt, fs::read_to_string(&chosen)?.trim())
    }
}

/// The archive of a package, downloaded once.
fn unpacked(apt: &Apt, package: &str) -> Result<Source> {
    let directory = cache()?.join("sources").join(package);
    make(&directory, || {
        host::output::whole_directory(&directory, |part| {
            run(apt.command("apt-get").args(["download", "-q", package]).current_dir(part))?;
            let deb = only(part, ".deb")?;
            let version = succeeded(Command::new("dpkg-deb").arg("-f").arg(&deb).arg("Version"))?;
            fs::write(part.join("version"), version.stdout)?;
            run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(part.join("files")))?;
            fs::remove_file(&deb)?;
            Ok(())
        })
    })?;
    let version = fs::read_to_string(directory.join("version"))?.trim().to_owned();
    let archive = only(&directory.join("files/usr/src"), ".tar.xz")?;
    Ok(Source { package: package.to_owned(), version, archive })
}

/// The only file of a directory whose name ends so.
fn only(directory: &Path, end: &str) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if path.to_string_lossy().ends_with(end) {
            found.push(path);
        }
    }
    match <[PathBuf; 1]>::try_from(found) {
        Ok([path]) => Ok(path),
        Err(all) => anyhow::bail!("{}: {} files end with {end}", directory.display(), all.len()),
    }
}

/// The name with the highest version: `linux-source-7.3` before `linux-source-6.19`.
fn newest<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let version = |name: &str| {
        let (major, minor) = name.strip_prefix("linux-source-")?.split_once('.')?;
        Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
    };
    let versions = names.filter_map(|name| Some((version(name)?, name)));
    versions.max().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        let names = ["linux-source-6.19", "linux-source-7.3", "linux-source-6.2", "linux-source-x"];
        assert_eq!(newest(names.into_iter()), Some("linux-source-7.3"));
        let two = ["linux-source-6.9", "linux-source-6.12"];
        assert_eq!(newest(two.into_iter()), Some(two[1]));
        assert_eq!(newest(["linux-source"].into_iter()), None);
    }
}
