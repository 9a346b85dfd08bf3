//! The side tables as the checker knows them: where each lies, which forms its entries have in
//! different kernels, and which order the kernel relies on.
//!
//! Input: a kernel. Output: the form that its table has: the one whose entries all refer to places
//! in the kernel. This module compares nothing, and never looks at a version. To add a table or a
//! form: a line in `TABLES`.

use super::kernel::{EntryValues, KernelFile, MOST_FIELDS};

/// Where a table lies.
pub(super) enum TableLocation {
    /// The table is a section.
    Section(&'static str),
    /// The table lies between two symbols of the linker's script.
    Symbols(&'static str, &'static str),
}

/// The meaning of a field of an entry. The first number is the offset in the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableField {
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

use TableField::{Address, FarFlags, Near, NearFlags, Plain};

impl TableField {
    /// The offset in the entry.
    #[cfg(feature = "mutation")]
    pub(super) fn offset(self) -> usize {
        match self {
            Near(at) | NearFlags(at) | FarFlags(at) | Address(at) | Plain(at, _) => at,
        }
    }

    pub(super) fn is_address(self) -> bool {
        !matches!(self, Plain(..))
    }
}

/// The order of entries that the kernel relies on.
#[derive(PartialEq, Eq)]
pub(super) enum EntryOrder {
    /// The order of the old kernel.
    Kept,
    /// Ascending by the first field.
    Sorted,
    /// No order.
    Any,
}

/// A form of a table's entries.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EntryForm {
    /// Bytes of an entry.
    pub size: usize,
    pub fields: &'static [TableField],
    /// The number of the field that says how many bytes the kernel overwrites at the first field.
    pub overwritten: Option<usize>,
}

pub(super) struct SideTable {
    pub name: &'static str,
    pub at: TableLocation,
    /// The forms of its entries. If there are several, the first one counts that fits.
    pub forms: &'static [EntryForm],
    pub order: EntryOrder,
}

const fn form(size: usize, fields: &'static [TableField]) -> EntryForm {
    assert!(fields.len() <= MOST_FIELDS);
    EntryForm { size, fields, overwritten: None }
}

const fn patched(size: usize, fields: &'static [TableField], length: usize) -> EntryForm {
    assert!(fields.len() <= MOST_FIELDS && length < fields.len());
    EntryForm { size, fields, overwritten: Some(length) }
}

const POINTER: &[EntryForm] = &[form(4, &[Near(0)])];
const EXPORT: &[EntryForm] = &[form(12, &[Near(0), Near(4), Near(8)])];

const fn section(name: &'static str, forms: &'static [EntryForm], order: EntryOrder) -> SideTable {
    SideTable { name, at: TableLocation::Section(name), forms, order }
}

const fn sites(name: &'static str) -> SideTable {
    section(name, POINTER, EntryOrder::Any)
}

const fn between(
    name: &'static str,
    symbols: [&'static str; 2],
    forms: &'static [EntryForm],
    order: EntryOrder,
) -> SideTable {
    SideTable { name, at: TableLocation::Symbols(symbols[0], symbols[1]), forms, order }
}

/// The tables of Linux on x86-64. Layouts: `asm/extable.h`, `asm/alternative.h`,
/// `asm/paravirt_types.h`, `linux/jump_label.h`, `linux/static_call_types.h`, `asm-generic/bug.h`,
/// `linux/export-internal.h`, `linux/pci.h`.
pub(super) const TABLES: &[SideTable] = &[
    section("__ex_table", &[form(12, &[Near(0), Near(4), Plain(8, 4)])], EntryOrder::Sorted),
    // Site, perhaps a format, perhaps a file and a line, flags. The flags are the last field.
    section(
        "__bug_table",
        &[
            form(12, &[Near(0), Near(4), Plain(8, 2), Plain(10, 2)]),
            form(16, &[Near(0), Near(4), Near(8), Plain(12, 2), Plain(14, 2)]),
            form(10, &[Near(0), Near(4), Plain(8, 2)]),
            form(6, &[Near(0), Plain(4, 2)]),
        ],
        EntryOrder::Any,
    ),
    between(
        "__jump_table",
        ["__start___jump_table", "__stop___jump_table"],
        &[form(16, &[Near(0), Near(4), FarFlags(8)])],
        EntryOrder::Any,
    ),
    between(
        ".static_call_sites",
        ["__start_static_call_sites", "__stop_static_call_sites"],
        &[form(8, &[Near(0), NearFlags(4)])],
        EntryOrder::Any,
    ),
    between(
        ".static_call_tramp_key",
        ["__start_static_call_tramp_key", "__stop_static_call_tramp_key"],
        &[form(8, &[Near(0), Near(4)])],
        EntryOrder::Any,
    ),
    // The processor's feature, with flags or without.
    section(
        ".altinstructions",
        &[
            patched(14, &[Near(0), Near(4), Plain(8, 4), Plain(12, 1), Plain(13, 1)], 3),
            patched(12, &[Near(0), Near(4), Plain(8, 2), Plain(10, 1), Plain(11, 1)], 3),
        ],
        EntryOrder::Kept,
    ),
    section(
        ".parainstructions",
        &[patched(16, &[Address(0), Plain(8, 1), Plain(9, 1), Plain(10, 6)], 2)],
        EntryOrder::Kept,
    ),
    between(
        "__mcount_loc",
        ["__start_mcount_loc", "__stop_mcount_loc"],
        &[form(8, &[Address(0)])],
        EntryOrder::Sorted,
    ),
    section(".pci_fixup", &[form(16, &[Plain(0, 12), Near(12)])], EntryOrder::Kept),
    sites(".return_sites"),
    sites(".retpoline_sites"),
    sites(".call_sites"),
    sites(".ibt_endbr_seal"),
    sites(".cfi_sites"),
    sites(".smp_locks"),
    // include/asm-generic/vmlinux.lds.h, RUNTIME_CONST_VARIABLES: 6.12, then what 7.3 adds.
    sites("runtime_shift_d_hash_shift"),
    sites("runtime_ptr_dentry_hashtable"),
    sites("runtime_ptr_USER_PTR_MAX"),
    sites("runtime_ptr___dentry_cache"),
    sites("runtime_ptr___names_cache"),
    sites("runtime_ptr___filp_cache"),
    sites("runtime_ptr___bfilp_cache"),
    sites("runtime_ptr___futex_queues"),
    sites("runtime_mask___futex_mask"),
    between(
        "__tracepoints_ptrs",
        ["__start___tracepoints_ptrs", "__stop___tracepoints_ptrs"],
        POINTER,
        EntryOrder::Kept,
    ),
    between("initcalls", ["__initcall_start", "__initcall_end"], POINTER, EntryOrder::Kept),
    between(
        "console initcalls",
        ["__con_initcall_start", "__con_initcall_end"],
        POINTER,
        EntryOrder::Kept,
    ),
    section("__ksymtab", EXPORT, EntryOrder::Kept),
    section("__ksymtab_gpl", EXPORT, EntryOrder::Kept),
];

/// The bytes of a table in one kernel.
pub(super) struct TableBytes<'d> {
    pub addr: u64,
    pub bytes: &'d [u8],
}

#[derive(Clone, Copy)]
pub(super) struct TableEntry {
    /// The address of the entry itself.
    pub addr: u64,
    /// Each field as (address, other bits).
    pub values: EntryValues,
}

impl SideTable {
    pub(super) fn find<'d>(&self, kernel: &KernelFile<'d>) -> Option<TableBytes<'d>> {
        let (start, end) = match self.at {
            TableLocation::Section(name) => kernel.section(name).map(|s| (s.addr, s.end()))?,
            TableLocation::Symbols(start, stop) => (kernel.symbol(start)?, kernel.symbol(stop)?),
        };
        let bytes = kernel.bytes(start, end.checked_sub(start)?)?;
        Some(TableBytes { addr: start, bytes })
    }

    /// The form of the table's entries in `kernel`. A table with one known form has that form.
    pub(super) fn form(
        &self,
        found: &TableBytes,
        kernel: &KernelFile,
    ) -> Option<&'static EntryForm> {
        if let [only] = self.forms {
            return Some(only);
        }
        self.forms.iter().find(|form| form.fits(found, kernel))
    }

    /// The entries of the table, which have this form, and those of inlined code.
    pub(super) fn all_entries(
        &self,
        form: &EntryForm,
        found: &TableBytes,
        kernel: &KernelFile,
    ) -> Vec<TableEntry> {
        let mut entries = self.entries(form, found);
        if let Some(additions) = kernel.additions {
            entries.retain(|entry| !additions.gone.contains(&entry.values[0].0));
            let added = additions.entries.get(self.name).into_iter().flatten();
            let added = added.filter(|values| !additions.gone.contains(&values[0].0));
            entries.extend(added.map(|&values| TableEntry { addr: found.addr, values }));
        }
        entries
    }

    /// The entries of the table, which have this form.
    pub(super) fn entries(&self, form: &EntryForm, found: &TableBytes) -> Vec<TableEntry> {
        let count = found.bytes.len() / form.size;
        let empty = |e: &TableEntry| match self.name {
            // Zeros fill the section of lock prefixes up to a page. Such an entry refers to itself.
            ".smp_locks" => e.values[0].0 == e.addr,
            // The build takes the sites of overridden weak functions away (scripts/sorttable.c,
            // 6.15 and later).
            "__mcount_loc" => e.values[0].0 == 0,
            _ => false,
        };
        (0..count).filter_map(|i| form.entry(found, i)).filter(|e| !empty(e)).collect()
    }
}

impl EntryForm {
    /// Whether every site of the table lies in code of the kernel, and every other address in the
    /// kernel.
    fn fits(&self, found: &TableBytes, kernel: &KernelFile) -> bool {
        // An empty replacement may lie at the end of its section.
        let is_there =
            |to: u64| [to, to.wrapping_sub(1)].iter().any(|&at| kernel.section_at(at).is_some());
        let refers = |entry: &TableEntry| {
            let mut fields = self.fields.iter().zip(&entry.values);
            kernel.section_at(entry.values[0].0).is_some_and(|section| section.executable)
                && fields.all(|(field, &(to, _))| !field.is_address() || is_there(to))
        };
        let count = found.bytes.len() / self.size;
        found.bytes.len().is_multiple_of(self.size)
            && (0..count).all(|i| self.entry(found, i).is_some_and(|entry| refers(&entry)))
    }

    /// The values of the fields of entry `i`. The value of an address field is the address that it
    /// refers to.
    pub(super) fn entry(&self, found: &TableBytes, i: usize) -> Option<TableEntry> {
        let start = i * self.size;
        let entry = found.bytes.get(start..start + self.size)?;
        let addr = found.addr + start as u64;
        let near = |at: usize| {
            Some(i64::from(i32::from_le_bytes(entry.get(at..at + 4)?.try_into().ok()?)) as u64)
        };
        let far = |at: usize| Some(u64::from_le_bytes(entry.get(at..at + 8)?.try_into().ok()?));
        let mut values = [(0, 0); MOST_FIELDS];
        for (value, field) in values.iter_mut().zip(self.fields) {
            *value = match *field {
                Near(at) => (addr.wrapping_add(at as u64).wrapping_add(near(at)?), 0),
                NearFlags(at) => flags(addr.wrapping_add(at as u64).wrapping_add(near(at)?)),
                FarFlags(at) => flags(addr.wrapping_add(at as u64).wrapping_add(far(at)?)),
                Address(at) => (far(at)?, 0),
                Plain(at, len) => (0, plain(entry.get(at..at + len)?)),
            };
        }
        Some(TableEntry { addr, values })
    }

    pub(super) fn is_address(&self, field: usize) -> bool {
        self.fields.get(field).is_some_and(|field| field.is_address())
    }

    /// The number in field `field` of an entry.
    pub(super) fn number(&self, entry: &TableEntry, field: usize) -> u64 {
        entry.values.get(field).map_or(0, |&(_, number)| number as u64)
    }
}

fn flags(address: u64) -> (u64, u128) {
    (address & !3, u128::from(address & 3))
}

fn plain(bytes: &[u8]) -> u128 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u128::from(byte))
}
