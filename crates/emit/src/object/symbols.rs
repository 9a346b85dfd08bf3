//! The new symbol table.
//!
//! Every symbol of `.text` follows its place. If a function is split, the part with its entry keeps
//! the function's name and symbol. Each other part gets a local function symbol with the function's
//! name and a suffix, so that traces stay readable.
//!
//! Input: the old symbols and the translation of offsets. Output: the new table and its names.

use super::counters::{COUNTS, CountStorage};
use super::translate::TextTranslation;
use super::{PartNames, RewritePlan};
use anyhow::{Context, Result};
use image::object::KernelObject;
use image::object::elf::{ElfSymbol, SymbolId, SymbolPlace};
use image::object::functions::TextFunction;
use image::place::{BlockPlaces, CallPadding};
use object::elf::{STB_LOCAL, STT_FUNC, STT_OBJECT, SymbolOther};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The table, and the numbers that the rest of the object needs.
pub(super) struct RewrittenSymbols {
    pub table: Vec<ElfSymbol>,
    pub strings: Vec<u8>,
    /// The number of the first symbol that is not local.
    pub first_global: u32,
    /// The new number of each old symbol. A symbol that is left out has the number of the next one;
    /// nothing refers to it.
    numbers: Vec<u32>,
    pub functions_split: usize,
}

impl RewrittenSymbols {
    /// The new number of an old symbol.
    pub(super) fn number(&self, old: SymbolId) -> SymbolId {
        SymbolId(self.numbers[old.0 as usize])
    }

    /// Appends the old symbols that come next, without those that are left out.
    fn append(&mut self, symbols: Vec<ElfSymbol>, left_out: &[bool]) {
        for (symbol, &out) in symbols.into_iter().zip(left_out) {
            self.numbers.push(self.table.len() as u32);
            if !out {
                self.table.push(symbol);
            }
        }
    }
}

/// A part of a function at its new place.
struct PlacedFunctionPart {
    function: usize,
    from: u32,
    to: u32,
    entry: bool,
    cold: bool,
}

pub(super) fn rewrite(
    object: &KernelObject<'_>,
    places: &BlockPlaces,
    translation: &TextTranslation<'_>,
    plan: &RewritePlan<'_>,
    counters: Option<&CountStorage>,
) -> Result<RewrittenSymbols> {
    let elf = &object.elf;
    let parts = parts(object, places, translation, plan);
    let mut entry_sizes: Vec<u32> = vec![0; object.functions.len()];
    for part in parts.iter().filter(|p| p.entry) {
        entry_sizes[part.function] = part.to - part.from;
    }
    let mut table = Vec::with_capacity(elf.symbols.len() + parts.len() / 2);
    for (i, symbol) in elf.symbols.iter().enumerate() {
        table.push(if symbol.section() == Some(object.text) && i > 0 {
            moved(object, translation, &entry_sizes, symbol)
                .with_context(|| format!("symbol {}", elf.name(symbol)))?
        } else {
            *symbol
        });
    }
    let left_out = names_of_dropped_padding(object, &table);
    let old_first_global = (elf.section(elf.symtab).info as usize).min(table.len());
    let mut strings = elf.bytes(elf.strtab).to_vec();
    let names = part_names(object, &parts, plan.names);
    for (function, name) in
        names.iter().flatten().filter_map(|n| Some((n.function, n.renamed.as_ref()?)))
    {
        if let Some(symbol) = object.functions[function].symbol {
            table[symbol.0 as usize].name = add_string(&mut strings, name)?;
        }
    }
    let mut added = Vec::new();
    for (part, name) in parts.iter().zip(&names) {
        let Some(name) = name else { continue };
        let name = add_string(&mut strings, &name.part)?;
        added.push(local_function(object, name, part.from..part.to));
    }
    if let Some(room) = counters {
        added.push(ElfSymbol {
            name: add_string(&mut strings, COUNTS)?,
            info: STB_LOCAL | STT_OBJECT,
            other: SymbolOther(0),
            place: SymbolPlace::Section(room.section),
            value: room.at,
            size: room.size,
        });
    }
    let split: HashSet<usize> = parts.iter().filter(|p| !p.entry).map(|p| p.function).collect();
    let mut rewritten = RewrittenSymbols {
        table: Vec::with_capacity(table.len() + added.len()),
        strings,
        first_global: 0,
        numbers: Vec::with_capacity(table.len()),
        functions_split: split.len(),
    };
    let globals = table.split_off(old_first_global);
    let (local_out, global_out) = left_out.split_at(old_first_global);
    rewritten.append(table, local_out);
    rewritten.table.append(&mut added);
    rewritten.first_global = rewritten.table.len() as u32;
    rewritten.append(globals, global_out);
    Ok(rewritten)
}

/// The table with a local function more for each name, at an offset of `.text` from its first to
/// behind its last byte. Nothing else changes.
pub(super) fn with_functions(
    object: &KernelObject<'_>,
    functions: impl Iterator<Item = (String, (u32, u32))>,
) -> Result<RewrittenSymbols> {
    let elf = &object.elf;
    let first_global = elf.section(elf.symtab).info as usize;
    let mut strings = elf.bytes(elf.strtab).to_vec();
    let mut added = Vec::new();
    for (name, (from, to)) in functions {
        let name = add_string(&mut strings, &name)?;
        added.push(local_function(object, name, from..to));
    }
    let mut rewritten = RewrittenSymbols {
        table: Vec::with_capacity(elf.symbols.len() + added.len()),
        strings,
        first_global: (first_global + added.len()) as u32,
        numbers: Vec::with_capacity(elf.symbols.len()),
        functions_split: 0,
    };
    let stays = vec![false; elf.symbols.len()];
    rewritten.append(elf.symbols[..first_global].to_vec(), &stays);
    rewritten.table.append(&mut added);
    rewritten.append(elf.symbols[first_global..].to_vec(), &stays);
    Ok(rewritten)
}

fn local_function(object: &KernelObject<'_>, name: u32, extent: Range<u32>) -> ElfSymbol {
    ElfSymbol {
        name,
        info: STB_LOCAL | STT_FUNC,
        other: SymbolOther(0),
        place: SymbolPlace::Section(object.text),
        value: u64::from(extent.start),
        size: u64::from(extent.end - extent.start),
    }
}

/// Which symbols name padding that was dropped: they would be second names of the functions'
/// entries, and kallsyms could show them instead of the functions' names.
fn names_of_dropped_padding(object: &KernelObject<'_>, table: &[ElfSymbol]) -> Vec<bool> {
    let mut left_out = vec![false; table.len()];
    if object.call_padding == CallPadding::Kept {
        return left_out;
    }
    for ((old, new), out) in object.elf.symbols.iter().zip(table).zip(&mut left_out) {
        let names_padding = old.section() == Some(object.text)
            && old.size > 0
            && u32::try_from(old.value).is_ok_and(|at| padded(object, at, old.size).is_some());
        *out = names_padding && new.size == 0;
    }
    for relocation in object.relocations.iter().flatten() {
        if let Some(out) = left_out.get_mut(relocation.symbol.0 as usize) {
            *out = false;
        }
    }
    left_out
}

/// The stretches of the new order that belong to one function. A function's entry always begins a
/// stretch.
fn parts(
    object: &KernelObject<'_>,
    places: &BlockPlaces,
    translation: &TextTranslation<'_>,
    plan: &RewritePlan<'_>,
) -> Vec<PlacedFunctionPart> {
    let mut parts: Vec<PlacedFunctionPart> = Vec::new();
    for (position, &i) in plan.order.iter().enumerate() {
        let i = i as usize;
        let piece = &object.pieces[i];
        let function = piece.function as usize;
        let from = translation.new[i];
        let to = translation.code_end[i] + u32::from(places.appended[i]);
        let cold = position >= plan.hot;
        match parts.last_mut() {
            Some(last) if last.function == function && !piece.entry && last.cold == cold => {
                last.to = to
            }
            _ => parts.push(PlacedFunctionPart { function, from, to, entry: piece.entry, cold }),
        }
    }
    parts
}

fn moved(
    object: &KernelObject<'_>,
    translation: &TextTranslation<'_>,
    entry_sizes: &[u32],
    symbol: &ElfSymbol,
) -> Result<ElfSymbol> {
    if symbol.kind() == object::elf::STT_SECTION {
        return Ok(*symbol);
    }
    let at = u32::try_from(symbol.value).context("lies outside .text")?;
    let mut new = *symbol;
    new.value = u64::from(if u64::from(at) == object.elf.section(object.text).size {
        translation.size
    } else {
        translation.start(at)?
    });
    let index = object.functions.partition_point(|f| f.at <= at).checked_sub(1);
    if let Some(index) = index
        && object.functions[index].at == at
        && symbol.size == u64::from(object.functions[index].end - at)
    {
        new.size = u64::from(entry_sizes[index]);
    }
    if let Some(f) = padded(object, at, symbol.size) {
        new.size = u64::from(translation.start(f.at)?) - new.value;
    }
    Ok(new)
}

/// The function whose padding the symbol names.
fn padded<'o>(object: &'o KernelObject<'_>, at: u32, size: u64) -> Option<&'o TextFunction> {
    let f = object.functions.get(object.functions.partition_point(|f| f.at <= at))?;
    (f.lead_named && at == f.at - f.lead - f.spare && size == u64::from(f.lead + f.spare))
        .then_some(f)
}

/// The name of a part. `renamed` is the function's new name if it needs one.
struct PartName {
    function: usize,
    part: String,
    renamed: Option<String>,
}

/// The names of the parts that do not begin with the entry of their function. There is no name for
/// other parts and for parts of nameless code.
fn part_names(
    object: &KernelObject<'_>,
    parts: &[PlacedFunctionPart],
    style: PartNames,
) -> Vec<Option<PartName>> {
    let names = || object.functions.iter().map(|f| object.function_name(f));
    let taken: HashSet<&str> =
        names().filter(|n| n.contains(".warm.") || n.contains(".cold")).collect();
    let mut uses: HashMap<&str, u32> = HashMap::new();
    names().for_each(|n| *uses.entry(n).or_insert(0) += 1);
    let mut numbers: HashMap<(usize, bool), u32> = HashMap::new();
    let mut name_one = |part: &PlacedFunctionPart| {
        let function = &object.functions[part.function];
        if part.entry || function.symbol.is_none() {
            return None;
        }
        let name = object.function_name(function);
        if style == PartNames::Joinable {
            let renamed = (uses[name] > 1).then(|| format!("{name}..{}", part.function));
            let number = numbers.entry((part.function, true)).or_insert(0);
            *number += 1;
            let whole = renamed.as_deref().unwrap_or(name);
            return Some(PartName {
                function: part.function,
                part: format!("{whole}.cold.{number}"),
                renamed,
            });
        }
        let number = numbers.entry((part.function, part.cold)).or_insert(0);
        loop {
            let candidate = match (part.cold, *number) {
                (true, 0) => format!("{name}.cold"),
                (true, n) => format!("{name}.cold.{n}"),
                (false, n) => format!("{name}.warm.{n}"),
            };
            *number += 1;
            if !taken.contains(candidate.as_str()) {
                return Some(PartName { function: part.function, part: candidate, renamed: None });
            }
        }
    };
    parts.iter().map(&mut name_one).collect()
}

fn add_string(strings: &mut Vec<u8>, name: &str) -> Result<u32> {
    let offset = u32::try_from(strings.len()).context("the string table is larger than 4 GB")?;
    strings.extend_from_slice(name.as_bytes());
    strings.push(0);
    Ok(offset)
}
