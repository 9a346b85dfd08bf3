//! Compares the side tables: lists of places in code that the kernel works through at boot, on a
//! fault, or when it patches itself.
//!
//! Input: both kernels and the correspondence. Each table must have the same entries: every field
//! that is an address refers to the same thing, and every other field is equal. Where the kernel
//! relies on the order of entries, the order is kept or the table is sorted. To add a table: a line
//! in `TABLES`.

use super::correspond::{Correspondence, Landing};
use super::kernel::KernelFile;
use super::verdict::Findings;
use std::collections::HashMap;

/// Where a table lies.
enum TableLocation {
    /// The table is a section.
    Section(&'static str),
    /// The table lies between two symbols of the linker's script.
    Symbols(&'static str, &'static str),
}

/// The meaning of a field of an entry. The first number is the offset in the entry.
#[derive(Clone, Copy)]
enum TableField {
    /// A 32-bit distance from the field to an address.
    Near(usize),
    /// A 32-bit distance from the field to an address whose two low bits are flags.
    NearFlags(usize),
    /// A 64-bit distance from the field to an address whose two low bits are flags.
    FarFlags(usize),
    /// A 64-bit address.
    Address(usize),
    /// A number with this offset and these bytes.
    Plain(usize, usize),
}

/// The order of entries that the kernel relies on.
#[derive(PartialEq, Eq)]
enum EntryOrder {
    /// The order of the old kernel.
    Kept,
    /// Ascending by the first field.
    Sorted,
    /// No order.
    Any,
}

struct SideTable {
    name: &'static str,
    at: TableLocation,
    size: usize,
    fields: &'static [TableField],
    order: EntryOrder,
}

const fn sites(name: &'static str) -> SideTable {
    SideTable {
        name,
        at: TableLocation::Section(name),
        size: 4,
        fields: &[TableField::Near(0)],
        order: EntryOrder::Any,
    }
}

const fn pointers(name: &'static str, start: &'static str, stop: &'static str) -> SideTable {
    SideTable {
        name,
        at: TableLocation::Symbols(start, stop),
        size: 4,
        fields: &[TableField::Near(0)],
        order: EntryOrder::Kept,
    }
}

const fn exports(name: &'static str) -> SideTable {
    SideTable {
        name,
        at: TableLocation::Section(name),
        size: 12,
        fields: &[TableField::Near(0), TableField::Near(4), TableField::Near(8)],
        order: EntryOrder::Kept,
    }
}

/// The tables of Linux 6.12 on x86-64. Layouts: `asm/extable.h`, `asm/alternative.h`,
/// `linux/jump_label.h`, `linux/static_call_types.h`, `asm-generic/bug.h` (with
/// `DEBUG_BUGVERBOSE`), `linux/export-internal.h`, `linux/pci.h`.
const TABLES: &[SideTable] = &[
    SideTable {
        name: "__ex_table",
        at: TableLocation::Section("__ex_table"),
        size: 12,
        fields: &[TableField::Near(0), TableField::Near(4), TableField::Plain(8, 4)],
        order: EntryOrder::Sorted,
    },
    SideTable {
        name: "__bug_table",
        at: TableLocation::Section("__bug_table"),
        size: 12,
        fields: &[TableField::Near(0), TableField::Near(4), TableField::Plain(8, 4)],
        order: EntryOrder::Any,
    },
    SideTable {
        name: "__jump_table",
        at: TableLocation::Symbols("__start___jump_table", "__stop___jump_table"),
        size: 16,
        fields: &[TableField::Near(0), TableField::Near(4), TableField::FarFlags(8)],
        order: EntryOrder::Any,
    },
    SideTable {
        name: ".static_call_sites",
        at: TableLocation::Symbols("__start_static_call_sites", "__stop_static_call_sites"),
        size: 8,
        fields: &[TableField::Near(0), TableField::NearFlags(4)],
        order: EntryOrder::Any,
    },
    SideTable {
        name: ".static_call_tramp_key",
        at: TableLocation::Symbols("__start_static_call_tramp_key", "__stop_static_call_tramp_key"),
        size: 8,
        fields: &[TableField::Near(0), TableField::Near(4)],
        order: EntryOrder::Any,
    },
    SideTable {
        name: ".altinstructions",
        at: TableLocation::Section(".altinstructions"),
        size: 14,
        fields: &[TableField::Near(0), TableField::Near(4), TableField::Plain(8, 6)],
        order: EntryOrder::Kept,
    },
    SideTable {
        name: "__mcount_loc",
        at: TableLocation::Symbols("__start_mcount_loc", "__stop_mcount_loc"),
        size: 8,
        fields: &[TableField::Address(0)],
        order: EntryOrder::Sorted,
    },
    SideTable {
        name: ".pci_fixup",
        at: TableLocation::Section(".pci_fixup"),
        size: 16,
        fields: &[TableField::Plain(0, 12), TableField::Near(12)],
        order: EntryOrder::Kept,
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
struct TableBytes<'d> {
    addr: u64,
    bytes: &'d [u8],
}

impl SideTable {
    fn find<'d>(&self, kernel: &KernelFile<'d>) -> Option<TableBytes<'d>> {
        let (start, end) = match self.at {
            TableLocation::Section(name) => kernel.section(name).map(|s| (s.addr, s.end()))?,
            TableLocation::Symbols(start, stop) => (kernel.symbol(start)?, kernel.symbol(stop)?),
        };
        let bytes = kernel.bytes(start, end.checked_sub(start)?)?;
        Some(TableBytes { addr: start, bytes })
    }

    /// The values of the fields of entry `i`. The value of an address field is the address that it
    /// refers to.
    fn entry(&self, found: &TableBytes, i: usize) -> Option<TableEntry> {
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
                TableField::Near(at) => (addr.wrapping_add(at as u64).wrapping_add(near(at)?), 0),
                TableField::NearFlags(at) => {
                    flags(addr.wrapping_add(at as u64).wrapping_add(near(at)?))
                }
                TableField::FarFlags(at) => {
                    flags(addr.wrapping_add(at as u64).wrapping_add(far(at)?))
                }
                TableField::Address(at) => (far(at)?, 0),
                TableField::Plain(at, len) => (0, plain(entry.get(at..at + len)?)),
            };
        }
        Some(TableEntry { addr, values })
    }

    fn entries(&self, found: &TableBytes) -> Vec<TableEntry> {
        let count = found.bytes.len() / self.size;
        let empty = |e: &TableEntry| e.values[0].0 == e.addr;
        let all = (0..count).filter_map(|i| self.entry(found, i));
        // Zeros fill the section of lock prefixes up to a page. Such an entry refers to itself.
        if self.name == ".smp_locks" { all.filter(|e| !empty(e)).collect() } else { all.collect() }
    }

    fn is_address(&self, field: usize) -> bool {
        self.fields.get(field).is_some_and(|f| !matches!(f, TableField::Plain(..)))
    }
}

#[derive(Clone, Copy)]
struct TableEntry {
    /// The address of the entry itself.
    addr: u64,
    /// Each field as (address, other bits).
    values: [(u64, u128); 3],
}

fn flags(address: u64) -> (u64, u128) {
    (address & !3, u128::from(address & 3))
}

fn plain(bytes: &[u8]) -> u128 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u128::from(byte))
}

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
    const BUGFLAG_WARNING: u128 = 1;
    entries_of("__bug_table", kernel)
        .into_iter()
        .filter(|e| e.values[2].1 >> 16 & BUGFLAG_WARNING != 0)
        .map(|e| e.values[0].0)
}

/// The ends of code that an alternative may replace by code behind which control continues: no-ops,
/// or a replacement that does not end in a jump or return.
pub(crate) fn ends_of_passable_alternatives(kernel: &KernelFile) -> impl Iterator<Item = u64> {
    entries_of(".altinstructions", kernel).into_iter().filter_map(|e| {
        let (length, replacement) =
            ((e.values[2].1 >> 32 & 0xff) as u64, (e.values[2].1 >> 40 & 0xff) as u64);
        let passes = replacement == 0 || passes(kernel.bytes(e.values[1].0, replacement)?);
        passes.then_some(e.values[0].0.wrapping_add(length))
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

fn entries_of(name: &str, kernel: &KernelFile) -> Vec<TableEntry> {
    let table = TABLES.iter().find(|t| t.name == name);
    table.and_then(|t| Some(t.entries(&t.find(kernel)?))).unwrap_or_default()
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
    for (found, kernel) in [(old, "old"), (new, "new")] {
        if !found.bytes.len().is_multiple_of(table.size) {
            findings.differ(
                table.name,
                Some(old.addr),
                Some(new.addr),
                format!("ends within an entry in the {kernel} kernel"),
            );
            return;
        }
    }
    let (old, new) = (table.entries(old), table.entries(new));
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
    if table.order == EntryOrder::Kept {
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

/// Compares tables whose order does not matter. Every old entry needs a new entry. New entries
/// without an old one are also differences.
fn compare_as_sets(
    table: &SideTable,
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

fn matches(table: &SideTable, old: &TableEntry, new: &TableEntry, c: &Correspondence) -> bool {
    (0..table.fields.len()).all(|field| {
        let (a, b) = (old.values[field], new.values[field]);
        a.1 == b.1
            && (!table.is_address(field)
                || matches!(c.lands(a.0, b.0), Landing::Exact | Landing::Boundary))
    })
}

fn difference(
    table: &SideTable,
    old: &TableEntry,
    new: Option<&TableEntry>,
    c: &Correspondence,
) -> String {
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

/// Checks that the bytes that an alternative replaces keep their length and stay together, because
/// the kernel overwrites exactly these bytes.
fn alternatives_whole(
    old: &[TableEntry],
    new: &[TableEntry],
    c: &Correspondence,
    findings: &mut Findings,
) {
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
        let what = || format!("the {length} bytes that an alternative replaces were separated");
        findings.expect(whole, "alternatives in one piece", site, place, what);
    }
}

/// For wrong kernels: (table, address) of one byte of each field in the middle entry of each table.
#[cfg(feature = "mutation")]
pub(crate) fn one_byte_of_each_field(kernel: &KernelFile) -> Vec<(&'static str, u64)> {
    let mut bytes = Vec::new();
    for table in TABLES {
        let Some(found) = table.find(kernel) else { continue };
        let entries = table.entries(&found);
        let Some(entry) = entries.get(entries.len() / 2) else { continue };
        for field in table.fields {
            let offset = match *field {
                TableField::Near(at)
                | TableField::NearFlags(at)
                | TableField::FarFlags(at)
                | TableField::Address(at)
                | TableField::Plain(at, _) => at,
            };
            bytes.push((table.name, entry.addr + offset as u64));
        }
    }
    bytes
}
