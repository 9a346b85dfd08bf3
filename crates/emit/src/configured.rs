//! A kernel tree that is configured: what shall be built, and by which programs.
//!
//! Input: the directory of a tree, built or not, and arguments for make. Output: its options, its
//! compiler and linker, and make commands that use them.

use crate::{install, scratch_tree};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A kernel tree that is configured. It may be built.
pub struct ConfiguredTree {
    /// The directory of the tree.
    pub path: PathBuf,
    /// The file with the configuration.
    configuration: &'static str,
    make_arguments: Vec<String>,
    machine: KernelTarget,
    linker: String,
}

/// The configuration with which a tree was built.
pub(crate) const BUILT_CONFIGURATION: &str = "include/config/auto.conf";
/// The configuration with which it will be built.
const CONFIGURATION: &str = ".config";

/// The target of a kernel (`ARCH=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelTarget {
    /// A PC (arch/x86).
    X86,
    /// A process of another Linux (arch/um).
    UserMode,
}

impl KernelTarget {
    /// The results of linking such a kernel, by their paths in a tree. `vmlinux` comes first.
    pub fn results(self) -> &'static [&'static str] {
        match self {
            KernelTarget::X86 => &install::BOOTABLE,
            KernelTarget::UserMode => &install::PROGRAM,
        }
    }

    /// The target of the kernel in a tree.
    pub(crate) fn of(tree: &Path) -> KernelTarget {
        match has_line(&configuration_of(tree), "CONFIG_UML=y") {
            true => KernelTarget::UserMode,
            false => KernelTarget::X86,
        }
    }
}

impl ConfiguredTree {
    /// Opens a tree that is not built.
    ///
    /// # Errors
    /// The tree is not configured, or the compiler of its configuration is not found.
    pub(crate) fn open(path: &Path, make_arguments: &[String]) -> Result<ConfiguredTree> {
        let path = kernel_tree(path)?;
        ensure!(
            path.join(CONFIGURATION).exists(),
            "{}: the kernel is not configured (no .config); configure it with make",
            path.display()
        );
        let linker = linker_given(make_arguments)
            .map_or_else(|| linker_of_configuration(&path), Ok)
            .with_context(|| path.display().to_string())?;
        Ok(ConfiguredTree::new(path, CONFIGURATION, linker, make_arguments.to_vec()))
    }

    /// A tree at a path, with its linker and the user's arguments for make.
    pub(crate) fn new(
        path: PathBuf,
        configuration: &'static str,
        linker: String,
        make_arguments: Vec<String>,
    ) -> ConfiguredTree {
        let machine = KernelTarget::of(&path);
        let architecture = (machine == KernelTarget::UserMode).then(|| "ARCH=um".to_owned());
        let found_out = toolchain_of(&linker).into_iter().chain(architecture);
        // What the user says as well is said once.
        let found_out = found_out.filter(|found| !make_arguments.contains(found));
        let found_out: Vec<String> = found_out.collect();
        let make_arguments = found_out.into_iter().chain(make_arguments).collect();
        ConfiguredTree { path, configuration, make_arguments, machine, linker }
    }

    /// Whether the tree is built.
    pub fn is_built(&self) -> bool {
        self.configuration == BUILT_CONFIGURATION
    }

    /// The path of a file in the tree.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The target of the kernel.
    pub(crate) fn machine(&self) -> KernelTarget {
        self.machine
    }

    /// Whether the kernel loads modules.
    pub(crate) fn has_modules(&self) -> bool {
        self.has_option("CONFIG_MODULES=y")
    }

    /// Whether the configuration has this line.
    pub fn has_option(&self, option: &str) -> bool {
        has_line(&self.file(self.configuration), option)
    }

    /// The value of an option with a text, without its quotes.
    pub(crate) fn option(&self, name: &str) -> Option<String> {
        let config = fs::read_to_string(self.file(self.configuration)).ok()?;
        let mut values =
            config.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        values.next_back().map(|value| value.trim_matches('"').to_owned())
    }

    /// The arguments for make: those of the compiler and linker, and those of the user.
    pub(crate) fn make_arguments(&self) -> &[String] {
        &self.make_arguments
    }

    /// The linker, without options: a name or a path.
    pub fn linker(&self) -> &str {
        &self.linker
    }

    /// Whether the kernel contains its own types (BTF).
    pub(crate) fn has_types(&self) -> bool {
        self.has_option("CONFIG_DEBUG_INFO_BTF=y")
    }

    /// make in `directory`, without arguments. What it builds says the version, date and builder of
    /// this tree, if it was built.
    pub(crate) fn make_command(&self, directory: &Path) -> Result<Command> {
        let mut make = Command::new("make");
        make.arg("-C").arg(directory);
        for inherited in [
            "MAKEFLAGS",
            "MFLAGS",
            "MAKELEVEL",
            "MAKEOVERRIDES",
            "sub_make_done",
            "KBUILD_OUTPUT",
            "O",
        ] {
            make.env_remove(inherited);
        }
        make.envs(self.build_identity()?);
        Ok(make)
    }

    /// The variables that make kbuild write the same version, date and builder again.
    fn build_identity(&self) -> Result<Vec<(&'static str, String)>> {
        let quoted = |file: &str, key: &str| -> Option<String> {
            let text = fs::read_to_string(self.file(file)).ok()?;
            let line = text.lines().find(|l| l.split_whitespace().nth(1) == Some(key))?;
            Some(line.split_once('"')?.1.rsplit_once('"')?.0.to_owned())
        };
        let mut found = Vec::new();
        if let Some(version) = quoted("include/generated/utsversion.h", "UTS_VERSION") {
            let mut words = version.trim_start_matches('#').splitn(2, ' ');
            found.push(("KBUILD_BUILD_VERSION", words.next().unwrap_or("1").to_owned()));
            let mut rest = words.next().unwrap_or("");
            for flag in ["SMP ", "PREEMPT ", "PREEMPT_DYNAMIC ", "PREEMPT_RT "] {
                rest = rest.strip_prefix(flag).unwrap_or(rest);
            }
            found.push(("KBUILD_BUILD_TIMESTAMP", rest.to_owned()));
        }
        for (variable, key) in
            [("KBUILD_BUILD_USER", "LINUX_COMPILE_BY"), ("KBUILD_BUILD_HOST", "LINUX_COMPILE_HOST")]
        {
            if let Some(value) = quoted("include/generated/compile.h", key) {
                found.push((variable, value));
            }
        }
        Ok(found)
    }
}

/// The canonical path of a kernel tree.
///
/// # Errors
/// There is no such directory, or it holds something else.
pub(crate) fn kernel_tree(path: &Path) -> Result<PathBuf> {
    let path =
        fs::canonicalize(path).with_context(|| format!("{}: no such tree", path.display()))?;
    let is_kernel = path.join("Makefile").exists()
        && (path.join("include/config").exists() || path.join("source").exists());
    ensure!(
        is_kernel || path.join("Kconfig").exists(),
        "{}: not a Linux kernel tree; give the directory in which the kernel was built",
        path.display()
    );
    scratch_tree::ensure_plain(&path)?;
    Ok(path)
}

/// The file with the configuration of a tree: that of its build, if there is one.
fn configuration_of(tree: &Path) -> PathBuf {
    let built = tree.join(BUILT_CONFIGURATION);
    if built.exists() { built } else { tree.join(CONFIGURATION) }
}

fn has_line(configuration: &Path, option: &str) -> bool {
    let text = fs::read_to_string(configuration).unwrap_or_default();
    text.lines().any(|line| line == option)
}

/// The linker that arguments for make name. The last one counts, and `LD` more than `LLVM`.
fn linker_given(make_arguments: &[String]) -> Option<String> {
    let last = |name: &str| {
        let mut values =
            make_arguments.iter().filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        values.next_back()
    };
    if let Some(linker) = last("LD").and_then(|value| value.split_whitespace().next()) {
        return Some(linker.to_owned());
    }
    match (last("LLVM"), last("CROSS_COMPILE")) {
        (Some("1"), _) => Some("ld.lld".to_owned()),
        // The tools of a directory, or with a suffix.
        (Some(place), _) if place.ends_with('/') => Some(format!("{place}ld.lld")),
        (Some(suffix), _) if !suffix.is_empty() => Some(format!("ld.lld{suffix}")),
        (_, Some(prefix)) => Some(format!("{prefix}ld")),
        _ => None,
    }
}

/// The linker of a configuration: the one that lies beside the compiler that it names.
fn linker_of_configuration(tree: &Path) -> Result<String> {
    let text = fs::read_to_string(tree.join(CONFIGURATION)).context(".config: cannot be read")?;
    let value =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let compiler = value("CONFIG_CC_VERSION_TEXT").unwrap_or_default().trim_matches('"');
    let candidates = match (value("CONFIG_CC_IS_CLANG"), value("CONFIG_LD_IS_LLD")) {
        (Some("y"), Some("y")) => {
            let version: u32 = value("CONFIG_CLANG_VERSION").unwrap_or_default().parse()?;
            let suffix = format!("-{}", version / 10_000);
            vec![
                ("clang".to_owned(), "ld.lld".to_owned()),
                (format!("clang{suffix}"), format!("ld.lld{suffix}")),
            ]
        }
        (None, None) => vec![("gcc".to_owned(), "ld".to_owned())],
        _ => Vec::new(),
    };
    for (candidate, linker) in candidates {
        if first_line(&candidate).is_some_and(|line| line == compiler) {
            return Ok(linker);
        }
    }
    bail!(
        "the kernel is not built, and the compiler of its configuration ({compiler}) is not found; \
         give the variables of your build for make, such as LLVM=1"
    )
}

/// What a compiler says of itself, as kbuild asks for it.
fn first_line(compiler: &str) -> Option<String> {
    let output = Command::new(compiler).arg("--version").env("LC_ALL", "C").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.trim_end().to_owned())
}

/// The arguments that make needs to use this linker.
pub(crate) fn toolchain_of(linker: &str) -> Vec<String> {
    let (directory, name) = linker.rsplit_once('/').map_or(("", linker), |(d, n)| (d, n));
    match name.strip_prefix("ld.lld") {
        Some("") if directory.is_empty() => vec!["LLVM=1".to_owned()],
        Some("") => vec![format!("LLVM={directory}/")],
        Some(suffix) => vec![format!("LLVM={suffix}")],
        None => linker
            .strip_suffix("ld")
            .filter(|prefix| !prefix.is_empty())
            .map(|prefix| format!("CROSS_COMPILE={prefix}"))
            .into_iter()
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn make_arguments_name_the_linker() {
        let linker = |words: &[&str]| {
            linker_given(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(linker(&["V=1"]), None);
        assert_eq!(linker(&["LLVM=1"]).unwrap(), "ld.lld");
        assert_eq!(linker(&["LLVM=1", "LLVM=-22"]).unwrap(), "ld.lld-22");
        assert_eq!(linker(&["LLVM=/opt/bin/"]).unwrap(), "/opt/bin/ld.lld");
        assert_eq!(linker(&["LLVM=1", "LD=mold --x"]).unwrap(), "mold");
        assert_eq!(linker(&["CROSS_COMPILE=x-"]).unwrap(), "x-ld");
    }

    fn configured(configuration: &str) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        for (file, text) in [("Makefile", ""), ("Kconfig", ""), (CONFIGURATION, configuration)] {
            fs::write(tree.path().join(file), text).unwrap();
        }
        tree
    }

    #[test]
    fn a_tree_that_is_only_configured_names_its_compiler() {
        let gcc = first_line("gcc").unwrap();
        let tree = configured(&format!("CONFIG_CC_VERSION_TEXT=\"{gcc}\"\nCONFIG_MODULES=y\n"));
        let opened = ConfiguredTree::open(tree.path(), &["V=1".to_owned()]).unwrap();
        assert_eq!((opened.linker(), opened.make_arguments()), ("ld", &["V=1".to_owned()][..]));
        assert!(!opened.is_built() && opened.has_modules() && !opened.has_types());
        assert_eq!(opened.machine(), KernelTarget::X86);

        let other = configured(
            "CONFIG_CC_IS_CLANG=y\nCONFIG_LD_IS_LLD=y\nCONFIG_UML=y\n\
            CONFIG_CLANG_VERSION=10101\nCONFIG_CC_VERSION_TEXT=\"clang version 1.1.1\"\n",
        );
        let message = |arguments: &[String]| {
            ConfiguredTree::open(other.path(), arguments).err().map(|error| format!("{error:#}"))
        };
        let unknown = message(&[]).unwrap();
        assert!(unknown.contains("(clang version 1.1.1) is not found"), "{unknown}");
        let named = ["LLVM=-9".to_owned()];
        assert_eq!(message(&named), None);
        let opened = ConfiguredTree::open(other.path(), &named).unwrap();
        assert_eq!(opened.make_arguments(), ["ARCH=um", "LLVM=-9"]);
    }

    #[test]
    fn a_tree_without_a_configuration_is_refused() {
        let tree = configured("");
        fs::remove_file(tree.path().join(CONFIGURATION)).unwrap();
        let error = ConfiguredTree::open(tree.path(), &[]).err().unwrap().to_string();
        assert!(error.contains("not configured"), "{error}");
    }
}
