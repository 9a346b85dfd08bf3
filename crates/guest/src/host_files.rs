//! Files and directories of the host that come into a guest.
//!
//! Input: `SOURCE:DESTINATION` as a user wrote it, and the directory that a relative source begins
//! at. Output: a tree with the guest's paths. Links stay links, and one that leaves its directory
//! is refused. This module never writes on the host.

use crate::rootfs::{Budget, FileNode, RootFs, clean, stays_inside};
use anyhow::{Context, Result, bail, ensure};
use host::interrupt;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Where Kernlane's own files are in a guest. Files of the host may not go there.
const OWN: [&str; 3] = ["init", "kernlane", "usr/bin/busybox"];

/// A source on the host, and its destination in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    pub from: String,
    /// An absolute path in the guest. A path that ends with `/` is a directory that the file goes
    /// into.
    pub to: String,
}

/// Which sources are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sources {
    /// A source from the command line: any path.
    Any,
    /// A source from a workload's file: a path below the file's directory, so that the directory
    /// has everything.
    Below,
}

impl Copy {
    /// Reads `SOURCE:DESTINATION`. The source may contain colons.
    ///
    /// # Errors
    /// A part is missing, or the destination cannot be in a guest.
    pub(crate) fn parse(text: &str) -> Result<Copy> {
        let parts = text.rsplit_once(":/").filter(|(from, _)| !from.is_empty());
        let (from, to) = parts.with_context(|| {
            format!("{text:?}: give SOURCE:DESTINATION, for example ./build:/opt/app")
        })?;
        ensure!(!text.contains('\0'), "{text:?}: a path cannot contain NUL");
        let to = format!("/{to}");
        let path = clean(&to)?;
        for own in OWN {
            ensure!(
                !is_at_or_below(&path, own),
                "{to}: Kernlane's own files are at /{own}: choose another destination"
            );
        }
        Ok(Copy { from: from.into(), to })
    }

    /// Reads the source and adds it to `into`.
    ///
    /// # Errors
    /// The source cannot be read, may not be named, or has a link that leaves it.
    pub(crate) fn read(
        &self,
        base: &Path,
        sources: Sources,
        into: &mut RootFs,
        budget: &mut Budget,
    ) -> Result<()> {
        let path = source(base, &self.from, sources)?;
        let named = || format!("{}:{}", self.from, self.to);
        let mut to = clean(&self.to)?;
        let metadata = path.metadata().with_context(named)?;
        if metadata.is_dir() {
            let tree = Walk { links: Links::Relative, budget, same: None }.tree(&path);
            let tree = tree.with_context(named)?;
            if !to.is_empty() {
                into.directory(&to, metadata.mode() & 0o7777)?;
            }
            for (inside, node) in tree.nodes() {
                let at = format!("{to}/{inside}");
                let own = OWN.iter().find(|own| is_at_or_below(at.trim_start_matches('/'), own));
                if let Some(own) = own {
                    bail!("{}: it has {inside}, and Kernlane's own files are at /{own}", named());
                }
                into.insert(&at, node.clone()).with_context(named)?;
            }
            return Ok(());
        }
        ensure!(metadata.is_file(), "{}: neither a file nor a directory", named());
        if self.to.ends_with('/') {
            let name = Path::new(&self.from).file_name().and_then(|name| name.to_str());
            let name = name.with_context(|| format!("{}: the source has no name", named()))?;
            to = format!("{to}/{name}");
        }
        let mut walk = Walk { links: Links::Relative, budget, same: None };
        let node = walk.node(&path, &to, &metadata).with_context(named)?;
        into.insert(&to, node).with_context(named)
    }
}

fn is_at_or_below(path: &str, own: &str) -> bool {
    path.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The path on the host that `from` means.
///
/// # Errors
/// It does not exist, or may not be named.
pub(crate) fn source(base: &Path, from: &str, sources: Sources) -> Result<PathBuf> {
    let path = Path::new(from);
    let rule = || {
        format!(
            "{from}: it leaves the directory of the workload's file: put it there, and name it by \
             a path that begins there"
        )
    };
    if sources == Sources::Below {
        let plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        ensure!(path.components().all(plain), "{}", rule());
    }
    let full = base.join(path);
    let real = full.canonicalize().with_context(|| format!("{}: reading it", full.display()))?;
    if sources == Sources::Below {
        let base = match base.as_os_str().is_empty() {
            true => Path::new("."),
            false => base,
        };
        let base = base.canonicalize().with_context(|| format!("{}", base.display()))?;
        ensure!(real.starts_with(&base), "{} (a link to {})", rule(), real.display());
    }
    Ok(real)
}

/// The directory as the root of a guest. Absolute links begin at that root. A directory where
/// another file system is mounted, such as `/proc`, is empty.
///
/// # Errors
/// A file in the directory cannot be read, or a link leaves the directory.
pub(crate) fn tree(directory: &Path, budget: &mut Budget) -> Result<RootFs> {
    Walk { links: Links::Absolute, budget, same: Some(HashMap::new()) }.tree(directory)
}

/// Which symbolic links are accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Links {
    /// The directory is not the guest's root, so that an absolute link would leave it.
    Relative,
    /// The directory is the guest's root.
    Absolute,
}

struct Walk<'a> {
    links: Links,
    budget: &'a mut Budget,
    /// The data of files with several links, by device and inode; `None` if they become several
    /// files.
    same: Option<HashMap<(u64, u64), Arc<[u8]>>>,
}

impl Walk<'_> {
    fn tree(&mut self, directory: &Path) -> Result<RootFs> {
        let mut tree = RootFs::default();
        let device = directory
            .metadata()
            .with_context(|| format!("{}: reading it", directory.display()))?
            .dev();
        let mut pending = vec![(directory.to_owned(), String::new())];
        while let Some((directory, inside)) = pending.pop() {
            interrupt::check()?;
            let named = || format!("{}: reading it", directory.display());
            for entry in std::fs::read_dir(&directory).with_context(named)? {
                let path = entry.with_context(named)?.path();
                let name = path.file_name().and_then(|name| name.to_str());
                let name =
                    name.with_context(|| format!("{}: its name is not UTF-8", path.display()))?;
                let at = if inside.is_empty() { name.into() } else { format!("{inside}/{name}") };
                let metadata = std::fs::symlink_metadata(&path)
                    .with_context(|| format!("{}: reading it", path.display()))?;
                tree.insert(&at, self.node(&path, &at, &metadata)?)?;
                let is_mounted = self.links == Links::Absolute && metadata.dev() != device;
                if metadata.is_dir() && !is_mounted {
                    pending.push((path, at));
                }
            }
        }
        Ok(tree)
    }

    /// The node for `path` on the host, which will be at `inside` in the tree.
    fn node(&mut self, path: &Path, inside: &str, metadata: &Metadata) -> Result<FileNode> {
        self.budget.entry(inside)?;
        let kind = metadata.file_type();
        let permissions = metadata.mode() & 0o7777;
        let named = || path.display().to_string();
        if kind.is_dir() {
            return Ok(FileNode::Directory { permissions });
        }
        if kind.is_symlink() {
            let target = std::fs::read_link(path).with_context(named)?;
            let target = target
                .to_str()
                .with_context(|| format!("{}: the link's target is not UTF-8", named()))?;
            ensure!(
                self.links == Links::Absolute || !target.starts_with('/'),
                "{}: the symbolic link to {target:?} leaves the directory",
                named()
            );
            stays_inside(inside, target).with_context(named)?;
            return Ok(FileNode::Symlink { target: target.into() });
        }
        if kind.is_file() {
            let key = (metadata.dev(), metadata.ino());
            if metadata.nlink() > 1
                && let Some(data) = self.same.as_ref().and_then(|same| same.get(&key))
            {
                return Ok(FileNode::File { permissions, data: data.clone() });
            }
            let file = File::open(path).with_context(|| format!("{}: reading it", named()))?;
            let data: Arc<[u8]> = self.budget.read(inside, metadata.len(), file)?.into();
            if let Some(same) = &mut self.same
                && metadata.nlink() > 1
            {
                same.insert(key, data.clone());
            }
            return Ok(FileNode::File { permissions, data });
        }
        ensure!(
            !kind.is_socket(),
            "{}: a socket, which only the program that made it can use: remove it",
            named()
        );
        let device = metadata.rdev();
        Ok(FileNode::Special {
            mode: metadata.mode(),
            major: rustix::fs::major(device),
            minor: rustix::fs::minor(device),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn budget() -> Budget {
        Budget::of(1 << 20)
    }

    fn copied(base: &Path, text: &str, sources: Sources) -> Result<RootFs> {
        let mut tree = RootFs::default();
        Copy::parse(text)?.read(base, sources, &mut tree, &mut budget())?;
        Ok(tree)
    }

    fn example() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let build = directory.path().join("build");
        std::fs::create_dir_all(build.join("lib")).unwrap();
        std::fs::write(build.join("server"), "program").unwrap();
        std::fs::write(build.join("lib/a.so"), "library").unwrap();
        symlink("../server", build.join("lib/again")).unwrap();
        directory
    }

    #[test]
    fn a_directory_a_file_and_a_file_into_a_directory() {
        let directory = example();
        let paths = |text: &str| -> Vec<String> {
            let tree = copied(directory.path(), text, Sources::Below).unwrap();
            tree.nodes().map(|(path, _)| path.to_owned()).collect()
        };
        assert_eq!(
            paths("./build:/opt/app"),
            [
                "opt",
                "opt/app",
                "opt/app/lib",
                "opt/app/lib/a.so",
                "opt/app/lib/again",
                "opt/app/server"
            ]
        );
        assert_eq!(paths("build:/"), ["lib", "lib/a.so", "lib/again", "server"]);
        assert_eq!(paths("build/server:/bin/s"), ["bin", "bin/s"]);
        assert_eq!(paths("build/server:/bin/"), ["bin", "bin/server"]);
        let tree = copied(directory.path(), "build:/x", Sources::Any).unwrap();
        assert_eq!(tree.read("x/lib/again"), Some(&b"program"[..]));
    }

    #[test]
    fn sources_that_leave_the_workloads_directory_are_refused_by_name() {
        let directory = example();
        let base = directory.path().join("build");
        symlink("../outside", base.join("out")).unwrap();
        std::fs::write(directory.path().join("outside"), "secret").unwrap();
        let absolute = directory.path().join("outside").display().to_string();
        for from in ["../outside", "lib/../../outside", "out", &absolute] {
            let text = format!("{from}:/opt/x");
            let said = format!("{:#}", copied(&base, &text, Sources::Below).unwrap_err());
            assert!(said.contains(from) && said.contains("leaves the directory"), "{said}");
            // On the command line, a user may name anything.
            assert!(copied(&base, &text, Sources::Any).is_ok(), "{from}");
        }
    }

    #[test]
    fn links_that_leave_a_copied_directory_are_refused_by_name() {
        for target in ["../outside", "/etc/passwd", "lib/../../x"] {
            let directory = example();
            symlink(target, directory.path().join("build/bad")).unwrap();
            let said = copied(directory.path(), "build:/opt/app", Sources::Any).unwrap_err();
            let said = format!("{said:#}");
            assert!(said.contains("build/bad") && said.contains("leaves the directory"), "{said}");
        }
        // A root directory has such links.
        let directory = example();
        symlink("/lib/a.so", directory.path().join("build/good")).unwrap();
        let tree = tree(&directory.path().join("build"), &mut budget()).unwrap();
        assert_eq!(tree.read("good"), Some(&b"library"[..]));
    }

    #[test]
    fn what_cannot_come_in_is_refused() {
        let said = |text: &str| {
            let directory = example();
            let _socket =
                std::os::unix::net::UnixListener::bind(directory.path().join("socket")).unwrap();
            format!("{:#}", copied(directory.path(), text, Sources::Any).unwrap_err())
        };
        for text in ["build", "build:", ":/x", "build:opt"] {
            assert!(said(text).contains("give SOURCE:DESTINATION"), "{text}");
        }
        assert!(said("build:/x/../y").contains("leaves the root file system"));
        assert!(said("build:/kernlane/x").contains("Kernlane's own files are at /kernlane"));
        assert!(said("build/server:/init").contains("Kernlane's own files"));
        assert!(said("nothing:/x").contains("nothing: reading it"));
        assert!(said("socket:/x").contains("neither a file nor a directory"));
        assert!(said(".:/x").contains("a socket"));
        let directory = example();
        std::fs::create_dir(directory.path().join("build/kernlane")).unwrap();
        let said = copied(directory.path(), "build:/", Sources::Any).unwrap_err().to_string();
        assert!(said.contains("it has kernlane"), "{said}");
    }

    #[test]
    fn hard_links_of_a_root_directory_stay_one_file() {
        let directory = example();
        let build = directory.path().join("build");
        std::fs::hard_link(build.join("server"), build.join("other")).unwrap();
        let root = tree(&build, &mut budget()).unwrap();
        assert_eq!(root.bytes(), 2 * 4096);
        let copy = copied(directory.path(), "build:/x", Sources::Any).unwrap();
        assert_eq!(copy.bytes(), 3 * 4096);
    }
}
