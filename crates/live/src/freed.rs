//! Whether the tables that the kernel frees after boot are undamaged: alternatives, returns,
//! retpolines, calls, sealed ENDBRs, lock prefixes, the tracer's sites, and the functions that must
//! not be probed.
//!
//! Memory does not show these tables any more. So another file must vouch for the vmlinux: the list
//! of digests of the package that it came from, or the kernel's boot image, which holds the same
//! sections. This module reads these files and never changes anything.

use crate::resident::check_bounds;
use anyhow::{Context, Result, bail, ensure};
use image::BuildId;
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use md5::{Digest, Md5};
use object::{Object, ObjectSection};
use std::path::Path;

/// The sections that hold these tables, with the symbols around them, where there are some. The
/// tracer's sites and the functions that must not be probed are in `.init.data`.
pub const SECTIONS: [(&str, Option<(&str, &str)>); 9] = [
    (".altinstructions", Some(("__alt_instructions", "__alt_instructions_end"))),
    (".altinstr_replacement", None),
    (".parainstructions", Some(("__parainstructions", "__parainstructions_end"))),
    (".return_sites", Some(("__return_sites", "__return_sites_end"))),
    (".retpoline_sites", Some(("__retpoline_sites", "__retpoline_sites_end"))),
    (".call_sites", Some(("__call_sites", "__call_sites_end"))),
    (".ibt_endbr_seal", Some(("__ibt_endbr_seal", "__ibt_endbr_seal_end"))),
    (".smp_locks", Some(("__smp_locks", "__smp_locks_end"))),
    (".init.data", None),
];

/// Checks that each of these tables is where the symbols around it say.
///
/// # Errors
/// One is not: the vmlinux is damaged.
pub fn check_all_bounds(kernel: &LinkedKernel<'_>) -> Result<()> {
    for (name, bounds) in SECTIONS {
        if let Some(bounds) = bounds {
            check_bounds(kernel, name, bounds)?;
        }
    }
    Ok(())
}

/// Where dpkg keeps the digests of the files of each installed package.
pub const PACKAGES: &str = "/var/lib/dpkg/info";

/// Compares a vmlinux with the digest that its package has for it: `bytes`, read from `path`.
/// `packages` is [`PACKAGES`]. Gives the package's name; `None` if no installed package of a kernel
/// has the file.
///
/// # Errors
/// The digests differ: the vmlinux is damaged.
pub fn package(path: &Path, bytes: &[u8], packages: &Path) -> Result<Option<String>> {
    // Debian's -dbg package has the same file under several names.
    let path = std::fs::canonicalize(path).with_context(|| path.display().to_string())?;
    let entries = std::fs::read_dir(packages).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(package) =
            name.strip_suffix(".md5sums").filter(|package| package.starts_with("linux-image-"))
        else {
            continue;
        };
        let list = std::fs::read_to_string(entry.path())
            .with_context(|| format!("reading {}", entry.path().display()))?;
        let Some(expected) = digest_of(&list, &path) else { continue };
        let found: String = Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        ensure!(
            found == expected,
            "{} is not the file of the package {package} (MD5 {found}, not {expected}): it is \
             damaged, install the package again (apt-get install --reinstall {package})",
            path.display()
        );
        return Ok(Some(package.to_owned()));
    }
    Ok(None)
}

/// `list`: a line `MD5  PATH` for each file, without the first slash of the path.
fn digest_of<'a>(list: &'a str, path: &Path) -> Option<&'a str> {
    list.lines().find_map(|line| {
        let (digest, file) = line.split_once("  ")?;
        (Path::new("/").join(file) == path).then_some(digest)
    })
}

/// Compares a vmlinux with the kernel of a boot image, `unpacked`. Gives whether they have the same
/// build id.
///
/// # Errors
/// The kernel of the boot image cannot be read. Or both have the same build id, and a section
/// differs.
pub fn boot_image(kernel: &LinkedKernel<'_>, unpacked: &[u8]) -> Result<bool> {
    let elf = object::File::parse(unpacked).context("its kernel is not an ELF file")?;
    let id = elf.build_id().context("the notes of its kernel cannot be read")?;
    if id.map(BuildId::from_bytes).as_ref() != Some(&kernel.build_id) {
        return Ok(false);
    }
    for name in kernel.loaded_names() {
        compare_section(kernel, &elf, name)?;
    }
    // A section that lost its name in the file is not among the names of the file.
    for (name, _) in SECTIONS {
        ensure!(
            elf.section_by_name(name).is_none() || kernel.loaded(name).is_some(),
            "the vmlinux has no section {name}, and the boot image has one: the vmlinux is \
             damaged, install or fetch it again"
        );
    }
    Ok(true)
}

/// Compares one section of a vmlinux with that of the same name in a boot image's kernel.
///
/// # Errors
/// They differ.
pub fn compare_section(
    kernel: &LinkedKernel<'_>,
    boot: &object::File<'_>,
    name: &str,
) -> Result<()> {
    let Some((at, ours)) = kernel.loaded(name) else { return Ok(()) };
    let section = boot.section_by_name(name).with_context(|| {
        format!(
            "the vmlinux has a section {name}, and the boot image has none: one of them is damaged"
        )
    })?;
    let theirs = section.data().with_context(|| format!("{name} of the boot image"))?;
    ensure!(
        section.address() == at.0 && theirs.len() == ours.len(),
        "section {name} has another place or size in the vmlinux than in the boot image: one of \
         them is damaged"
    );
    match ours.iter().zip(theirs).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(n) => bail!(
            "the vmlinux and the boot image differ at {} in {name}: one of them is damaged, \
             install or fetch the vmlinux again",
            LinkAddr(at.0 + n as u64)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_its_package_s_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("vmlinux");
        std::fs::write(&path, "abc").unwrap();
        let info = directory.path().join("info");
        std::fs::create_dir(&info).unwrap();
        let listed = path.strip_prefix("/").unwrap().display();
        // RFC 1321, A.5: the digest of "abc".
        let list = format!("00  usr/other\n900150983cd24fb0d6963f7d28e17f72  {listed}\n");
        std::fs::write(info.join("linux-image-1-dbg.md5sums"), list).unwrap();
        let found = package(&path, b"abc", &info).unwrap();
        assert_eq!(found.as_deref(), Some("linux-image-1-dbg"));
        let error = package(&path, b"abb", &info).unwrap_err().to_string();
        assert!(error.contains("apt-get install --reinstall linux-image-1-dbg"), "{error}");
        // The same file by another name, and a file of no package.
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(package(&link, b"abb", &info).is_err());
        let other = directory.path().join("other");
        std::fs::write(&other, "abc").unwrap();
        assert_eq!(package(&other, b"abc", &info).unwrap(), None);
        assert_eq!(package(&path, b"abb", &directory.path().join("none")).unwrap(), None);
    }
}
