//! Compares the side tables: lists of places in code that the kernel works through at boot, on a
//! fault, or when it patches itself.
//!
//! Input: both kernels and the correspondence. Each table must have the same entries: every field
//! that is an address refers to the same thing, and every other field is equal. Where the kernel
//! relies on the order of entries, the order is kept or the table is sorted. `table_forms` lists
//! the tables.

use super::correspond::{Correspondence, Landing};
use super::kernel::KernelFile;
use super::table_forms::{EntryForm, EntryOrder, SideTable, TABLES, TableBytes, TableEntry};
use super::verdict::Findings;
use std::collections::HashMap;

/// The stretches of the old kernel that this stage compares, ascending.
pub(crate) fn stretches(kernel: &KernelFile) -> Vec<(u64, u64)> {
    let found = TABLES.iter().filter_map(|table| table.find(kernel));
    super::intervals::intervals(found.map(|f| (f.addr, f.bytes.len() as u64)))
}

/// The static-key sites of a kernel, each with the target of its jump.
pub(crate) fn static_keys(kernel: &KernelFile) -> HashMap<u64, u64> {
    entries_of("__jump_table", kernel).iter().map(|e| (e.values[0].0, e.values[1].0)).collect()
}

/// The instructions of a kernel that may fault, each with the place where it then continues.
pub(crate) fn fixups(kernel: &KernelFile) -> impl Iterator<Item = (u64, u64)> {
    entries_of("__ex_table", kernel).into_iter().map(|e| (e.values[0].0, e.values[1].0))
}

/// The `ud2` of every WARN: the bug-table entries with `BUGFLAG_WARNING`.
pub(crate) fn warnings(kernel: &KernelFile) -> impl Iterator<Item = u64> {
    const BUGFLAG_WARNING: u64 = 1;
    let (form, entries) = formed_entries("__bug_table", kernel).unzip();
    let flags = form.map_or(0, |form: &EntryForm| form.fields.len().saturating_sub(1));
    let warns =
        move |e: &TableEntry| form.is_some_and(|form| form.number(e, flags) & BUGFLAG_WARNING != 0);
    entries.unwrap_or_default().into_iter().filter(warns).map(|e| e.values[0].0)
}

/// The ends of code that an alternative may replace by code behind which control continues: no-ops,
/// or a replacement that does not end in a jump or return.
pub(crate) fn ends_of_passable_alternatives(kernel: &KernelFile) -> impl Iterator<Item = u64> {
    let (form, entries) = formed_entries(".altinstructions", kernel).unzip();
    let length = form.and_then(|form: &EntryForm| form.overwritten).unwrap_or(0);
    entries.unwrap_or_default().into_iter().filter_map(move |e| {
        // The length of the replacement stands behind that of the replaced code.
        let (form, replaced) = (form?, form?.number(&e, length));
        let replacement = form.number(&e, length + 1);
        let passes = replacement == 0 || passes(kernel.bytes(e.values[1].0, replacement)?);
        passes.then_some(e.values[0].0.wrapping_add(replaced))
    })
}

/// Whether control continues behind these instructions.
fn passes(code: &[u8]) -> bool {
    let mut decoder = iced_x86::Decoder::new(64, code, iced_x86::DecoderOptions::NONE);
    let last = decoder.iter().last();
    last.is_none_or(|i| {
        use iced_x86::FlowControl::{IndirectBranch, Return, UnconditionalBranch};
        let stops = matches!(i.flow_control(), Return | UnconditionalBranch | IndirectBranch);
        !stops && i.mnemonic() != iced_x86::Mnemonic::Int3
    })
}

pub(super) fn entries_of(name: &str, kernel: &KernelFile) -> Vec<TableEntry> {
    formed_entries(name, kernel).map_or_else(Vec::new, |(_, entries)| entries)
}

/// The entries of a table, and their form. `None`: there is no such table, or its form is not
/// understood.
fn formed_entries(
    name: &str,
    kernel: &KernelFile,
) -> Option<(&'static EntryForm, Vec<TableEntry>)> {
    let table = TABLES.iter().find(|t| t.name == name)?;
    let found = table.find(kernel)?;
    let form = table.form(&found, kernel)?;
    Some((form, table.all_entries(form, &found, kernel)))
}

/// Compares every table.
pub(crate) fn check(correspondence: &Correspondence) -> Findings {
    let mut findings = Findings::default();
    for table in TABLES {
        match (table.find(correspondence.old), table.find(correspondence.new)) {
            (Some(old), Some(new)) => compare(table, &old, &new, correspondence, &mut findings),
            (None, None) => {}
            (old, new) => {
                let what = format!("only one of the kernels has {}", table.name);
                findings.differ(table.name, old.map(|f| f.addr), new.map(|f| f.addr), what);
            }
        }
    }
    findings
}

fn compare(
    table: &SideTable,
    old: &TableBytes,
    new: &TableBytes,
    c: &Correspondence,
    findings: &mut Findings,
) {
    // The new kernel's table must have the form of the old one. An empty table has any form.
    let Some(form) = table.form(old, c.old) else {
        let sizes: Vec<String> = table.forms.iter().map(|form| form.size.to_string()).collect();
        let what = format!(
            "the form of its entries is not understood: the checker knows entries of {} bytes",
            sizes.join(" or ")
        );
        return findings.differ(table.name, Some(old.addr), Some(new.addr), what);
    };
    for (found, kernel) in [(old, "old"), (new, "new")] {
        if !found.bytes.len().is_multiple_of(form.size) {
            findings.differ(
                table.name,
                Some(old.addr),
                Some(new.addr),
                format!("ends within an entry in the {kernel} kernel"),
            );
            return;
        }
    }
    let (old, new) = (table.all_entries(form, old, c.old), table.all_entries(form, new, c.new));
    if old.len() != new.len() {
        let what = format!("{} had {} entries and has {}", table.name, old.len(), new.len());
        findings.differ(table.name, None, None, what);
    }
    if table.order == EntryOrder::Sorted
        && let Some(pair) = new.windows(2).find(|pair| pair[0].values[0].0 > pair[1].values[0].0)
    {
        findings.differ(
            table.name,
            None,
            Some(pair[1].addr),
            "the table is not sorted: the kernel searches it by bisection",
        );
    }
    let is_kept = table.order == EntryOrder::Kept;
    let table = FormedTable { name: table.name, form };
    if is_kept {
        for (a, b) in old.iter().zip(&new) {
            findings.expect(matches(&table, a, b, c), table.name, a.addr, b.addr, || {
                difference(&table, a, Some(b), c)
            });
        }
    } else {
        compare_as_sets(&table, &old, &new, c, findings);
    }
    if let Some(length) = form.overwritten {
        overwritten_whole(&table, length, &old, &new, c, findings);
    }
}

/// A table whose form is known.
struct FormedTable {
    name: &'static str,
    form: &'static EntryForm,
}

/// Compares tables whose order does not matter. Every old entry needs a new entry. New entries
/// without an old one are also differences.
fn compare_as_sets(
    table: &FormedTable,
    old: &[TableEntry],
    new: &[TableEntry],
    c: &Correspondence,
    findings: &mut Findings,
) {
    let mut by_first: HashMap<u64, Vec<usize>> = HashMap::with_capacity(new.len());
    for (i, entry) in new.iter().enumerate().rev() {
        by_first.entry(entry.values[0].0).or_default().push(i);
    }
    let mut used = vec![false; new.len()];
    for entry in old {
        let candidates = c.image(entry.values[0].0).and_then(|image| by_first.get_mut(&image));
        let like = candidates.as_ref().and_then(|list| list.last().copied());
        let chosen = candidates.and_then(|list| {
            let at = list.iter().rposition(|&i| matches(table, entry, &new[i], c))?;
            Some(list.remove(at))
        });
        match chosen {
            Some(i) => {
                used[i] = true;
                findings.prove(table.name, 1);
            }
            None => {
                let like = like.map(|i| &new[i]);
                findings.differ(
                    table.name,
                    Some(entry.values[0].0),
                    like.map(|e| e.addr),
                    difference(table, entry, like, c),
                );
            }
        }
    }
    for entry in new.iter().zip(&used).filter(|(_, used)| !**used).map(|(e, _)| e) {
        let what = format!(
            "{} has an entry for {} that corresponds to no old entry",
            table.name,
            c.new.describe(entry.values[0].0)
        );
        findings.differ(table.name, None, Some(entry.values[0].0), what);
    }
}

fn matches(table: &FormedTable, old: &TableEntry, new: &TableEntry, c: &Correspondence) -> bool {
    (0..table.form.fields.len()).all(|field| {
        let (a, b) = (old.values[field], new.values[field]);
        a.1 == b.1
            && (!table.form.is_address(field)
                || matches!(c.lands(a.0, b.0), Landing::Exact | Landing::Boundary))
    })
}

fn difference(
    table: &FormedTable,
    old: &TableEntry,
    new: Option<&TableEntry>,
    c: &Correspondence,
) -> String {
    let Some(new) = new else {
        return format!("{}: no new entry for {}", table.name, c.old.describe(old.values[0].0));
    };
    let words: Vec<String> = (0..table.form.fields.len())
        .filter(|&f| {
            old.values[f].1 != new.values[f].1
                || table.form.is_address(f)
                    && c.lands(old.values[f].0, new.values[f].0) == Landing::No
        })
        .map(|f| {
            let (a, b) = (old.values[f], new.values[f]);
            if table.form.is_address(f) {
                format!(
                    "field {f} was {} (bits {:#x}), is {} (bits {:#x})",
                    c.old.describe(a.0),
                    a.1,
                    c.new.describe(b.0),
                    b.1
                )
            } else {
                format!("field {f} was {:#x}, is {:#x}", a.1, b.1)
            }
        })
        .collect();
    format!("{}: {}", table.name, words.join("; "))
}

/// Checks that the bytes that the kernel overwrites (alternatives, paravirt sites) keep their
/// length and stay together, because the kernel overwrites exactly these bytes.
fn overwritten_whole(
    table: &FormedTable,
    length: usize,
    old: &[TableEntry],
    new: &[TableEntry],
    c: &Correspondence,
    findings: &mut Findings,
) {
    for (a, b) in old.iter().zip(new) {
        let length = table.form.number(a, length);
        let (site, place) = (a.values[0].0, b.values[0].0);
        let mut at = 0;
        let whole = loop {
            if at >= length {
                break at == length;
            }
            match c.pair_at(site + at) {
                Some(p) if p.old == site + at && p.new == place + at && p.old_len == p.new_len => {
                    at += u64::from(p.old_len)
                }
                _ => break false,
            }
        };
        let what = || format!("the {length} bytes that {} names were separated", table.name);
        findings.expect(whole, "alternatives in one piece", site, place, what);
    }
}

/// For wrong kernels: (table, address) of one byte of each field in the middle entry of each table.
#[cfg(feature = "mutation")]
pub(crate) fn one_byte_of_each_field(kernel: &KernelFile) -> Vec<(&'static str, u64)> {
    let mut bytes = Vec::new();
    for table in TABLES {
        let Some(found) = table.find(kernel) else { continue };
        let Some(form) = table.form(&found, kernel) else { continue };
        let entries = table.entries(form, &found);
        let Some(entry) = entries.get(entries.len() / 2) else { continue };
        let places = form.fields.iter().map(|field| entry.addr + field.offset() as u64);
        bytes.extend(places.map(|place| (table.name, place)));
    }
    bytes
}
