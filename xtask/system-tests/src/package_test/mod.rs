//! `cargo xtask package-test`: the recipe of `docs/how-to/package.md`, by the commands of the page
//! itself.
//!
//! Input: the tree of the kernel that clang built with a profile. Output: a line for each test.
//! Makes Debian's packages of the relinked kernel in two directories, by its own rules, by the
//! page's rules and by its `PKGBUILD`; installs one on a Debian 12 in a guest without KVM, boots it
//! by GRUB, and works in it. Each step is made once, in `target/package-test`, with a log.

mod guest;
mod left;
mod page;
mod source;

use crate::debian::disk;
use anyhow::{Context, Result, ensure};
use guest::Left;
use lab::made::make;
use lab::run;
use lab::score::TestScore;
use page::Page;
use source::{NOTES, Source, debs, file_in, image_package};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What makes the packages, and Debian's package of it.
const NEEDED: &[(&str, &str)] = &[
    ("/usr/bin/dpkg-buildpackage", "dpkg-dev"),
    ("/usr/bin/dh", "debhelper"),
    ("/usr/bin/rsync", "rsync"),
];
const WORKLOAD: &str = "files";
/// The results of relinking that a package holds, by where they are in it.
const HELD: [(&str, &str); 2] =
    [("arch/x86/boot/bzImage", "boot/vmlinuz-"), ("System.map", "boot/System.map-")];

/// Runs what this module describes.
///
/// # Errors
/// A test fails or cannot run.
pub fn package_test() -> Result<()> {
    host::interrupt::catch()?;
    disk::install(NEEDED)?;
    let image = disk::image()?;
    let page = Page::read()?;
    // What a packager types is tested.
    let kernlane = lab::kernlane()?;
    let directory = std::path::absolute("target/package-test")?;
    let source = |name: &str, zone| Source::new(&page, &kernlane, directory.join(name), zone);

    // The compiler's kernel, and its layout.
    let first = source("first", "UTC")?;
    let plain = first.packages("plain")?;
    let layout = layout(&kernlane, &first, &directory)?;
    let inputs = [kernlane.as_path(), &layout, Path::new("docs/how-to/package.md")];
    let made_of = made_of(&inputs)?;
    let name = |what: &str| format!("{what}-{made_of}");

    // The compiler's kernel is in the tree, and relinked in place.
    first.change_rules()?;
    first.add_layout(&layout)?;
    let packed = first.packages(&name("packed"))?;
    // Another directory and time zone, without a package of the compiler's kernel before.
    let second = source("second", "Asia/Tokyo")?;
    second.change_rules()?;
    second.add_layout(&layout)?;
    let again = second.packages(&name("packed"))?;
    let by_rules = first.package_by_rules(&name("by-rules"))?;
    let by_functions = first.package_by_functions(&name("by-functions"))?;
    let relinked = directory.join(name("relinked"));
    make(&relinked, || {
        let mut command = Command::new(&kernlane);
        command.args(["relink", "--tree"]).arg(&first.tree).arg("--layout").arg(&layout);
        run(command.arg("--output").arg(&relinked))
    })?;

    let mut score = TestScore::default();
    score.count("clang takes the profile by KCFLAGS", second.takes_profile());
    let package = image_package(&packed)?;
    score.count("`make bindeb-pkg` packs the relinked kernel", holds(&package, &relinked));
    let refused = holds(&image_package(&plain)?, &relinked);
    score.holds("a package of the compiler's kernel is told from it", refused.is_err());
    score.count(
        "packages of two directories and time zones have the same bytes",
        same_bytes(&packed, &again),
    );
    let by_rules = image_package(&by_rules)?;
    score.count("the rules of a source package pack it", holds(&by_rules, &relinked));
    let by_functions = by_functions.join("usr/lib/modules");
    score.count("the functions of a PKGBUILD pack it", functions_hold(&by_functions, &relinked));

    let log = directory.join("guest.console");
    let left = guest::installed(&image, &page, &package, &packed.join(NOTES), &log)?;
    host::interrupt::check()?;
    tell(&mut score, &left, &package, &image_package(&plain)?)?;
    score.finish("the recipe of docs/how-to/package.md does not work; see target/package-test")
}

/// The tests of what the guest left. `plain` is the package of the compiler's kernel.
fn tell(score: &mut TestScore, left: &Left, package: &Path, plain: &Path) -> Result<()> {
    score.count("Debian 12 installs the package, and GRUB boots it", left::booted(left));
    score.count("the running kernel has the build id of the relinked one", left::has_notes(left));
    let running = left.text("kallsyms")?;
    let map = |package: &Path| -> Result<String> {
        Ok(String::from_utf8(file_in(package, "boot/System.map-")?)?)
    };
    let lies = left::lies_as(&running, &map(package)?);
    score.count("its functions lie as the package's System.map says", lies);
    let elsewhere = left::lies_as(&running, &map(plain)?);
    score.holds("they do not lie as in the compiler's kernel", elsewhere.is_err());
    for (what, work) in [
        ("programs and libraries of Debian have their checksums", "verify"),
        ("tar and gzip in a pipe", "archive"),
        ("sort", "sorts"),
        ("modules of the package load", "modules"),
    ] {
        score.count(what, left::did(left, work));
    }
    score.count("no unit fails, and the kernel has no complaint", left::nothing_failed(left));
    Ok(())
}

/// The layout of the compiler's kernel for a workload.
fn layout(kernlane: &Path, source: &Source<'_>, directory: &Path) -> Result<PathBuf> {
    let (recording, layout) = (directory.join("files.rec"), directory.join("layout.kll"));
    let command = |words: &[&str]| {
        let mut command = Command::new(kernlane);
        command.args(words).arg("--kernel").arg(&source.tree);
        command
    };
    make(&recording, || run(command(&["record", WORKLOAD]).arg("--output").arg(&recording)))?;
    make(&layout, || run(command(&["layout"]).arg(&recording).arg("--output").arg(&layout)))?;
    Ok(layout)
}

/// A short name for what these files hold.
fn made_of(files: &[&Path]) -> Result<String> {
    let mut text = String::new();
    for file in files {
        let bytes = fs::read(file).with_context(|| file.display().to_string())?;
        text.push_str(&image::sealed::sha256(&bytes));
    }
    Ok(image::sealed::sha256(text.as_bytes())[..12].to_owned())
}

/// The package holds the kernel in the directory `relinked`.
fn holds(package: &Path, relinked: &Path) -> Result<()> {
    for (name, begins) in HELD {
        let (held, file) = (file_in(package, begins)?, relinked.join(name));
        let made = fs::read(&file).with_context(|| file.display().to_string())?;
        ensure!(held == made, "{}: its {begins} is not {}", package.display(), file.display());
    }
    Ok(())
}

/// Both directories have packages of the same names with the same bytes.
fn same_bytes(one: &Path, other: &Path) -> Result<()> {
    let (ones, others) = (debs(one)?, debs(other)?);
    ensure!(!ones.is_empty() && ones.len() == others.len(), "{ones:?} and {others:?}");
    for (one, other) in ones.iter().zip(&others) {
        ensure!(one.file_name() == other.file_name(), "{one:?} and {other:?}");
        ensure!(fs::read(one)? == fs::read(other)?, "{one:?} and {other:?} differ");
    }
    Ok(())
}

/// The only kernel in a directory of modules is the relinked one, and it has modules.
fn functions_hold(modules: &Path, relinked: &Path) -> Result<()> {
    let mut releases = fs::read_dir(modules).with_context(|| modules.display().to_string())?;
    let release = releases.next().context("no release")??.path();
    ensure!(releases.next().is_none(), "{}: two releases", modules.display());
    let [held, made] =
        [release.join("vmlinuz"), relinked.join(HELD[0].0)].map(|file| fs::read(&file));
    ensure!(held? == made?, "{}: has another vmlinuz", release.display());
    ensure!(release.join("kernel").is_dir(), "{}: has no module", release.display());
    ensure!(fs::read_to_string(release.join("pkgbase"))? == "linux-fast\n", "pkgbase");
    Ok(())
}
