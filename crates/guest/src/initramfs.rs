//! A guest's root file system as a file that QEMU hands to the kernel.
//!
//! Takes what is to be in it (Debian packages, files, kernel modules, the program
//! `/kernlane/main`); gives a cpio file, for workloads from the cache when nothing that goes into
//! it has changed. The same packages and files give the same bytes.

use crate::kernel::{Kernel, Module};
use crate::marker::{self, Mark};
use crate::packages::{self, Package};
use crate::rootfs::RootFs;
use crate::sha256_of;
use crate::workload::Workload;
use anyhow::{Context, Result, ensure};
use host::{interrupt, output};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const INIT: &str = include_str!("init.sh");
const WORKLOAD_MAIN: &str = include_str!("workload.sh");

/// The shell of the guest's own scripts, and the programs that no installed package has.
const BUSYBOX: &str = "busybox-static";

/// Nothing that runs needs these; examples stay, since they are sources that a workload may
/// compile.
const DOCUMENTATION: [&str; 6] = [
    "usr/share/doc/",
    "usr/share/info/",
    "usr/share/lintian/",
    "usr/share/locale/",
    "usr/share/man/",
    "usr/share/bash-completion/",
];

/// What is to be in the guest.
#[derive(Clone)]
pub struct Contents {
    packages: Vec<String>,
    leave_out: Vec<String>,
    /// Path → permissions and content; over what packages bring.
    files: BTreeMap<String, (u32, Vec<u8>)>,
}

/// A root file system as it was made.
pub struct Initramfs {
    pub path: PathBuf,
    /// Of the file, hex.
    pub sha256: String,
    pub packages: Vec<Package>,
}

impl Contents {
    /// A guest that runs `script` (a shell script, or any text that begins with `#!`) and has
    /// `/kernlane/modules/NAME.ko` for each module.
    pub fn of_script(script: &str, modules: Vec<Module>) -> Contents {
        let script = if script.starts_with("#!") {
            script.to_string()
        } else {
            format!("#!/bin/sh\n{script}")
        };
        let mut contents = Contents {
            packages: vec![BUSYBOX.into()],
            leave_out: Vec::new(),
            files: BTreeMap::new(),
        };
        contents.file("/kernlane/main", 0o755, script);
        for module in modules {
            contents.file(&format!("/kernlane/modules/{}.ko", module.name), 0o644, module.data);
        }
        contents
    }

    /// A guest that runs a workload between the marks.
    pub fn of_workload(workload: &Workload, kernel: &Kernel) -> Result<Contents> {
        let modules = kernel.modules(&workload.modules)?;
        let order: String = modules
            .iter()
            .map(|module| format!("/kernlane/modules/{}.ko\n", module.name))
            .collect();
        let mut contents = Contents::of_script(WORKLOAD_MAIN, modules);
        contents.packages.extend(workload.packages.iter().cloned());
        contents.leave_out = workload.leave_out.clone();
        contents.file("/kernlane/modules/order", 0o644, order);
        for mark in Mark::ALL {
            contents.file(mark.program(), 0o755, mark.elf());
        }
        contents.file(marker::PAUSE, 0o755, marker::pause());
        contents.file("/kernlane/set-up", 0o644, workload.set_up.as_str());
        contents.file("/kernlane/run", 0o644, workload.run.as_str());
        contents.file("/kernlane/check", 0o644, workload.check.as_str());
        for (path, text) in &workload.files {
            let permissions = if text.starts_with("#!") { 0o755 } else { 0o644 };
            contents.file(path, permissions, text.as_str());
        }
        Ok(contents)
    }

    /// Adds a Debian package and what it depends on.
    pub fn package(&mut self, name: &str) {
        self.packages.push(name.into());
    }

    /// Adds or replaces a file.
    pub fn file(&mut self, path: &str, permissions: u32, content: impl Into<Vec<u8>>) {
        self.files.insert(path.into(), (permissions, content.into()));
    }

    /// Writes the root file system into `directory` (made if needed) under a name that is a hash of
    /// all that goes into it, or finds it there. Packages come from or go to `cache`.
    pub fn build(&self, cache: &Path, directory: &Path) -> Result<Initramfs> {
        let packages = packages::resolve(&self.packages)?;
        let debs = packages::fetch(&packages, &cache.join("debs"))?;
        let path = directory.join(format!("{}.cpio", self.key(&packages)));
        if !path.is_file() {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("making {}", directory.display()))?;
            let root = self.root(&debs)?;
            output::write_with(&path, |out| root.write(out))?;
        }
        Ok(Initramfs { sha256: sha256_of(&path)?, path, packages })
    }

    fn root(&self, debs: &[PathBuf]) -> Result<RootFs> {
        let mut root = RootFs::debian();
        for deb in debs {
            interrupt::check()?;
            self.unpack(deb, &mut root).with_context(|| format!("unpacking {}", deb.display()))?;
        }
        root.file("init", 0o755, INIT.as_bytes())?;
        for (path, (permissions, content)) in &self.files {
            root.file(path, *permissions, content)?;
        }
        if !root.contains("bin/sh") {
            root.symlink("bin/sh", "/usr/bin/busybox")?;
        }
        Ok(root)
    }

    fn unpack(&self, deb: &Path, root: &mut RootFs) -> Result<()> {
        let mut child = Command::new("dpkg-deb")
            .arg("--fsys-tarfile")
            .arg(deb)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("running dpkg-deb: guests are made from Debian packages, on Debian or a system derived from it")?;
        let tar = child.stdout.take().context("dpkg-deb has no output")?;
        let unpacked = root.unpack(tar, |path| self.is_left_out(path));
        let status = child.wait().context("waiting for dpkg-deb")?;
        unpacked?;
        ensure!(
            status.success(),
            "dpkg-deb ended with {status}; remove the file to have it downloaded again"
        );
        Ok(())
    }

    fn is_left_out(&self, path: &str) -> bool {
        let documentation = DOCUMENTATION.iter().any(|prefix| path.starts_with(prefix))
            && !path.contains("/examples");
        // A directory that leads to examples comes back as their parent.
        documentation
            || self
                .leave_out
                .iter()
                .any(|left_out| path.strip_prefix(left_out.as_str()).is_some_and(is_below))
    }

    /// SHA-256 over everything that decides the bytes.
    fn key(&self, packages: &[Package]) -> String {
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        // Another version of the tool may unpack in another way.
        add(env!("CARGO_PKG_VERSION").as_bytes());
        add(INIT.as_bytes());
        for text in packages.iter().map(|package| &package.file).chain(&self.leave_out) {
            add(text.as_bytes());
        }
        for (path, (permissions, content)) in &self.files {
            add(path.as_bytes());
            add(&permissions.to_le_bytes());
            add(content);
        }
        format!("{:x}", hash.finalize())
    }
}

fn is_below(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_stay_and_documentation_goes() {
        let mut contents = Contents::of_script("true", Vec::new());
        contents.leave_out.push("usr/lib/x".into());
        assert!(contents.is_left_out("usr/share/doc/zlib1g-dev/copyright"));
        assert!(!contents.is_left_out("usr/share/doc/zlib1g-dev/examples/gun.c"));
        assert!(contents.is_left_out("usr/lib/x") && contents.is_left_out("usr/lib/x/y"));
        assert!(!contents.is_left_out("usr/lib/xy"));
    }

    #[test]
    fn the_key_depends_on_everything() {
        let one = Contents::of_script("true", Vec::new());
        let mut other = Contents::of_script("true", Vec::new());
        assert_eq!(one.key(&[]), other.key(&[]));
        other.file("/x", 0o644, "");
        assert_ne!(one.key(&[]), other.key(&[]));
        let package =
            Package { name: "a".into(), version: "1".into(), file: "a_1_all.deb".into(), bytes: 3 };
        assert_ne!(one.key(&[package]), one.key(&[]));
    }
}
