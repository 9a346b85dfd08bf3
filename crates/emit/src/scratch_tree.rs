//! A scratch tree for the kernel's own link: symbolic links to the build tree.
//!
//! Input: a built tree. Output: a directory in which kbuild can link. Only what kbuild writes is a
//! real file there, so the build tree itself is never written to.

use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

/// Directories that kbuild writes to while it links. They are copied; all others become links.
const WRITTEN: [&str; 4] = ["init", "include/generated", "include/config", "arch/x86/boot"];
/// Large files that kbuild makes again. They are not copied.
const REMADE: [&str; 9] = [
    "vmlinux",
    "vmlinux.bin",
    "vmlinux.bin.all",
    "vmlinux.bin.gz",
    "vmlinux.bin.xz",
    "vmlinux.bin.zst",
    "vmlinux.bin.lz4",
    "vmlinux.relocs",
    "bzImage",
];

/// The first character of a path that kbuild takes for the end of a word or for a rule.
fn stumbled_over(path: &Path) -> Option<char> {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+@,=~".contains(c);
    path.to_string_lossy().chars().find(|&c| !is_plain(c))
}

/// Refuses a tree in which kbuild cannot work.
///
/// # Errors
/// Its path has a blank or another character that means something to make.
pub(crate) fn ensure_plain(tree: &Path) -> Result<()> {
    if let Some(found) = stumbled_over(tree) {
        bail!(
            "{}: kbuild cannot work in a path with {found:?}: move the tree to another one",
            tree.display()
        );
    }
    Ok(())
}

/// The directory in which a scratch tree for results in `home` can stand: `home`, or else the
/// nearest one above it on the same file system in which kbuild can work.
///
/// # Errors
/// There is none.
pub(crate) fn place(home: &Path) -> Result<&Path> {
    let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
    let place = home.ancestors().find(|above| stumbled_over(above).is_none());
    let place = place.filter(|place| device(place).is_some() && device(place) == device(home));
    ensure!(
        place.is_some(),
        "{}: kbuild cannot work in a path with {:?}, and no directory above it on the same file \
         system has another path: choose another directory",
        home.display(),
        stumbled_over(home).unwrap_or(' ')
    );
    Ok(place.unwrap_or(home))
}

/// Fills the empty directory `scratch` with links to the tree at `tree`, and with copies of what
/// kbuild writes while it links.
///
/// # Errors
/// A file cannot be linked to or copied.
pub(crate) fn fill(tree: &Path, scratch: &Path) -> Result<()> {
    mirror(tree, Path::new(""), scratch)
}

fn mirror(tree: &Path, relative: &Path, scratch: &Path) -> Result<()> {
    let from = tree.join(relative);
    let to = scratch.join(relative);
    fs::create_dir_all(&to).with_context(|| format!("{}: cannot be made", to.display()))?;
    let named = || format!("{}: cannot be mirrored", from.display());
    for entry in fs::read_dir(&from).with_context(named)? {
        let entry = entry.with_context(named)?;
        let name = entry.file_name();
        let path = relative.join(&name);
        let target = scratch.join(&path);
        if scratch.starts_with(entry.path()) {
            continue;
        }
        if WRITTEN.iter().any(|w| Path::new(w) == path) {
            copy_all(&entry.path(), &target)?;
        } else if WRITTEN.iter().any(|w| Path::new(w).starts_with(&path)) {
            mirror(tree, &path, scratch)?;
        } else if is_written_at_top(relative, &name.to_string_lossy()) {
            if !is_remade_at_top(&name.to_string_lossy()) {
                copy(&entry.path(), &target)?;
            }
        } else {
            symlink(entry.path(), &target)
                .with_context(|| format!("{}: cannot be linked to", entry.path().display()))?;
        }
    }
    Ok(())
}

/// Whether the linking kbuild writes the file, at the top of the tree. A link to such a file would
/// let kbuild write into the tree itself.
fn is_written_at_top(relative: &Path, name: &str) -> bool {
    relative.as_os_str().is_empty()
        && (is_remade_at_top(name)
            || name.starts_with(".vmlinux")
            || name.starts_with("modules.builtin")
            || name == ".version"
            || (name.starts_with('.') && name.ends_with(".cmd")))
}

/// Whether such a file is made again in any case, so that it need not be copied.
fn is_remade_at_top(name: &str) -> bool {
    name.starts_with(".tmp_")
        || name.starts_with(".btf.")
        || matches!(
            name,
            "vmlinux"
                | "vmlinux.unstripped"
                | "vmlinux.o"
                | "vmlinux.a"
                | "vmlinux.map"
                | "System.map"
        )
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("{}: cannot be copied", from.display()))?;
    // kbuild decides by the time stamps what to make again.
    let time = fs::metadata(from).and_then(|m| m.modified());
    let set = time.and_then(|t| fs::File::options().write(true).open(to)?.set_modified(t));
    // A file without write permission (a read-only source) keeps the new time. kbuild then only
    // does more work.
    match set {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        other => other.with_context(|| format!("{}: its time cannot be set", to.display())),
    }
}

fn copy_all(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("{}: cannot be made", to.display()))?;
    for entry in
        fs::read_dir(from).with_context(|| format!("{}: cannot be read", from.display()))?
    {
        let entry = entry?;
        let target = to.join(entry.file_name());
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_all(&entry.path(), &target)?;
        } else if REMADE.iter().any(|name| entry.file_name() == *name) {
            continue;
        } else if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, &target)
                .with_context(|| format!("{}: cannot be linked", target.display()))?;
        } else if kind.is_file() {
            copy(&entry.path(), &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_works_where_make_understands_the_path() {
        let top = tempfile::tempdir().unwrap();
        let plain = top.path().join("plain/new");
        let blank = top.path().join("plain/with a blank/new");
        for directory in [&plain, &blank] {
            fs::create_dir_all(directory).unwrap();
        }
        assert_eq!(place(&plain).unwrap(), plain);
        assert_eq!(place(&blank).unwrap(), top.path().join("plain"));
        let error = place(Path::new("with a blank")).unwrap_err().to_string();
        assert!(
            error.starts_with("with a blank: kbuild cannot work in a path with ' '"),
            "{error}"
        );
        ensure_plain(&plain).unwrap();
        let error = ensure_plain(Path::new("/a:b")).unwrap_err().to_string();
        assert_eq!(
            error,
            "/a:b: kbuild cannot work in a path with ':': move the tree to another one"
        );
    }

    #[test]
    fn what_the_link_writes_is_no_link_into_the_tree() {
        let tree = tempfile::tempdir().unwrap();
        let written = [
            "vmlinux.unstripped",
            "modules.builtin.modinfo",
            ".modules.builtin.modinfo.cmd",
            ".vmlinux.unstripped.cmd",
            ".version",
        ];
        for file in written.into_iter().chain(["Makefile"]) {
            fs::write(tree.path().join(file), file).unwrap();
        }
        let scratch = tempfile::tempdir().unwrap();
        fill(tree.path(), scratch.path()).unwrap();
        for file in written {
            let copy = scratch.path().join(file);
            assert!(!copy.is_symlink(), "{file}");
            assert_eq!(copy.exists(), file != "vmlinux.unstripped", "{file}");
        }
        assert!(scratch.path().join("Makefile").is_symlink());
    }
}
