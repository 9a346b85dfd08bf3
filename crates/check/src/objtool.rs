//! Compares the tables of a rewritten object with those that the kernel's own objtool makes for it.
//!
//! Input: a rewritten `vmlinux.o`, and the build tree. This module removes everything that objtool
//! made, and runs the tree's objtool on the rest. It compares the unwinder's state at every
//! instruction, and the sites of returns, calls, retpolines, static calls and sealed ENDBRs. It
//! never looks at how the object was rewritten. objtool joins the parts of a function by name, so
//! the object must name the parts uniquely.

use anyhow::{Context, Result, bail, ensure};
use image::object::elf::{Elf, SectionId};
use image::object::orc::{OrcSections, OrcState, state_at};
use image::object::{functions, instructions};
use image::place::CallPadding;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The sections that objtool makes. It makes them only in an object without them.
const MADE: [&str; 8] = [
    ".static_call_sites",
    ".retpoline_sites",
    ".return_sites",
    ".call_sites",
    ".ibt_endbr_seal",
    ".cfi_sites",
    ".orc_unwind",
    ".orc_unwind_ip",
];
/// The sections of objtool that list places in code.
const SITES: [&str; 6] = [
    ".static_call_sites",
    ".retpoline_sites",
    ".return_sites",
    ".call_sites",
    ".ibt_endbr_seal",
    ".cfi_sites",
];

/// The result of the comparison.
#[derive(Debug, serde::Serialize)]
pub struct ObjtoolAgreement {
    /// How many instructions were compared.
    pub instructions: usize,
    /// Instructions at which the unwinder's states differ: the function, the offset in it, our
    /// state, objtool's state.
    pub states: Vec<(String, u32, String, String)>,
    /// The comparison of each table of sites.
    pub sites: Vec<SiteAgreement>,
    /// What objtool printed.
    pub messages: String,
}

/// The comparison of one table of sites.
#[derive(Debug, serde::Serialize)]
pub struct SiteAgreement {
    /// The name of the table.
    pub table: &'static str,
    /// The number of sites in the rewritten object.
    pub sites: usize,
    /// Sites that only the rewritten object has.
    pub ours_alone: usize,
    /// Sites that only objtool's object has.
    pub objtool_alone: usize,
}

impl ObjtoolAgreement {
    /// Whether all sites are equal, and all states except at most `spare` (dead code behind calls
    /// that never return).
    pub fn is_sufficient(&self, spare: usize) -> bool {
        self.states.len() <= spare
            && self.sites.iter().all(|s| s.ours_alone == 0 && s.objtool_alone == 0)
    }
}

/// Runs the tree's objtool in `scratch` on the stripped object and compares.
///
/// # Errors
/// A program cannot be run, or a file cannot be read.
pub fn compare(tree: &Path, object: &[u8], scratch: &Path) -> Result<ObjtoolAgreement> {
    let path = scratch.join("rewritten.o");
    std::fs::write(&path, object)
        .with_context(|| format!("{}: cannot be written", path.display()))?;
    let stripped = scratch.join("objtool.o");
    let mut strip = Command::new("objcopy");
    for name in MADE {
        strip.arg("-R").arg(name).arg("-R").arg(format!(".rela{name}"));
    }
    let done = strip.arg(&path).arg(&stripped).output().context("objcopy cannot be run")?;
    ensure!(done.status.success(), "objcopy: {}", String::from_utf8_lossy(&done.stderr));
    let (program, arguments) = objtool_command(tree)?;
    let run = Command::new(program)
        .args(arguments)
        .arg(&stripped)
        .current_dir(tree)
        .output()
        .context("the tree's objtool cannot be run")?;
    let messages = String::from_utf8_lossy(&run.stderr).into_owned();
    ensure!(run.status.success(), "the tree's objtool failed: {messages}");
    let theirs = std::fs::read(&stripped)
        .with_context(|| format!("{}: cannot be read", stripped.display()))?;
    let (ours, theirs) = (Elf::parse(object)?, Elf::parse(&theirs).context("what objtool wrote")?);
    let (instructions, states) = compare_states(&ours, &theirs)?;
    let sites =
        SITES.iter().map(|&table| compare_sites(table, &ours, &theirs)).collect::<Result<_>>()?;
    Ok(ObjtoolAgreement { instructions, states, sites, messages })
}

/// The command with which the tree ran objtool on vmlinux.o.
fn objtool_command(tree: &Path) -> Result<(String, Vec<String>)> {
    let text = std::fs::read_to_string(tree.join(".vmlinux.o.cmd"))
        .context(".vmlinux.o.cmd: cannot be read")?;
    // Before 6.2 the variable was called `cmd_vmlinux.o`.
    let is_command = |line: &&str| {
        ["savedcmd_vmlinux.o", "cmd_vmlinux.o"].iter().any(|name| line.starts_with(name))
    };
    let line = text.lines().find(is_command).context(".vmlinux.o.cmd: no command")?;
    let Some(command) = line.split(';').find(|part| part.contains("objtool/objtool")) else {
        bail!(
            "this tree ran objtool on each object instead of vmlinux.o, so there is nothing to \
             compare with"
        );
    };
    let mut words = command.split_whitespace().map(str::to_owned);
    let program = words.next().context(".vmlinux.o.cmd: an empty command")?;
    Ok((program, words.filter(|w| w != "vmlinux.o").collect()))
}

fn text_of(elf: &Elf<'_>) -> Result<SectionId> {
    elf.by_name(".text").context("no .text section")
}

fn table_of(elf: &Elf<'_>, text: SectionId) -> Result<Vec<(u32, OrcState)>> {
    let count = |id| elf.relocation_section(id).map_or(0, |r| elf.section(r).size as usize / 24);
    match OrcSections::find(elf, count)? {
        Some(orc) => orc.table(elf, &elf.relocations(orc.ip)?, text),
        None => Ok(Vec::new()),
    }
}

/// Compares the state at every instruction of every named function.
fn compare_states(
    ours: &Elf<'_>,
    theirs: &Elf<'_>,
) -> Result<(usize, Vec<(String, u32, String, String)>)> {
    let (text, their_text) = (text_of(ours)?, text_of(theirs)?);
    let (our_table, their_table) = (table_of(ours, text)?, table_of(theirs, their_text)?);
    let bytes = ours.bytes(text);
    let mut count = 0;
    let mut differing = Vec::new();
    let word = |state: OrcState| state.iter().map(|b| format!("{b:02x}")).collect::<String>();
    for f in functions::from_symbols(ours, text, CallPadding::Kept) {
        for i in instructions::decode(
            &bytes[f.at as usize..f.end as usize],
            f.at,
            bytes.len() as u32,
            &[],
        ) {
            let padding = i.is_padding();
            let (a, b) = (state_at(&our_table, i.at), state_at(&their_table, i.at));
            count += usize::from(!padding);
            if a != b && !padding {
                let name = f.symbol.map_or("", |id| ours.name(ours.symbol(id)));
                differing.push((name.to_owned(), i.at - f.at, word(a), word(b)));
            }
        }
    }
    Ok((count, differing))
}

fn compare_sites(table: &'static str, ours: &Elf<'_>, theirs: &Elf<'_>) -> Result<SiteAgreement> {
    let sites = |elf: &Elf<'_>| -> Result<BTreeSet<(String, i64)>> {
        let Some(id) = elf.by_name(table) else { return Ok(BTreeSet::new()) };
        let code = elf.relocations(id)?.into_iter().filter_map(|r| {
            let symbol = elf.symbol(r.symbol);
            let section = elf.section(symbol.section()?);
            section
                .is_code()
                .then(|| (section.name.clone(), (symbol.value as i64).wrapping_add(r.addend)))
        });
        Ok(code.collect())
    };
    let (a, b) = (sites(ours)?, sites(theirs)?);
    Ok(SiteAgreement {
        table,
        sites: a.len(),
        ours_alone: a.difference(&b).count(),
        objtool_alone: b.difference(&a).count(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_either_name() {
        let tree = tempfile::tempdir().unwrap();
        for name in ["savedcmd_vmlinux.o", "cmd_vmlinux.o"] {
            let text = format!(
                "{name} := ld -r -o vmlinux.o vmlinux.a ; ./tools/objtool/objtool --orc --link \
                 vmlinux.o\n"
            );
            std::fs::write(tree.path().join(".vmlinux.o.cmd"), text).unwrap();
            let (program, arguments) = objtool_command(tree.path()).unwrap();
            assert_eq!(program, "./tools/objtool/objtool");
            assert_eq!(arguments, ["--orc", "--link"]);
        }
        std::fs::write(tree.path().join(".vmlinux.o.cmd"), "x_vmlinux.o := true\n").unwrap();
        assert!(objtool_command(tree.path()).is_err());
    }
}
