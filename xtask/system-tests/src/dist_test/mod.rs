//! `cargo xtask dist-test`: what `cargo xtask dist` makes, used as a new user would.
//!
//! Output: a line for each test. Makes everything in two directories and compares the bytes. Then
//! installs the packages on a clean Debian 12, 13 and unstable, works with them without a checkout,
//! replaces functions of Linux 6.1, 6.12 and the newest in guests, removes the packages, and
//! compares the systems with what they were. Each step is made once, in `target/dist-test`.

mod root;

use crate::debian::disk;
use anyhow::{Context, Result, ensure};
use lab::live_tool::debian::{NEWEST_SUITE, StockKernel};
use lab::made::make;
use lab::score::TestScore;
use root::DebianRoot;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What makes the systems, and Debian's package of it.
const NEEDED: &[(&str, &str)] = &[("/usr/bin/mmdebstrap", "mmdebstrap")];

const DIRECTORY: &str = "target/dist-test";

/// The systems, and the kernels that guests on them run.
const SYSTEMS: [(&str, &[&str]); 3] = [
    ("bookworm", &["6.12-cloud", "6.1-cloud"]),
    ("trixie", &["6.12-cloud"]),
    (NEWEST_SUITE, &["newest-cloud"]),
];

/// The directory of what is published, made if it is not there.
///
/// # Errors
/// It cannot be made.
pub(crate) fn published() -> Result<PathBuf> {
    disk::install(lab::dist::NEEDED)?;
    let made = std::path::absolute(DIRECTORY)?.join("first");
    make(&made, || lab::dist::dist(&made).map(drop))?;
    Ok(made)
}

/// The Debian package whose file begins so.
///
/// # Errors
/// There is none.
pub(crate) fn package(published: &Path, prefix: &str) -> Result<PathBuf> {
    let is_it = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    };
    let found = debs(published)?.into_iter().find(is_it);
    found.with_context(|| format!("no package {prefix} in {}", published.display()))
}

/// Runs what this module describes. `suites`: the systems to work on, and nothing else; none is
/// everything.
///
/// # Errors
/// A test fails or cannot run.
pub fn dist_test(suites: &[String]) -> Result<()> {
    let known = SYSTEMS.map(|(suite, _)| suite);
    for suite in suites {
        ensure!(known.contains(&suite.as_str()), "{suite}: these are known: {}", known.join(", "));
    }
    host::interrupt::catch()?;
    disk::install(NEEDED)?;
    let first = published()?;
    let directory = std::path::absolute(DIRECTORY)?;
    let mut score = TestScore::default();
    if suites.is_empty() {
        is_published(&mut score, &directory, &first)?;
    }
    let asked = |suite: &str| suites.is_empty() || suites.iter().any(|asked| asked == suite);
    for (suite, kernels) in SYSTEMS.into_iter().filter(|(suite, _)| asked(suite)) {
        host::interrupt::check()?;
        let image = |name: &&str| StockKernel::named(name)?.boot_image();
        let kernels = kernels.iter().map(image).collect::<Result<Vec<_>>>()?;
        let root = DebianRoot::make(&directory.join(suite), suite, &kernels)?;
        try_packages(&mut score, &root, &first)?;
    }
    score.finish("what is published does not work; see target/dist-test")
}

/// Makes everything once more, and publishes the crates without uploading them.
fn is_published(score: &mut TestScore, directory: &Path, first: &Path) -> Result<()> {
    let second = directory.join("second/with a space");
    make(&second, || lab::dist::dist(&second).map(drop))?;
    score.count("two directories give the same bytes", same_bytes(first, &second));
    score.count("no file names a directory of this machine", names_no_path(first));
    let mut publish = Command::new("cargo");
    // In another directory each time: cargo would take crates of an earlier commit with the same
    // version.
    let target = tempfile::tempdir_in(directory)?;
    publish.args(["publish", "--workspace", "--dry-run", "--quiet", "--target-dir"]);
    score.count("the crates can be published", lab::run(publish.arg(target.path())));
    Ok(())
}

/// Installs the packages, works, and removes them.
fn try_packages(score: &mut TestScore, root: &DebianRoot, made: &Path) -> Result<()> {
    let suite = root.suite;
    // What a test that was killed has left.
    root.run("apt-get purge -y -q kernlane kernlane-dkms || true; rm -rf /tried/*")?;
    let before = root.files()?;
    root.add_packages(&debs(made)?)?;
    let mut work = |what: &str, script: &str| {
        score.count(&format!("{suite}: {what}"), root.run(script));
    };
    work("the packages install", "apt-get install -y -q /packages/*.deb");
    work(
        "the program, its manual and its completions are there",
        "kernlane --version && test -s /usr/share/man/man1/kernlane-record.1.gz &&
         test -s /usr/share/bash-completion/completions/kernlane",
    );
    // The status is 1: here is no kernel to replace functions of.
    work(
        "doctor says that recording is ready",
        "{ kernlane doctor || true; } | grep '^record: ready'",
    );
    work(
        "DKMS builds the module for each kernel whose headers are installed",
        "for kernel in /usr/src/linux-headers-*-amd64; do
             release=${kernel#/usr/src/linux-headers-}
             dkms install kernlane/0.1.0 -k \"$release\" || exit 1
             ls /lib/modules/\"$release\"/updates/dkms/kernlane.ko* || exit 1
         done",
    );
    let kernel = |release: &str| format!("--kernel /kernel/boot/vmlinuz-{release}");
    let first = root.releases.first().context("the system has no kernel to record")?;
    work(
        "records a workload, and lays the kernel out",
        &format!(
            "cd /tried && kernlane record files {} -o files.rec &&
             kernlane layout files.rec -o files.kll && kernlane report os-share files.rec",
            kernel(first)
        ),
    );
    let replaced = root.releases.iter().filter(|_| root.has_headers_of_kernels);
    for release in replaced {
        work(
            &format!("replaces functions of {release} while it runs in a guest"),
            &format!(
                "cd /tried && kernlane optimize net --live --inline --machine zen4 {} \
                 --headers /usr/src/linux-headers-{release} -o {release}.live",
                kernel(release)
            ),
        );
    }
    work("the packages go", "apt-get purge -y -q kernlane kernlane-dkms");
    let after = root.files()?;
    score.count(&format!("{suite}: every file is as before the packages came"), {
        let differ = lines_of_one(&before, &after);
        match differ.is_empty() {
            true => Ok(()),
            false => Err(format!("{} lines, first {}", differ.len(), differ[0])),
        }
    });
    Ok(())
}

/// The lines that only one of two sorted texts has.
fn lines_of_one<'a>(one: &'a str, other: &'a str) -> Vec<&'a str> {
    let [one, other] = [one, other].map(|text| text.lines().collect::<BTreeSet<_>>());
    one.symmetric_difference(&other).copied().collect()
}

fn debs(directory: &Path) -> Result<Vec<PathBuf>> {
    let files = names(directory)?.into_iter().map(|name| directory.join(name));
    Ok(files.filter(|file| file.extension().is_some_and(|it| it == "deb")).collect())
}

/// The names of the files in a directory, ascending.
fn names(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(PathBuf::from(entry?.file_name()));
    }
    names.sort();
    Ok(names)
}

fn same_bytes(first: &Path, second: &Path) -> Result<()> {
    let found = names(first)?;
    ensure!(found.len() >= 5, "there are only {found:?}");
    ensure!(found == names(second)?, "{found:?} and {:?}", names(second)?);
    for name in found {
        let [one, other] = [first, second].map(|directory| fs::read(directory.join(&name)));
        ensure!(one? == other?, "{} differs", name.display());
    }
    Ok(())
}

/// The packed programs name neither the directory in which they were built nor cargo's.
fn names_no_path(made: &Path) -> Result<()> {
    let home = std::env::var("HOME").context("HOME is not set")?;
    let here = std::env::current_dir()?.display().to_string();
    for name in names(made)?.iter().filter(|name| name.extension().is_some_and(|it| it == "xz")) {
        let mut unpack = Command::new("tar");
        let unpacked = lab::succeeded(unpack.arg("-xOf").arg(made.join(name)))?.stdout;
        for path in [format!("{home}/.cargo"), here.clone()] {
            let found = unpacked.windows(path.len()).any(|bytes| bytes == path.as_bytes());
            ensure!(!found, "{} names {path}", name.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changed_came_or_went_is_seen() {
        let before = "a  ./etc/passwd\nb  ./etc/group";
        assert_eq!(lines_of_one(before, before), Vec::<&str>::new());
        assert_eq!(lines_of_one(before, "a  ./etc/passwd"), ["b  ./etc/group"]);
        let changed = "a  ./etc/passwd\nc  ./etc/group";
        assert_eq!(lines_of_one(before, changed), ["b  ./etc/group", "c  ./etc/group"]);
    }
}
