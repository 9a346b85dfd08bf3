//! Builds a kernel from the sources and with the configuration of a tree, by its compiler, with
//! further options for the compiler.
//!
//! Input: a tree, which is only read, and clean sources ([`crate::sources`]). Output: a directory
//! with a built kernel. If the tree was built, kbuild writes the same version, date and builder as
//! there, so equal inputs give equal kernels. An interrupted build goes on where it stopped.

use crate::configured::{ConfiguredTree, KernelTarget};
use crate::kbuild::has_room;
use anyhow::{Context, Result, bail, ensure};
use host::{interrupt, output};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A kernel to build.
pub struct KernelBuild<'a> {
    /// The tree with the configuration.
    pub tree: &'a ConfiguredTree,
    /// Its sources, without a build among them.
    pub sources: &'a Path,
    /// Where to build.
    pub directory: &'a Path,
    /// Further options for the compiler.
    pub compiler_options: &'a [String],
    /// Further variables for make: `NAME=VALUE`.
    pub variables: &'a [String],
    /// The files that the options refer to, so that a change of them is noticed.
    pub inputs: &'a [&'a Path],
}

/// What was built, kept in the directory when all of it is there.
const DONE: &str = ".kernlane-built";
const LOG: &str = "kernlane-build.log";
const CONFIGURATION: &str = ".config";
/// How often progress is reported.
const MOMENT: Duration = Duration::from_millis(250);
/// Lines of the log that an error shows.
const LAST_LINES: usize = 20;

impl KernelBuild<'_> {
    /// Whether the kernel was built already, from the same configuration and with the same options.
    pub fn is_done(&self) -> bool {
        let known = fs::read_to_string(self.directory.join(DONE));
        known.is_ok_and(|known| self.description().is_ok_and(|wanted| known == wanted))
            && self.directory.join("vmlinux").exists()
    }

    /// Builds the kernel and its modules. `advance` is called for each line that make prints, of
    /// about [`KernelBuild::expected_lines`].
    ///
    /// # Errors
    /// The configuration does not fit the compiler or the sources, or the build fails. What was
    /// built stays in the directory.
    pub fn run(&self, advance: &mut dyn FnMut()) -> Result<()> {
        self.prepare()?;
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let mut make = self.make()?;
        make.arg(format!("-j{jobs}")).args(self.targets());
        self.logged(make, advance)?;
        output::write(&self.directory.join(DONE), self.description()?.as_bytes())
    }

    /// About how many lines make prints: one for each object of the tree. 0 if the tree is not
    /// built: its only objects are those of the configuration programs.
    pub fn expected_lines(&self) -> u64 {
        match self.tree.is_built() {
            true => objects_below(&self.tree.path),
            false => 0,
        }
    }

    /// Puts the configuration into the directory, and what an earlier build with other inputs left
    /// there out of it: make does not notice that a profile has changed.
    fn prepare(&self) -> Result<()> {
        let begun = self.directory.join(".kernlane-begun");
        let description = self.description()?;
        if !fs::read_to_string(&begun).is_ok_and(|known| known == description) {
            if self.directory.exists() {
                fs::remove_dir_all(self.directory)
                    .with_context(|| format!("{}: cannot be removed", self.directory.display()))?;
            }
            fs::create_dir_all(self.directory)
                .with_context(|| format!("{}: cannot be made", self.directory.display()))?;
            output::write(&begun, description.as_bytes())?;
        }
        let configuration = self.directory.join(CONFIGURATION);
        if !configuration.exists() {
            output::write(&configuration, self.configuration()?.as_bytes())?;
        }
        self.keep_key()?;
        let mut make = self.make()?;
        make.args(["-s", "olddefconfig"]);
        self.logged(make, &mut || {})?;
        let now = fs::read_to_string(&configuration).context(".config: cannot be read")?;
        let changed = changed_options(&self.configuration()?, &now);
        ensure!(
            changed.is_empty(),
            "{}: with these sources and this compiler, the configuration would not stay as it is: \
             {}; run make olddefconfig in the tree{}",
            self.tree.path.display(),
            changed.join(", "),
            if self.tree.is_built() { ", and build it again" } else { "" }
        );
        Ok(())
    }

    /// Modules are signed by the key of the tree's own build, if it made one.
    fn keep_key(&self) -> Result<()> {
        let (key, to) =
            (self.tree.file("certs/signing_key.pem"), self.directory.join("certs/signing_key.pem"));
        if !key.exists() || to.exists() {
            return Ok(());
        }
        let made = fs::create_dir_all(self.directory.join("certs"));
        made.and_then(|()| fs::copy(&key, &to).map(drop))
            .with_context(|| format!("{}: cannot be copied", key.display()))
    }

    fn configuration(&self) -> Result<String> {
        let path = self.tree.file(CONFIGURATION);
        fs::read_to_string(&path).with_context(|| format!("{}: cannot be read", path.display()))
    }

    /// What decides about the kernel.
    fn description(&self) -> Result<String> {
        let mut text = format!(
            "configuration {}\nmake {:?}\noptions {:?}\nvariables {:?}\n",
            digest(self.configuration()?.as_bytes()),
            self.tree.make_arguments(),
            self.compiler_options,
            self.variables
        );
        for input in self.inputs {
            let bytes = fs::read(input).with_context(|| input.display().to_string())?;
            text += &format!("input {} {}\n", input.display(), digest(&bytes));
        }
        Ok(text)
    }

    fn targets(&self) -> Vec<&'static str> {
        let kernel = match self.tree.machine() {
            KernelTarget::X86 => "bzImage",
            KernelTarget::UserMode => "vmlinux",
        };
        let modules = self.tree.has_modules().then_some("modules");
        [kernel].into_iter().chain(modules).collect()
    }

    fn make(&self) -> Result<Command> {
        let mut make = self.tree.make_command(self.sources)?;
        let arguments = self.tree.make_arguments();
        let given = arguments.iter().find_map(|argument| argument.strip_prefix("KCFLAGS="));
        let options = given.into_iter().chain(self.compiler_options.iter().map(|o| &**o));
        let options: Vec<&str> = options.collect();
        make.arg(format!("O={}", self.directory.display()))
            .args(arguments.iter().filter(|argument| !argument.starts_with("KCFLAGS=")))
            .args(self.variables)
            .arg(format!("KCFLAGS={}", options.join(" ")));
        Ok(make)
    }

    /// Runs make with its output in the log.
    fn logged(&self, mut make: Command, advance: &mut dyn FnMut()) -> Result<()> {
        let log = self.directory.join(LOG);
        let named = || format!("{}: cannot be written", log.display());
        let file = fs::File::create(&log).with_context(named)?;
        let mut printed = BufReader::new(fs::File::open(&log).with_context(named)?);
        make.stdin(Stdio::null()).stdout(file.try_clone().with_context(named)?).stderr(file);
        let mut make =
            interrupt::spawn(&mut make).context("make cannot be run; is it installed?")?;
        let status = loop {
            let ended = make.wait_at_most(MOMENT)?;
            let mut bytes = Vec::new();
            printed.read_to_end(&mut bytes).with_context(|| log.display().to_string())?;
            bytes.iter().filter(|byte| **byte == b'\n').for_each(|_| advance());
            if let Some(status) = ended {
                break status;
            }
        };
        if status.success() {
            return Ok(());
        }
        ensure!(
            has_room(self.directory),
            "the build failed because the disk of {} is full; free some space and try again",
            self.directory.display()
        );
        let text = fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        bail!(
            "the build failed ({status}); the last lines of {}:\n{}",
            log.display(),
            lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
        );
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The options that differ between two configurations, by name.
fn changed_options(before: &str, after: &str) -> Vec<String> {
    let options = |text: &str| -> BTreeSet<String> {
        text.lines().filter(|line| line.starts_with("CONFIG_")).map(str::to_owned).collect()
    };
    let (before, after) = (options(before), options(after));
    let names = before.symmetric_difference(&after).filter_map(|line| line.split_once('='));
    let names: BTreeSet<String> = names.map(|(name, _)| name.to_owned()).collect();
    names.into_iter().collect()
}

/// The objects that kbuild's records name below a directory.
fn objects_below(directory: &Path) -> u64 {
    let mut found = 0;
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found += objects_below(&entry.path()),
            Ok(_) if name.to_string_lossy().ends_with(".o.cmd") => found += 1,
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kbuild::tree_to_build;

    /// A tree that looks built, whose makefile does what the test says.
    fn tree(makefile: &str) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        let linked = "savedcmd_vmlinux := scripts/link-vmlinux.sh \"ld.lld-22\" \"\" \"\"; true\n";
        for (file, text) in [
            ("Makefile", makefile),
            (".config", "CONFIG_MODULES=y\n"),
            ("scripts/Makefile.vmlinux", ""),
            ("include/config/auto.conf", "CONFIG_MODULES=y\n"),
            ("arch/x86/boot/bzImage", ""),
            (".vmlinux.cmd", linked),
            ("vmlinux.o", ""),
            ("vmlinux", ""),
            (".a.o.cmd", ""),
            ("fs/.b.o.cmd", ""),
        ] {
            let path = tree.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        tree
    }

    /// The result of building in `tree` with a profile that holds `profile`, and the lines printed.
    fn built(tree: &Path, makefile: &str, profile: &str) -> (Result<()>, u64) {
        let (sources, directory) = (tree.join("sources"), tree.join("out/kernel.build"));
        fs::create_dir_all(&sources).unwrap();
        fs::write(sources.join("Makefile"), makefile).unwrap();
        let input = tree.join("profile.prof");
        fs::write(&input, profile).unwrap();
        let opened = tree_to_build(tree, &["KCFLAGS=-O3".to_owned()]).unwrap();
        let build = KernelBuild {
            tree: &opened,
            sources: &sources,
            directory: &directory,
            compiler_options: &["-gmlt".to_owned()],
            variables: &[],
            inputs: &[&input],
        };
        assert_eq!(build.expected_lines(), 2);
        let mut printed = 0;
        let result = build.run(&mut || printed += 1);
        assert_eq!(build.is_done(), result.is_ok());
        (result, printed)
    }

    const BUILDS: &str = "bzImage modules:\n\t@echo '$(LLVM) $(KCFLAGS)' >> $(O)/$@.made\n\t@echo \
        made $@\n\t@touch $(O)/vmlinux\nolddefconfig:\n\t@:\n";

    #[test]
    fn a_kernel_is_built_with_its_options_and_again_when_its_profile_changes() {
        let home = tree("");
        let (result, printed) = built(home.path(), BUILDS, "a");
        result.unwrap();
        // make itself prints where it enters and leaves.
        assert!(printed >= 2, "{printed} lines");
        let directory = home.path().join("out/kernel.build");
        let made = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
        assert_eq!(made("bzImage.made"), "-22 -O3 -gmlt\n");
        assert_eq!(made(".config"), "CONFIG_MODULES=y\n");
        // The same again goes on in the same directory.
        built(home.path(), BUILDS, "a").0.unwrap();
        assert_eq!(made("modules.made").lines().count(), 2);
        built(home.path(), BUILDS, "b").0.unwrap();
        assert_eq!(made("modules.made").lines().count(), 1);
    }

    #[test]
    fn a_build_that_fails_says_why_and_keeps_what_it_made() {
        let home = tree("");
        let fails = "bzImage:\n\t@touch $(O)/made\n\t@echo fs/a.c:1: wrong; false\nmodules \
            olddefconfig:\n\t@:\n";
        let error = built(home.path(), fails, "a").0.unwrap_err().to_string();
        assert!(
            error.contains("fs/a.c:1: wrong") && error.contains("kernlane-build.log"),
            "{error}"
        );
        assert!(home.path().join("out/kernel.build/made").exists());

        let changes = "olddefconfig:\n\t@echo CONFIG_NEW=y >> $(O)/.config\n";
        let error = built(home.path(), changes, "a").0.unwrap_err().to_string();
        assert!(error.contains("CONFIG_NEW") && error.contains("olddefconfig"), "{error}");
        let kept = fs::read_to_string(home.path().join(".config")).unwrap();
        assert_eq!(kept, "CONFIG_MODULES=y\n");
    }

    #[test]
    fn changed_options_are_named_once() {
        let before = "# Linux\nCONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\nCONFIG_D=\"x\"\n";
        let after = "# Linux 2\nCONFIG_A=y\nCONFIG_B=y\nCONFIG_C=y\nCONFIG_D=\"x\"\n";
        assert_eq!(changed_options(before, before), [""; 0]);
        assert_eq!(changed_options(before, after), ["CONFIG_B", "CONFIG_C"]);
    }
}
