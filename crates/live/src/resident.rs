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
    /// The kernel changes its entries while it runs: `BUGFLAG_DONE` of traps.
    of_traps: bool,
}

const fn constant(
    name: &'static str,
    bounds: Option<(&'static str, &'static str)>,
) -> WholeSection {
    WholeSection { name, bounds, of_traps: false }
}

/// `BUGFLAG_DONE`, include/linux/bug.h: this place has warned.
const DONE: u8 = 1 << 2;

/// Sections that memory and the file have equal, byte for byte: they are sorted when the kernel is
/// linked, and consist of distances, which KASLR does not change.
const SECTIONS: [WholeSection; 11] = [
    constant("__ex_table", Some(("__start___ex_table", "__stop___ex_table"))),
    constant(".orc_unwind_ip", Some(("__start_orc_unwind_ip", "__stop_orc_unwind_ip"))),
    constant(".orc_unwind", Some(("__start_orc_unwind", "__stop_orc_unwind"))),
    WholeSection {
        name: "__bug_table",
        bounds: Some(("__start___bug_table", "__stop___bug_table")),
        of_traps: true,
    },
    constant("__ksymtab", Some(("__start___ksymtab", "__stop___ksymtab"))),
    constant("__ksymtab_gpl", Some(("__start___ksymtab_gpl", "__stop___ksymtab_gpl"))),
    constant("__kflagstab", Some(("__start___kflagstab", "__stop___kflagstab"))),
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
    let trap = kernel.tables.forms.bug;
    let may_change = |n: usize| match section.of_traps && n % trap.size == trap.line() + 2 {
        true => DONE,
        false => 0,
    };
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
        "__ex_table" => 12,
        "__bug_table" => kernel.tables.forms.bug.size,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::FileMemory;
    use crate::test_elf::{DATA, TestSymbol, elf};
    use crate::test_kernel::{ChangedMemory, SLIDE, TEXT};

    const EXPORTS: u64 = DATA + 0x1000;
    const BUGS: u64 = EXPORTS + 24;
    const KEYS: u64 = BUGS + 24;
    const CALLS: u64 = KEYS + 32;
    const REST: u64 = CALLS + 16;
    const KEY: u64 = DATA + 0x10;
    /// Per-CPU data, which does not move with the kernel.
    const PER_CPU: u64 = 0x1_c000;

    /// A field of four bytes at `at`: the distance to `to`.
    fn distance(at: u64, to: u64) -> Vec<u8> {
        (to.wrapping_sub(at) as u32).to_le_bytes().to_vec()
    }

    fn bug(at: u64, site: u64) -> Vec<u8> {
        [distance(at, site), distance(at + 4, DATA), vec![7, 0, 1, 0]].concat()
    }

    fn key(at: u64, site: u64, key: u64) -> Vec<u8> {
        let far = key.wrapping_sub(at + 8).to_le_bytes().to_vec();
        [distance(at, site), distance(at + 4, TEXT), far].concat()
    }

    fn call(at: u64, site: u64, key: u64) -> Vec<u8> {
        [distance(at, site), distance(at + 4, key)].concat()
    }

    fn export(at: u64, value: u64) -> Vec<u8> {
        [distance(at, value), distance(at + 4, DATA), distance(at + 8, DATA)].concat()
    }

    /// A kernel of two functions, f and g, with two entries in each of four tables, which follow
    /// each other.
    fn vmlinux() -> Vec<u8> {
        let f = TEXT + 5;
        let g = TEXT + 0x45;
        let note = [&[4, 0, 0, 0, 20, 0, 0, 0, 3, 0, 0, 0][..], b"GNU\0", &[0x5f; 20]].concat();
        let exports = [export(EXPORTS, TEXT), export(EXPORTS + 12, PER_CPU)].concat();
        let bugs = [bug(BUGS, f), bug(BUGS + 12, g)].concat();
        let keys = [key(KEYS, f, KEY), key(KEYS + 16, g, KEY)].concat();
        let calls = [call(CALLS, f, KEY), call(CALLS + 8, g, KEY)].concat();
        elf(
            &[
                (".text", TEXT, 6, vec![0x90; 0x80]),
                (".data", DATA, 3, vec![0; 0x40]),
                (".notes", DATA + 0x200, 2, note),
                ("__ksymtab", EXPORTS, 2, exports),
                ("__bug_table", BUGS, 2, bugs),
                ("__jump_table", KEYS, 3, keys),
                (".static_call_sites", CALLS, 3, calls),
                (".rodata", REST, 3, vec![0; 8]),
            ],
            &[
                TestSymbol("f", TEXT, 0x40),
                TestSymbol("g", TEXT + 0x40, 0x40),
                TestSymbol("__start___ksymtab", EXPORTS, 0),
                TestSymbol("__stop___ksymtab", BUGS, 0),
                TestSymbol("__start___bug_table", BUGS, 0),
                TestSymbol("__stop___bug_table", KEYS, 0),
                TestSymbol("__start___jump_table", KEYS, 0),
                TestSymbol("__stop___jump_table", CALLS, 0),
                TestSymbol("__start_static_call_sites", CALLS, 0),
                TestSymbol("__stop_static_call_sites", REST, 0),
            ],
            0,
        )
    }

    /// Compares a kernel with memory that has these bytes at these addresses.
    fn verified(slide: u64, changed: &[(u64, Vec<u8>)]) -> Result<(), String> {
        let file = vmlinux();
        let kernel = LinkedKernel::parse(&file).unwrap();
        let changes =
            changed.iter().flat_map(|(at, bytes)| (*at..).map(LinkAddr).zip(bytes.clone()));
        let memory = ChangedMemory { kernel: &kernel, slide, changes: changes.collect() };
        verify(&kernel, &memory).map_err(|error| error.to_string())
    }

    fn table_differs(table: &str, at: u64, subject: &str) -> Result<(), String> {
        let table = format!("its table {table} differs from the running kernel's");
        Err(format!("{DAMAGED}: {table} at {at:016x}{subject}"))
    }

    #[test]
    fn any_byte_of_a_table_may_not_differ_but_a_warning_that_was_given() {
        assert_eq!(verified(0, &[]), Ok(()));
        let file = vmlinux();
        let kernel = LinkedKernel::parse(&file).unwrap();
        for at in BUGS..KEYS {
            let byte = kernel.bytes(LinkAddr(at), 1).unwrap()[0];
            // The first field says which function an entry is about, in memory.
            let subject = match (at - BUGS) % 12 {
                0..4 => None,
                _ if at < BUGS + 12 => Some(" (f)"),
                _ => Some(" (g)"),
            };
            for bit in 0..8 {
                let found = verified(0, &[(at, vec![byte ^ 1 << bit])]);
                if (at - BUGS) % 12 == 10 && bit == 2 {
                    assert_eq!(found, Ok(()), "{at:x}");
                } else if let Some(subject) = subject {
                    assert_eq!(found, table_differs("__bug_table", at, subject), "bit {bit}");
                } else {
                    let message = found.unwrap_err();
                    assert!(message.contains(&format!(" at {at:016x}")), "bit {bit}: {message}");
                }
            }
        }
        // The kernel sets the bit. It does not clear others of the byte, and changes no other byte.
        let warned = [(BUGS + 10, vec![1 | DONE]), (BUGS + 22, vec![DONE])];
        assert_eq!(verified(0, &warned), table_differs("__bug_table", BUGS + 22, " (g)"));
        let warned = [(BUGS + 10, vec![1 | DONE]), (BUGS + 20, vec![8])];
        assert_eq!(verified(0, &warned), table_differs("__bug_table", BUGS + 20, " (g)"));
    }

    #[test]
    fn an_export_of_per_cpu_data_is_nearer_by_the_slide() {
        let entry = EXPORTS + 12;
        let moved = distance(entry + SLIDE, PER_CPU);
        assert_eq!(verified(SLIDE, &[(entry, moved.clone())]), Ok(()));
        assert_eq!(verified(0, &[]), Ok(()));
        // The slide changes the third byte of the distance, and the fourth.
        assert_eq!(verified(SLIDE, &[]), table_differs("__ksymtab", entry + 2, ""));
        assert_eq!(verified(0, &[(entry, moved)]), table_differs("__ksymtab", entry + 2, ""));
        // A symbol of the kernel moves with it.
        let own = distance(EXPORTS + SLIDE, TEXT);
        let both = [(entry, distance(entry + SLIDE, PER_CPU)), (EXPORTS, own)];
        assert_eq!(verified(SLIDE, &both), table_differs("__ksymtab", EXPORTS + 2, ""));
    }

    #[test]
    fn static_keys_and_calls_may_be_in_another_order_and_of_freed_code() {
        let (f, g) = (TEXT + 5, TEXT + 0x45);
        // The second lowest bit of a key marks code that the kernel frees.
        let keys = [key(KEYS, g, KEY | 2), key(KEYS + 16, f, KEY)].concat();
        let calls = [call(CALLS, g, KEY), call(CALLS + 8, f, KEY | 2)].concat();
        assert_eq!(verified(0, &[(KEYS, keys), (CALLS, calls)]), Ok(()));

        let differs = |what: &str, site: u64, name: &str| {
            let table = format!("its table of {what} differs from the running kernel's");
            Err(format!("{DAMAGED}: {table} at the site {site:x} ({name})"))
        };
        let other = key(KEYS + 16, g, KEY + 8);
        assert_eq!(verified(0, &[(KEYS + 16, other)]), differs("static keys", g, "g"));
        // The lowest bit is the key's initial state.
        let other = key(KEYS, f, KEY | 1);
        assert_eq!(verified(0, &[(KEYS, other)]), differs("static keys", f, "f"));
        let other = call(CALLS, f + 1, KEY);
        assert_eq!(verified(0, &[(CALLS, other)]), differs("static calls", f, "f"));
    }

    #[test]
    fn only_the_tables_of_one_section_are_compared_on_request() {
        let file = vmlinux();
        let kernel = LinkedKernel::parse(&file).unwrap();
        let changes = vec![(LinkAddr(BUGS + 4), 0x55)];
        let memory = ChangedMemory { kernel: &kernel, slide: 0, changes };
        assert!(verify_only(&kernel, &memory, "__bug_table").is_err());
        verify_only(&kernel, &memory, "__ksymtab").unwrap();
        // Static keys and calls, by whatever name.
        verify_only(&kernel, &memory, "__jump_table").unwrap();
        verify_only(&kernel, &FileMemory(&kernel), "__bug_table").unwrap();
    }

    #[test]
    fn a_section_lies_between_its_symbols() {
        let file = vmlinux();
        let kernel = LinkedKernel::parse(&file).unwrap();
        let checked = |name: &str, bounds: (&str, &str)| {
            check_bounds(&kernel, name, bounds).map_err(|error| error.to_string())
        };
        assert_eq!(checked("__bug_table", ("__start___bug_table", "__stop___bug_table")), Ok(()));
        let message = format!(
            "{DAMAGED}: __bug_table is from {BUGS:x} to {KEYS:x}, but its symbols say from \
             {BUGS:x} to {CALLS:x}"
        );
        let longer = ("__start___bug_table", "__stop___jump_table");
        assert_eq!(checked("__bug_table", longer), Err(message));
        let message = format!("{DAMAGED}: no symbols a and b are around __bug_table");
        assert_eq!(checked("__bug_table", ("a", "b")), Err(message));
        // A kernel without the table has neither, or has two symbols at one place.
        assert_eq!(checked("absent", ("a", "b")), Ok(()));
        assert_eq!(checked("absent", ("__stop___ksymtab", "__start___bug_table")), Ok(()));
        assert!(checked("absent", ("__start___bug_table", "__stop___bug_table")).is_err());
    }
}
