//! The new symbol table.
//!
//! Every symbol of `.text` follows its place. A function in several parts keeps its name and symbol
//! for the part with its entry; each other part gets a local function symbol that carries the name,
//! so that traces stay readable.

use super::counters::{COUNTS, Room};
use super::translate::Translation;
use super::{PartNames, Plan};
use anyhow::{Context, Result};
use image::object::KernelObject;
use image::object::elf::{Symbol, SymbolId};
use image::object::functions::Function;
use image::place::Places;
use object::elf::{STB_LOCAL, STT_FUNC, STT_OBJECT};
use std::collections::{HashMap, HashSet};

/// The table, and what the rest of the object needs of it.
pub struct Symbols {
    pub table: Vec<Symbol>,
    pub strings: Vec<u8>,
    /// The first symbol that is not local.
    pub first_global: u32,
    /// How many were put in front of it.
    added: u32,
    pub functions_split: usize,
}

impl Symbols {
    /// The new number of an old symbol.
    pub fn number(&self, old: SymbolId) -> SymbolId {
        if old.0 < self.first_global - self.added { old } else { SymbolId(old.0 + self.added) }
    }
}

/// A part of a function at its new place.
struct Part {
    function: usize,
    from: u32,
    to: u32,
    entry: bool,
    cold: bool,
}

pub fn rewrite(
    object: &KernelObject<'_>,
    places: &Places,
    translation: &Translation<'_>,
    plan: &Plan<'_>,
    counters: Option<&Room>,
) -> Result<Symbols> {
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
    let old_first_global = elf.section(elf.symtab).info as usize;
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
        added.push(Symbol {
            name: add_string(&mut strings, &name.part)?,
            info: (STB_LOCAL << 4) | STT_FUNC,
            other: 0,
            index: object.text.0 as u16,
            value: u64::from(part.from),
            size: u64::from(part.to - part.from),
        });
    }
    if let Some(room) = counters {
        added.push(Symbol {
            name: add_string(&mut strings, COUNTS)?,
            info: (STB_LOCAL << 4) | STT_OBJECT,
            other: 0,
            index: room.section.0 as u16,
            value: room.at,
            size: room.size,
        });
    }
    let count = added.len() as u32;
    let at = old_first_global.min(table.len());
    table.splice(at..at, added);
    let split: HashSet<usize> = parts.iter().filter(|p| !p.entry).map(|p| p.function).collect();
    Ok(Symbols {
        table,
        strings,
        first_global: at as u32 + count,
        added: count,
        functions_split: split.len(),
    })
}

/// Stretches of the new order that belong to one function; its entry always begins one.
fn parts(
    object: &KernelObject<'_>,
    places: &Places,
    translation: &Translation<'_>,
    plan: &Plan<'_>,
) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
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
            _ => parts.push(Part { function, from, to, entry: piece.entry, cold }),
        }
    }
    parts
}

fn moved(
    object: &KernelObject<'_>,
    translation: &Translation<'_>,
    entry_sizes: &[u32],
    symbol: &Symbol,
) -> Result<Symbol> {
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

/// The function whose padding a symbol names.
fn padded<'o>(object: &'o KernelObject<'_>, at: u32, size: u64) -> Option<&'o Function> {
    let f = object.functions.get(object.functions.partition_point(|f| f.at <= at))?;
    (f.lead_named && at == f.at - f.lead - f.spare && size == u64::from(f.lead + f.spare))
        .then_some(f)
}

/// The name of a part, and the new name of its function if it needs one.
struct PartName {
    function: usize,
    part: String,
    renamed: Option<String>,
}

/// Names for the parts that do not begin with their function's entry; none for the others and for
/// parts of nameless code.
fn part_names(
    object: &KernelObject<'_>,
    parts: &[Part],
    style: PartNames,
) -> Vec<Option<PartName>> {
    let names = || object.functions.iter().map(|f| object.function_name(f));
    let taken: HashSet<&str> =
        names().filter(|n| n.contains(".warm.") || n.contains(".cold")).collect();
    let mut uses: HashMap<&str, u32> = HashMap::new();
    names().for_each(|n| *uses.entry(n).or_insert(0) += 1);
    let mut numbers: HashMap<(usize, bool), u32> = HashMap::new();
    let mut name_one = |part: &Part| {
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
