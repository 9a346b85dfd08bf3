//! The types of a kernel that was built without debug information.
//!
//! Input: a built tree, and one of its objects. Output: the tree's vmlinux with the types of the
//! object's source, as BTF. Its code is as it was, and so is its build id. The tree stays as it is.

use crate::run;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

/// Writes the vmlinux of `tree` to `output`, with the types that the source of `object`
/// (`mm/slub.o`) uses.
///
/// # Errors
/// The object was not built in the tree; the compiler, pahole or objcopy fails.
pub fn with_types(tree: &Path, object: &str, output: &Path) -> Result<()> {
    let directory = tempfile::tempdir().context("making a temporary directory")?;
    let path = |name: &str| directory.path().join(name);
    let (typed, types) = (path("typed.o"), path("types.btf"));
    let (folder, name) = object.rsplit_once('/').context("an object lies in a directory")?;
    let saved = tree.join(folder).join(format!(".{name}.cmd"));
    let text = std::fs::read_to_string(&saved).with_context(|| saved.display().to_string())?;
    let command = compile_command(&text, object, &typed.display().to_string())
        .with_context(|| saved.display().to_string())?;
    run(Command::new("sh").args(["-c", &command]).current_dir(tree))?;
    let mut pahole = Command::new("pahole");
    run(pahole.arg("--btf_encode_detached").arg(&types).arg(&typed))
        .context("pahole: install it (xtask/setup.sh --for-tests)")?;
    let mut objcopy = Command::new("objcopy");
    objcopy.arg(format!("--add-section=.BTF={}", types.display()));
    run(objcopy.arg(tree.join("vmlinux")).arg(output))
}

/// The command of kbuild that compiles an object, with debug information and another output.
fn compile_command(saved: &str, object: &str, output: &str) -> Result<String> {
    let first = saved.lines().next().unwrap_or_default();
    let (_, command) = first.split_once(" := ").context("there is no command")?;
    // objtool comes behind.
    let compile = command.split(" ; ").next().unwrap_or(command);
    // The dependencies of the tree's object stay as they are.
    let words = compile.split(' ').filter(|word| !word.starts_with("-Wp,-MMD,"));
    let words: Vec<&str> = words.collect();
    let before = format!("-o {object}");
    let compile = words.join(" ");
    ensure!(compile.contains(&before), "the command does not make {object}");
    // pahole of Debian 12 does not read all of DWARF 5.
    Ok(compile.replace(&before, &format!("-g -gdwarf-4 -o {output}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_writes_elsewhere() {
        let saved = "savedcmd_mm/slub.o := gcc -Wp,-MMD,mm/.slub.o.d -O2 -c -o mm/slub.o \
                     mm/slub.c ; objtool mm/slub.o\n\nsource_mm/slub.o := mm/slub.c\n";
        let command = compile_command(saved, "mm/slub.o", "/tmp/typed.o").unwrap();
        assert_eq!(command, "gcc -O2 -c -g -gdwarf-4 -o /tmp/typed.o mm/slub.c");
        assert!(compile_command(saved, "mm/slab.o", "/tmp/typed.o").is_err());
        assert!(compile_command("", "mm/slub.o", "/tmp/typed.o").is_err());
    }
}
