//! Whether the side tables of a vmlinux are those of the kernel that runs.
//!
//! Input: a vmlinux and the kernel's memory. Output: nothing, or the first difference. The proof of
//! a copy reads the tables from the same file as the emitter. So a damaged table would be copied,
//! and found equal. This module looks only at tables that stay in memory; `crate::freed` is about
//! those that the kernel frees when it has booted.

use crate::memory::Memory;
use anyhow::{Context, Result, bail, ensure};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::linked::tables::{JUMP_BOUNDS, STATIC_CALL_BOUNDS, jump_entries, static_call_entries};

/// A section that holds a table and nothing else, and the symbols around it, where it has some.
struct WholeSection {
    name: &'static str,
    bounds: Option<(&'static str, &'static str)>,
    /// Bytes of an entry, and which bits of it the kernel changes while it runs.
    changes: Option<(usize, &'static [u8])>,
}

const fn constant(
    name: &'static str,
    bounds: Option<(&'static str, &'static str)>,
) -> WholeSection {
    WholeSection { name, bounds, changes: None }
}

/// `BUGFLAG_DONE`, include/linux/bug.h: this place has warned.
const DONE: u8 = 1 << 2;

/// Sections that memory and the file have equal, byte for byte: they are sorted when the kernel is
/// linked, and consist of distances, which KASLR does not change.
const SECTIONS: [WholeSection; 10] = [
    constant("__ex_table", Some(("__start___ex_table", "__stop___ex_table"))),
    constant(".orc_unwind_ip", Some(("__start_orc_unwind_ip", "__stop_orc_unwind_ip"))),
    constant(".orc_unwind", Some(("__start_orc_unwind", "__stop_orc_unwind"))),
    WholeSection {
        name: "__bug_table",
        bounds: Some(("__start___bug_table", "__stop___bug_table")),
        changes: Some((12, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, DONE, 0])),
    },
    constant("__ksymtab", Some(("__start___ksymtab", "__stop___ksymtab"))),
    constant("__ksymtab_gpl", Some(("__start___ksymtab_gpl", "__stop___ksymtab_gpl"))),
    constant("__ksymtab_strings", None),
    constant("__kcrctab", Some(("__start___kcrctab", "__stop___kcrctab"))),
    constant("__kcrctab_gpl", Some(("__start___kcrctab_gpl", "__stop___kcrctab_gpl"))),
    constant(".BTF", Some(("__start_BTF", "__stop_BTF"))),
];

/// Bytes of `struct kernel_symbol`, include/linux/export-internal.h.
const EXPORT: usize = 12;

/// Compares every table that stays in memory.
///
/// # Errors
/// A table differs; the memory cannot be read.
pub fn verify(kernel: &LinkedKernel<'_>, memory: &dyn Memory) -> Result<()> {
    for section in &SECTIONS {
        verify_section(kernel, memory, section)?;
    }
    verify_patches(kernel, memory)
}

/// Compares only the tables in one section.
///
/// # Errors
/// The errors of [`verify`].
pub fn verify_only(kernel: &LinkedKernel<'_>, memory: &dyn Memory, section: &str) -> Result<()> {
    match SECTIONS.iter().find(|s| s.name == section) {
        Some(section) => verify_section(kernel, memory, section),
        None => verify_patches(kernel, memory),
    }
}

/// Checks that the section between two symbols is complete and lies where its header says.
pub(crate) fn check_bounds(
    kernel: &LinkedKernel<'_>,
    name: &str,
    (start, end): (&str, &str),
) -> Result<()> {
    let section = kernel.loaded(name).map_or(0..0, |(at, bytes)| at.0..at.0 + bytes.len() as u64);
    let (Some(start), Some(end)) = (kernel.address_of(start), kernel.address_of(end)) else {
        ensure!(section.is_empty(), "{DAMAGED}: no symbols {start} and {end} are around {name}");
        return Ok(());
    };
    let same = section == (start.0..end.0) || section.is_empty() && start == end;
    ensure!(
        same,
        "{DAMAGED}: {name} is from {:x} to {:x}, but its symbols say from {start} to {end}",
        section.start,
        section.end
    );
    Ok(())
}

const DAMAGED: &str = "the vmlinux is damaged, install or fetch it again";

fn verify_section(
    kernel: &LinkedKernel<'_>,
    memory: &dyn Memory,
    section: &WholeSection,
) -> Result<()> {
    if let Some(bounds) = section.bounds {
        check_bounds(kernel, section.name, bounds)?;
    }
    let Some((at, file)) = kernel.loaded(section.name) else { return Ok(()) };
    let live = memory.read(at, file.len()).with_context(|| section.name.to_owned())?;
    let expected = match section.name {
        "__ksymtab" | "__ksymtab_gpl" => exports_in_memory(kernel, at, file, memory.slide()),
        _ => file.to_vec(),
    };
    if expected == live {
        return Ok(());
    }
    let may_change = |n: usize| section.changes.map_or(0, |(size, bits)| bits[n % size]);
    // The kernel may set these bits, and the file has none of them.
    let differs = |n: &usize| expected[*n] != live[*n] & !may_change(*n);
    match (0..file.len()).find(differs) {
        None => Ok(()),
        Some(n) => bail!(
            "{DAMAGED}: its table {} differs from the running kernel's at {}{}",
            section.name,
            LinkAddr(at.0 + n as u64),
            subject(kernel, section.name, &live, at, n)
        ),
    }
}

/// An exported symbol of per-CPU data does not move with the kernel, so KASLR changes the distance
/// from its entry. The entry's first field, of four bytes, holds it.
fn exports_in_memory(kernel: &LinkedKernel<'_>, at: LinkAddr, file: &[u8], slide: u64) -> Vec<u8> {
    let mut expected = file.to_vec();
    for (n, entry) in expected.chunks_exact_mut(EXPORT).enumerate() {
        let Some(field) = entry.first_chunk_mut::<4>() else { break };
        let distance = i32::from_le_bytes(*field);
        let place = (at.0 + (n * EXPORT) as u64).wrapping_add_signed(i64::from(distance));
        if !kernel.image.contains(&place) {
            *field = distance.wrapping_sub(slide as i32).to_le_bytes();
        }
    }
    expected
}

/// Which function an entry is about, where the entry's first field says so.
fn subject(
    kernel: &LinkedKernel<'_>,
    section: &str,
    live: &[u8],
    at: LinkAddr,
    differs: usize,
) -> String {
    let size = match section {
        "__ex_table" | "__bug_table" => 12,
        ".orc_unwind_ip" => 4,
        _ => return String::new(),
    };
    let entry = differs / size * size;
    let Some(&[a, b, c, d]) = live[entry..].first_chunk::<4>() else { return String::new() };
    let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
    let site = LinkAddr((at.0 + entry as u64).wrapping_add_signed(distance));
    kernel
        .function_at(site)
        .map(|f| format!(" ({})", kernel.function_name(&kernel.functions[f])))
        .unwrap_or_default()
}

/// The tables of static keys and calls. The kernel sorts them anew when it boots, and marks sites
/// in code that it frees. Everything else stays.
fn verify_patches(kernel: &LinkedKernel<'_>, memory: &dyn Memory) -> Result<()> {
    let found = between(kernel, memory, JUMP_BOUNDS)?;
    let live = found.map_or_else(Vec::new, |(at, bytes)| jump_entries(at.0, &bytes));
    let file = &kernel.tables.jumps;
    if let Some(entry) = first_other(file, &live) {
        return Err(differs(kernel, "static keys", entry.site));
    }
    let found = between(kernel, memory, STATIC_CALL_BOUNDS)?;
    let live = found.map_or_else(Vec::new, |(at, bytes)| static_call_entries(at.0, &bytes));
    let file = &kernel.tables.static_calls;
    if let Some(entry) = first_other(file, &live) {
        return Err(differs(kernel, "static calls", entry.site));
    }
    Ok(())
}

/// The first entry of `file` that is another one in memory. Both have the same number of entries.
fn first_other<'f, T: PartialEq>(file: &'f [T], live: &[T]) -> Option<&'f T> {
    file.iter().zip(live).find(|(file, live)| file != live).map(|(file, _)| file)
}

fn differs(kernel: &LinkedKernel<'_>, what: &str, site: u64) -> anyhow::Error {
    let name = kernel
        .function_at(LinkAddr(site))
        .map_or("no function", |f| kernel.function_name(&kernel.functions[f]));
    anyhow::anyhow!(
        "{DAMAGED}: its table of {what} differs from the running kernel's at the site {site:x} \
         ({name})"
    )
}

fn between(
    kernel: &LinkedKernel<'_>,
    memory: &dyn Memory,
    (start, end): (&str, &str),
) -> Result<Option<(LinkAddr, Vec<u8>)>> {
    let (Some(start), Some(end)) = (kernel.address_of(start), kernel.address_of(end)) else {
        return Ok(None);
    };
    let len = usize::try_from(end.0.wrapping_sub(start.0)).unwrap_or(usize::MAX);
    // Checked before memory is read: the table was read, so it is in the file.
    ensure!(kernel.bytes(start, len).is_some(), "the table behind {start} is cut short");
    Ok(Some((start, memory.read(start, len)?)))
}
