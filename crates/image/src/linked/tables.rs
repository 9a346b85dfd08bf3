//! The side tables of a linked kernel, by link address.
//!
//! Input: the sections and symbols of a vmlinux. Output: every table that describes code, decoded.
//! The formats are those of Linux 6.12. If a table's size does not fit its format, reading fails
//! with the table's name; [`LinkedTables::of_code`] leaves the table out.

use super::LinkedKernel;
use crate::address::LinkAddr;
use crate::object::orc::{OrcState, UNDEFINED};
use anyhow::{Context, Result, ensure};

/// `struct jump_entry`, include/linux/jump_label.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JumpEntry {
    /// The address of the patched instruction.
    pub site: u64,
    /// Where the jump goes.
    pub target: u64,
    /// The address of the key. The lowest bit is a flag.
    pub key: u64,
}

/// `struct static_call_site`, include/linux/static_call_types.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticCallEntry {
    /// The address of the call or jump.
    pub site: u64,
    /// The address of the key. The lowest bit is a flag.
    pub key: u64,
}

/// The symbols around the table of static keys.
pub const JUMP_BOUNDS: (&str, &str) = ("__start___jump_table", "__stop___jump_table");
/// The symbols around the table of static calls.
pub const STATIC_CALL_BOUNDS: (&str, &str) =
    ("__start_static_call_sites", "__stop_static_call_sites");
/// The bit of a key that the kernel, and its loader of modules, set and clear by themselves:
/// whether the site is in code that is freed (`jump_entry_set_init`, `STATIC_CALL_SITE_INIT`). In
/// the file it tells objtool how long the instruction is.
const INIT: u64 = 2;
/// Bytes of an entry of these tables.
const JUMP: usize = 16;
const STATIC_CALL: usize = 8;

/// The entries of a table of static keys whose first byte has the link address `at`, ascending by
/// site.
pub fn jump_entries(at: u64, bytes: &[u8]) -> Vec<JumpEntry> {
    let entries = RawTable { addr: at, bytes, entry: JUMP };
    let mut found: Vec<JumpEntry> = (entries.entries())
        .map(|(at, e)| JumpEntry {
            site: relative(at, e, 0),
            target: relative(at, e, 4),
            key: (at + 8).wrapping_add(u64_at(e, 8)) & !INIT,
        })
        .collect();
    found.sort_by_key(|e| e.site);
    found
}

/// Likewise for a table of static calls.
pub fn static_call_entries(at: u64, bytes: &[u8]) -> Vec<StaticCallEntry> {
    let entries = RawTable { addr: at, bytes, entry: STATIC_CALL };
    let mut found: Vec<StaticCallEntry> = (entries.entries())
        .map(|(at, e)| StaticCallEntry {
            site: relative(at, e, 0),
            key: relative(at, e, 4) & !INIT,
        })
        .collect();
    found.sort_by_key(|e| e.site);
    found
}

/// `struct exception_table_entry`, arch/x86/include/asm/extable.h.
#[derive(Clone, Copy, Debug)]
pub struct ExceptionEntry {
    /// The address of the instruction that may fault.
    pub site: u64,
    /// Where control continues after the fault.
    pub fixup: u64,
    /// How the kernel handles the fault.
    pub data: u32,
}

/// `struct bug_entry`, include/asm-generic/bug.h, with relative pointers and `DEBUG_BUGVERBOSE`.
#[derive(Clone, Copy, Debug)]
pub struct BugEntry {
    /// The address of the trap.
    pub site: u64,
    /// The address of the file name.
    pub file: u64,
    /// The line in that file.
    pub line: u16,
    /// Flags such as `BUGFLAG_WARNING`.
    pub flags: u16,
}

/// Control continues behind the trap after a warning.
pub const BUGFLAG_WARNING: u16 = 1;

/// `struct alt_instr`, arch/x86/include/asm/alternative.h.
#[derive(Clone, Copy, Debug)]
pub struct AlternativeEntry {
    /// The address of the instructions that may be replaced.
    pub site: u64,
    /// The address of the replacement.
    pub replacement: u64,
    /// The CPU feature that decides, and flags.
    pub flags: u32,
    /// Bytes at the site.
    pub len: u8,
    /// Bytes of the replacement.
    pub replacement_len: u8,
}

/// The side tables. Every table is ascending by site, unless it says otherwise.
#[derive(Debug, Default)]
pub struct LinkedTables {
    /// Sites of the function tracer.
    pub tracer_sites: Vec<u64>,
    /// Static keys.
    pub jumps: Vec<JumpEntry>,
    /// Static calls.
    pub static_calls: Vec<StaticCallEntry>,
    /// Exception fixups.
    pub exceptions: Vec<ExceptionEntry>,
    /// Traps of `BUG` and `WARN`.
    pub bugs: Vec<BugEntry>,
    /// In the order of the file: for one site, later entries win.
    pub alternatives: Vec<AlternativeEntry>,
    /// Returns that a mitigation may patch.
    pub returns: Vec<u64>,
    /// Retpolines.
    pub retpolines: Vec<u64>,
    /// Calls that call-depth tracking may patch.
    pub calls: Vec<u64>,
    /// LOCK prefixes.
    pub locks: Vec<u64>,
    /// `endbr64` instructions that the kernel may overwrite.
    pub endbr_seals: Vec<u64>,
    /// Functions that must not be probed, besides those in sections of their own.
    pub unprobed: Vec<u64>,
    /// Fields inside instructions that the kernel fills in at boot (`runtime_const`), with their
    /// widths in bytes.
    pub constants: Vec<(u64, u8)>,
    /// The unwinder's states, each in force from its address on.
    pub orc: Vec<(u64, OrcState)>,
}

impl LinkedTables {
    pub(super) fn read(kernel: &LinkedKernel<'_>) -> Result<LinkedTables> {
        let mut tables = LinkedTables {
            tracer_sites: RawTable::between(kernel, "__start_mcount_loc", "__stop_mcount_loc", 8)?
                .absolutes(),
            unprobed: RawTable::between(
                kernel,
                "__start_kprobe_blacklist",
                "__stop_kprobe_blacklist",
                8,
            )?
            .absolutes(),
            jumps: jumps(kernel)?,
            static_calls: static_calls(kernel)?,
            exceptions: exceptions(kernel)?,
            alternatives: alternatives(kernel, &ALTERNATIVE)?,
            returns: RawTable::section(kernel, ".return_sites", 4)?.relatives(),
            retpolines: RawTable::section(kernel, ".retpoline_sites", 4)?.relatives(),
            calls: RawTable::section(kernel, ".call_sites", 4)?.relatives(),
            locks: RawTable::section(kernel, ".smp_locks", 4)?.relatives(),
            endbr_seals: RawTable::section(kernel, ".ibt_endbr_seal", 4)?.relatives(),
            ..LinkedTables::default()
        };
        let bugs = RawTable::section(kernel, "__bug_table", 12)?;
        tables.bugs.extend(bugs.entries().map(|(at, e)| BugEntry {
            site: relative(at, e, 0),
            file: relative(at, e, 4),
            line: u32_at(e, 8) as u16,
            flags: (u32_at(e, 8) >> 16) as u16,
        }));
        tables.read_orc(kernel)?;
        tables.read_constants(kernel)?;
        tables.sort();
        Ok(tables)
    }

    /// The tables that say where control goes, of a kernel of any version. A table of another
    /// format than the known ones has no entries.
    pub(super) fn of_code(kernel: &LinkedKernel<'_>) -> LinkedTables {
        let sites = |name: &str| {
            RawTable::section(kernel, name, 4).map_or_else(|_| Vec::new(), |t| t.relatives())
        };
        let tracer = RawTable::between(kernel, "__start_mcount_loc", "__stop_mcount_loc", 8);
        // A size that fits by chance gives sites outside of the kernel.
        let fits = |found: &[AlternativeEntry]| {
            found.iter().all(|e| kernel.bytes(LinkAddr(e.site), usize::from(e.len)).is_some())
        };
        let formats = [ALTERNATIVE, ALTERNATIVE_BEFORE_6_3];
        let alternatives = formats.iter().filter_map(|format| alternatives(kernel, format).ok());
        let mut tables = LinkedTables {
            tracer_sites: tracer.map_or_else(|_| Vec::new(), |t| t.absolutes()),
            jumps: jumps(kernel).unwrap_or_default(),
            static_calls: static_calls(kernel).unwrap_or_default(),
            exceptions: exceptions(kernel).unwrap_or_default(),
            alternatives: alternatives.into_iter().find(|found| fits(found)).unwrap_or_default(),
            returns: sites(".return_sites"),
            retpolines: sites(".retpoline_sites"),
            calls: sites(".call_sites"),
            ..LinkedTables::default()
        };
        tables.sort();
        tables
    }

    fn read_orc(&mut self, kernel: &LinkedKernel<'_>) -> Result<()> {
        let (ip, unwind) = (
            RawTable::section(kernel, ".orc_unwind_ip", 4)?,
            RawTable::section(kernel, ".orc_unwind", 6)?,
        );
        ensure!(
            ip.bytes.len() / 4 == unwind.bytes.len() / 6,
            ".orc_unwind and .orc_unwind_ip do not fit together"
        );
        let states = unwind.bytes.chunks_exact(6).map(|s| [s[0], s[1], s[2], s[3], s[4], s[5]]);
        self.orc = ip.entries().map(|(at, e)| relative(at, e, 0)).zip(states).collect();
        Ok(())
    }

    fn read_constants(&mut self, kernel: &LinkedKernel<'_>) -> Result<()> {
        for section in &kernel.sections {
            let width = match section.name {
                name if name.starts_with("runtime_ptr_") => 8,
                name if name.starts_with("runtime_shift_") => 1,
                name if name.starts_with("runtime_mask_") => 4,
                _ => continue,
            };
            let fields = RawTable::section(kernel, section.name, 4)?.relatives();
            self.constants.extend(fields.into_iter().map(|at| (at, width)));
        }
        Ok(())
    }

    fn sort(&mut self) {
        for sites in [
            &mut self.tracer_sites,
            &mut self.returns,
            &mut self.retpolines,
            &mut self.calls,
            &mut self.locks,
            &mut self.endbr_seals,
            &mut self.unprobed,
        ] {
            sites.sort_unstable();
        }
        self.exceptions.sort_by_key(|e| e.site);
        self.bugs.sort_by_key(|e| e.site);
        self.alternatives.sort_by_key(|e| e.site);
        self.constants.sort_unstable();
        self.orc.sort_by_key(|&(at, _)| at);
    }

    /// The unwinder's state that is in force at an address.
    pub fn orc_at(&self, at: u64) -> OrcState {
        let index = self.orc.partition_point(|&(from, _)| from <= at).checked_sub(1);
        index.map_or(UNDEFINED, |i| self.orc[i].1)
    }
}

/// Where the fields of `struct alt_instr` lie.
struct AlternativeFormat {
    size: usize,
    /// Of two or four bytes, up to `len`.
    flags: usize,
    len: usize,
}

const ALTERNATIVE: AlternativeFormat = AlternativeFormat { size: 14, flags: 8, len: 12 };
/// Before Linux commit 5d1dd961e743 ("Add alt_instr.flags"), which gave the feature 32 bits.
const ALTERNATIVE_BEFORE_6_3: AlternativeFormat = AlternativeFormat { size: 12, flags: 8, len: 10 };

fn alternatives(
    kernel: &LinkedKernel<'_>,
    format: &AlternativeFormat,
) -> Result<Vec<AlternativeEntry>> {
    let table = RawTable::section(kernel, ".altinstructions", format.size)?;
    let flags = |e: &[u8]| match format.len - format.flags {
        4 => u32_at(e, format.flags),
        _ => u32::from(u16::from_le_bytes([e[format.flags], e[format.flags + 1]])),
    };
    let entry = |(at, e): (u64, &[u8])| AlternativeEntry {
        site: relative(at, e, 0),
        replacement: relative(at, e, 4),
        flags: flags(e),
        len: e[format.len],
        replacement_len: e[format.len + 1],
    };
    Ok(table.entries().map(entry).collect())
}

fn jumps(kernel: &LinkedKernel<'_>) -> Result<Vec<JumpEntry>> {
    let (start, stop) = JUMP_BOUNDS;
    let table = RawTable::between(kernel, start, stop, JUMP)?;
    Ok(jump_entries(table.addr, table.bytes))
}

fn static_calls(kernel: &LinkedKernel<'_>) -> Result<Vec<StaticCallEntry>> {
    let (start, stop) = STATIC_CALL_BOUNDS;
    let table = RawTable::between(kernel, start, stop, STATIC_CALL)?;
    Ok(static_call_entries(table.addr, table.bytes))
}

fn exceptions(kernel: &LinkedKernel<'_>) -> Result<Vec<ExceptionEntry>> {
    let table = RawTable::section(kernel, "__ex_table", 12)?;
    let entry = |(at, e): (u64, &[u8])| ExceptionEntry {
        site: relative(at, e, 0),
        fixup: relative(at, e, 4),
        data: u32_at(e, 8),
    };
    Ok(table.entries().map(entry).collect())
}

/// The entries of an ascending table whose sites lie in `[from, to)`.
pub fn within<T>(table: &[T], site: impl Fn(&T) -> u64, from: LinkAddr, to: LinkAddr) -> &[T] {
    let first = table.partition_point(|e| site(e) < from.0);
    let last = table.partition_point(|e| site(e) < to.0);
    &table[first..last.max(first)]
}

/// The bytes of a table whose entries all have the same size.
struct RawTable<'a> {
    addr: u64,
    bytes: &'a [u8],
    entry: usize,
}

impl<'a> RawTable<'a> {
    /// An empty table if the kernel has no such section.
    fn section(kernel: &LinkedKernel<'a>, name: &str, entry: usize) -> Result<RawTable<'a>> {
        let Some(section) = kernel.section(name) else {
            return Ok(RawTable::empty(entry));
        };
        // Zeros behind the last entry pad .smp_locks to whole pages.
        let used = match name {
            ".smp_locks" => kernel
                .address_of("__smp_locks_end")
                .map_or(section.bytes.len(), |end| (end.0.wrapping_sub(section.addr)) as usize),
            _ => section.bytes.len(),
        };
        let bytes = section.bytes.get(..used).with_context(|| format!("{name} is cut short"))?;
        let fits = bytes.len().is_multiple_of(entry);
        ensure!(fits, "{name} has entries of an unknown size");
        Ok(RawTable { addr: section.addr, bytes, entry })
    }

    fn between(
        kernel: &LinkedKernel<'a>,
        start: &str,
        end: &str,
        entry: usize,
    ) -> Result<RawTable<'a>> {
        let (Some(from), Some(to)) = (kernel.address_of(start), kernel.address_of(end)) else {
            return Ok(RawTable::empty(entry));
        };
        if from == to {
            return Ok(RawTable::empty(entry));
        }
        let len = usize::try_from(to.0.wrapping_sub(from.0)).unwrap_or(usize::MAX);
        let bytes = kernel
            .bytes(from, len)
            .with_context(|| format!("the table behind {start} is cut short"))?;
        ensure!(
            len.is_multiple_of(entry),
            "the table behind {start} has entries of an unknown size"
        );
        Ok(RawTable { addr: from.0, bytes, entry })
    }

    fn empty(entry: usize) -> RawTable<'a> {
        RawTable { addr: 0, bytes: &[], entry }
    }

    fn entries(&self) -> impl Iterator<Item = (u64, &'a [u8])> {
        let (addr, size) = (self.addr, self.entry);
        let entries = self.bytes.chunks_exact(size).enumerate();
        entries.map(move |(n, entry)| (addr + (n * size) as u64, entry))
    }

    fn relatives(&self) -> Vec<u64> {
        self.entries().map(|(at, e)| relative(at, e, 0)).collect()
    }

    fn absolutes(&self) -> Vec<u64> {
        self.entries().map(|(_, e)| u64_at(e, 0)).collect()
    }
}

fn u32_at(entry: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
}

fn u64_at(entry: &[u8], at: usize) -> u64 {
    u64::from(u32_at(entry, at)) | u64::from(u32_at(entry, at + 4)) << 32
}

/// The address that a 32-bit field, relative to itself, refers to.
fn relative(at: u64, entry: &[u8], field: usize) -> u64 {
    (at + field as u64).wrapping_add_signed(i64::from(u32_at(entry, field) as i32))
}
