//! The side tables of a linked kernel, by link address.
//!
//! Input: the sections and symbols of a vmlinux. Output: every table that describes code, decoded.
//! `super::forms` has the formats that differ between versions. If a table does not fit its format,
//! reading fails with the table's name; [`LinkedTables::of_code`] leaves the table out.

use super::LinkedKernel;
use super::forms::{self, LinkedForms};
use super::raw_table::{RawTable, relative, u32_at, u64_at};
use crate::address::LinkAddr;
use crate::object::orc::{OrcState, UNDEFINED};
use anyhow::{Result, ensure};
use std::collections::HashMap;
use std::ops::Range;

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
/// Bytes of `endbr64`, which may stand in front of a tracer's site.
const ENDBR: u64 = 4;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExceptionEntry {
    /// The address of the instruction that may fault.
    pub site: u64,
    /// Where control continues after the fault.
    pub fixup: u64,
    /// How the kernel handles the fault.
    pub data: u32,
}

/// `struct bug_entry`, include/asm-generic/bug.h, with relative pointers and `DEBUG_BUGVERBOSE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BugEntry {
    /// The address of the trap. Since 7.0 it may be an instruction that calls the trap.
    pub site: u64,
    /// The address of the text that a warning prints, in kernels whose entries have one.
    pub format: Option<u64>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// `struct paravirt_patch_site`: a call through `pv_ops` that becomes a direct call or the
/// operation itself (`apply_paravirt`, arch/x86/kernel/alternative.c, up to 6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParavirtEntry {
    /// The address of the call.
    pub site: u64,
    /// Which operation.
    pub operation: u8,
    /// Bytes at the site.
    pub len: u8,
}

/// The side tables. Every table is ascending by site, unless it says otherwise.
#[derive(Debug, Default)]
pub struct LinkedTables {
    /// The forms that the tables have in this kernel.
    pub forms: LinkedForms,
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
    /// Calls through `pv_ops`.
    pub paravirt: Vec<ParavirtEntry>,
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
    /// The memory that the kernel makes read-only when it has booted. Empty in
    /// [`LinkedTables::of_code`]: such tables are not for copying code.
    pub read_only: Range<u64>,
    /// Whether modules may have sites of static keys in that memory (`jump_label_init_ro`, 6.10 and
    /// later). Earlier kernels write to the key when such a module is loaded, and crash.
    pub seals_keys: bool,
    /// The memory of loaded modules that is read-only when they have started. The kernel writes to
    /// the key of a module's site there, whichever version it has.
    pub unwritable: Vec<Range<u64>>,
}

impl LinkedTables {
    pub(super) fn read(kernel: &LinkedKernel<'_>) -> Result<LinkedTables> {
        let mut tables = LinkedTables {
            read_only: read_only(kernel),
            seals_keys: kernel.address_of("jump_label_init_ro").is_some(),
            ..LinkedTables::of_forms(kernel, LinkedForms::find(kernel)?)?
        };
        let entries = tables.ordinary_entries(kernel);
        tables.forms.find_orc(&entries)?;
        Ok(tables)
    }

    /// The tables, of these forms.
    pub(super) fn of_forms(kernel: &LinkedKernel<'_>, forms: LinkedForms) -> Result<LinkedTables> {
        let mut tables = LinkedTables {
            forms,
            bugs: bugs(kernel, forms.bug)?,
            paravirt: paravirt(kernel)?,
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
            alternatives: alternatives(kernel, forms.alternative)?,
            returns: RawTable::section(kernel, ".return_sites", 4)?.relatives(),
            retpolines: RawTable::section(kernel, ".retpoline_sites", 4)?.relatives(),
            calls: RawTable::section(kernel, ".call_sites", 4)?.relatives(),
            locks: RawTable::section(kernel, ".smp_locks", 4)?.relatives(),
            endbr_seals: RawTable::section(kernel, ".ibt_endbr_seal", 4)?.relatives(),
            ..LinkedTables::default()
        };
        tables.read_orc(kernel)?;
        tables.read_constants(kernel)?;
        tables.sort();
        Ok(tables)
    }

    /// Adds the entries of a module's tables. [`LinkedTables::sort`] must follow.
    pub(super) fn append(&mut self, mut of: LinkedTables) {
        self.tracer_sites.append(&mut of.tracer_sites);
        self.jumps.append(&mut of.jumps);
        self.static_calls.append(&mut of.static_calls);
        self.exceptions.append(&mut of.exceptions);
        self.bugs.append(&mut of.bugs);
        self.alternatives.append(&mut of.alternatives);
        self.paravirt.append(&mut of.paravirt);
        self.returns.append(&mut of.returns);
        self.retpolines.append(&mut of.retpolines);
        self.calls.append(&mut of.calls);
        self.locks.append(&mut of.locks);
        self.endbr_seals.append(&mut of.endbr_seals);
        self.unprobed.append(&mut of.unprobed);
        self.constants.append(&mut of.constants);
        self.orc.append(&mut of.orc);
    }

    /// A site in `[from, to)` that must not be in a module: the kernel keeps a list of a key's
    /// modules in the key, and the site's key lies in memory that cannot be written to.
    pub fn site_of_read_only_key(&self, from: LinkAddr, to: LinkAddr) -> Option<LinkAddr> {
        let unwritable = |key: &u64| self.unwritable.iter().any(|range| range.contains(key));
        let jumps = within(&self.jumps, |e| e.site, from, to).iter();
        let jump = jumps
            .map(|e| (e.site, e.key))
            .find(|(_, key)| unwritable(key) || !self.seals_keys && self.read_only.contains(key));
        let calls = within(&self.static_calls, |e| e.site, from, to).iter();
        let mut calls = calls.map(|e| (e.site, e.key));
        let call = || calls.find(|(_, key)| unwritable(key) || self.read_only.contains(key));
        jump.or_else(call).map(|(site, _)| LinkAddr(site))
    }

    /// The tables that say where control goes, of a kernel of any version. A table of another
    /// format than the known ones has no entries.
    pub(super) fn of_code(kernel: &LinkedKernel<'_>) -> LinkedTables {
        let sites = |name: &str| {
            RawTable::section(kernel, name, 4).map_or_else(|_| Vec::new(), |t| t.relatives())
        };
        let tracer = RawTable::between(kernel, "__start_mcount_loc", "__stop_mcount_loc", 8);
        let alternatives = forms::alternative(kernel).and_then(|form| alternatives(kernel, form));
        let mut tables = LinkedTables {
            tracer_sites: tracer.map_or_else(|_| Vec::new(), |t| t.absolutes()),
            jumps: jumps(kernel).unwrap_or_default(),
            static_calls: static_calls(kernel).unwrap_or_default(),
            exceptions: exceptions(kernel).unwrap_or_default(),
            alternatives: alternatives.unwrap_or_default(),
            paravirt: paravirt(kernel).unwrap_or_default(),
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
            let known = forms::RUNTIME.iter().find(|(name, _)| section.name.starts_with(name));
            let Some(&(_, width)) = known else { continue };
            let fields = RawTable::section(kernel, section.name, 4)?.relatives();
            self.constants.extend(fields.into_iter().map(|at| (at, width)));
        }
        Ok(())
    }

    pub(super) fn sort(&mut self) {
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
        self.paravirt.sort_by_key(|e| e.site);
        self.constants.sort_unstable();
        self.orc.sort_by_key(|&(at, _)| at);
    }

    /// The unwinder's states at the first instructions of functions with a tracer's site: of those
    /// in `.text`, where the site is where the compiler puts it.
    fn ordinary_entries(&self, kernel: &LinkedKernel<'_>) -> Vec<OrcState> {
        let text = kernel.text.clone();
        let first = kernel.functions.iter().map(|f| text.start + u64::from(f.at));
        let has_site = |at: &u64| {
            self.tracer_sites.binary_search(at).is_ok()
                || self.tracer_sites.binary_search(&(at + ENDBR)).is_ok()
        };
        first.filter(has_site).map(|at| self.orc_at(at)).collect()
    }

    /// The unwinder's state that is in force at an address.
    pub fn orc_at(&self, at: u64) -> OrcState {
        let index = self.orc.partition_point(|&(from, _)| from <= at).checked_sub(1);
        index.map_or(UNDEFINED, |i| self.orc[i].1)
    }
}

fn alternatives(
    kernel: &LinkedKernel<'_>,
    form: forms::AlternativeForm,
) -> Result<Vec<AlternativeEntry>> {
    let table = RawTable::section(kernel, ".altinstructions", form.size)?;
    let entry = |(at, e): (u64, &[u8])| {
        let flags = &e[forms::AlternativeForm::FLAGS..form.lengths()];
        AlternativeEntry {
            site: relative(at, e, 0),
            replacement: relative(at, e, 4),
            flags: flags.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte)),
            len: e[form.lengths()],
            replacement_len: e[form.lengths() + 1],
        }
    };
    Ok(table.entries().map(entry).collect())
}

fn bugs(kernel: &LinkedKernel<'_>, form: forms::BugForm) -> Result<Vec<BugEntry>> {
    let table = RawTable::section(kernel, "__bug_table", form.size)?;
    let entry = |(at, e): (u64, &[u8])| BugEntry {
        site: relative(at, e, 0),
        format: (form.addresses > 2).then(|| relative(at, e, 4)),
        file: relative(at, e, form.line() - 4),
        line: u32_at(e, form.line()) as u16,
        flags: (u32_at(e, form.line()) >> 16) as u16,
    };
    Ok(table.entries().map(entry).collect())
}

fn paravirt(kernel: &LinkedKernel<'_>) -> Result<Vec<ParavirtEntry>> {
    let table = RawTable::section(kernel, ".parainstructions", forms::PARAVIRT)?;
    let entry =
        |(_, e): (u64, &[u8])| ParavirtEntry { site: u64_at(e, 0), operation: e[8], len: e[9] };
    let entries: Vec<ParavirtEntry> = table.entries().map(entry).collect();
    let named = |e: &ParavirtEntry| kernel.bytes(LinkAddr(e.site), usize::from(e.len)).is_some();
    ensure!(
        entries.iter().all(named),
        ".parainstructions has entries of a form that Kernlane does not know"
    );
    Ok(entries)
}

/// From the beginning of the read-only data to its end, with what is read-only after boot. All
/// memory, if a symbol is missing: then no key is known to be writable.
fn read_only(kernel: &LinkedKernel<'_>) -> Range<u64> {
    let bounds = [kernel.address_of("__start_rodata"), kernel.address_of("__end_rodata")];
    match bounds {
        [Some(start), Some(end)] => start.0..end.0,
        _ => 0..u64::MAX,
    }
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

/// The table `struct static_call_tramp_key` (include/linux/static_call_types.h): the key of each
/// trampoline that modules call.
pub(super) fn keys_of_trampolines(kernel: &LinkedKernel<'_>) -> Result<HashMap<u64, u64>> {
    let (start, stop) = ("__start_static_call_tramp_key", "__stop_static_call_tramp_key");
    let table = RawTable::between(kernel, start, stop, 8)?;
    Ok(table.entries().map(|(at, e)| (relative(at, e, 0), relative(at, e, 4))).collect())
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
