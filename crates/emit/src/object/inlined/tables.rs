//! The side tables' entries of inlined code.
//!
//! Input: the object, and what was written. Output: for each table, its bytes with an entry more
//! for each that names an instruction of inlined code, and the relocations of all entries. Entries
//! of calls that are gone are left out, calls that were jumps get one.

use super::body::BodyFacts;
use super::{CodeContext, Expansion};
use anyhow::{Context, Result, ensure};
use image::forms::{EntryForm, ReferenceMeaning, TableForm, table_form};
use image::object::elf::{ElfRelocation, SectionId};
use image::object::tables::form_of;
use std::collections::{BTreeMap, HashMap};

/// The table of direct calls, which objtool makes.
const CALLS: &str = ".call_sites";
/// The table of indirect calls by thunks, which objtool makes.
const RETPOLINES: &str = ".retpoline_sites";
/// The table of returns, which objtool makes.
const RETURNS: &str = ".return_sites";

/// The new contents of tables. `relocations`: those of every section, to which the new ones are
/// added.
pub(super) fn with_entries(
    facts: &BodyFacts<'_, '_>,
    expansion: &Expansion<'_, '_>,
    relocations: &mut [Vec<ElfRelocation>],
) -> Result<Vec<(SectionId, Vec<u8>)>> {
    let elf = &facts.object.elf;
    let mut changed = Vec::new();
    for id in elf.ids() {
        let list = std::mem::take(&mut relocations[id.0 as usize]);
        let name = elf.section(id).name.as_str();
        let form = match table_form(name) {
            TableForm::Entries(forms) if !list.is_empty() => {
                Some(FormedTable::of_entries(form_of(elf, id, &list, forms)?))
            }
            TableForm::Uniform(meaning) if is_of_code(name, meaning) => list
                .first()
                .map(|first| FormedTable { size: first.width() as u64, site: 0, fields: vec![0] }),
            _ => None,
        };
        let Some(form) = form else {
            relocations[id.0 as usize] = list;
            continue;
        };
        let mut table = Table::new(facts, form, name, elf.bytes(id), &list);
        let is_of_calls = [CALLS, RETPOLINES].contains(&name);
        table.keep(&|at| !is_of_calls || !expansion.gone.contains_key(&at));
        table.add_entries(expansion).with_context(|| name.to_owned())?;
        if name == CALLS {
            table.add_calls(expansion)?;
        }
        relocations[id.0 as usize] = table.list;
        changed.push((id, table.bytes));
    }
    Ok(changed)
}

/// Whether the kernel reads such a table to change code, so that inlined code needs its entries.
/// The tracer's sites, sealed entries and the probes' list name entries of functions, which are not
/// inlined. What objtool discards has done its work.
fn is_of_code(name: &str, meaning: ReferenceMeaning) -> bool {
    let names_entries =
        ["__mcount_loc", "__patchable_function_entries", ".ibt_endbr_seal", ".cfi_sites"];
    matches!(meaning, ReferenceMeaning::Instruction | ReferenceMeaning::Middle)
        && !name.starts_with(".discard")
        && !names_entries.contains(&name)
}

struct FormedTable {
    /// Bytes of an entry.
    size: u64,
    /// The offset of the field that names the instruction.
    site: u64,
    /// The fields that may name code.
    fields: Vec<u64>,
}

impl FormedTable {
    fn of_entries(form: &EntryForm) -> FormedTable {
        let fields = form.fields.iter().map(|&(at, _)| at).collect();
        FormedTable { size: form.size, site: form.fields[0].0, fields }
    }
}

struct Table<'t, 'o, 'a> {
    facts: &'t BodyFacts<'o, 'a>,
    form: FormedTable,
    name: &'t str,
    old: &'t [u8],
    /// The relocations of each old entry.
    entries: BTreeMap<u64, Vec<ElfRelocation>>,
    bytes: Vec<u8>,
    list: Vec<ElfRelocation>,
}

impl<'t, 'o, 'a> Table<'t, 'o, 'a> {
    fn new(
        facts: &'t BodyFacts<'o, 'a>,
        form: FormedTable,
        name: &'t str,
        old: &'t [u8],
        relocations: &[ElfRelocation],
    ) -> Self {
        let mut entries: BTreeMap<u64, Vec<ElfRelocation>> = BTreeMap::new();
        for r in relocations {
            entries.entry(r.offset / form.size).or_default().push(*r);
        }
        Table { facts, form, name, old, entries, bytes: Vec::new(), list: Vec::new() }
    }

    /// The offset in `.text` that a relocation names.
    fn value(&self, r: &ElfRelocation) -> Option<u32> {
        let object = self.facts.object;
        let symbol = object.elf.symbol(r.symbol);
        let value = (symbol.value as i64).wrapping_add(r.addend);
        u32::try_from(value).ok().filter(|_| symbol.section() == Some(object.text))
    }

    fn site_of(&self, entry: &[ElfRelocation]) -> Option<u32> {
        let site = entry.iter().find(|r| r.offset % self.form.size == self.form.site)?;
        self.value(site)
    }

    /// Keeps the old entries of these instructions, and what has no relocation.
    fn keep(&mut self, is_kept: &dyn Fn(u32) -> bool) {
        for number in 0..self.old.len() as u64 / self.form.size {
            let entry = self.entries.get(&number).map_or(&[][..], Vec::as_slice);
            if self.site_of(entry).is_none_or(is_kept) {
                let entry = entry.to_vec();
                self.push(number, entry.into_iter().map(|r| (r, 0)));
            }
        }
    }

    /// Appends an entry like an old one, each of its relocations with another distance.
    fn push(&mut self, like: u64, relocations: impl Iterator<Item = (ElfRelocation, i64)>) {
        let (start, to) = (like * self.form.size, self.bytes.len() as u64);
        let bytes = &self.old[start as usize..][..self.form.size as usize];
        self.bytes.extend_from_slice(bytes);
        self.list.extend(relocations.map(|(r, distance)| ElfRelocation {
            offset: r.offset - start + to,
            addend: r.addend + distance,
            ..r
        }));
    }

    /// Adds the entries of inlined code, context by context, in the order of the old ones.
    fn add_entries(&mut self, expansion: &Expansion<'_, '_>) -> Result<()> {
        let mut by_site: HashMap<u32, Vec<u64>> = HashMap::new();
        for (&number, entry) in &self.entries {
            if let Some(site) = self.site_of(entry) {
                by_site.entry(site).or_default().push(number);
            }
        }
        let inside = self.middles(&by_site);
        for context in &expansion.contexts {
            let mut found: Vec<(u64, u32, u32)> = Vec::new();
            for written in &context.written {
                let at_start = by_site.get(&written.old).into_iter().flatten();
                let named = at_start.map(|&number| (number, written.old, written.new));
                let middle = inside.get(&written.old).into_iter().flatten();
                let middle =
                    middle.map(|&(number, at)| (number, at, written.new + at - written.old));
                for (number, at, new) in named.chain(middle) {
                    let is_gone = expansion.gone.contains_key(&written.new);
                    let stays = written.stays && !is_gone;
                    let is_expected = match self.name {
                        RETURNS => !written.calls,
                        CALLS | RETPOLINES => true,
                        _ => stays,
                    };
                    ensure!(is_expected, "names .text+{at:#x}, which is not inlined");
                    if stays {
                        found.push((number, at, new));
                    }
                }
            }
            found.sort_unstable();
            for (number, at, new) in found {
                self.add(number, at, new, context)?;
            }
        }
        Ok(())
    }

    /// The entries that name the inside of an instruction: by the instruction, with the offset.
    fn middles(&self, by_site: &HashMap<u32, Vec<u64>>) -> HashMap<u32, Vec<(u64, u32)>> {
        let TableForm::Uniform(ReferenceMeaning::Middle) = table_form(self.name) else {
            return HashMap::new();
        };
        let mut found: HashMap<u32, Vec<(u64, u32)>> = HashMap::new();
        for (&at, numbers) in by_site {
            let Some(start) = self.facts.instruction_around(at) else { continue };
            if start != at {
                found.entry(start).or_default().extend(numbers.iter().map(|&number| (number, at)));
            }
        }
        found
    }

    /// Adds an entry like an old one, for an instruction that is at `new` now.
    fn add(&mut self, number: u64, site: u32, new: u32, context: &CodeContext) -> Result<()> {
        let mut copies = Vec::new();
        for r in &self.entries[&number] {
            let field = r.offset % self.form.size;
            let names_code = self.form.fields.contains(&field);
            let Some(old) = self.value(r).filter(|_| names_code) else {
                copies.push((*r, 0));
                continue;
            };
            let now = match field == self.form.site {
                true => Some(new),
                false => context.place(old),
            };
            let lost = || format!("the entry of .text+{site:#x} refers to .text+{old:#x}");
            copies.push((*r, i64::from(now.with_context(lost)?) - i64::from(old)));
        }
        self.push(number, copies.into_iter());
        Ok(())
    }

    /// Adds an entry for each call that was a jump to a function, or indirect.
    fn add_calls(&mut self, expansion: &Expansion<'_, '_>) -> Result<()> {
        let Some((&like, entry)) = self.entries.first_key_value() else { return Ok(()) };
        let relocation = entry[0];
        let symbol = self.facts.object.elf.section_symbol(self.facts.object.text)?;
        for context in &expansion.contexts {
            let were_jumps = context.written.iter().filter(|w| w.calls).map(|w| w.new);
            let promoted = context.guarded.map(|call| call.at);
            let promoted = promoted.filter(|at| !expansion.gone.contains_key(at));
            for at in were_jumps.chain(promoted) {
                let to = ElfRelocation { symbol, addend: i64::from(at), ..relocation };
                self.push(like, [(to, 0)].into_iter());
            }
        }
        Ok(())
    }
}
