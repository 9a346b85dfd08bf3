//! The guest's root file system in memory, until it is written as an archive.
//!
//! Input: the contents of Debian packages (tar streams), files and links; later ones replace
//! earlier ones. Output: cpio bytes, sorted by path. Packages are unpacked, not installed: no
//! maintainer script runs, and every file belongs to root. This module never touches the host's
//! file system, so it needs no privileges.

use crate::cpio;
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Read, Write};
use std::sync::Arc;

mod digest;
mod tar_entry;

pub(crate) use tar_entry::{Budget, entry_node, entry_path, stays_inside};

/// A file, directory or link of the guest. `permissions` are the lower twelve mode bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileNode {
    Directory {
        permissions: u32,
    },
    /// Files that share their data are hard links to one file.
    File {
        permissions: u32,
        data: Arc<[u8]>,
    },
    Symlink {
        target: String,
    },
    /// A pipe or a device: the kind is in the mode, as in `stat.st_mode`.
    Special {
        mode: u32,
        major: u32,
        minor: u32,
    },
}

/// A tree of files. Paths have no leading slash and no `.` or `..`. Every parent of a path is a
/// directory in the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
        let mut budget = Budget::unlimited();
        for entry in archive.entries().context("reading the package's tar stream")? {
            let mut entry = entry.context("reading the package's tar stream")?;
            let path = entry_path(&entry)?;
            if path.is_empty() || leave_out(&path) {
                continue;
            }
            let node = match entry_node(&mut entry, &path, self, &mut budget)? {
                // The guest sees two files.
                Some(FileNode::File { permissions, data })
                    if entry.header().entry_type() == tar::EntryType::Link =>
                {
                    FileNode::File { permissions, data: Arc::from(&*data) }
                }
                Some(FileNode::Special { .. }) => bail!(
                    "/{path}: a device or a pipe, which Kernlane does not support in a guest's \
                     package"
                ),
                Some(node) => node,
                None => continue,
            };
            self.insert(&path, node)?;
        }
        Ok(())
    }

    /// Writes the whole tree as an archive, with parents before children, in byte order of the
    /// paths.
    pub(crate) fn write(&self, out: impl Write) -> Result<()> {
        let mut cpio = cpio::CpioWriter::new(out);
        let shared = self.shared();
        for (path, node) in &self.nodes {
            match node {
                FileNode::Directory { permissions } => cpio.directory(path, *permissions),
                FileNode::File { permissions, data } => {
                    let key = data.as_ptr();
                    match shared.get(&key) {
                        Some(&links) => cpio.linked_file(path, *permissions, data, key, links),
                        None => cpio.file(path, *permissions, data),
                    }
                }
                FileNode::Symlink { target } => cpio.symlink(path, target),
                FileNode::Special { mode, major, minor } => {
                    cpio.special(path, *mode, *major, *minor)
                }
            }
            .with_context(|| format!("writing /{path} of the root file system"))?;
        }
        cpio.finish().context("writing the root file system")?;
        Ok(())
    }

    /// The number of paths of each file that has several. The key is the place of the file's bytes.
    /// Empty files are not shared.
    fn shared(&self) -> HashMap<*const u8, u32> {
        let mut paths = HashMap::new();
        for node in self.nodes.values() {
            if let FileNode::File { data, .. } = node
                && !data.is_empty()
            {
                *paths.entry(data.as_ptr()).or_insert(0) += 1;
            }
        }
        paths.retain(|_, number| *number > 1);
        paths
    }

    /// The memory that the files take in the guest, in bytes: whole pages.
    pub(crate) fn bytes(&self) -> u64 {
        const PAGE: u64 = 4096;
        let mut seen = BTreeSet::new();
        let size = |node: &FileNode| match node {
            FileNode::File { data, .. } if seen.insert(data.as_ptr()) => {
                (data.len() as u64).next_multiple_of(PAGE)
            }
            _ => 0,
        };
        self.nodes.values().map(size).sum()
    }

    /// Every path, without leading slash, and what it is, in byte order of the paths.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&str, &FileNode)> {
        self.nodes.iter().map(|(path, node)| (path.as_str(), node))
    }

    /// The path that `path` means when every link is followed, including the last one; `None` if
    /// nothing is there.
    pub(crate) fn resolve(&self, path: &str) -> Option<(String, &FileNode)> {
        let mut path = self.resolve_parent(path).ok()?;
        for _ in 0..MAX_LINKS {
            match self.nodes.get(&path)? {
                FileNode::Symlink { target } if target.starts_with('/') => {
                    path = self.resolve_parent(target).ok()?;
                }
                FileNode::Symlink { target } => {
                    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
                    path = self.follow(&format!("{parent}/{target}")).ok()?;
                }
                node => return Some((path, node)),
            }
        }
        None
    }

    /// The content of the regular file that `path` means.
    pub(crate) fn read(&self, path: &str) -> Option<&[u8]> {
        match self.resolve(path)?.1 {
            FileNode::File { data, .. } => Some(data),
            _ => None,
        }
    }

    /// A hard link shares the bytes.
    fn linked(&self, path: &str) -> Result<FileNode> {
        let path = self.resolve_parent(path)?;
        match self.nodes.get(&path) {
            Some(node @ FileNode::File { .. }) => Ok(node.clone()),
            _ => bail!("a hard link to /{path}, which is not a file that came before it"),
        }
    }

    /// Takes the place of whatever has this path, as a later layer of an image does: a directory
    /// keeps its content if it stays a directory. Returns the path behind links among the parents.
    pub(crate) fn replace(&mut self, path: &str, node: FileNode) -> Result<String> {
        let path = self.resolve_parent(path)?;
        if let FileNode::Symlink { target } = &node {
            // Behind a link, the path can be nearer to the root than its name.
            stays_inside(&path, target)?;
        }
        self.make_parents(&path)?;
        let is_directory = matches!(node, FileNode::Directory { .. });
        if !is_directory && matches!(self.nodes.get(&path), Some(FileNode::Directory { .. })) {
            self.hide(&path, true, &BTreeSet::new());
        }
        self.nodes.insert(path.clone(), node);
        Ok(path)
    }

    /// Removes what is below `path`, which has no links among its parents, and with `itself` also
    /// the path. `kept` and their parents stay.
    pub(crate) fn hide(&mut self, path: &str, itself: bool, kept: &BTreeSet<String>) {
        let below = if path.is_empty() { String::new() } else { format!("{path}/") };
        let mut gone: Vec<String> = self
            .nodes
            .range(below.clone()..)
            .map(|(found, _)| found)
            .take_while(|found| found.starts_with(&below))
            .cloned()
            .collect();
        if itself {
            gone.push(path.to_owned());
        }
        for path in gone {
            let inside = format!("{path}/");
            let has_kept =
                kept.range(inside.clone()..).next().is_some_and(|next| next.starts_with(&inside));
            if !kept.contains(&path) && !has_kept {
                self.nodes.remove(&path);
            }
        }
    }

    /// The path of a directory when every link is followed, including the last one.
    pub(crate) fn real_directory(&self, path: &str) -> Result<String> {
        Ok(match self.resolve(path) {
            Some((path, _)) => path,
            None => self.resolve_parent(path)?,
        })
    }

    /// Removes a file, or a directory with its content.
    pub(crate) fn leave_out(&mut self, path: &str) {
        self.hide(path.trim_matches('/'), true, &BTreeSet::new());
    }

    /// Adds every node of another tree. Its directories do not take the place of links.
    ///
    /// # Errors
    /// Names the path that is a directory in one tree and something else in the other.
    pub(crate) fn add(&mut self, other: &RootFs) -> Result<()> {
        for (path, node) in &other.nodes {
            match (self.resolve(path), node) {
                // An existing directory keeps its permissions: `/tmp` does.
                (Some((_, FileNode::Directory { .. })), FileNode::Directory { .. }) => {}
                _ => self.insert(path, node.clone())?,
            }
        }
        Ok(())
    }

    pub(crate) fn directory(&mut self, path: &str, permissions: u32) -> Result<()> {
        self.insert(path, FileNode::Directory { permissions })
    }

    pub(crate) fn insert(&mut self, path: &str, node: FileNode) -> Result<()> {
        let path = self.resolve_parent(path)?;
        self.make_parents(&path)?;
        match (self.nodes.get(&path), &node) {
            // If a package contains the directory `/lib`, that means the directory that the
            // skeleton's link refers to.
            (Some(FileNode::Symlink { .. }), FileNode::Directory { .. }) => return Ok(()),
            (Some(FileNode::Directory { .. }), FileNode::Directory { .. }) => {}
            (Some(FileNode::Directory { .. }), _) => {
                bail!("/{path} is a directory and cannot become a file")
            }
            _ => {}
        }
        self.nodes.insert(path, node);
        Ok(())
    }

    fn make_parents(&mut self, path: &str) -> Result<()> {
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
        Ok(())
    }

    /// The path after following every symbolic link among its parents.
    fn resolve_parent(&self, path: &str) -> Result<String> {
        self.follow(&clean(path)?)
    }

    /// As `resolve_parent`; `..` leads to the parent, and stops at the root.
    fn follow(&self, path: &str) -> Result<String> {
        let mut pending: Vec<String> = path.split('/').rev().map(String::from).collect();
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

/// The path without a leading `/` or `./` and without a trailing `/`. Refuses `..`, which a package
/// contains only by attack or accident.
pub(crate) fn clean(path: &str) -> Result<String> {
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
    fn a_tar_stream_that_is_cut_off_gives_an_error_or_its_first_files() {
        let good = tar(&[
            ("./bin/true", tar::EntryType::Regular, "some text"),
            ("./bin/sh", tar::EntryType::Symlink, "true"),
        ]);
        let mut whole = RootFs::debian();
        whole.unpack(&good[..], |_| false).unwrap();
        let mut refused = 0;
        for length in 0..good.len() {
            let mut root = RootFs::debian();
            match root.unpack(&good[..length], |_| false) {
                Ok(()) => {
                    let known = root.nodes.iter().all(|(path, node)| whole.nodes[path] == *node);
                    assert!(known, "{length} bytes");
                }
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 500, "{refused}");
    }

    /// Damage may change names and contents. Then each file still has a directory around it.
    #[test]
    fn a_damaged_tar_stream_gives_an_error_or_a_tree() {
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
            let mut root = RootFs::debian();
            if root.unpack(&bytes[..], |_| false).is_ok() {
                for path in root.nodes.keys() {
                    if let Some((around, _)) = path.rsplit_once('/') {
                        let inside = &root.nodes[around];
                        assert!(matches!(inside, FileNode::Directory { .. }), "{path}");
                    }
                }
            }
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
