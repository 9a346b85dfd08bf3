//! `cargo xtask dist`: what is published of Kernlane.
//!
//! Input: the committed sources. Output: Debian packages by `debian/rules`, archives of the sources
//! and of the programs, and their checksums. The same commit gives the same bytes, in whatever
//! directory it is built.

use crate::{run, succeeded};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What makes the packages, and Debian's package of it.
pub const NEEDED: &[(&str, &str)] = &[
    ("/usr/bin/dpkg-buildpackage", "dpkg-dev"),
    ("/usr/bin/dh", "debhelper"),
    ("/usr/bin/dh_dkms", "dh-dkms"),
];

/// Makes everything in the new directory `directory`. Returns the files, ascending.
///
/// # Errors
/// The directory exists, a program is missing, sources are not committed, or a step fails. Then
/// nothing is left.
pub fn dist(directory: &Path) -> Result<Vec<PathBuf>> {
    ensure!(!directory.exists(), "{}: exists already", directory.display());
    for (program, package) in NEEDED {
        ensure!(Path::new(program).exists(), "{program} is missing: apt-get install {package}");
    }
    let changed = succeeded(Command::new("git").args(["status", "--porcelain"]))?.stdout;
    ensure!(
        changed.is_empty(),
        "these files are not as committed, and what is published is:\n{}",
        String::from_utf8_lossy(&changed).trim_end()
    );
    host::output::whole_directory(directory, make)?;
    files_in(directory)
}

fn make(directory: &Path) -> Result<()> {
    let build = directory.join("build");
    fs::create_dir(&build).with_context(|| build.display().to_string())?;
    let from_changelog = |field: &str| -> Result<String> {
        let output = succeeded(Command::new("dpkg-parsechangelog").arg("-S").arg(field))?;
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    let name = format!("kernlane-{}", from_changelog("Version")?);
    let time = format!("--mtime=@{}", from_changelog("Timestamp")?);

    let sources = directory.join(format!("{name}.tar.gz"));
    let mut archive = Command::new("git");
    archive.args(["archive", "--format=tar.gz"]).arg(format!("--prefix={name}/"));
    run(archive.arg("--output").arg(&sources).arg("HEAD"))?;
    run(Command::new("tar").arg("-xf").arg(&sources).arg("-C").arg(&build))?;
    let tree = build.join(&name);
    // cargo of this machine, in place of a package of it.
    let mut package = Command::new("dpkg-buildpackage");
    run(package.args(["--build=binary", "-us", "-uc"]).current_dir(&tree))?;
    for package in files_in(&build)?.iter().filter(|it| it.extension().is_some_and(|e| e == "deb"))
    {
        let to = directory.join(package.file_name().context("a package has a name")?);
        fs::rename(package, &to).with_context(|| to.display().to_string())?;
    }

    let programs = directory.join(format!("{name}-x86_64-linux.tar.xz"));
    let mut archive = Command::new("tar");
    archive.args([
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mode=go=rX,u=rwX",
    ]);
    archive.args(["--format=gnu", "--xz", &time]).arg("--transform").arg(format!("s,^,{name}/,"));
    archive.arg("-cf").arg(&programs).arg("-C").arg(tree.join("debian/kernlane/usr"));
    archive.args(["bin", "lib", "share", "-C"]).arg(&tree);
    run(archive.args(["kmod", "LICENSE", "README.md", "CHANGELOG.md"]))?;
    fs::remove_dir_all(&build).with_context(|| build.display().to_string())?;

    let mut sums = String::new();
    for file in files_in(directory)? {
        let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
        let name = file.file_name().context("a file has a name")?.display().to_string();
        sums.push_str(&format!("{}  {name}\n", image::sealed::sha256(&bytes)));
    }
    let file = directory.join("SHA256SUMS");
    fs::write(&file, sums).with_context(|| file.display().to_string())
}

/// The files in a directory, ascending.
fn files_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
