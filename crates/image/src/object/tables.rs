//! What the kernel's side tables say about the code.
//!
//! Takes the relocations of every section that point into one section of code; gives for each what
//! it means: an instruction's address, a place control goes to, the label behind an instruction,
//! the middle of an instruction. A table that is not on the list here may point at the first byte
//! of functions only; when it points elsewhere, reading fails with the table's name. Never
//! interprets what else is in a table.
//!
//! To add one: a line in `layout_of`, with where its format is defined in the kernel.

use super::elf::{Elf, Relocation, SectionId};
use super::instructions::{Instruction, decode};
use anyhow::{Context, Result, bail, ensure};
use std::collections::HashSet;

/// What a reference names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The instruction that starts there.
    Instruction,
    /// A place that control goes to, or whose address is taken.
    Control,
    /// The end of the instruction before.
    End,
    /// A byte inside an instruction.
    Middle,
    /// Made anew from the code, not translated.
    Regenerated,
}

/// A relocation that points into the code.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    pub section: SectionId,
    /// Which of the section's relocations.
    pub relocation: u32,
    /// The offset in the code that is meant.
    pub target: u32,
    pub meaning: Meaning,
}

/// A place where `apply_alternatives` writes: fixed in length, opaque inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alternative {
    pub at: u32,
    pub len: u8,
}

/// A place that a static key patches: a no-op or a jump to `target`, of two bytes or five.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StaticKey {
    pub at: u32,
    pub target: u32,
}

/// All that the side tables say about one section of code.
#[derive(Debug, Default)]
pub struct SideTables {
    pub references: Vec<Reference>,
    pub alternatives: Vec<Alternative>,
    pub static_keys: Vec<StaticKey>,
    /// Traps after which execution goes on or may go on (`WARN`, kCFI), by offset.
    pub warnings: HashSet<u32>,
}

/// How a table's relocations against the code are to be read.
enum Layout {
    /// Every one means the same.
    Uniform(Meaning),
    /// Entries of so many bytes; the meaning by the offset in the entry.
    Entries(u64, &'static [(u64, Meaning)]),
    /// Data of the kernel: absolute addresses of places that control goes to.
    Data,
    /// Not known.
    Unknown,
}

fn layout_of(name: &str) -> Layout {
    use Meaning::{Control, End, Instruction, Middle, Regenerated};
    match name {
        // struct exception_table_entry, arch/x86/include/asm/extable.h
        "__ex_table" => Layout::Entries(12, &[(0, Instruction), (4, Control)]),
        // struct jump_entry, include/linux/jump_label.h
        "__jump_table" => Layout::Entries(16, &[(0, Instruction), (4, Control)]),
        // struct alt_instr and struct bug_entry: the first field is the site; their lengths have
        // changed, see `entry_size`.
        ".altinstructions" | "__bug_table" => Layout::Uniform(Instruction),
        // struct static_call_site, include/linux/static_call_types.h
        ".static_call_sites" => Layout::Entries(8, &[(0, Instruction)]),
        // tools/objtool/check.c, create_*_sections
        ".return_sites" | ".retpoline_sites" | ".call_sites" | ".ibt_endbr_seal" | ".cfi_sites" => {
            Layout::Uniform(Instruction)
        }
        // LOCK_PREFIX, arch/x86/include/asm/alternative.h
        ".smp_locks" => Layout::Uniform(Instruction),
        // The fentry sites (scripts/recordmcount.h, objtool's create_mcount_loc_sections);
        // -fpatchable-function-entry; clang's kCFI
        "__mcount_loc" | "__patchable_function_entries" | ".kcfi_traps" => {
            Layout::Uniform(Instruction)
        }
        // include/linux/objtool.h; `reachable` and `unreachable` stand behind the instruction that
        // they speak of
        ".discard.reachable" | ".discard.unreachable" => Layout::Uniform(End),
        ".discard.retpoline_safe"
        | ".discard.intra_function_calls"
        | ".discard.unwind_hints"
        | ".discard.instr_begin"
        | ".discard.instr_end"
        | ".discard.annotate_insn"
        | ".discard.noendbr"
        | ".discard.ibt_endbr_noseal" => Layout::Uniform(Instruction),
        ".discard.addressable" | ".discard.func_stack_frame_non_standard" | "_kprobe_blacklist" => {
            Layout::Uniform(Control)
        }
        // Unwinding as the compiler describes it to debuggers, one entry a function (kernels for
        // User Mode Linux have it): nothing in a kernel reads it, and it says nothing of a
        // function's other parts.
        ".eh_frame" => Layout::Uniform(Control),
        ".orc_unwind_ip" => Layout::Uniform(Regenerated),
        _ if name.starts_with("runtime_ptr_") || name.starts_with("runtime_shift_") => {
            Layout::Uniform(Middle)
        }
        _ if [".rodata", ".data", ".init.data", ".init.rodata", ".ref.data", "__tracepoints"]
            .iter()
            .any(|known| {
                name.strip_prefix(known)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            }) =>
        {
            Layout::Data
        }
        _ => Layout::Unknown,
    }
}

/// Reads every reference to `code`.
///
/// `relocations` are those of every section by number, those of code ascending by offset; `own` is
/// `code` decoded; `starts` are the first bytes of its functions, ascending.
pub fn read(
    elf: &Elf<'_>,
    code: SectionId,
    relocations: &[Vec<Relocation>],
    own: &[Instruction],
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

/// The offset in `code` that a relocation's symbol and addend give, when its symbol is in `code`.
fn value_in(elf: &Elf<'_>, code: SectionId, r: &Relocation) -> Option<i64> {
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
    list: &[Relocation],
    instructions: &[Instruction],
    found: &mut Vec<Reference>,
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
                format!("{}: a relative reference that is no operand of an instruction", place())
            })?;
            i64::from(instruction.end()) - r.offset as i64
        } else {
            ensure!(
                r.is_absolute(),
                "{}: a relocation of type {} to code, which is not understood",
                place(),
                r.kind
            );
            0
        };
        let target = offset_in_code(elf, code, value.wrapping_add(bias)).with_context(place)?;
        found.push(Reference {
            section: id,
            relocation: index as u32,
            target,
            meaning: Meaning::Control,
        });
    }
    Ok(())
}

/// References from tables and data.
fn from_data(
    elf: &Elf<'_>,
    code: SectionId,
    id: SectionId,
    list: &[Relocation],
    starts: &[u32],
    found: &mut Vec<Reference>,
) -> Result<()> {
    let name = &elf.section(id).name;
    let layout = layout_of(name);
    for (index, r) in list.iter().enumerate() {
        let Some(value) = value_in(elf, code, r).filter(|_| !r.is_none()) else {
            continue;
        };
        let place = || format!("{name}+{:#x}", r.offset);
        ensure!(
            r.is_absolute() || r.is_relative(),
            "{}: a relocation of type {} to code, which is not understood",
            place(),
            r.kind
        );
        let target = offset_in_code(elf, code, value).with_context(place)?;
        let meaning = match layout {
            Layout::Uniform(meaning) => meaning,
            Layout::Entries(size, fields) => fields
                .iter()
                .find(|(at, _)| r.offset % size == *at)
                .map(|(_, meaning)| *meaning)
                .with_context(|| {
                    format!("{}: a field of this table that should not refer to code", place())
                })?,
            Layout::Data if r.is_absolute() => Meaning::Control,
            _ if starts.binary_search(&target).is_ok() => Meaning::Control,
            _ => bail!(
                "section {name} refers to the inside of code ({}+{target:#x}) and is not a table that is understood; \
                 nothing was changed",
                elf.section(code).name
            ),
        };
        found.push(Reference { section: id, relocation: index as u32, target, meaning });
    }
    Ok(())
}

/// Decodes a section of code other than the one in question: between its symbols, or, for the
/// replacements of alternatives, each of them.
fn decode_other(
    elf: &Elf<'_>,
    id: SectionId,
    relocations: &[Vec<Relocation>],
) -> Result<Vec<Instruction>> {
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

/// The entries whose other fields matter here: lengths of alternatives, static keys, the flags of
/// traps.
fn read_entries(
    elf: &Elf<'_>,
    code: SectionId,
    relocations: &[Vec<Relocation>],
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
    // kCFI's traps run on behind a report when the kernel is told to be permissive.
    let traps = sites(".kcfi_traps");
    let mut keys = sites("__jump_table");
    keys.sort_unstable();
    tables.warnings.extend(traps.into_iter().map(|(_, at)| at));
    if let Some(id) = elf.by_name(".altinstructions") {
        let size = entry_size(elf, id, &relocations[id.0 as usize], &[14, 12], 4)?;
        for (offset, at) in alternatives {
            ensure!(
                offset % size == 0,
                ".altinstructions+{offset:#x}: a reference to code that is not an entry's first field"
            );
            // instrlen is the last byte but one in every version.
            let len = *elf
                .bytes(id)
                .get((offset + size - 2) as usize)
                .context(".altinstructions: cut short")?;
            tables.alternatives.push(Alternative { at, len });
        }
        tables.alternatives.sort_unstable();
        tables.alternatives.dedup();
    }
    if let Some(id) = elf.by_name("__bug_table") {
        let size = entry_size(elf, id, &relocations[id.0 as usize], &[12, 6], 0)?;
        for (offset, at) in bugs {
            ensure!(
                offset % size == 0,
                "__bug_table+{offset:#x}: a reference to code that is not an entry's first field"
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
        "__jump_table: an entry whose site and target are not both in {}",
        elf.section(code).name
    );
    tables.static_keys.sort_unstable();
    Ok(())
}

/// The size of a table's entries: the one of `candidates` that divides the table and has a
/// relocation at the start of every entry (and, for `second` ≠ 0, at that offset in it).
fn entry_size(
    elf: &Elf<'_>,
    id: SectionId,
    list: &[Relocation],
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
        .with_context(|| format!("{}: entries of a size that is not known", section.name))
}
