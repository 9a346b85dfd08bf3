//! A built tree in a directory of its own, and the packages that are made of it.
//!
//! Input: the tree of the kernel that clang built with a profile, which stays unchanged; the page's
//! commands. Output: packages, in directories that are made once. A log beside them has what the
//! commands printed.

use super::page::Page;
use anyhow::{Context, Result, ensure};
use lab::made::make;
use lab::{profiled, run, succeeded};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory in the sources with the profile and the layout.
const OURS: &str = "kernlane";
/// Where Debian's packages are put: beside the sources.
const ENDING: &str = "deb";
/// The notes of the kernel in the packages.
pub(super) const NOTES: &str = "notes";

/// A profile of a function that the tree's own profile does not have, in this file. Its only
/// statement is in the second line behind its name.
const PROFILE: &str = "find_vpid:20000:10000\n 1: 10000\n 2: 10000\n";
const PROFILED: &str = "kernel/pid.s";

/// What else a source package needs.
const CONTROL: &str = "Source: linux-fast
Section: kernel
Maintainer: kernlane <kernlane@kernlane>
Build-Depends: debhelper-compat (= 13)
Rules-Requires-Root: no

Package: linux-fast
Architecture: amd64
Description: a fast kernel
";
const CHANGELOG: &str = "linux-fast (6.12-1) bookworm; urgency=low

  * A fast kernel.

 -- kernlane <kernlane@kernlane>  Thu, 01 Jan 2026 00:00:00 +0000
";

/// The sources in `DIRECTORY/NAME/linux`.
pub(super) struct Source<'a> {
    page: &'a Page,
    /// The directories of programs.
    path: OsString,
    time_zone: &'static str,
    pub home: PathBuf,
    pub tree: PathBuf,
}

impl<'a> Source<'a> {
    /// A copy of the built tree. Its commands run in this time zone.
    ///
    /// # Errors
    /// The tree cannot be built or copied.
    pub(super) fn new(
        page: &'a Page,
        kernlane: &Path,
        home: PathBuf,
        time_zone: &'static str,
    ) -> Result<Source<'a>> {
        let mut path = OsString::from(kernlane.parent().context("the tool lies in no directory")?);
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let tree = home.join("linux");
        make(&tree, || {
            let part = home.join("linux.part");
            let _ = fs::remove_dir_all(&part);
            fs::create_dir_all(&home)?;
            let mut copy = Command::new("cp");
            run(copy.args(["-a", "--reflink=auto"]).arg(profiled::tree()?).arg(&part))?;
            fs::create_dir(part.join(OURS))?;
            fs::write(part.join(OURS).join("profile.prof"), PROFILE)?;
            Ok(fs::rename(&part, &tree)?)
        })?;
        Ok(Source { page, path, time_zone, home, tree })
    }

    /// Puts the layout into the sources.
    ///
    /// # Errors
    /// It cannot be copied.
    pub(super) fn add_layout(&self, layout: &Path) -> Result<()> {
        fs::copy(layout, self.tree.join(OURS).join("layout.kll"))
            .map(drop)
            .with_context(|| layout.display().to_string())
    }

    /// Changes the kernel's rules as the page says, once.
    ///
    /// # Errors
    /// The commands fail or change nothing.
    pub(super) fn change_rules(&self) -> Result<()> {
        let read = |name: &str| {
            let file = self.tree.join("scripts/package").join(name);
            fs::read_to_string(&file).with_context(|| file.display().to_string())
        };
        let relinks = || Ok::<_, anyhow::Error>(read("debian/rules")?.contains("kernlane relink"));
        if !relinks()? {
            self.shell(&self.page.changes, "changes")?;
        }
        ensure!(relinks()?, "the page's commands did not change the kernel's rules");
        ensure!(read("mkdebian")?.contains("SOURCE_DATE_EPOCH"), "mkdebian takes any date");
        Ok(())
    }

    /// Whether clang uses the profile when make has the page's variable.
    ///
    /// # Errors
    /// The file cannot be compiled, or clang does not use the profile.
    pub(super) fn takes_profile(&self) -> Result<()> {
        let hot = |variable: &str, name: &str| -> Result<bool> {
            let commands = format!("{variable}rm -f {PROFILED}\nmake LLVM=-22 {PROFILED}\n");
            self.shell(&commands, name)?;
            let text = fs::read_to_string(self.tree.join(PROFILED))?;
            Ok(text.contains("\t.section\t.text.hot."))
        };
        ensure!(hot(&self.page.profile, "with-profile")?, "{PROFILED} has no hot function");
        ensure!(!hot("", "without-profile")?, "{PROFILED} has a hot function without the profile");
        Ok(())
    }

    /// Debian's packages by `make bindeb-pkg`, in the directory `name`.
    ///
    /// # Errors
    /// They cannot be made.
    pub(super) fn packages(&self, name: &str) -> Result<PathBuf> {
        let commands =
            format!("{}{}{}\n", self.page.same_kernel, self.page.packages, self.page.notes);
        self.packed(name, &commands)
    }

    /// Debian's package by the page's own rules, in the directory `name`.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn package_by_rules(&self, name: &str) -> Result<PathBuf> {
        let debian = self.tree.join("debian");
        let _ = fs::remove_dir_all(&debian);
        fs::create_dir(&debian)?;
        fs::copy(self.tree.join(".config"), debian.join("config"))?;
        for (file, text) in
            [("rules", self.page.rules.as_str()), ("control", CONTROL), ("changelog", CHANGELOG)]
        {
            fs::write(debian.join(file), text)?;
        }
        run(Command::new("chmod").arg("+x").arg(debian.join("rules")))?;
        // The tree is built: what is tested are the rules, not the compiler.
        let build = "dpkg-buildpackage --build=binary --no-pre-clean --unsigned-changes \
            --no-check-builddeps";
        self.packed(name, &format!("{build}\n{}\n", self.page.notes))
    }

    /// What both functions of the `PKGBUILD` put into the package, in the directory `name`.
    ///
    /// # Errors
    /// A function fails.
    pub(super) fn package_by_functions(&self, name: &str) -> Result<PathBuf> {
        let package = self.home.join(name);
        make(&package, || {
            let part = self.home.join(format!("{name}.part"));
            let _ = fs::remove_dir_all(&part);
            fs::create_dir(&part)?;
            let script = format!(
                "pkgbase=linux-fast srcdir={:?} pkgdir={part:?}\n{}\nbuild\npackage\n",
                self.home, self.page.functions
            );
            self.shell(&script, name)?;
            Ok(fs::rename(&part, &package)?)
        })?;
        Ok(package)
    }

    /// Runs commands that put packages beside the sources, and moves these to the directory `name`.
    fn packed(&self, name: &str, commands: &str) -> Result<PathBuf> {
        let packages = self.home.join(name);
        make(&packages, || {
            for left in debs(&self.home)? {
                fs::remove_file(left)?;
            }
            self.shell(commands, name)?;
            let part = self.home.join(format!("{name}.part"));
            let _ = fs::remove_dir_all(&part);
            fs::create_dir(&part)?;
            for deb in debs(&self.home)? {
                fs::rename(&deb, part.join(deb.file_name().context("a package has no name")?))?;
            }
            fs::rename(self.tree.join(NOTES), part.join(NOTES))?;
            Ok(fs::rename(&part, &packages)?)
        })?;
        Ok(packages)
    }

    /// Runs commands in the sources until one fails, with Kernlane among the programs.
    fn shell(&self, commands: &str, name: &str) -> Result<()> {
        let log = self.home.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = Command::new("bash");
        command.args(["-e", "-u", "-o", "pipefail", "-c", commands]).current_dir(&self.tree);
        command
            .env("TZ", self.time_zone)
            .env("PATH", &self.path)
            .stdout(file.try_clone()?)
            .stderr(file);
        // A package holds nothing of the shell from which this test is called.
        for inherited in
            ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CARGO_MAKEFLAGS", "DEB_BUILD_OPTIONS"]
        {
            command.env_remove(inherited);
        }
        let status = command.status().context("bash cannot be run")?;
        ensure!(status.success(), "the page's commands failed ({status}); see {}", log.display());
        Ok(())
    }
}

/// The packages in a directory, by name.
///
/// # Errors
/// It cannot be read.
pub(super) fn debs(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == ENDING))
        .collect();
    found.sort();
    Ok(found)
}

/// The package of the kernel among those in a directory: the only one with a boot image.
///
/// # Errors
/// There is none, or more than one.
pub(super) fn image_package(directory: &Path) -> Result<PathBuf> {
    let mut found = Vec::new();
    for deb in debs(directory)? {
        let listed = succeeded(Command::new("dpkg-deb").arg("--contents").arg(&deb))?;
        if String::from_utf8_lossy(&listed.stdout).contains(" ./boot/vmlinuz-") {
            found.push(deb);
        }
    }
    let is_one = found.len() == 1;
    found
        .pop()
        .filter(|_| is_one)
        .with_context(|| format!("{}: not one package has a boot image", directory.display()))
}

/// The only file of a package whose name begins so.
///
/// # Errors
/// There is none.
pub(super) fn file_in(deb: &Path, begins: &str) -> Result<Vec<u8>> {
    let unpacked = tempfile::tempdir()?;
    run(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(unpacked.path()))?;
    let (directory, name) = begins.rsplit_once('/').context("a path in a package")?;
    let entries = fs::read_dir(unpacked.path().join(directory))?;
    let is_it = |path: &PathBuf| {
        path.file_name().is_some_and(|found| found.to_string_lossy().starts_with(name))
    };
    let mut found = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_it);
    let file = found.next().with_context(|| format!("{}: has no {begins}", deb.display()))?;
    Ok(fs::read(file)?)
}
