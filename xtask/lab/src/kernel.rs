//! Builds the demo kernels: Debian's linux-source-6.12 with `demo-kernel.config`, built by gcc or
//! by clang, or with `uml.config` by either for User Mode Linux.
//! `kasan` and `kcsan` are kernels for the fuzzer of the live module: `fuzz-kernel.config` on top,
//! with KASAN or with KCSAN.
//!
//! The trees are kept in the cache, outside the checkout. A tree is built under another name and
//! renamed when it is complete. It is built again after a change of the sources' version, the
//! configuration or the compiler.

use crate::{run, succeeded};
use anyhow::{Context, Result, bail};
use host::progress::Progress;
use image::sealed;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SOURCE: &str = "/usr/src/linux-source-6.12.tar.xz";
/// The file that a complete tree contains.
const STAMP: &str = ".kernlane-stamp";
const CONFIG: &str = include_str!("../../demo-kernel.config");
const UML_CONFIG: &str = include_str!("../../uml.config");
const FUZZ_CONFIG: &str = include_str!("../../fuzz-kernel.config");
/// Takes 18a5daf0e497 back.
const OLD_ORDER: &str = include_str!("old-order.patch");
/// The address sanitizer (Documentation/dev-tools/kasan.rst), also of vmalloc's memory.
const KASAN_CONFIG: &str = "CONFIG_KASAN=y
CONFIG_KASAN_GENERIC=y
CONFIG_KASAN_INLINE=y
CONFIG_KASAN_VMALLOC=y
";
/// The detector of data races (Documentation/dev-tools/kcsan.rst); it excludes KASAN.
const KCSAN_CONFIG: &str = "CONFIG_KCSAN=y
CONFIG_KCSAN_SELFTEST=n
";
/// The options without which clang's kernel for User Mode Linux cannot be laid out.
///
/// clang puts the code of the large model, which arch/um/Makefile demands for its modules, into
/// `.ltext`, and data into `.ldata` and `.lbss`. The kernel's linker script does not know these
/// sections. A kernel without modules lies below 2 GB as a whole, so the small model does.
///
/// clang lets the linker make an index of unwind tables (`.eh_frame_hdr`), and the linker refuses
/// tables of functions whose blocks have moved. The kernel for x86 has no such tables either.
pub const USER_MODE_OPTIONS: &str = "KCFLAGS=-mcmodel=small -fno-asynchronous-unwind-tables";
/// In addition the compiler notes the line of each instruction, for a profile by source line. The
/// code stays as it is.
const WITH_LINES: &str = "KCFLAGS=-mcmodel=small -fno-asynchronous-unwind-tables -gmlt \
                          -fdebug-info-for-profiling";
/// The number of lines that kbuild prints for the demo kernel with modules, and for the one for
/// User Mode Linux. Only the progress uses them.
const EXPECTED_LINES: u64 = 1_950;
const EXPECTED_UML_LINES: u64 = 1_270;
const EXPECTED_FUZZ_LINES: u64 = 1_150;

/// The compiler of a demo kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiler {
    Gcc,
    Clang,
    /// gcc, for User Mode Linux.
    GccUserMode,
    /// clang, for User Mode Linux, with the line of each instruction.
    ClangUserMode,
    /// gcc, with KASAN and lockdep.
    GccKasan,
    /// gcc, with KCSAN and lockdep.
    GccKcsan,
}

impl Compiler {
    fn name(self) -> &'static str {
        match self {
            Self::Gcc => "gcc",
            Self::Clang => "clang",
            Self::GccUserMode => "uml",
            Self::ClangUserMode => "uml-clang",
            Self::GccKasan => "kasan",
            Self::GccKcsan => "kcsan",
        }
    }

    fn make_arguments(self) -> &'static [&'static str] {
        match self {
            Self::Gcc | Self::GccKasan | Self::GccKcsan => &[],
            Self::Clang => &["LLVM=-22"],
            Self::GccUserMode => &["ARCH=um"],
            Self::ClangUserMode => &["ARCH=um", "LLVM=-22", WITH_LINES],
        }
    }

    /// A later line of an option goes before an earlier one.
    fn config(self) -> String {
        match self {
            Self::Gcc | Self::Clang => CONFIG.to_owned(),
            Self::GccUserMode | Self::ClangUserMode => UML_CONFIG.to_owned(),
            Self::GccKasan => [CONFIG, FUZZ_CONFIG, KASAN_CONFIG].concat(),
            Self::GccKcsan => [CONFIG, FUZZ_CONFIG, KCSAN_CONFIG].concat(),
        }
    }

    fn targets(self) -> &'static [&'static str] {
        match self {
            Self::GccUserMode | Self::ClangUserMode => &["vmlinux"],
            Self::Gcc | Self::Clang | Self::GccKasan | Self::GccKcsan => &["bzImage", "modules"],
        }
    }

    fn expected_lines(self) -> u64 {
        match self {
            Self::Gcc | Self::Clang => EXPECTED_LINES,
            Self::GccUserMode | Self::ClangUserMode => EXPECTED_UML_LINES,
            Self::GccKasan | Self::GccKcsan => EXPECTED_FUZZ_LINES,
        }
    }

    fn version(self) -> Result<String> {
        let program = match self {
            Self::Clang | Self::ClangUserMode => "clang-22",
            Self::Gcc | Self::GccUserMode | Self::GccKasan | Self::GccKcsan => "gcc",
        };
        let output = succeeded(Command::new(program).arg("--version"))
            .with_context(|| format!("{program} is not installed; run xtask/setup.sh"))?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or("").to_owned())
    }
}

/// The cache directory: `$KERNLANE_CACHE`, or `$XDG_CACHE_HOME/kernlane`, or `~/.cache/kernlane`.
///
/// # Errors
/// None of these variables is set.
pub fn cache() -> Result<PathBuf> {
    let variable =
        |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("KERNLANE_CACHE")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("kernlane")))
        .or_else(|| Some(variable("HOME")?.join(".cache/kernlane")))
        .context("none of KERNLANE_CACHE, XDG_CACHE_HOME and HOME is set")
}

/// Where the built tree of the demo kernel lies, or will lie.
///
/// # Errors
/// As [`cache`].
pub fn place(compiler: Compiler) -> Result<PathBuf> {
    Ok(cache()?.join("trees").join(compiler.name()))
}

/// The built tree of the demo kernel. Builds it if there is no current one.
///
/// # Errors
/// The sources or the compiler are not installed, or the kernel cannot be built.
pub fn tree(compiler: Compiler) -> Result<PathBuf> {
    let trees = cache()?.join("trees");
    let tree = place(compiler)?;
    let stamp = stamp(compiler)?;
    if fs::read_to_string(tree.join(STAMP)).is_ok_and(|found| found == stamp) {
        return Ok(tree);
    }
    fs::create_dir_all(&trees)?;
    let part = trees.join(format!("{}.part", compiler.name()));
    remove(&part)?;
    build(&part, compiler)?;
    fs::write(part.join(STAMP), stamp)?;
    remove(&tree)?;
    fs::rename(&part, &tree)?;
    Ok(tree)
}

/// The demo kernel with a patch: a copy of its tree, in which only the patched files are built
/// again.
///
/// # Errors
/// As [`tree`]; the patch does not fit.
pub fn patched(compiler: Compiler, name: &str, patch: &str) -> Result<PathBuf> {
    let original = tree(compiler)?;
    let trees = cache()?.join("trees");
    let tree = trees.join(format!("{}-{name}", compiler.name()));
    let stamp = format!("{}patch {}\n", stamp(compiler)?, sealed::sha256(patch.as_bytes()));
    if fs::read_to_string(tree.join(STAMP)).is_ok_and(|found| found == stamp) {
        return Ok(tree);
    }
    let part = trees.join(format!("{}-{name}.part", compiler.name()));
    remove(&part)?;
    run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(&original).arg(&part))?;
    fs::remove_file(part.join(STAMP))?;
    let file = part.join(".kernlane-patch");
    fs::write(&file, patch)?;
    run(Command::new("patch").args(["-s", "-p1", "-i", ".kernlane-patch"]).current_dir(&part))?;
    build_with_progress(&part, compiler, &compiler.targets()[..1])?;
    fs::write(part.join(STAMP), stamp)?;
    remove(&tree)?;
    fs::rename(&part, &tree)?;
    Ok(tree)
}

/// The demo kernel by gcc with the dentries of Linux 6.10: 6.11 moved `d_lockref` to another cache
/// line (18a5daf0e497).
///
/// # Errors
/// As [`patched`].
pub fn old_order() -> Result<PathBuf> {
    patched(Compiler::Gcc, "old-order", OLD_ORDER)
}

fn remove(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| directory.display().to_string())?;
    }
    Ok(())
}

/// The text that identifies the input of a tree: the sources' package, the configuration, the
/// compiler.
fn stamp(compiler: Compiler) -> Result<String> {
    let package = Command::new("dpkg-query")
        .args(["-W", "-f", "${Version}", "linux-source-6.12"])
        .output()
        .context(
            "dpkg-query cannot be run; the demo kernel is made from Debian's linux-source-6.12",
        )?;
    if !package.status.success() || !Path::new(SOURCE).exists() {
        bail!("linux-source-6.12 is not installed; run xtask/setup.sh");
    }
    let version = String::from_utf8_lossy(&package.stdout).into_owned();
    Ok(format!(
        "linux-source-6.12 {version}\nconfig {}\n{}\n",
        sealed::sha256(compiler.config().as_bytes()),
        compiler.version()?
    ))
}

fn build(part: &Path, compiler: Compiler) -> Result<()> {
    fs::create_dir_all(part)?;
    {
        let _progress = Progress::new("unpacking the kernel's sources");
        run(Command::new("tar").arg("-C").arg(part).args(["--strip-components=1", "-xf", SOURCE]))?;
    }
    if matches!(compiler, Compiler::GccUserMode | Compiler::ClangUserMode) {
        link_from_one_object(part)?;
    }
    let fragment = part.join(".kernlane-config");
    fs::write(&fragment, compiler.config())?;
    run(make(part, compiler).args(["-s", "tinyconfig"]))?;
    run(Command::new("scripts/kconfig/merge_config.sh")
        .current_dir(part)
        .args(["-m", ".config", ".kernlane-config"])
        .stdout(Stdio::null()))?;
    run(make(part, compiler).args(["-s", "olddefconfig"]))?;
    build_with_progress(part, compiler, compiler.targets())
}

/// Makes kbuild link the kernel from vmlinux.o, as with IBT and LTO, instead of from the objects
/// that vmlinux.o was made of. Behind the first code of the C library these objects would be
/// aligned differently.
fn link_from_one_object(tree: &Path) -> Result<()> {
    const CONDITION: &str = "is_enabled CONFIG_X86_KERNEL_IBT; then";
    let script = tree.join("scripts/link-vmlinux.sh");
    let text = fs::read_to_string(&script)?;
    if !text.contains(CONDITION) {
        bail!("{}: does not choose the files to link as expected", script.display());
    }
    let changed = text.replacen(
        CONDITION,
        "is_enabled CONFIG_X86_KERNEL_IBT || is_enabled CONFIG_UML; then",
        1,
    );
    // The file is rewritten in place, so that it stays executable.
    fs::write(&script, changed).with_context(|| script.display().to_string())
}

fn make(tree: &Path, compiler: Compiler) -> Command {
    // At a low priority the build would stand still on a busy machine, and somebody waits for it.
    let mut make = Command::new("make");
    make.current_dir(tree)
        .args(compiler.make_arguments())
        // Equal sources give an equal kernel.
        .env("KBUILD_BUILD_TIMESTAMP", "2026-01-01")
        .env("KBUILD_BUILD_USER", "kernlane")
        .env("KBUILD_BUILD_HOST", "kernlane");
    make
}

fn build_with_progress(part: &Path, compiler: Compiler, targets: &[&str]) -> Result<()> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let log = part.join(".kernlane-build.log");
    let mut child = make(part, compiler)
        .arg(format!("-j{jobs}"))
        .args(targets)
        .stdout(Stdio::piped())
        .stderr(fs::File::create(&log)?)
        .spawn()
        .context("make cannot be run; run xtask/setup.sh")?;
    let (mut printed, expected) = (0, compiler.expected_lines());
    let what = format!("building the demo kernel ({})", compiler.name());
    let progress = Progress::of(expected, what);
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
        bail!("the demo kernel cannot be built ({status}); the end of {}:\n{tail}", log.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<String> {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_build_has_the_usual_priority() {
        assert_eq!(words(&make(Path::new("."), Compiler::Clang)), ["make", "LLVM=-22"]);
    }

    #[test]
    fn a_kernel_that_gets_a_profile_is_built_with_lines() {
        let clang = words(&make(Path::new("."), Compiler::ClangUserMode));
        assert_eq!(clang[..3], ["make", "ARCH=um", "LLVM=-22"]);
        let lines = clang[3].strip_prefix(USER_MODE_OPTIONS).unwrap();
        assert_eq!(lines, " -gmlt -fdebug-info-for-profiling");
        // Otherwise it is the kernel that gcc builds.
        let gcc = Compiler::GccUserMode;
        assert_eq!(Compiler::ClangUserMode.config(), gcc.config());
        assert_eq!(Compiler::ClangUserMode.targets(), gcc.targets());
        assert_ne!(Compiler::ClangUserMode.name(), gcc.name());
    }
}
