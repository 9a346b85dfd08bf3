//! What the kernel's side tables say about the code.
//!
//! Input: the relocations of every section that point into one code section. Output: the meaning of
//! each: the address of an instruction, a target of control, the label behind an instruction, or
//! the middle of an instruction. `forms` lists the tables and the forms of their entries. A table
//! that it does not list may point only at the first byte of functions. If it points elsewhere,
//! reading fails with the table's name. This module interprets other fields of a table only as far
//! as they say what the kernel does to the code.

use super::elf::{Elf, ElfRelocation, SectionId};
use super::instructions::{DecodedInstruction, decode};
pub use crate::forms::ReferenceMeaning;
use crate::forms::{self, EntryFact, EntryForm, TableForm};
use anyhow::{Context, Result, bail, ensure};
use std::collections::{HashMap, HashSet};

/// A relocation that points into the code.
#[derive(Clone, Copy, Debug)]
pub struct CodeReference {
    /// The section that has the relocation.
    pub section: SectionId,
    /// The number of the relocation in that section.
    pub relocation: u32,
    /// The offset in the code that the relocation names.
    pub target: u32,
    /// What it names.
    pub meaning: ReferenceMeaning,
}

/// Code that `apply_alternatives`, or `apply_paravirt` before 6.8, overwrites. Its length is fixed;
/// its inside stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AlternativeSite {
    /// The offset of its first byte.
    pub at: u32,
    /// Its bytes.
    pub len: u8,
}

/// An instruction that a static key patches: a no-op or a jump to `target`, of two or five bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StaticKey {
    /// The offset of the instruction.
    pub at: u32,
    /// The offset of its target.
    pub target: u32,
}

/// Everything that the side tables say about one code section.
#[derive(Debug, Default)]
pub struct SideTables {
    /// The references, in no particular order.
    pub references: Vec<CodeReference>,
    /// The alternatives, ascending.
    pub alternatives: Vec<AlternativeSite>,
    /// The static keys, ascending.
    pub static_keys: Vec<StaticKey>,
    /// The offsets of instructions that a static key patches to a jump into another section.
    pub far_keys: Vec<u32>,
    /// The offsets of traps behind which control may continue (`WARN`, kCFI).
    pub warnings: HashSet<u32>,
}

/// Reads every reference to `code`.
///
/// `relocations` are those of every section by number; those of code are ascending by offset. `own`
/// is `code` decoded. `starts` are the offsets of the functions' first bytes, ascending.
///
/// # Errors
/// A table refers to code in a way that Kernlane does not understand.
pub(crate) fn read(
    elf: &Elf<'_>,
    code: SectionId,
    relocations: &[Vec<ElfRelocation>],
    own: &[DecodedInstruction],
    starts: &[u32],
) -> Result<SideTables> {
    let mut tables = SideTables::default();
    let symbols = symbols_by_section(elf);
    for id in elf.ids() {
        let section = elf.section(id);
        let list = &relocations[id.0 as usize];
        if list.is_empty() || section.is_debug() {
            continue;
        }
        if section.is_code() {
            let decoded;
            let instructions = if id == code {
                own
            } else {
                let symbols = symbols.get(&id).map_or(&[][..], Vec::as_slice);
                decoded = decode_other(elf, id, symbols, relocations)?;
                &decoded
            };
            from_code(elf, code, id, list, instructions, &mut tables.references)?;
        } else {
            from_data(elf, code, id, list, starts, &mut tables)?;
        }
    }
    tables.alternatives.sort_unstable();
    tables.alternatives.dedup();
    tables.static_keys.sort_unstable();
    Ok(tables)
}

/// The offset in `code` that a relocation's symbol and addend give. `None` if the symbol is not in
/// `code`.
fn value_in(elf: &Elf<'_>, code: SectionId, r: &ElfRelocation) -> Option<i64> {
    let symbol = elf.symbol(r.symbol);
    (symbol.section() == Some(code)).then(|| (symbol.value as i64).wrapping_add(r.addend))
}

fn offset_in_code(elf: &Elf<'_>, code: SectionId, value: i64) -> Result<u32> {
    let size = elf.section(code).size;
    u32::try_from(value).ok().filter(|&v| u64::from(v) <= size).with_context(|| {
        format!("points to {}{value:+#x}, outside that section", elf.section(code).name)
    })
}

/// References from code: an operand relative to the instruction's end, or an address.
fn from_code(
    elf: &Elf<'_>,
    code: SectionId,
    id: SectionId,
    list: &[ElfRelocation],
    instructions: &[DecodedInstruction],
    found: &mut Vec<CodeReference>,
) -> Result<()> {
    let mut at = 0;
    for (index, r) in list.iter().enumerate() {
        let Some(value) = value_in(elf, code, r).filter(|_| !r.is_none()) else {
            continue;
        };
        let place = || format!("{}+{:#x}", elf.section(id).name, r.offset);
        let bias = if r.is_relative() {
            while at < instructions.len() && u64::from(instructions[at].end()) <= r.offset {
                at += 1;
            }
            let inside = instructions
                .get(at)
                .filter(|i| u64::from(i.at) + u64::from(i.field) == r.offset && i.field != 0);
            let instruction = inside.with_context(|| {
                format!(
                    "{}: a relative reference that is not an operand of an instruction",
                    place()
                )
            })?;
            i64::from(instruction.end()) - r.offset as i64
        } else {
            ensure!(
                r.is_absolute(),
                "{}: Kernlane does not understand a relocation of type {} to code",
                place(),
                r.kind
            );
            0
        };
        let target = offset_in_code(elf, code, value.wrapping_add(bias)).with_context(place)?;
        found.push(CodeReference {
            section: id,
            relocation: index as u32,
            target,
            meaning: ReferenceMeaning::Control,
        });
    }
    Ok(())
}

/// References from tables and data, and what the tables' other fields say of the code.
fn from_data(
    elf: &Elf<'_>,
    code: SectionId,
    id: SectionId,
    list: &[ElfRelocation],
    starts: &[u32],
    tables: &mut SideTables,
) -> Result<()> {
    let name = &elf.section(id).name;
    let known = forms::table_form(name);
    let mut entries = None;
    let mut sites: Vec<(u64, u32)> = Vec::new();
    for (index, r) in list.iter().enumerate() {
        let Some(value) = value_in(elf, code, r).filter(|_| !r.is_none()) else {
            continue;
        };
        let place = || format!("{name}+{:#x}", r.offset);
        ensure!(
            r.is_absolute() || r.is_relative(),
            "{}: Kernlane does not understand a relocation of type {} to code",
            place(),
            r.kind
        );
        let target = offset_in_code(elf, code, value).with_context(place)?;
        let meaning = match known {
            TableForm::Uniform(meaning) => meaning,
            TableForm::Entries(forms) => {
                let form = match entries {
                    Some(form) => form,
                    None => *entries.insert(form_of(elf, id, list, forms)?),
                };
                sites.push((r.offset, target));
                let field = form.fields.iter().find(|(at, _)| r.offset % form.size == *at);
                field.map(|(_, meaning)| *meaning).with_context(|| {
                    format!("{}: this field of the table should not refer to code", place())
                })?
            }
            TableForm::Data if r.is_absolute() => ReferenceMeaning::Control,
            _ if starts.binary_search(&target).is_ok() => ReferenceMeaning::Control,
            _ => bail!(
                "section {name} refers to the inside of code ({}+{target:#x}) and Kernlane does \
                 not know this table; \
                 nothing was changed",
                elf.section(code).name
            ),
        };
        tables.references.push(CodeReference {
            section: id,
            relocation: index as u32,
            target,
            meaning,
        });
    }
    entries.map_or(Ok(()), |form| read_facts(elf, id, form, sites, tables))
}

/// The form of a table's entries: of the given ones, the first whose size divides the table's and
/// whose fields are filled in every entry. `list`: the table's relocations.
///
/// # Errors
/// None is.
pub fn form_of(
    elf: &Elf<'_>,
    id: SectionId,
    list: &[ElfRelocation],
    forms: &'static [EntryForm],
) -> Result<&'static EntryForm> {
    let section = elf.section(id);
    let offsets: HashSet<u64> = list.iter().map(|r| r.offset).collect();
    let fits = |form: &&EntryForm| {
        let filled = |i: u64| form.filled.iter().all(|at| offsets.contains(&(i * form.size + at)));
        section.size.is_multiple_of(form.size) && (0..section.size / form.size).all(filled)
    };
    forms.iter().find(fits).with_context(|| {
        let sizes: Vec<String> = forms.iter().map(|form| form.size.to_string()).collect();
        format!(
            "{}: the form of its entries is not understood (Kernlane knows entries of {} bytes); \
             nothing was changed",
            section.name,
            sizes.join(" or ")
        )
    })
}

/// Reads what the entries say of their sites. `sites`: the offset of each reference to the code in
/// the table, and its target.
fn read_facts(
    elf: &Elf<'_>,
    id: SectionId,
    form: &EntryForm,
    mut sites: Vec<(u64, u32)>,
    tables: &mut SideTables,
) -> Result<()> {
    let name = &elf.section(id).name;
    let byte = |offset: u64, at: u64| -> Result<u8> {
        let place = usize::try_from(offset + at).ok();
        let byte = place.and_then(|place| elf.bytes(id).get(place));
        byte.copied().with_context(|| format!("{name}: cut short"))
    };
    if form.fact == EntryFact::StaticKey {
        sites.sort_unstable();
        let (site, target) = (form.fields[0].0, form.fields[1].0);
        let targets: HashMap<u64, u32> = sites.iter().copied().collect();
        for &(offset, at) in sites.iter().filter(|(offset, _)| offset % form.size == site) {
            match targets.get(&(offset + target - site)) {
                Some(&target) => tables.static_keys.push(StaticKey { at, target }),
                None => tables.far_keys.push(at),
            }
        }
        return Ok(());
    }
    for (offset, at) in sites {
        match form.fact {
            EntryFact::Overwritten(length) => {
                let len = byte(offset, length)?;
                tables.alternatives.push(AlternativeSite { at, len });
            }
            EntryFact::Trap(flags) => {
                const BUGFLAG_WARNING: u8 = 1;
                if byte(offset, flags)? & BUGFLAG_WARNING != 0 {
                    tables.warnings.insert(at);
                }
            }
            EntryFact::PassedTrap => {
                tables.warnings.insert(at);
            }
            EntryFact::Nothing | EntryFact::StaticKey => {}
        }
    }
    Ok(())
}

/// The values of the symbols of each code section.
fn symbols_by_section(elf: &Elf<'_>) -> HashMap<SectionId, Vec<u64>> {
    let mut found: HashMap<SectionId, Vec<u64>> = HashMap::new();
    for symbol in &elf.symbols {
        if let Some(id) = symbol.section().filter(|&id| elf.section(id).is_code()) {
            found.entry(id).or_default().push(symbol.value);
        }
    }
    found
}

/// Decodes another code section. Decoding starts anew at each of its symbols and at each
/// replacement of an alternative.
fn decode_other(
    elf: &Elf<'_>,
    id: SectionId,
    symbols: &[u64],
    relocations: &[Vec<ElfRelocation>],
) -> Result<Vec<DecodedInstruction>> {
    let section = elf.section(id);
    let size = u32::try_from(section.size)
        .with_context(|| format!("{}: larger than 4 GB", section.name))?;
    let mut cuts: Vec<u32> = vec![0, size];
    let starts_here = |value: u64| u32::try_from(value).ok().filter(|&v| v < size);
    cuts.extend(symbols.iter().filter_map(|&value| starts_here(value)));
    if section.name == ".altinstr_replacement" {
        let table = elf
            .by_name(".altinstructions")
            .context(".altinstr_replacement without .altinstructions")?;
        for r in &relocations[table.0 as usize] {
            if let Some(value) = value_in(elf, id, r) {
                cuts.extend(u64::try_from(value).ok().and_then(starts_here));
            }
        }
    }
    cuts.sort_unstable();
    cuts.dedup();
    let bytes = elf.bytes(id);
    let mut found = Vec::with_capacity(bytes.len() / 4);
    for pair in cuts.windows(2) {
        let part = bytes
            .get(pair[0] as usize..pair[1] as usize)
            .with_context(|| format!("{}: cut short", section.name))?;
        found.extend(decode(part, pair[0], size, &relocations[id.0 as usize]));
    }
    Ok(found)
}
