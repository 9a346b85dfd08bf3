//! The side tables: lists of places in code that the kernel works through at boot, on a fault, or
//! when it patches itself.
//!
//! Takes both kernels and the correspondence; proves that each table has the same entries: every
//! field that is an address lands on the same thing, every other field is equal, and the order is
//! kept, or the table sorted, where the kernel relies on it. To add one: a line in `TABLES`.

use super::correspond::{Correspondence, Landing};
use super::kernel::Kernel;
use super::verdict::Findings;
use std::collections::HashMap;

/// Where a table lies.
enum At {
    Section(&'static str),
    /// Between two symbols of the linker's script.
    Symbols(&'static str, &'static str),
}

/// What a field of an entry is, by its offset.
#[derive(Clone, Copy)]
enum Field {
    /// A 32-bit distance from the field to an address.
    Near(usize),
    /// The same with two flags in the low bits of the address.
    NearFlags(usize),
    /// A 64-bit distance with two flags in the low bits of the address.
    FarFlags(usize),
    /// A 64-bit address.
    Address(usize),
    /// (offset, bytes): no address.
    Plain(usize, usize),
}

/// What the kernel asks of the order of entries.
#[derive(PartialEq, Eq)]
enum Order {
    /// The same order as before.
    Kept,
    /// Ascending by the first field.
    Sorted,
    Any,
}

struct Table {
    name: &'static str,
    at: At,
    size: usize,
    fields: &'static [Field],
    order: Order,
}

const fn sites(name: &'static str) -> Table {
    Table { name, at: At::Section(name), size: 4, fields: &[Field::Near(0)], order: Order::Any }
}

const fn pointers(name: &'static str, start: &'static str, stop: &'static str) -> Table {
    Table {
        name,
        at: At::Symbols(start, stop),
        size: 4,
        fields: &[Field::Near(0)],
        order: Order::Kept,
    }
}

const fn exports(name: &'static str) -> Table {
    Table {
        name,
        at: At::Section(name),
        size: 12,
        fields: &[Field::Near(0), Field::Near(4), Field::Near(8)],
        order: Order::Kept,
    }
}

/// The tables of Linux 6.12 on x86-64. Layouts: `asm/extable.h`, `asm/alternative.h`,
/// `linux/jump_label.h`, `linux/static_call_types.h`, `asm-generic/bug.h` (with
/// `DEBUG_BUGVERBOSE`), `linux/export-internal.h`, `linux/pci.h`.
const TABLES: &[Table] = &[
    Table {
        name: "__ex_table",
        at: At::Section("__ex_table"),
        size: 12,
        fields: &[Field::Near(0), Field::Near(4), Field::Plain(8, 4)],
        order: Order::Sorted,
    },
    Table {
        name: "__bug_table",
        at: At::Section("__bug_table"),
        size: 12,
        fields: &[Field::Near(0), Field::Near(4), Field::Plain(8, 4)],
        order: Order::Any,
    },
    Table {
        name: "__jump_table",
        at: At::Symbols("__start___jump_table", "__stop___jump_table"),
        size: 16,
        fields: &[Field::Near(0), Field::Near(4), Field::FarFlags(8)],
        order: Order::Any,
    },
    Table {
        name: ".static_call_sites",
        at: At::Symbols("__start_static_call_sites", "__stop_static_call_sites"),
        size: 8,
        fields: &[Field::Near(0), Field::NearFlags(4)],
        order: Order::Any,
    },
    Table {
        name: ".static_call_tramp_key",
        at: At::Symbols("__start_static_call_tramp_key", "__stop_static_call_tramp_key"),
        size: 8,
        fields: &[Field::Near(0), Field::Near(4)],
        order: Order::Any,
    },
    Table {
        name: ".altinstructions",
        at: At::Section(".altinstructions"),
        size: 14,
        fields: &[Field::Near(0), Field::Near(4), Field::Plain(8, 6)],
        order: Order::Kept,
    },
    Table {
        name: "__mcount_loc",
        at: At::Symbols("__start_mcount_loc", "__stop_mcount_loc"),
        size: 8,
        fields: &[Field::Address(0)],
        order: Order::Sorted,
    },
    Table {
        name: ".pci_fixup",
        at: At::Section(".pci_fixup"),
        size: 16,
        fields: &[Field::Plain(0, 12), Field::Near(12)],
        order: Order::Kept,
    },
    sites(".return_sites"),
    sites(".retpoline_sites"),
    sites(".call_sites"),
    sites(".ibt_endbr_seal"),
    sites(".cfi_sites"),
    sites(".smp_locks"),
    sites("runtime_shift_d_hash_shift"),
    sites("runtime_ptr_dentry_hashtable"),
    sites("runtime_ptr_USER_PTR_MAX"),
    pointers("__tracepoints_ptrs", "__start___tracepoints_ptrs", "__stop___tracepoints_ptrs"),
    pointers("initcalls", "__initcall_start", "__initcall_end"),
    pointers("console initcalls", "__con_initcall_start", "__con_initcall_end"),
    exports("__ksymtab"),
    exports("__ksymtab_gpl"),
];

/// The bytes of a table in one kernel.
struct Found<'d> {
    addr: u64,
    bytes: &'d [u8],
}

impl Table {
    fn find<'d>(&self, kernel: &Kernel<'d>) -> Option<Found<'d>> {
        let (start, end) = match self.at {
            At::Section(name) => kernel.section(name).map(|s| (s.addr, s.end()))?,
            At::Symbols(start, stop) => (kernel.symbol(start)?, kernel.symbol(stop)?),
        };
        let bytes = kernel.bytes(start, end.checked_sub(start)?)?;
        Some(Found { addr: start, bytes })
    }

    /// The values of the fields of entry `i`; an address field as the address it gives.
    fn entry(&self, found: &Found, i: usize) -> Option<Entry> {
        let start = i * self.size;
        let entry = found.bytes.get(start..start + self.size)?;
        let addr = found.addr + start as u64;
        let near = |at: usize| {
            Some(i64::from(i32::from_le_bytes(entry.get(at..at + 4)?.try_into().ok()?)) as u64)
        };
        let far = |at: usize| Some(u64::from_le_bytes(entry.get(at..at + 8)?.try_into().ok()?));
        let mut values = [(0, 0); 3];
        for (value, field) in values.iter_mut().zip(self.fields) {
            *value = match *field {
                Field::Near(at) => (addr.wrapping_add(at as u64).wrapping_add(near(at)?), 0),
                Field::NearFlags(at) => flags(addr.wrapping_add(at as u64).wrapping_add(near(at)?)),
                Field::FarFlags(at) => flags(addr.wrapping_add(at as u64).wrapping_add(far(at)?)),
                Field::Address(at) => (far(at)?, 0),
                Field::Plain(at, len) => (0, plain(entry.get(at..at + len)?)),
            };
        }
        Some(Entry { addr, values })
    }

    fn entries(&self, found: &Found) -> Vec<Entry> {
        let count = found.bytes.len() / self.size;
        let empty = |e: &Entry| e.values[0].0 == e.addr;
        let all = (0..count).filter_map(|i| self.entry(found, i));
        // The section of lock prefixes is filled up to a page with zeros, which name themselves.
        if self.name == ".smp_locks" { all.filter(|e| !empty(e)).collect() } else { all.collect() }
    }

    fn is_address(&self, field: usize) -> bool {
        self.fields.get(field).is_some_and(|f| !matches!(f, Field::Plain(..)))
    }
}

#[derive(Clone, Copy)]
struct Entry {
    /// Where the entry itself lies.
    addr: u64,
    /// (address, other bits) of each field.
    values: [(u64, u128); 3],
}

fn flags(address: u64) -> (u64, u128) {
    (address & !3, u128::from(address & 3))
}

fn plain(bytes: &[u8]) -> u128 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u128::from(byte))
}

/// The stretches of the old kernel that this stage compares, ascending.
pub fn stretches(kernel: &Kernel) -> Vec<(u64, u64)> {
    let found = TABLES.iter().filter_map(|table| table.find(kernel));
    super::correspond::intervals(found.map(|f| (f.addr, f.bytes.len() as u64)))
}

/// The static-key sites of a kernel with the targets that they may come to jump to.
pub fn static_keys(kernel: &Kernel) -> HashMap<u64, u64> {
    entries_of("__jump_table", kernel).iter().map(|e| (e.values[0].0, e.values[1].0)).collect()
}

/// The `ud2` of every WARN: bug-table entries with `BUGFLAG_WARNING`.
pub fn warnings(kernel: &Kernel) -> impl Iterator<Item = u64> {
    const BUGFLAG_WARNING: u128 = 1;
    entries_of("__bug_table", kernel)
        .into_iter()
        .filter(|e| e.values[2].1 >> 16 & BUGFLAG_WARNING != 0)
        .map(|e| e.values[0].0)
}

/// The ends of code that an alternative may replace by something after which execution goes on:
/// nothing at all (no-ops), or a replacement that does not end in a jump or return.
pub fn ends_of_passable_alternatives(kernel: &Kernel) -> impl Iterator<Item = u64> {
    entries_of(".altinstructions", kernel).into_iter().filter_map(|e| {
        let (length, replacement) =
            ((e.values[2].1 >> 32 & 0xff) as u64, (e.values[2].1 >> 40 & 0xff) as u64);
        let passes = replacement == 0 || passes(kernel.bytes(e.values[1].0, replacement)?);
        passes.then_some(e.values[0].0.wrapping_add(length))
    })
}

/// Whether execution goes on behind these instructions.
fn passes(code: &[u8]) -> bool {
    let mut decoder = iced_x86::Decoder::new(64, code, iced_x86::DecoderOptions::NONE);
    let last = decoder.iter().last();
    last.is_none_or(|i| {
        use iced_x86::FlowControl::{IndirectBranch, Return, UnconditionalBranch};
        let stops = matches!(i.flow_control(), Return | UnconditionalBranch | IndirectBranch);
        !stops && i.mnemonic() != iced_x86::Mnemonic::Int3
    })
}

fn entries_of(name: &str, kernel: &Kernel) -> Vec<Entry> {
    let table = TABLES.iter().find(|t| t.name == name);
    table.and_then(|t| Some(t.entries(&t.find(kernel)?))).unwrap_or_default()
}

/// Compares every table.
pub fn check(correspondence: &Correspondence) -> Findings {
    let mut findings = Findings::default();
    for table in TABLES {
        match (table.find(correspondence.old), table.find(correspondence.new)) {
            (Some(old), Some(new)) => compare(table, &old, &new, correspondence, &mut findings),
            (None, None) => {}
            (old, new) => {
                let what = format!("{} is in one of the kernels only", table.name);
                findings.differ(table.name, old.map(|f| f.addr), new.map(|f| f.addr), what);
            }
        }
    }
    findings
}

fn compare(table: &Table, old: &Found, new: &Found, c: &Correspondence, findings: &mut Findings) {
    for (found, kernel) in [(old, "old"), (new, "new")] {
        if !found.bytes.len().is_multiple_of(table.size) {
            findings.differ(
                table.name,
                Some(old.addr),
                Some(new.addr),
                format!("has half an entry in the {kernel} kernel"),
            );
            return;
        }
    }
    let (old, new) = (table.entries(old), table.entries(new));
    if old.len() != new.len() {
        let what = format!("{} had {} entries and has {}", table.name, old.len(), new.len());
        findings.differ(table.name, None, None, what);
    }
    if table.order == Order::Sorted
        && let Some(pair) = new.windows(2).find(|pair| pair[0].values[0].0 > pair[1].values[0].0)
    {
        findings.differ(
            table.name,
            None,
            Some(pair[1].addr),
            "the table is not sorted: the kernel searches it by halves",
        );
    }
    if table.order == Order::Kept {
        for (a, b) in old.iter().zip(&new) {
            findings.expect(matches(table, a, b, c), table.name, a.addr, b.addr, || {
                difference(table, a, Some(b), c)
            });
        }
    } else {
        compare_as_sets(table, &old, &new, c, findings);
    }
    if table.name == ".altinstructions" {
        alternatives_whole(&old, &new, c, findings);
    }
}

/// Every old entry has a new one of its own; what is left over in the new table is a difference
/// too.
fn compare_as_sets(
    table: &Table,
    old: &[Entry],
    new: &[Entry],
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
            "{} has an entry for {} that no old entry has",
            table.name,
            c.new.describe(entry.values[0].0)
        );
        findings.differ(table.name, None, Some(entry.values[0].0), what);
    }
}

fn matches(table: &Table, old: &Entry, new: &Entry, c: &Correspondence) -> bool {
    (0..table.fields.len()).all(|field| {
        let (a, b) = (old.values[field], new.values[field]);
        a.1 == b.1
            && (!table.is_address(field)
                || matches!(c.lands(a.0, b.0), Landing::Exact | Landing::Boundary))
    })
}

fn difference(table: &Table, old: &Entry, new: Option<&Entry>, c: &Correspondence) -> String {
    let Some(new) = new else {
        return format!("{}: no new entry for {}", table.name, c.old.describe(old.values[0].0));
    };
    let words: Vec<String> = (0..table.fields.len())
        .filter(|&f| {
            old.values[f].1 != new.values[f].1
                || table.is_address(f) && c.lands(old.values[f].0, new.values[f].0) == Landing::No
        })
        .map(|f| {
            let (a, b) = (old.values[f], new.values[f]);
            if table.is_address(f) {
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

/// The bytes that an alternative replaces keep their length and stay together: the kernel writes
/// over exactly that many.
fn alternatives_whole(old: &[Entry], new: &[Entry], c: &Correspondence, findings: &mut Findings) {
    for (a, b) in old.iter().zip(new) {
        let length = (a.values[2].1 >> 32 & 0xff) as u64;
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
        let what =
            || format!("the {length} bytes that an alternative replaces are no longer together");
        findings.expect(whole, "alternatives in one piece", site, place, what);
    }
}

/// One byte of each field of the middle entry of each table, for wrong kernels: (table, address).
pub fn one_byte_of_each_field(kernel: &Kernel) -> Vec<(&'static str, u64)> {
    let mut bytes = Vec::new();
    for table in TABLES {
        let Some(found) = table.find(kernel) else { continue };
        let entries = table.entries(&found);
        let Some(entry) = entries.get(entries.len() / 2) else { continue };
        for field in table.fields {
            let offset = match *field {
                Field::Near(at)
                | Field::NearFlags(at)
                | Field::FarFlags(at)
                | Field::Address(at)
                | Field::Plain(at, _) => at,
            };
            bytes.push((table.name, entry.addr + offset as u64));
        }
    }
    bytes
}
