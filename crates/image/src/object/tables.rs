//! What the kernel's side tables say about the code.
//!
//! Input: the relocations of every section that point into one code section. Output: the meaning of
//! each: the address of an instruction, a target of control, the label behind an instruction, or
//! the middle of an instruction. A table that `format_of` does not list may point only at the first
//! byte of functions. If it points elsewhere, reading fails with the table's name. This module does
//! not interpret the other fields of a table.
//!
//! To add a table: a line in `format_of`, with the place in the kernel that defines its format.

use super::elf::{Elf, ElfRelocation, SectionId};
use super::instructions::{DecodedInstruction, decode};
use anyhow::{Context, Result, bail, ensure};
use std::collections::HashSet;

/// What a reference names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceMeaning {
    /// The instruction that starts at the target.
    Instruction,
    /// A target of control, or code whose address is taken.
    Control,
    /// The end of the instruction in front of the target.
    End,
    /// A byte inside an instruction.
    Middle,
    /// The emitter makes the entry again from the code instead of translating it.
    Regenerated,
}

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

/// Code that `apply_alternatives` overwrites. Its length is fixed; its inside stays as it is.
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
    /// The offsets of traps behind which control may continue (`WARN`, kCFI).
    pub warnings: HashSet<u32>,
}

/// How to read a table's relocations against the code.
enum TableFormat {
    /// Every relocation has this meaning.
    Uniform(ReferenceMeaning),
    /// The table has entries of this number of bytes. The offset in the entry decides the meaning.
    Entries(u64, &'static [(u64, ReferenceMeaning)]),
    /// Data of the kernel with absolute addresses of targets of control.
    Data,
    /// An unknown table.
    Unknown,
}

fn format_of(name: &str) -> TableFormat {
    use ReferenceMeaning::{Control, End, Instruction, Middle, Regenerated};
    match name {
        // struct exception_table_entry, arch/x86/include/asm/extable.h
        "__ex_table" => TableFormat::Entries(12, &[(0, Instruction), (4, Control)]),
        // struct jump_entry, include/linux/jump_label.h
        "__jump_table" => TableFormat::Entries(16, &[(0, Instruction), (4, Control)]),
        // In struct alt_instr and struct bug_entry the first field is the site. Their sizes differ
        // between kernel versions, see `entry_size`.
        ".altinstructions" | "__bug_table" => TableFormat::Uniform(Instruction),
        // struct static_call_site, include/linux/static_call_types.h
        ".static_call_sites" => TableFormat::Entries(8, &[(0, Instruction)]),
        // tools/objtool/check.c, create_*_sections
        ".return_sites" | ".retpoline_sites" | ".call_sites" | ".ibt_endbr_seal" | ".cfi_sites" => {
            TableFormat::Uniform(Instruction)
        }
        // LOCK_PREFIX, arch/x86/include/asm/alternative.h
        ".smp_locks" => TableFormat::Uniform(Instruction),
        // The fentry sites (scripts/recordmcount.h, objtool's create_mcount_loc_sections);
        // -fpatchable-function-entry; clang's kCFI
        "__mcount_loc" | "__patchable_function_entries" | ".kcfi_traps" => {
            TableFormat::Uniform(Instruction)
        }
        // include/linux/objtool.h; `reachable` and `unreachable` name the end of the instruction
        // that they describe
        ".discard.reachable" | ".discard.unreachable" => TableFormat::Uniform(End),
        ".discard.retpoline_safe"
        | ".discard.intra_function_calls"
        | ".discard.unwind_hints"
        | ".discard.instr_begin"
        | ".discard.instr_end"
        | ".discard.annotate_insn"
        | ".discard.noendbr"
        | ".discard.ibt_endbr_noseal" => TableFormat::Uniform(Instruction),
        ".discard.addressable" | ".discard.func_stack_frame_non_standard" | "_kprobe_blacklist" => {
            TableFormat::Uniform(Control)
        }
        // The compiler's unwind information for debuggers, one entry per function. Kernels for User
        // Mode Linux have it. No kernel reads it, and it does not describe moved parts of a
        // function.
        ".eh_frame" => TableFormat::Uniform(Control),
        ".orc_unwind_ip" => TableFormat::Uniform(Regenerated),
        _ if name.starts_with("runtime_ptr_") || name.starts_with("runtime_shift_") => {
            TableFormat::Uniform(Middle)
        }
        _ if [".rodata", ".data", ".init.data", ".init.rodata", ".ref.data", "__tracepoints"]
            .iter()
            .any(|known| {
                name.strip_prefix(known)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            }) =>
        {
            TableFormat::Data
        }
        _ => TableFormat::Unknown,
    }
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
                decoded = decode_other(elf, id, relocations)?;
                &decoded
            };
            from_code(elf, code, id, list, instructions, &mut tables.references)?;
        } else {
            from_data(elf, code, id, list, starts, &mut tables.references)?;
        }
    }
    read_entries(elf, code, relocations, &mut tables)?;
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

/// References from tables and data.
fn from_data(
    elf: &Elf<'_>,
    code: SectionId,
    id: SectionId,
    list: &[ElfRelocation],
    starts: &[u32],
    found: &mut Vec<CodeReference>,
) -> Result<()> {
    let name = &elf.section(id).name;
    let layout = format_of(name);
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
        let meaning = match layout {
            TableFormat::Uniform(meaning) => meaning,
            TableFormat::Entries(size, fields) => fields
                .iter()
                .find(|(at, _)| r.offset % size == *at)
                .map(|(_, meaning)| *meaning)
                .with_context(|| {
                    format!("{}: this field of the table should not refer to code", place())
                })?,
            TableFormat::Data if r.is_absolute() => ReferenceMeaning::Control,
            _ if starts.binary_search(&target).is_ok() => ReferenceMeaning::Control,
            _ => bail!(
                "section {name} refers to the inside of code ({}+{target:#x}) and Kernlane does \
                 not know this table; \
                 nothing was changed",
                elf.section(code).name
            ),
        };
        found.push(CodeReference { section: id, relocation: index as u32, target, meaning });
    }
    Ok(())
}

/// Decodes another code section. Decoding starts anew at each of its symbols and at each
/// replacement of an alternative.
fn decode_other(
    elf: &Elf<'_>,
    id: SectionId,
    relocations: &[Vec<ElfRelocation>],
) -> Result<Vec<DecodedInstruction>> {
    let section = elf.section(id);
    let size = u32::try_from(section.size)
        .with_context(|| format!("{}: larger than 4 GB", section.name))?;
    let mut cuts: Vec<u32> = vec![0, size];
    let starts_here = |value: u64| u32::try_from(value).ok().filter(|&v| v < size);
    cuts.extend(
        elf.symbols.iter().filter(|s| s.section() == Some(id)).filter_map(|s| starts_here(s.value)),
    );
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

/// Reads the fields that are not references but matter here: lengths of alternatives, static keys,
/// and flags of traps.
fn read_entries(
    elf: &Elf<'_>,
    code: SectionId,
    relocations: &[Vec<ElfRelocation>],
    tables: &mut SideTables,
) -> Result<()> {
    let sites = |name: &str| -> Vec<(u64, u32)> {
        let Some(id) = elf.by_name(name) else { return Vec::new() };
        let list = &relocations[id.0 as usize];
        tables
            .references
            .iter()
            .filter(|r| r.section == id)
            .map(|r| (list[r.relocation as usize].offset, r.target))
            .collect()
    };
    let alternatives = sites(".altinstructions");
    let bugs = sites("__bug_table");
    // In permissive mode the kernel reports a kCFI trap and continues behind it.
    let traps = sites(".kcfi_traps");
    let mut keys = sites("__jump_table");
    keys.sort_unstable();
    tables.warnings.extend(traps.into_iter().map(|(_, at)| at));
    if let Some(id) = elf.by_name(".altinstructions") {
        let size = entry_size(elf, id, &relocations[id.0 as usize], &[14, 12], 4)?;
        for (offset, at) in alternatives {
            ensure!(
                offset % size == 0,
                ".altinstructions+{offset:#x}: a field other than the entry's first refers to code"
            );
            // In every version instrlen is the second last byte.
            let len = *elf
                .bytes(id)
                .get((offset + size - 2) as usize)
                .context(".altinstructions: cut short")?;
            tables.alternatives.push(AlternativeSite { at, len });
        }
        tables.alternatives.sort_unstable();
        tables.alternatives.dedup();
    }
    if let Some(id) = elf.by_name("__bug_table") {
        let size = entry_size(elf, id, &relocations[id.0 as usize], &[12, 6], 0)?;
        for (offset, at) in bugs {
            ensure!(
                offset % size == 0,
                "__bug_table+{offset:#x}: a field other than the entry's first refers to code"
            );
            let flags = elf
                .bytes(id)
                .get((offset + size - 2) as usize)
                .context("__bug_table: cut short")?;
            const BUGFLAG_WARNING: u8 = 1;
            if flags & BUGFLAG_WARNING != 0 {
                tables.warnings.insert(at);
            }
        }
    }
    for pair in keys.windows(2) {
        if pair[0].0 % 16 == 0 && pair[1].0 == pair[0].0 + 4 {
            tables.static_keys.push(StaticKey { at: pair[0].1, target: pair[1].1 });
        }
    }
    let complete = tables.static_keys.len() * 2 == keys.len();
    ensure!(
        complete,
        "__jump_table: the site and the target of an entry are not both in {}",
        elf.section(code).name
    );
    tables.static_keys.sort_unstable();
    Ok(())
}

/// The size of a table's entries: the one of `candidates` that divides the table's size and for
/// which every entry has a relocation at its start, and at offset `second` if that is not 0.
fn entry_size(
    elf: &Elf<'_>,
    id: SectionId,
    list: &[ElfRelocation],
    candidates: &[u64],
    second: u64,
) -> Result<u64> {
    let section = elf.section(id);
    let offsets: HashSet<u64> = list.iter().map(|r| r.offset).collect();
    candidates
        .iter()
        .copied()
        .find(|&size| {
            section.size.is_multiple_of(size)
                && (0..section.size / size).all(|i| {
                    offsets.contains(&(i * size)) && offsets.contains(&(i * size + second))
                })
        })
        .with_context(|| format!("{}: the entries have an unknown size", section.name))
}
