//! Runs the kernel's own final link with a rewritten object.
//!
//! Input: a built kernel tree, and a `vmlinux.o`. Output: `vmlinux`, `System.map` and `bzImage` as
//! kbuild makes them, with kallsyms, sorted tables and KASLR relocations. A kernel for User Mode
//! Linux is a program: its `vmlinux`, without a `bzImage`. The link runs in a scratch tree of
//! symbolic links to the build tree. Only what kbuild writes is a real file there, so the build
//! tree itself is never written to.

use crate::configured::{BUILT_CONFIGURATION, ConfiguredTree, KernelTarget, kernel_tree};
use crate::running_make::other_make;
use crate::scratch_tree;
use anyhow::{Context, Result, bail, ensure};
use host::interrupt;
use image::forms;
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

/// A kernel tree that was built: a configured tree with the results of its build.
pub struct BuildTree {
    configured: ConfiguredTree,
    /// The times of vmlinux.o and vmlinux.
    times: [SystemTime; 2],
}

impl Deref for BuildTree {
    type Target = ConfiguredTree;

    fn deref(&self) -> &ConfiguredTree {
        &self.configured
    }
}

/// A goal, put in front of kbuild's own makefiles, that is the final link and nothing else. Its two
/// recipes are those of `vmlinux` in the top-level Makefile, and of `bzImage` in arch/x86/Makefile.
/// User Mode Linux lacks the second. A make that only calls another make has a rule of its own for
/// all goals, which takes the place of this one. Linux 6.1 does not call another make in its own
/// tree.
const GOAL: &str = "\
.PHONY: kernlane-link
kernlane-link:
\t+$(Q)$(if $(KERNLANE_PAHOLE),PAHOLE=$(KERNLANE_PAHOLE)) LDFLAGS_vmlinux='$(LDFLAGS_vmlinux)' $(MAKE) -f $(srctree)/scripts/Makefile.vmlinux
\t+$(Q)$(if $(CONFIG_UML),:,$(MAKE) $(build)=$(boot) $(KBUILD_IMAGE))
";

impl BuildTree {
    /// Opens a built tree that is not being built right now.
    ///
    /// # Errors
    /// The tree is not built, is too old, or is being built.
    pub fn open(path: &Path, make_arguments: &[String]) -> Result<BuildTree> {
        let path = kernel_tree(path)?;
        let machine = KernelTarget::of(&path);
        let image = (machine == KernelTarget::X86).then_some("arch/x86/boot/bzImage");
        let command = link_command(&path).map_or(forms::LINK_COMMANDS[1], |(file, _)| file);
        let needed = ["vmlinux", "vmlinux.o", command, BUILT_CONFIGURATION];
        for file in needed.into_iter().chain(image) {
            ensure!(
                path.join(file).exists(),
                "{}: the kernel is not built ({file} is missing); build it with make, or give the \
                 directory of the build",
                path.display()
            );
        }
        let link = path.join("scripts/Makefile.vmlinux").exists()
            || path.join("source/scripts/Makefile.vmlinux").exists();
        ensure!(
            link,
            "{}: no scripts/Makefile.vmlinux; Linux 6.1 or later is needed to relink",
            path.display()
        );
        let linker = linker_of(&path)?;
        let times = times_of(&path)?;
        let configured =
            ConfiguredTree::new(path, BUILT_CONFIGURATION, linker, make_arguments.to_vec());
        let tree = BuildTree { configured, times };
        tree.refuse_while_built()?;
        Ok(tree)
    }

    fn refuse_while_built(&self) -> Result<()> {
        if let Some(make) = other_make(&self.path, std::process::id()) {
            bail!(
                "{}: make is building it now (process {make}); try again when make has ended",
                self.path.display()
            );
        }
        let time = |name: &str| time_of(&self.file(name));
        ensure!(
            self.times[0] <= self.times[1],
            "{}: vmlinux.o is newer than vmlinux: a build was interrupted; run make in the tree",
            self.path.display()
        );
        ensure!(
            time(".config").is_err() || time(".config")? <= time(BUILT_CONFIGURATION)?,
            "{}: .config is newer than the build; run make in the tree",
            self.path.display()
        );
        Ok(())
    }

    /// Checks that the tree was not built again since it was opened.
    ///
    /// # Errors
    /// The tree was built again.
    pub(crate) fn ensure_unchanged(&self) -> Result<()> {
        ensure!(
            times_of(&self.path)? == self.times,
            "{}: was built during the relink; try again",
            self.path.display()
        );
        self.refuse_while_built()
    }

    /// Whether the final link uses `vmlinux.a` instead of `vmlinux.o` (scripts/link-vmlinux.sh).
    fn links_archive(&self) -> bool {
        !forms::LINKS_OBJECT.iter().any(|option| self.has_option(option))
    }

    /// Links the kernel from `object` in the empty directory `scratch`, with these types (BTF). The
    /// results lie in `scratch` at the same paths as in the tree.
    ///
    /// # Errors
    /// A program of the build fails, or a file cannot be written.
    pub(crate) fn link(&self, object: &[u8], scratch: &Path, types: Option<&[u8]>) -> Result<()> {
        scratch_tree::fill(&self.path, scratch)?;
        fs::write(scratch.join("vmlinux.o"), object).context("vmlinux.o: cannot be written")?;
        if self.links_archive() {
            let status = Command::new("ar")
                .args(["rcs", "vmlinux.a", "vmlinux.o"])
                .current_dir(scratch)
                .status();
            ensure!(status.context("ar cannot be run")?.success(), "ar could not make vmlinux.a");
        }
        let pahole = types.map(|types| stand_in_for_pahole(scratch, types)).transpose()?;
        self.final_link(scratch, pahole.as_deref())
    }

    /// Runs kbuild's rules for the final link in `directory`, which is this tree or its scratch
    /// tree. If `pahole` is given, it makes the BTF instead of the tree's own pahole.
    ///
    /// # Errors
    /// The link fails.
    pub fn final_link(&self, directory: &Path, pahole: Option<&Path>) -> Result<()> {
        let goal = directory.join(".kernlane.mk");
        fs::write(&goal, GOAL).context("the goal for make cannot be written")?;
        let log_path = directory.join("kernlane-link.log");
        let log = fs::File::create(&log_path).context("the log cannot be made")?;
        let mut make = self.make_command(directory)?;
        make.args(self.make_arguments()).arg("kernlane-link").env("MAKEFILES", &goal);
        if names_its_directory(&self.path) {
            make.arg(format!("KBUILD_OUTPUT={}", directory.display()));
        }
        if let Some(pahole) = pahole {
            make.env("KERNLANE_PAHOLE", pahole);
        }
        make.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let make = interrupt::spawn(&mut make).context("make cannot be run; is it installed?")?;
        let status = make.wait()?;
        if !status.success() {
            let text = fs::read_to_string(&log_path).unwrap_or_default();
            ensure!(
                has_room(directory),
                "the kernel's own link failed because the disk of {} is full; free some space and \
                 try again",
                directory.display()
            );
            let lines: Vec<&str> = text.lines().collect();
            bail!(
                "the kernel's own link failed ({status}); its last lines:\n{}",
                lines[lines.len().saturating_sub(20)..].join("\n")
            );
        }
        ensure!(
            directory.join("vmlinux").exists(),
            "the kernel's own link made no vmlinux in {}: Kernlane does not understand how this \
             tree is built",
            directory.display()
        );
        Ok(())
    }
}

/// Whether the makefile of a build outside of its sources names the directory of the build, as in
/// kernels newer than 6.12. Called from another directory, make would work there nevertheless.
fn names_its_directory(tree: &Path) -> bool {
    let makefile = fs::read_to_string(tree.join("Makefile"));
    makefile.is_ok_and(|text| text.lines().any(|line| line.starts_with("export KBUILD_OUTPUT =")))
}

/// Opens a tree whose kernel shall be built: one that was built before, or one that is only
/// configured.
///
/// # Errors
/// The tree is built, and [`BuildTree::open`] refuses it. Or it is not, and has no configuration,
/// or the compiler of its configuration is not found.
pub fn tree_to_build(path: &Path, make_arguments: &[String]) -> Result<ConfiguredTree> {
    match path.join("vmlinux").exists() {
        true => Ok(BuildTree::open(path, make_arguments)?.configured),
        false => ConfiguredTree::open(path, make_arguments),
    }
}

fn time_of(path: &Path) -> Result<SystemTime> {
    fs::metadata(path)
        .and_then(|m| m.modified())
        .with_context(|| format!("{}: cannot be read", path.display()))
}

/// Makes a program that gives the kernel these types (BTF) instead of pahole. Its command line is
/// `pahole -J FLAGS… FILE`, with objcopy in `LLVM_OBJCOPY` (scripts/link-vmlinux.sh), or
/// `pahole -J FLAGS… --btf_encode_detached=TYPES FILE` (scripts/gen-btf.sh). Moving code does not
/// change types. But whenever pahole runs in parallel (scripts/Makefile.btf) it numbers them
/// differently, and modules refer to types by number.
fn stand_in_for_pahole(scratch: &Path, types: &[u8]) -> Result<PathBuf> {
    let (section, program) = (scratch.join(".kernlane.btf"), scratch.join(".kernlane-pahole"));
    fs::write(&section, types).context("the types (BTF) cannot be written")?;
    let text = "#!/bin/sh\nfor file; do\n    case $file in\n    --btf_encode_detached=*)\n        \
        exec cp \"${0%-pahole}.btf\" \"${file#*=}\" ;;\n    esac\ndone\n\
        exec $LLVM_OBJCOPY --add-section .BTF=\"${0%-pahole}.btf\" \"$file\"\n";
    fs::write(&program, text)
        .and_then(|()| fs::set_permissions(&program, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("{}: cannot be written", program.display()))?;
    Ok(program)
}

/// Whether a file in the directory can grow. Some of kbuild's programs do not report a full disk,
/// and the truncated files cause misleading errors.
pub(crate) fn has_room(directory: &Path) -> bool {
    const SOME: usize = 1 << 20;
    let probe = directory.join(".kernlane-probe");
    let written = fs::write(&probe, vec![0; SOME]).is_ok();
    // This function or the removal of the scratch tree removes the file.
    let _ = fs::remove_file(probe);
    written
}

/// The times of the object and the kernel in a tree.
fn times_of(tree: &Path) -> Result<[SystemTime; 2]> {
    Ok([time_of(&tree.join("vmlinux.o"))?, time_of(&tree.join("vmlinux"))?])
}

/// The file of a tree that holds the command that linked the kernel, and the linker in it.
fn link_command(path: &Path) -> Option<(&'static str, String)> {
    forms::LINK_COMMANDS.into_iter().find_map(|file| {
        let text = fs::read_to_string(path.join(file)).ok()?;
        let (linker, _) = text.split_once(forms::LINK_SCRIPT)?.1.split_once('"')?;
        Some((file, linker.split_whitespace().next()?.to_owned()))
    })
}

/// The linker with which a tree was linked, without options: kbuild takes `LD="ld.lld --option"`.
fn linker_of(path: &Path) -> Result<String> {
    let (_, linker) = link_command(path).with_context(|| {
        format!(
            "{}: Kernlane does not understand the command that linked vmlinux: no {} calls \
             scripts/link-vmlinux.sh",
            path.display(),
            forms::LINK_COMMANDS.join(" or ")
        )
    })?;
    Ok(linker)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configured::toolchain_of;
    use object::{Object, ObjectSection};

    /// A directory that looks like a tree built with this configuration, without a bzImage.
    fn built(config: &str) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        for directory in ["include/config", "scripts"] {
            fs::create_dir_all(tree.path().join(directory)).unwrap();
        }
        for (file, text) in [
            ("Makefile", ""),
            ("scripts/Makefile.vmlinux", ""),
            ("include/config/auto.conf", config),
            (
                ".vmlinux.cmd",
                "savedcmd_vmlinux := scripts/link-vmlinux.sh \"ld\" \"\" \"\"; true\n",
            ),
            ("vmlinux.o", ""),
            ("vmlinux", ""),
        ] {
            fs::write(tree.path().join(file), text).unwrap();
        }
        tree
    }

    #[test]
    fn a_kernel_for_user_mode_linux_needs_no_boot_image() {
        let tree = built("CONFIG_UML=y\n");
        let opened = BuildTree::open(tree.path(), &["KBUILD_VERBOSE=1".to_owned()]).unwrap();
        assert_eq!(opened.machine(), KernelTarget::UserMode);
        assert_eq!(opened.make_arguments(), ["ARCH=um", "KBUILD_VERBOSE=1"]);
        assert_eq!(opened.machine().results(), ["vmlinux", "System.map"]);
        assert!(opened.links_archive());
    }

    /// In kernels newer than 6.12, `make O=` writes such a makefile.
    #[test]
    fn a_link_never_works_in_the_tree_of_a_build_outside_of_its_sources() {
        let tree = built("CONFIG_UML=y\n");
        let scratch = tempfile::tempdir().unwrap();
        let link = |recipe: &str| {
            let text = format!(
                "export KBUILD_OUTPUT = {}\nkernlane-link:\n\t{recipe}\n",
                tree.path().display()
            );
            fs::write(tree.path().join("Makefile"), &text).unwrap();
            fs::write(scratch.path().join("Makefile"), &text).unwrap();
            let opened = BuildTree::open(tree.path(), &[]).unwrap();
            opened.final_link(scratch.path(), None)
        };
        let error = link("@:").unwrap_err().to_string();
        assert!(error.contains("made no vmlinux in"), "{error}");
        link("@echo new > $(KBUILD_OUTPUT)/vmlinux").unwrap();
        assert_eq!(fs::read_to_string(scratch.path().join("vmlinux")).unwrap(), "new\n");
        assert_eq!(fs::read_to_string(tree.path().join("vmlinux")).unwrap(), "");
    }

    #[test]
    fn options_of_the_linker_are_not_its_name() {
        let tree = built("CONFIG_UML=y\n");
        let command = "savedcmd_vmlinux := scripts/link-vmlinux.sh \"/opt/bin/ld.lld \
            --lto-sample-profile=/a/b\" \"-m elf_x86_64\" \"\"; true\n";
        fs::write(tree.path().join(".vmlinux.cmd"), command).unwrap();
        let opened = BuildTree::open(tree.path(), &[]).unwrap();
        assert_eq!(opened.linker(), "/opt/bin/ld.lld");
        assert_eq!(opened.make_arguments(), ["LLVM=/opt/bin/", "ARCH=um"]);
    }

    #[test]
    fn a_kernel_for_x86_needs_its_boot_image() {
        let tree = built("CONFIG_X86_KERNEL_IBT=y\n");
        let error = BuildTree::open(tree.path(), &[]).err().unwrap().to_string();
        assert!(error.contains("arch/x86/boot/bzImage is missing"), "{error}");
        let boot = tree.path().join("arch/x86/boot");
        fs::create_dir_all(&boot).unwrap();
        fs::write(boot.join("bzImage"), "").unwrap();
        let opened = BuildTree::open(tree.path(), &[]).unwrap();
        assert_eq!(opened.machine(), KernelTarget::X86);
        assert!(opened.make_arguments().is_empty() && !opened.links_archive());
    }

    #[test]
    fn the_new_kernel_gets_the_types_of_the_old_one() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join(".tmp_vmlinux1");
        let mut object = object::write::Object::new(
            object::BinaryFormat::Elf,
            object::Architecture::X86_64,
            object::Endianness::Little,
        );
        let text = object.section_id(object::write::StandardSection::Text);
        object.append_section_data(text, &[0xc3], 1);
        fs::write(&file, object.write().unwrap()).unwrap();
        let pahole = stand_in_for_pahole(scratch.path(), b"types").unwrap();
        let mut command = Command::new(pahole);
        command.args(["-J", "--btf_gen_floats", "-j"]).arg(&file).env("LLVM_OBJCOPY", "objcopy");
        assert!(command.status().unwrap().success());
        let bytes = fs::read(&file).unwrap();
        let elf = object::File::parse(&*bytes).unwrap();
        assert_eq!(elf.section_by_name(".BTF").unwrap().data().unwrap(), b"types");
        assert!(!command.env("LLVM_OBJCOPY", "false").status().unwrap().success());
    }

    #[test]
    fn the_types_may_be_wanted_in_a_file_of_their_own() {
        let scratch = tempfile::tempdir().unwrap();
        let (file, wanted) = (scratch.path().join(".tmp_vmlinux1"), scratch.path().join("1.BTF.1"));
        fs::write(&file, "unchanged").unwrap();
        let pahole = stand_in_for_pahole(scratch.path(), b"types").unwrap();
        let mut command = Command::new(pahole);
        command.args(["-J", "--btf_features=float"]);
        command.arg(format!("--btf_encode_detached={}", wanted.display())).arg(&file);
        assert!(command.env("LLVM_OBJCOPY", "false").status().unwrap().success());
        assert_eq!(fs::read(&wanted).unwrap(), b"types");
        assert_eq!(fs::read(&file).unwrap(), b"unchanged");
    }

    /// Linux 6.16 and later link `vmlinux.unstripped`, and strip it into `vmlinux`.
    #[test]
    fn the_command_that_linked_the_kernel_is_found_in_either_file() {
        let tree = built("");
        let command = |file: &str, text: &str| fs::write(tree.path().join(file), text).unwrap();
        let toolchain = || linker_of(tree.path()).map(|linker| toolchain_of(&linker));
        assert!(toolchain().unwrap().is_empty());
        command(".vmlinux.cmd", "savedcmd_vmlinux := objcopy vmlinux.unstripped vmlinux\n");
        let error = toolchain().unwrap_err().to_string();
        assert!(error.contains("no .vmlinux.unstripped.cmd or .vmlinux.cmd calls"), "{error}");
        let link =
            "savedcmd_vmlinux.unstripped := scripts/link-vmlinux.sh \"ld.lld-22\" \"-m\" \"\"\n";
        command(".vmlinux.unstripped.cmd", link);
        assert_eq!(toolchain().unwrap(), ["LLVM=-22"]);
        // As Linux 6.1 writes it.
        fs::remove_file(tree.path().join(".vmlinux.unstripped.cmd")).unwrap();
        command(".vmlinux.cmd", "cmd_vmlinux := scripts/link-vmlinux.sh \"x-ld\" \"-m\" \"\"\n");
        assert_eq!(toolchain().unwrap(), ["CROSS_COMPILE=x-"]);
    }
}
