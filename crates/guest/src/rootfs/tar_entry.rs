//! One entry of a tar stream becomes a node of a tree.
//!
//! Input: an entry of a package, of a layer of an image, or of a tarball of a root file system.
//! Output: its path and its node. This module refuses entries that leave the tree, and more bytes
//! than are allowed.

use super::{FileNode, RootFs, clean};
use anyhow::{Context, Result, bail, ensure};
use std::io::Read;

/// `stat.st_mode` bits of special files.
const S_IFIFO: u32 = 0o010_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFBLK: u32 = 0o060_000;

/// How many bytes of files and how many entries may still come. A small archive can unpack to very
/// many bytes.
pub(crate) struct Budget {
    bytes: u64,
    entries: u64,
    limit: u64,
}

/// Entries of a tree with the largest memory of a guest. The largest images have a million.
const MOST_ENTRIES: u64 = 1 << 23;
/// The least bytes that an entry counts as, even without content.
const ENTRY: u64 = 512;

impl Budget {
    pub(crate) fn of(bytes: u64) -> Budget {
        Budget { bytes, entries: MOST_ENTRIES.min(bytes / ENTRY), limit: bytes }
    }

    /// For packages, whose sizes apt knows.
    pub(crate) fn unlimited() -> Budget {
        Budget { bytes: u64::MAX, entries: u64::MAX, limit: u64::MAX }
    }

    pub(crate) fn bytes_left(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn entry(&mut self, path: &str) -> Result<()> {
        self.entries = self.entries.checked_sub(1).with_context(|| self.spent(path))?;
        Ok(())
    }

    fn spent(&self, path: &str) -> String {
        format!("/{path}: more than {} MB or too many files", self.limit >> 20)
    }

    /// Everything in `from`, which belongs to the file `path`.
    pub(crate) fn read(&mut self, path: &str, size: u64, from: impl Read) -> Result<Vec<u8>> {
        ensure!(size <= self.bytes, self.spent(path));
        let mut data = Vec::with_capacity(size.min(1 << 20) as usize);
        from.take(self.bytes.saturating_add(1))
            .read_to_end(&mut data)
            .with_context(|| format!("reading /{path}"))?;
        self.bytes = self.bytes.checked_sub(data.len() as u64).with_context(|| self.spent(path))?;
        Ok(data)
    }
}

/// The entry's path, without leading slash; empty for the root.
pub(crate) fn entry_path(entry: &tar::Entry<'_, impl Read>) -> Result<String> {
    let path = String::from_utf8(entry.path_bytes().into_owned()).map_err(|error| {
        let name = String::from_utf8_lossy(error.as_bytes()).into_owned();
        anyhow::anyhow!("{name:?}: the file's name is not UTF-8")
    })?;
    ensure!(!path.contains('\0'), "{path:?}: a file's name cannot contain NUL");
    clean(&path)
}

/// The node of an entry that has this path. `tree` has the files that hard links can mean. `None`:
/// the entry is not a file.
pub(crate) fn entry_node(
    entry: &mut tar::Entry<'_, impl Read>,
    path: &str,
    tree: &RootFs,
    budget: &mut Budget,
) -> Result<Option<FileNode>> {
    budget.entry(path)?;
    let header = entry.header();
    let permissions = header.mode().with_context(|| format!("/{path}: its permissions"))? & 0o7777;
    let device = |kind: u32| -> Result<FileNode> {
        let number = |found: std::io::Result<Option<u32>>| {
            Ok::<u32, anyhow::Error>(
                found.with_context(|| format!("/{path}: its device"))?.unwrap_or(0),
            )
        };
        let (major, minor) = (number(header.device_major())?, number(header.device_minor())?);
        Ok(FileNode::Special { mode: kind | permissions, major, minor })
    };
    Ok(Some(match header.entry_type() {
        tar::EntryType::Directory => FileNode::Directory { permissions },
        // Before POSIX, a directory was a file whose name ends so.
        tar::EntryType::Regular if entry.path_bytes().ends_with(b"/") => {
            FileNode::Directory { permissions }
        }
        tar::EntryType::Regular | tar::EntryType::Continuous | tar::EntryType::GNUSparse => {
            let size = entry.size();
            FileNode::File { permissions, data: budget.read(path, size, entry)?.into() }
        }
        tar::EntryType::Symlink => {
            let target = link_name(entry, path)?;
            stays_inside(path, &target)?;
            FileNode::Symlink { target }
        }
        tar::EntryType::Link => {
            let target = link_name(entry, path)?;
            let target = clean(&target)
                .with_context(|| format!("/{path}: a hard link to a file outside of the tree"))?;
            tree.linked(&target).with_context(|| format!("/{path}"))?
        }
        tar::EntryType::Fifo => {
            FileNode::Special { mode: S_IFIFO | permissions, major: 0, minor: 0 }
        }
        tar::EntryType::Char => device(S_IFCHR)?,
        tar::EntryType::Block => device(S_IFBLK)?,
        // Attributes that hold for all entries: a comment of git.
        tar::EntryType::XGlobalHeader => return Ok(None),
        other => bail!("/{path}: a tar entry of type {other:?}, which Kernlane does not support"),
    }))
}

fn link_name(entry: &tar::Entry<'_, impl Read>, path: &str) -> Result<String> {
    let name =
        entry.link_name_bytes().with_context(|| format!("/{path}: a link without a target"))?;
    let name = String::from_utf8(name.into_owned())
        .with_context(|| format!("/{path}: the link's target is not UTF-8"))?;
    ensure!(
        !name.is_empty() && !name.contains('\0'),
        "/{path}: the link's target {name:?} is not a path"
    );
    Ok(name)
}

/// Checks that a symbolic link at `path` does not lead above the tree's root. An absolute target
/// begins at the root.
///
/// # Errors
/// Names the link and its target.
pub(crate) fn stays_inside(path: &str, target: &str) -> Result<()> {
    // Directories between the root and the link.
    let mut depth = if target.starts_with('/') { 0 } else { path.matches('/').count() };
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                depth = depth.checked_sub(1).with_context(|| {
                    format!("/{path}: the symbolic link to {target:?} leaves the directory")
                })?;
            }
            _ => depth += 1,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_may_climb_to_the_root_and_no_further() {
        for (path, target) in
            [("a/b/l", "../../x"), ("l", "x"), ("l", "/x/../y"), ("a/l", ".."), ("l", "a/../b")]
        {
            assert!(stays_inside(path, target).is_ok(), "{path} {target}");
        }
        for (path, target) in
            [("a/b/l", "../../../x"), ("l", ".."), ("l", "/.."), ("a/l", "b/../../../a/l")]
        {
            let said = stays_inside(path, target).unwrap_err().to_string();
            assert!(said.contains(&format!("/{path}")) && said.contains(target), "{said}");
        }
    }

    #[test]
    fn a_budget_ends_with_the_path_that_exceeds_it() {
        let mut budget = Budget::of(2048);
        assert_eq!(budget.read("a", 3, &b"abc"[..]).unwrap(), b"abc");
        // The entry says less than it has.
        let said = format!("{:#}", budget.read("b", 0, &[0; 4096][..]).unwrap_err());
        assert!(said.contains("/b"), "{said}");
        assert!(budget.read("c", 4096, std::io::empty()).is_err());
        assert!((0..4).all(|_| budget.entry("d").is_ok()) && budget.entry("e").is_err());
    }
}
