//! What a kernel's tree is made of, and the steps that make it.
//!
//! Input: sources, a configuration, a compiler. Output: a built tree. The caller chooses the place,
//! and keeps what is complete.

use super::source::Source;
use crate::{run, succeeded};
use anyhow::{Context, Result, bail, ensure};
use host::progress::Progress;
use image::sealed;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// What make builds for a kernel of a guest.
pub const TARGETS: &[&str] = &["bzImage", "modules"];
/// The number of lines that kbuild prints for the demo kernel with modules.
pub const DEMO_LINES: u64 = 1_950;

/// What a tree is made of.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The tree's name in messages.
    pub name: String,
    pub source: Source,
    /// Lines of `.config`. A later line of an option goes before an earlier one.
    pub config: String,
    /// The lines are a whole configuration; otherwise they come on top of `tinyconfig`.
    pub is_complete: bool,
    /// The program that compiles.
    pub compiler: &'static str,
    /// Words for every make.
    pub make_arguments: Vec<String>,
    pub targets: Vec<String>,
    /// How many lines kbuild prints. Only the progress uses them.
    pub expected_lines: u64,
}

/// As many jobs as there are processors.
pub fn all_processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Recipe {
    /// The text that identifies the input of a tree: the sources' package, the configuration, the
    /// compiler.
    ///
    /// # Errors
    /// The compiler is not installed.
    pub fn stamp(&self) -> Result<String> {
        let config = sealed::sha256(self.config.as_bytes());
        let (source, compiler) = (&self.source, self.compiler_version()?);
        Ok(format!("{} {}\nconfig {config}\n{compiler}\n", source.package, source.version))
    }

    /// What the compiler says of itself.
    ///
    /// # Errors
    /// It is not installed.
    pub fn compiler_version(&self) -> Result<String> {
        let output = succeeded(Command::new(self.compiler).arg("--version"))
            .with_context(|| format!("{} is not installed; run xtask/setup.sh", self.compiler))?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or("").to_owned())
    }

    /// Unpacks the sources into `tree`, which exists.
    ///
    /// # Errors
    /// tar fails.
    pub fn unpack(&self, tree: &Path) -> Result<()> {
        let _progress = Progress::new("unpacking the kernel's sources");
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(tree).args(["--strip-components=1", "-xf"]).arg(&self.source.archive);
        run(&mut tar)
    }

    /// Makes the tree's `.config`.
    ///
    /// # Errors
    /// make fails, or kconfig does not take an option that is set here.
    pub fn configure(&self, tree: &Path) -> Result<()> {
        if self.is_complete {
            fs::write(tree.join(".config"), &self.config)?;
            return run(self.make(tree).args(["-s", "olddefconfig"]));
        }
        fs::write(tree.join(".kernlane-config"), &self.config)?;
        run(self.make(tree).args(["-s", "tinyconfig"]))?;
        run(Command::new("scripts/kconfig/merge_config.sh")
            .current_dir(tree)
            .args(["-m", ".config", ".kernlane-config"])
            .stdout(Stdio::null()))?;
        run(self.make(tree).args(["-s", "olddefconfig"]))
    }

    /// Builds a configured tree with that many jobs.
    ///
    /// # Errors
    /// The kernel cannot be built; the message has the end of the build's log.
    pub fn build(&self, tree: &Path, jobs: usize) -> Result<()> {
        let log = tree.join(".kernlane-build.log");
        let mut child = self
            .make(tree)
            .arg(format!("-j{jobs}"))
            .args(&self.targets)
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log)?)
            .spawn()
            .context("make cannot be run; run xtask/setup.sh")?;
        let (mut printed, expected) = (0, self.expected_lines);
        let progress = Progress::of(expected, format!("building the kernel ({})", self.name));
        let output = child.stdout.take().context("make's output")?;
        for line in BufReader::new(output).lines() {
            line?;
            printed += 1;
            progress.advance(u64::from(printed < expected));
        }
        let status = child.wait()?;
        drop(progress);
        if !status.success() {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let tail: Vec<&str> = text.lines().rev().take(15).collect();
            let tail: String = tail.iter().rev().map(|line| format!("  {line}\n")).collect();
            bail!("the kernel cannot be built ({status}); the end of {}:\n{tail}", log.display());
        }
        Ok(())
    }

    fn make(&self, tree: &Path) -> Command {
        // At a low priority the build would stand still on a busy machine, and somebody waits for
        // it.
        let mut make = Command::new("make");
        make.current_dir(tree)
            .args(&self.make_arguments)
            // Equal sources give an equal kernel.
            .env("KBUILD_BUILD_TIMESTAMP", "2026-01-01")
            .env("KBUILD_BUILD_USER", "kernlane")
            .env("KBUILD_BUILD_HOST", "kernlane");
        make
    }
}

/// Whether a `.config` has all options of `lines` as they are set there.
///
/// # Errors
/// Names the options that kconfig did not take.
pub fn are_set(config: &str, lines: &str) -> Result<()> {
    let has = |line: &str| match line.strip_suffix("=n") {
        // An option that is off, or that the version does not have.
        Some(option) => !config.lines().any(|set| set.starts_with(&format!("{option}="))),
        None => config.lines().any(|set| set == line),
    };
    let missing: Vec<&str> =
        lines.lines().filter(|line| line.starts_with("CONFIG_") && !has(line)).collect();
    ensure!(missing.is_empty(), "kconfig does not take {}", missing.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_has_the_usual_priority() {
        let recipe = Recipe {
            name: "clang".into(),
            source: Source { package: String::new(), version: String::new(), archive: "".into() },
            config: String::new(),
            is_complete: false,
            compiler: "clang-22",
            make_arguments: vec!["LLVM=-22".into()],
            targets: Vec::new(),
            expected_lines: 0,
        };
        let make = recipe.make(Path::new("."));
        assert_eq!(make.get_program(), "make");
        assert_eq!(make.get_args().collect::<Vec<_>>(), ["LLVM=-22"]);
    }

    #[test]
    fn options_that_kconfig_dropped_are_named() {
        let config = "CONFIG_LTO_CLANG_THIN=y\n# CONFIG_LTO_NONE is not set\nCONFIG_NR_CPUS=8\n";
        let wanted = "CONFIG_LTO_CLANG_THIN=y\nCONFIG_LTO_NONE=n\nCONFIG_PREEMPT_LAZY=n\n";
        assert!(are_set(config, wanted).is_ok());
        let error = are_set(config, "CONFIG_CFI_CLANG=y\nCONFIG_NR_CPUS=n\n").unwrap_err();
        let text = "kconfig does not take CONFIG_CFI_CLANG=y, CONFIG_NR_CPUS=n";
        assert_eq!(error.to_string(), text);
    }
}
