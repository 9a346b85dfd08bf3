//! The guest's root file system in memory, until it is written as an archive.
//!
//! Input: the contents of Debian packages (tar streams), files and links; later ones replace
//! earlier ones. Output: cpio bytes, sorted by path. Packages are unpacked, not installed: no
//! maintainer script runs, and every file belongs to root. This module never touches the host's
//! file system, so it needs no privileges.

use crate::cpio;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::rc::Rc;

#[derive(Clone, Debug, PartialEq, Eq)]
enum FileNode {
    Directory { permissions: u32 },
    File { permissions: u32, data: Rc<[u8]> },
    Symlink { target: String },
}

/// A tree of files. Paths have no leading slash and no `.` or `..`. Every parent of a path is a
/// directory in the tree.
#[derive(Default)]
pub(crate) struct RootFs {
    nodes: BTreeMap<String, FileNode>,
}

/// The number of symbolic links that Linux follows in one path.
const MAX_LINKS: u32 = 40;

impl RootFs {
    /// Debian's skeleton. It has a merged `/usr`: the links exist before packages are unpacked, so
    /// that their `/bin/x` becomes `/usr/bin/x`. It also has the mount points, and the accounts
    /// root, nobody and www-data, which installing base-files and base-passwd would create.
    pub(crate) fn debian() -> Self {
        let mut root = RootFs::default();
        let directories = [
            "dev",
            "etc",
            "home",
            "kernlane",
            "opt",
            "proc",
            "root",
            "run",
            "srv",
            "sys",
            "tmp",
            "usr",
            "usr/bin",
            "usr/lib",
            "usr/lib64",
            "usr/sbin",
            "var",
            "var/cache",
            "var/lib",
            "var/log",
            "var/tmp",
        ];
        for directory in directories {
            let permissions = if directory.ends_with("tmp") { 0o1777 } else { 0o755 };
            root.nodes.insert(directory.into(), FileNode::Directory { permissions });
        }
        for (link, target) in [
            ("bin", "usr/bin"),
            ("sbin", "usr/sbin"),
            ("lib", "usr/lib"),
            ("lib64", "usr/lib64"),
            ("var/run", "/run"),
            ("var/lock", "/run/lock"),
        ] {
            root.nodes.insert(link.into(), FileNode::Symlink { target: target.into() });
        }
        let file = |text: &str| FileNode::File { permissions: 0o644, data: text.as_bytes().into() };
        root.nodes.insert(
            "etc/passwd".into(),
            file(
                "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/sh\n\
                  nobody:x:65534:65534:nobody:/:/bin/sh\n",
            ),
        );
        root.nodes.insert(
            "etc/group".into(),
            file("root:x:0:\nadm:x:4:\nwww-data:x:33:\nnogroup:x:65534:\n"),
        );
        root.nodes.insert("etc/hosts".into(), file("127.0.0.1 localhost guest\n"));
        root.nodes.insert("etc/hostname".into(), file("guest\n"));
        root
    }

    /// Adds or replaces a regular file and creates missing parents. `path` may begin with a slash.
    pub(crate) fn file(&mut self, path: &str, permissions: u32, data: &[u8]) -> Result<()> {
        self.insert(path, FileNode::File { permissions, data: data.into() })
    }

    pub(crate) fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        self.insert(path, FileNode::Symlink { target: target.into() })
    }

    /// Whether a file, directory or link exists. Links among the parents are followed, but not the
    /// last component.
    pub(crate) fn contains(&self, path: &str) -> bool {
        self.resolve_parent(path).is_ok_and(|path| self.nodes.contains_key(&path))
    }

    /// Unpacks a tar stream, which `dpkg-deb --fsys-tarfile` prints, without the paths for which
    /// `leave_out` returns true.
    pub(crate) fn unpack(
        &mut self,
        tar: impl Read,
        leave_out: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let mut archive = tar::Archive::new(tar);
        for entry in archive.entries().context("reading the package's tar stream")? {
            let mut entry = entry.context("reading the package's tar stream")?;
            let path = String::from_utf8(entry.path_bytes().into_owned())
                .context("a file name in the package is not UTF-8")?;
            let path = clean(&path)?;
            if path.is_empty() || leave_out(&path) {
                continue;
            }
            let permissions = entry.header().mode()? & 0o7777;
            let node = match entry.header().entry_type() {
                tar::EntryType::Directory => FileNode::Directory { permissions },
                tar::EntryType::Regular => {
                    let mut data = Vec::with_capacity(entry.size().min(1 << 30) as usize);
                    entry.read_to_end(&mut data).with_context(|| format!("reading /{path}"))?;
                    FileNode::File { permissions, data: data.into() }
                }
                tar::EntryType::Symlink => FileNode::Symlink { target: link_name(&entry, &path)? },
                tar::EntryType::Link => self.linked(&clean(&link_name(&entry, &path)?)?)?,
                other => bail!(
                    "/{path}: a tar entry of type {other:?}, which Kernlane does not support in a \
                     guest's package"
                ),
            };
            self.insert(&path, node)?;
        }
        Ok(())
    }

    /// Writes the whole tree as an archive, with parents before children, in byte order of the
    /// paths.
    pub(crate) fn write(&self, out: impl Write) -> Result<()> {
        let mut cpio = cpio::CpioWriter::new(out);
        for (path, node) in &self.nodes {
            match node {
                FileNode::Directory { permissions } => cpio.directory(path, *permissions),
                FileNode::File { permissions, data } => cpio.file(path, *permissions, data),
                FileNode::Symlink { target } => cpio.symlink(path, target),
            }
            .with_context(|| format!("writing /{path} of the root file system"))?;
        }
        cpio.finish().context("writing the root file system")?;
        Ok(())
    }

    /// A hard link shares the bytes. The guest sees two files.
    fn linked(&self, path: &str) -> Result<FileNode> {
        let path = self.resolve_parent(path)?;
        match self.nodes.get(&path) {
            Some(node @ FileNode::File { .. }) => Ok(node.clone()),
            _ => bail!("a hard link to /{path}, which is not a file of the package"),
        }
    }

    fn insert(&mut self, path: &str, node: FileNode) -> Result<()> {
        let path = self.resolve_parent(&clean(path)?)?;
        for (at, _) in path.match_indices('/') {
            match self.nodes.get(&path[..at]) {
                None => drop(
                    self.nodes
                        .insert(path[..at].into(), FileNode::Directory { permissions: 0o755 }),
                ),
                Some(FileNode::Directory { .. }) => {}
                Some(_) => bail!("/{path}: /{} is not a directory", &path[..at]),
            }
        }
        match (self.nodes.get(&path), &node) {
            // If a package contains the directory `/lib`, that means the directory that the
            // skeleton's link refers to.
            (Some(FileNode::Symlink { .. }), FileNode::Directory { .. }) => return Ok(()),
            (
                Some(FileNode::Directory { .. }),
                FileNode::File { .. } | FileNode::Symlink { .. },
            ) => {
                bail!("/{path} is a directory and cannot become a file")
            }
            _ => {}
        }
        self.nodes.insert(path, node);
        Ok(())
    }

    /// The path after following every symbolic link among its parents.
    fn resolve_parent(&self, path: &str) -> Result<String> {
        let mut pending: Vec<String> = clean(path)?.split('/').rev().map(String::from).collect();
        let mut resolved: Vec<String> = Vec::new();
        let mut links = 0;
        while let Some(component) = pending.pop() {
            match component.as_str() {
                "" | "." => continue,
                ".." => drop(resolved.pop()),
                _ => resolved.push(component),
            }
            if pending.is_empty() {
                break;
            }
            if let Some(FileNode::Symlink { target }) = self.nodes.get(&resolved.join("/")) {
                links += 1;
                ensure!(links <= MAX_LINKS, "/{path}: too many symbolic links");
                resolved.pop();
                if target.starts_with('/') {
                    resolved.clear();
                }
                pending.extend(target.split('/').rev().map(String::from));
            }
        }
        Ok(resolved.join("/"))
    }
}

fn link_name(entry: &tar::Entry<'_, impl Read>, path: &str) -> Result<String> {
    let name =
        entry.link_name_bytes().with_context(|| format!("/{path}: a link without a target"))?;
    String::from_utf8(name.into_owned())
        .with_context(|| format!("/{path}: the link's target is not UTF-8"))
}

/// The path without a leading `/` or `./` and without a trailing `/`. Refuses `..`, which a package
/// contains only by attack or accident.
fn clean(path: &str) -> Result<String> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => bail!("{path:?} leaves the root file system"),
            _ => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tar(entries: &[(&str, tar::EntryType, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, kind, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o755);
            if matches!(kind, tar::EntryType::Symlink | tar::EntryType::Link) {
                header.set_size(0);
                builder.append_link(&mut header, path, content).unwrap();
            } else {
                header.set_size(content.len() as u64);
                builder.append_data(&mut header, path, content.as_bytes()).unwrap();
            }
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn packages_follow_merged_usr() {
        use tar::EntryType::{Directory, Link, Regular, Symlink};
        let mut root = RootFs::debian();
        let deb = tar(&[
            ("./bin/", Directory, ""),
            ("./bin/true", Regular, "x"),
            ("./bin/sh", Symlink, "true"),
            ("./usr/lib/a/b", Regular, "y"),
            ("./usr/lib/c", Link, "./usr/lib/a/b"),
        ]);
        root.unpack(&deb[..], |_| false).unwrap();
        assert_eq!(root.nodes["bin"], FileNode::Symlink { target: "usr/bin".into() });
        assert!(matches!(root.nodes["usr/bin/true"], FileNode::File { .. }));
        assert_eq!(root.nodes["usr/lib/c"], root.nodes["usr/lib/a/b"]);
        assert!(root.contains("/bin/sh") && root.contains("/lib/c") && !root.contains("/lib/d"));
    }

    #[test]
    fn paths_that_are_left_out_do_not_exist() {
        let mut root = RootFs::debian();
        root.unpack(&tar(&[("./usr/share/doc/x", tar::EntryType::Regular, "x")])[..], |path| {
            path.starts_with("usr/share/doc")
        })
        .unwrap();
        assert!(!root.contains("usr/share/doc/x"));
    }

    #[test]
    fn a_loop_of_links_and_a_path_to_the_outside_are_refused() {
        let mut root = RootFs::debian();
        root.symlink("a", "b").unwrap();
        root.symlink("b", "a").unwrap();
        assert!(root.file("a/x", 0o644, b"").is_err());
        assert!(root.file("../x", 0o644, b"").is_err());
        assert!(root.file("etc/passwd/x", 0o644, b"").is_err());
        assert!(root.file("etc", 0o644, b"").is_err());
    }

    #[test]
    fn damaged_tar_streams_do_not_panic() {
        let good = tar(&[
            ("./bin/true", tar::EntryType::Regular, "some text"),
            ("./bin/sh", tar::EntryType::Symlink, "true"),
        ]);
        let mut state = 1u64;
        for _ in 0..2000 {
            let mut bytes = good.clone();
            for _ in 0..1 + state % 4 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = (state >> 33) as usize % bytes.len();
                bytes[at] = (state >> 20) as u8;
            }
            bytes.truncate(bytes.len() - (state >> 40) as usize % 700);
            let _ = RootFs::debian().unpack(&bytes[..], |_| false);
        }
    }

    #[test]
    fn the_archive_has_parents_first() {
        let mut root = RootFs::default();
        root.file("x/y/z", 0o644, b"1").unwrap();
        let mut bytes = Vec::new();
        root.write(&mut bytes).unwrap();
        let find = |name: &[u8]| bytes.windows(name.len()).position(|w| w == name).unwrap();
        assert!(find(b"x\0") < find(b"x/y\0") && find(b"x/y\0") < find(b"x/y/z\0"));
    }
}
