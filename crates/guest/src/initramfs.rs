//! Makes a guest's root file system as a file that QEMU gives to the kernel.
//!
//! Input: Debian packages or an image, files of the host, other files, kernel modules, and the
//! program `/kernlane/main`. Output: a cpio file. For workloads of packages it comes from the cache
//! if nothing in it has changed. Equal packages and files give equal bytes.

use crate::brought::Brought;
use crate::kernel::GuestKernel;
use crate::marker::{self, Mark};
use crate::module_order::KernelModule;
use crate::needs;
use crate::own::{self, MainScript};
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
use std::sync::Arc;

/// The package with the shell of the guest's own scripts, and with the programs that no other
/// package has.
const BUSYBOX: &str = "busybox-static";

/// Files that no program needs. Examples stay, because a workload may compile them.
const DOCUMENTATION: [&str; 6] = [
    "usr/share/doc/",
    "usr/share/info/",
    "usr/share/lintian/",
    "usr/share/locale/",
    "usr/share/man/",
    "usr/share/bash-completion/",
];

/// What a guest contains.
#[derive(Clone)]
pub struct GuestContents {
    packages: Vec<String>,
    leave_out: Vec<String>,
    /// Files by path, with permissions and content. They replace files of packages.
    files: BTreeMap<String, (u32, Vec<u8>)>,
    /// What comes from the host.
    brought: Arc<Brought>,
    /// The workload's scripts, which name the programs that are run.
    scripts: Vec<String>,
}

/// A root file system that was made.
pub(crate) struct Initramfs {
    pub path: PathBuf,
    /// The SHA-256 of the file, hex.
    pub sha256: String,
    pub packages: Vec<Package>,
    /// What may be wrong with the programs in it.
    pub warnings: Vec<String>,
    /// The memory that its files take, in MB, if it was made now.
    pub unpacked_mb: Option<u64>,
}

impl GuestContents {
    /// A guest that runs `script`: a shell script, or any text that begins with `#!`. For each
    /// module it has a file `/kernlane/modules/NAME.ko`.
    pub fn of_script(script: &str, modules: Vec<KernelModule>) -> GuestContents {
        let script = if script.starts_with("#!") {
            script.to_string()
        } else {
            format!("#!/bin/sh\n{script}")
        };
        let mut contents = GuestContents {
            packages: vec![BUSYBOX.into()],
            leave_out: Vec::new(),
            files: BTreeMap::new(),
            brought: Arc::default(),
            scripts: Vec::new(),
        };
        contents.file("/kernlane/main", 0o755, script);
        for module in modules {
            contents.file(&format!("/kernlane/modules/{}.ko", module.name), 0o644, module.data);
        }
        contents
    }

    /// A guest that runs a workload between the marks.
    ///
    /// # Errors
    /// The kernel lacks a module of the workload.
    pub fn of_workload(workload: &Workload, kernel: &GuestKernel) -> Result<GuestContents> {
        let main = MainScript::Recording { shows_mitigations: false };
        GuestContents::of_main(workload, kernel, main)
    }

    /// A guest in which `main` runs a workload.
    ///
    /// # Errors
    /// As `of_workload`.
    pub(crate) fn of_main(
        workload: &Workload,
        kernel: &GuestKernel,
        main: MainScript,
    ) -> Result<GuestContents> {
        let brought = workload.brought()?;
        let modules = kernel.modules(&workload.modules)?;
        let (order, before) = loading(&modules);
        let set_up = before + &workload.set_up;
        let main = match &brought.image {
            None => main.text(),
            Some(image) => own::main_of_image(&main.text(), &image.environment)?,
        };
        let mut contents = GuestContents::of_script(&main, modules);
        contents.brought = brought;
        contents.scripts =
            [&workload.set_up, &workload.run, &workload.check].map(String::clone).into();
        contents.packages.extend(workload.packages.iter().cloned());
        contents.leave_out = workload.leave_out.clone();
        contents.file("/kernlane/modules/order", 0o644, order);
        for mark in Mark::ALL {
            contents.file(mark.program(), 0o755, mark.elf_of_guest(workload.marks_itself));
        }
        contents.file(marker::PAUSE, 0o755, marker::pause());
        contents.file("/kernlane/set-up", 0o644, set_up);
        contents.file("/kernlane/run", 0o644, workload.run.as_str());
        contents.file("/kernlane/check", 0o644, workload.check.as_str());
        for (path, text) in &workload.files {
            let permissions = if text.starts_with("#!") { 0o755 } else { 0o644 };
            contents.file(path, permissions, text.as_str());
        }
        for (path, program) in &workload.programs {
            contents.file(path, 0o755, program.as_slice());
        }
        Ok(contents)
    }

    /// Adds a Debian package and the packages that it depends on.
    pub fn package(&mut self, name: &str) {
        self.packages.push(name.into());
    }

    /// Adds or replaces a file.
    pub fn file(&mut self, path: &str, permissions: u32, content: impl Into<Vec<u8>>) {
        self.files.insert(path.into(), (permissions, content.into()));
    }

    /// Whether the guest consists of Debian packages and the workload's own text alone, so that it
    /// is worth keeping.
    pub(crate) fn is_kept(&self) -> bool {
        *self.brought == Brought::default()
    }

    /// Words of the kernel's command line that the guest needs.
    pub(crate) fn kernel_words(&self) -> Option<String> {
        let image = self.brought.image.as_ref();
        image.map(|_| format!("{}{}", own::INIT_WORD, own::INIT_PATH_OF_IMAGE))
    }

    /// Writes the root file system into `directory`, which is created if needed, or finds it there.
    /// Its file name is a hash of everything in it. Packages are taken from `cache` or downloaded
    /// into it.
    ///
    /// # Errors
    /// A package cannot be downloaded or unpacked, a file cannot be written, or a program that the
    /// workload's scripts name lacks a library.
    pub(crate) fn build(&self, cache: &Path, directory: &Path) -> Result<Initramfs> {
        let packages = packages::resolve(&self.packages)?;
        let debs = packages::fetch(&packages, &cache.join("debs"))?;
        let path = directory.join(format!("{}.cpio", self.key(&packages)));
        let (mut warnings, mut unpacked_mb) = (Vec::new(), None);
        if !path.is_file() {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("making {}", directory.display()))?;
            let root = self.root(&debs)?;
            warnings = self.lacks(&root)?;
            unpacked_mb = Some(root.bytes() >> 20);
            output::write_with(&path, |out| root.write(out))?;
        }
        Ok(Initramfs { sha256: sha256_of(&path)?, path, packages, warnings, unpacked_mb })
    }

    /// The files that copied programs need and the guest lacks: a warning, if no script names the
    /// program.
    fn lacks(&self, root: &RootFs) -> Result<Vec<String>> {
        let scripts: Vec<&str> = self.scripts.iter().map(String::as_str).collect();
        let lacks = needs::lacking(root, &self.brought.copied);
        let (run, others): (Vec<_>, Vec<_>) =
            lacks.into_iter().partition(|lack| needs::is_named(&lack.program, &scripts));
        let from = match self.brought.image {
            None => needs::ProgramsFrom::Packages,
            Some(_) => needs::ProgramsFrom::Image,
        };
        ensure!(run.is_empty(), "{}", needs::advice(&run, from));
        Ok(match others.is_empty() {
            true => Vec::new(),
            false => vec![needs::advice(&others, from)],
        })
    }

    fn root(&self, debs: &[PathBuf]) -> Result<RootFs> {
        let mut root = RootFs::debian();
        for deb in debs {
            interrupt::check()?;
            self.unpack(deb, &mut root).with_context(|| format!("unpacking {}", deb.display()))?;
        }
        let mut busybox = own::BUSYBOX;
        match &self.brought.image {
            None => root.file(own::INIT_PATH, 0o755, own::init().as_bytes())?,
            Some(image) => {
                let own = root.read(busybox).context("the package of busybox has no program")?;
                let mut tree = image.guest_tree()?;
                busybox = own::BUSYBOX_OF_IMAGE;
                tree.file(busybox, 0o755, own)?;
                tree.file(own::INIT_PATH_OF_IMAGE, 0o755, own::init_of_image().as_bytes())?;
                root = tree;
            }
        }
        root.add(&self.brought.copied).context("copied files")?;
        for (path, (permissions, content)) in &self.files {
            root.file(path, *permissions, content)?;
        }
        let has_shell = match &self.brought.image {
            None => root.contains("bin/sh"),
            // A link of the image may lead nowhere.
            Some(_) => root.read("bin/sh").is_some(),
        };
        if !has_shell {
            root.symlink("bin/sh", &format!("/{busybox}"))?;
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
            .context(
                "running dpkg-deb: guests are made from Debian packages, on Debian or a \
                 system derived from it",
            )?;
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
        // A directory that leads to examples is created as their parent.
        documentation
            || self
                .leave_out
                .iter()
                .any(|left_out| path.strip_prefix(left_out.as_str()).is_some_and(is_below))
    }

    /// The SHA-256 of everything that decides the bytes.
    fn key(&self, packages: &[Package]) -> String {
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        // Another version of Kernlane may unpack packages differently.
        add(env!("CARGO_PKG_VERSION").as_bytes());
        add(own::init().as_bytes());
        for text in packages.iter().map(|package| &package.file).chain(&self.leave_out) {
            add(text.as_bytes());
        }
        for digest in
            [&self.brought.copied_sha256, &self.brought.image_sha256].into_iter().flatten()
        {
            add(digest.as_bytes());
        }
        for (path, (permissions, content)) in &self.files {
            add(path.as_bytes());
            add(&permissions.to_le_bytes());
            add(content);
        }
        image::sealed::hex(&hash.finalize())
    }
}

/// What loads the modules: the list of the files that Kernlane's script loads, and words in front
/// of the first line of the workload's script. That script loads the first module with parameters
/// and those behind it.
fn loading(modules: &[KernelModule]) -> (String, String) {
    let plain = modules.iter().take_while(|module| module.parameters.is_empty()).count();
    let file = |module: &KernelModule| format!("/kernlane/modules/{}.ko", module.name);
    let load = |module: &KernelModule| format!("insmod {} {}; ", file(module), module.parameters);
    let order = modules[..plain].iter().map(|module| file(module) + "\n").collect();
    (order, modules[plain..].iter().map(load).collect())
}

fn is_below(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_is_left_out_except_examples() {
        let mut contents = GuestContents::of_script("true", Vec::new());
        contents.leave_out.push("usr/lib/x".into());
        assert!(contents.is_left_out("usr/share/doc/zlib1g-dev/copyright"));
        assert!(!contents.is_left_out("usr/share/doc/zlib1g-dev/examples/gun.c"));
        assert!(contents.is_left_out("usr/lib/x") && contents.is_left_out("usr/lib/x/y"));
        assert!(!contents.is_left_out("usr/lib/xy"));
    }

    #[test]
    fn modules_keep_their_order_with_parameters_or_without() {
        let modules = [("ext4", ""), ("brd", "rd_nr=1 rd_size=4096"), ("xfs", "")];
        let modules = modules.map(|(name, parameters)| KernelModule {
            name: name.into(),
            parameters: parameters.into(),
            data: Vec::new(),
        });
        let (order, before) = loading(&modules);
        assert_eq!(order, "/kernlane/modules/ext4.ko\n");
        let expected = "insmod /kernlane/modules/brd.ko rd_nr=1 rd_size=4096; \
            insmod /kernlane/modules/xfs.ko ; ";
        assert_eq!(before, expected);
        assert_eq!(loading(&modules[..1]).1, "");
    }

    #[test]
    fn the_key_depends_on_everything() {
        let one = GuestContents::of_script("true", Vec::new());
        let mut other = GuestContents::of_script("true", Vec::new());
        assert_eq!(one.key(&[]), other.key(&[]));
        other.file("/x", 0o644, "");
        assert_ne!(one.key(&[]), other.key(&[]));
        let package =
            Package { name: "a".into(), version: "1".into(), file: "a_1_all.deb".into(), bytes: 3 };
        assert_ne!(one.key(&[package]), one.key(&[]));
    }
}
