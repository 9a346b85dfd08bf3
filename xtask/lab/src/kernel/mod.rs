//! Builds the demo kernels: Debian's linux-source-6.12 with `demo-kernel.config`, built by gcc or
//! by clang, or with `uml.config` by either for User Mode Linux.
//! `modules` has, in modules, what a server loads: `modules-kernel.config` on top.
//! `kasan` and `kcsan` are kernels for the fuzzer of the live module: `fuzz-kernel.config` on top,
//! with KASAN or with KCSAN.
//! `uml-like-x86` is a kernel for User Mode Linux in which calls can be inlined: objtool gave it
//! the side tables of a kernel for x86, and its functions return through a thunk.
//!
//! The trees are kept in the cache, outside the checkout. A tree is built under another name and
//! renamed when it is complete. It is built again after a change of the sources' version, the
//! configuration or the compiler.
//!
//! [`recipe`] has what a tree is made of, also for kernels of other versions and configurations.

pub mod recipe;
pub mod source;
pub mod types;

use crate::run;
use anyhow::{Context, Result, bail};
use image::sealed;
use recipe::Recipe;
use source::Source;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The file that a complete tree contains.
const STAMP: &str = ".kernlane-stamp";
/// The demo kernel's configuration, on top of `tinyconfig`.
pub const CONFIG: &str = include_str!("../../../demo-kernel.config");
const UML_CONFIG: &str = include_str!("../../../uml.config");
const MODULES_CONFIG: &str = include_str!("../../../modules-kernel.config");
const FUZZ_CONFIG: &str = include_str!("../../../fuzz-kernel.config");
/// Gives User Mode Linux what objtool needs, and the safe returns.
const LIKE_X86: &str = include_str!("like-x86.patch");
/// What objtool does to the object of a kernel for x86, as far as User Mode Linux has it: no-ops
/// at the tracer's sites, the unwinder's table, and the table of returns.
const TABLES: [&str; 5] = ["--mcount", "--mnop", "--orc", "--rethunk", "--link"];
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
/// The number of lines that kbuild prints. Only the progress uses them.
const UML_LINES: u64 = 1_270;
const FUZZ_LINES: u64 = 1_150;
const MODULES_LINES: u64 = 2_650;

/// The compiler of a demo kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiler {
    Gcc,
    Clang,
    /// gcc, for User Mode Linux.
    GccUserMode,
    /// clang, for User Mode Linux, with the line of each instruction.
    ClangUserMode,
    /// gcc, for User Mode Linux, with direct calls, tracer's sites, return thunks and side tables
    /// as in a kernel for x86.
    GccUserModeLikeX86,
    /// gcc, with the file systems and the firewall of a server in modules.
    GccModules,
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
            Self::GccUserModeLikeX86 => "uml-like-x86",
            Self::GccModules => "modules",
            Self::GccKasan => "kasan",
            Self::GccKcsan => "kcsan",
        }
    }

    fn make_arguments(self) -> &'static [&'static str] {
        match self {
            Self::Gcc | Self::GccModules | Self::GccKasan | Self::GccKcsan => &[],
            Self::Clang => &["LLVM=-22"],
            Self::GccUserMode | Self::GccUserModeLikeX86 => &["ARCH=um"],
            Self::ClangUserMode => &["ARCH=um", "LLVM=-22", WITH_LINES],
        }
    }

    /// A later line of an option goes before an earlier one.
    fn config(self) -> String {
        match self {
            Self::Gcc | Self::Clang => CONFIG.to_owned(),
            Self::GccUserMode | Self::ClangUserMode | Self::GccUserModeLikeX86 => {
                UML_CONFIG.to_owned()
            }
            Self::GccModules => [CONFIG, MODULES_CONFIG].concat(),
            Self::GccKasan => [CONFIG, FUZZ_CONFIG, KASAN_CONFIG].concat(),
            Self::GccKcsan => [CONFIG, FUZZ_CONFIG, KCSAN_CONFIG].concat(),
        }
    }

    fn is_user_mode(self) -> bool {
        matches!(self, Self::GccUserMode | Self::ClangUserMode | Self::GccUserModeLikeX86)
    }

    /// The patch of the sources.
    fn patch(self) -> Option<&'static str> {
        (self == Self::GccUserModeLikeX86).then_some(LIKE_X86)
    }

    fn recipe(self) -> Result<Recipe> {
        let targets: &[_] = if self.is_user_mode() { &["vmlinux"] } else { recipe::TARGETS };
        Ok(Recipe {
            name: self.name().to_owned(),
            source: Source::installed("6.12")?,
            config: self.config(),
            is_complete: false,
            compiler: match self {
                Self::Clang | Self::ClangUserMode => "clang-22",
                Self::Gcc
                | Self::GccUserMode
                | Self::GccUserModeLikeX86
                | Self::GccModules
                | Self::GccKasan
                | Self::GccKcsan => "gcc",
            },
            make_arguments: self.make_arguments().iter().map(|&word| word.to_owned()).collect(),
            targets: targets.iter().map(|&target| target.to_owned()).collect(),
            expected_lines: match self {
                Self::Gcc | Self::Clang => recipe::DEMO_LINES,
                Self::GccUserMode | Self::ClangUserMode | Self::GccUserModeLikeX86 => UML_LINES,
                Self::GccModules => MODULES_LINES,
                Self::GccKasan | Self::GccKcsan => FUZZ_LINES,
            },
        })
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
    let recipe = compiler.recipe()?;
    let stamp = stamp(&recipe, compiler.patch())?;
    kept(&place(compiler)?, &stamp, |part| {
        fs::create_dir_all(part)?;
        recipe.unpack(part)?;
        if compiler.is_user_mode() {
            link_from_one_object(part)?;
        }
        compiler.patch().map_or(Ok(()), |patch| apply(patch, part))?;
        recipe.configure(part)?;
        recipe.build(part, recipe::all_processors())?;
        match compiler {
            Compiler::GccUserModeLikeX86 => with_tables(&recipe, part),
            _ => Ok(()),
        }
    })
}

/// What identifies the input of a tree.
fn stamp(recipe: &Recipe, patch: Option<&str>) -> Result<String> {
    let patch = patch.map(|patch| format!("patch {}\n", sealed::sha256(patch.as_bytes())));
    Ok(recipe.stamp()? + &patch.unwrap_or_default())
}

/// Applies a patch to the sources of a tree.
fn apply(patch: &str, tree: &Path) -> Result<()> {
    fs::write(tree.join(".kernlane-patch"), patch)?;
    run(Command::new("patch").args(["-s", "-p1", "-i", ".kernlane-patch"]).current_dir(tree))
}

/// Gives the object of a kernel for User Mode Linux the side tables of one for x86, by the objtool
/// of the demo kernel, whose sources are the same. make links it again, because it changed.
fn with_tables(recipe: &Recipe, tree: &Path) -> Result<()> {
    let objtool = self::tree(Compiler::Gcc)?.join("tools/objtool/objtool");
    let log = fs::File::create(tree.join(".kernlane-objtool.log"))?;
    run(Command::new(objtool).args(TABLES).arg("vmlinux.o").current_dir(tree).stderr(log))?;
    recipe.build(tree, recipe::all_processors())
}

/// The demo kernel with a patch: a copy of its tree, in which only the patched files are built
/// again.
///
/// # Errors
/// As [`tree`]; the patch does not fit.
pub fn patched(compiler: Compiler, name: &str, patch: &str) -> Result<PathBuf> {
    let original = tree(compiler)?;
    let mut recipe = compiler.recipe()?;
    let stamp = stamp(&recipe, Some(patch))?;
    recipe.targets.truncate(1);
    kept(&cache()?.join("trees").join(format!("{}-{name}", recipe.name)), &stamp, |part| {
        run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(&original).arg(part))?;
        fs::remove_file(part.join(STAMP))?;
        apply(patch, part)?;
        recipe.build(part, recipe::all_processors())
    })
}

/// The tree with this stamp, which `make` makes under another name unless it is there.
fn kept(tree: &Path, stamp: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    if fs::read_to_string(tree.join(STAMP)).is_ok_and(|found| found == stamp) {
        return Ok(tree.to_owned());
    }
    let part = tree.with_extension("part");
    fs::create_dir_all(tree.parent().context("a directory of trees")?)?;
    remove(&part)?;
    make(&part)?;
    fs::write(part.join(STAMP), stamp)?;
    remove(tree)?;
    fs::rename(&part, tree)?;
    Ok(tree.to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_gets_a_profile_is_built_with_lines() {
        let clang = Compiler::ClangUserMode.make_arguments();
        assert_eq!(clang[..2], ["ARCH=um", "LLVM=-22"]);
        let lines = clang[2].strip_prefix(USER_MODE_OPTIONS).unwrap();
        assert_eq!(lines, " -gmlt -fdebug-info-for-profiling");
        // Otherwise it is the kernel that gcc builds.
        let gcc = Compiler::GccUserMode;
        assert_eq!(Compiler::ClangUserMode.config(), gcc.config());
        assert_ne!(Compiler::ClangUserMode.name(), gcc.name());
    }

    #[test]
    fn a_tree_with_its_stamp_is_not_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        let make = |text: &'static str| {
            move |part: &Path| {
                fs::create_dir(part)?;
                Ok(fs::write(part.join("vmlinux"), text)?)
            }
        };
        let linked = || fs::read_to_string(tree.join("vmlinux")).unwrap();
        kept(&tree, "6.12", make("first")).unwrap();
        kept(&tree, "6.12", make("second")).unwrap();
        assert_eq!(linked(), "first");
        kept(&tree, "6.13", make("third")).unwrap();
        assert_eq!(linked(), "third");
        // What cannot be made leaves the old tree alone.
        assert!(kept(&tree, "6.14", |_| anyhow::bail!("no compiler")).is_err());
        assert_eq!(linked(), "third");
    }
}
