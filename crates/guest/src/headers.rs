//! Numbers from the headers of a kernel's build tree: sizes, offsets of fields, constants.
//!
//! Input: a tree and C expressions. Output: their values. The tree's own compiler answers, with the
//! command that compiled `mm/slub.c`, as kbuild's asm-offsets.c does. This module writes nothing to
//! the tree and guesses nothing.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The values of C expressions, by the names under which they were asked.
#[derive(Debug)]
pub(crate) struct Answers(BTreeMap<String, String>);

impl Answers {
    /// Asks the compiler of `tree` for constant expressions, each under a name. `mm/slab.h`,
    /// `linux/mm.h` and `linux/sched.h` are included.
    ///
    /// # Errors
    /// The tree was not built, or an expression does not compile there.
    pub(crate) fn of_tree(tree: &Path, questions: &[(&str, &str)]) -> Result<Answers> {
        const SAVED: &str = "mm/.slub.o.cmd";
        let text = std::fs::read_to_string(tree.join(SAVED))
            .with_context(|| format!("{SAVED}: cannot be read"))?;
        let command = compiler(&text).with_context(|| {
            format!("{SAVED}: the command that compiled slub.o has no known form")
        })?;
        let mut child = Command::new("sh")
            .args(["-c", &command])
            .current_dir(tree)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("sh cannot be run")?;
        let source = source(questions);
        let written = child.stdin.take().map(|mut stdin| stdin.write_all(source.as_bytes()));
        let output = child.wait_with_output().context("waiting for the kernel's compiler")?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            bail!(
                "the tree's compiler does not compile with its headers: {}",
                errors.lines().next().unwrap_or_default()
            );
        }
        written.transpose().context("writing to the kernel's compiler")?;
        Answers::of_assembly(&String::from_utf8_lossy(&output.stdout))
    }

    /// From the assembly that the compiler made of [`source`].
    pub(crate) fn of_assembly(assembly: &str) -> Result<Answers> {
        let answer = |line: &str| {
            let (name, value) = line.split_once("\"kernlane ")?.1.split_once(' ')?;
            let digits = value.trim_end().trim_end_matches('"').trim_start_matches('$');
            Some((name.to_owned(), digits.to_owned()))
        };
        Ok(Answers(assembly.lines().filter_map(answer).collect()))
    }

    /// The value of the expression that was asked under this name.
    ///
    /// # Errors
    /// The compiler gave no value, or the value is not a number.
    pub(crate) fn number(&self, name: &str) -> Result<u64> {
        let value =
            self.0.get(name).with_context(|| format!("the compiler gives no value of {name}"))?;
        value.parse().with_context(|| format!("{name} is {value:?}"))
    }
}

/// The saved command, changed so that it compiles standard input to assembly on standard output.
fn compiler(saved: &str) -> Option<String> {
    let command = saved.lines().next()?.split_once(":= ")?.1;
    // Behind the semicolon stand the commands that kbuild then runs on the object.
    let command = command.split(';').next()?.trim_end();
    // A tree that was built apart from its source (`make O=`) names the source by its path.
    let (flags, source) = command.rsplit_once(" -c -o mm/slub.o ")?;
    if !Path::new(source).ends_with("mm/slub.c") || source.contains(' ') {
        return None;
    }
    let flags: Vec<&str> = flags.split(' ').filter(|flag| !flag.starts_with("-Wp,-MMD")).collect();
    // With LTO the compiler would write its intermediate code.
    Some(format!("{} -w -I. -Imm -fno-lto -S -o - -x c -", flags.join(" ")))
}

/// A function whose assembly contains each value as text.
fn source(questions: &[(&str, &str)]) -> String {
    let mut source = r#"
#include <linux/mm.h>
#include <linux/page-flags.h>
#include <linux/sched.h>
#include "slab.h"
#define VALUE(name, value) asm volatile("\n.ascii \"kernlane " name " %c0\"" :: "i" (value))
void kernlane_values(void);
void kernlane_values(void)
{
"#
    .to_owned();
    for (name, expression) in questions {
        source += &format!("\tVALUE(\"{name}\", {expression});\n");
    }
    source + "}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trees_command_compiles_standard_input() {
        let saved = "savedcmd_mm/slub.o := gcc -Wp,-MMD,mm/.slub.o.d -nostdinc \
             -DKBUILD_BASENAME='\"slub\"' -c -o mm/slub.o mm/slub.c  ; ./tools/objtool x\n\nsource";
        assert_eq!(
            compiler(saved).unwrap(),
            "gcc -nostdinc -DKBUILD_BASENAME='\"slub\"' -w -I. -Imm -fno-lto -S -o - -x c -"
        );
        let apart = saved.replace(" mm/slub.c", " /home/a/linux/mm/slub.c");
        assert_eq!(compiler(&apart), compiler(saved), "make O=, from another directory");
        assert_eq!(compiler(&saved.replace(" mm/slub.c", " mm/slob.c")), None);
        assert_eq!(compiler("savedcmd_mm/slub.o := rm -rf x\n"), None);
        assert_eq!(compiler(""), None);
    }
}
