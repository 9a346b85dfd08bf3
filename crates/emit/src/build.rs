//! Builds a kernel again: from the sources and with the configuration of a built tree, by the
//! compiler that built it, with further options for the compiler.
//!
//! Input: a built tree, which is only read, and clean sources ([`crate::sources`]). Output: a
//! directory with a built kernel. kbuild writes the same version, date and builder as in the tree,
//! so equal inputs give equal kernels. An interrupted build goes on where it stopped.

use crate::kbuild::{BuildTree, KernelTarget, has_room};
use anyhow::{Context, Result, bail, ensure};
use host::{interrupt, output};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// A kernel to build.
pub struct KernelBuild<'a> {
    /// The tree that was built before.
    pub tree: &'a BuildTree,
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

    /// About how many lines make prints: one for each object of the tree.
    pub fn expected_lines(&self) -> u64 {
        objects_below(&self.tree.path)
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
             {}; run make olddefconfig in the tree, and build it again",
            self.tree.path.display(),
            changed.join(", ")
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
        let file = fs::File::create(&log)
            .with_context(|| format!("{}: cannot be written", log.display()))?;
        make.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        let mut make =
            interrupt::spawn(&mut make).context("make cannot be run; is it installed?")?;
        let printed = make.take_stdout().context("make's output")?;
        for line in BufReader::new(printed).split(b'\n') {
            line.context("make's output cannot be read")?;
            advance();
        }
        let status = make.wait()?;
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

    #[test]
    fn changed_options_are_named_once() {
        let before = "# Linux\nCONFIG_A=y\nCONFIG_B=m\n# CONFIG_C is not set\nCONFIG_D=\"x\"\n";
        let after = "# Linux 2\nCONFIG_A=y\nCONFIG_B=y\nCONFIG_C=y\nCONFIG_D=\"x\"\n";
        assert_eq!(changed_options(before, before), [""; 0]);
        assert_eq!(changed_options(before, after), ["CONFIG_B", "CONFIG_C"]);
    }
}
