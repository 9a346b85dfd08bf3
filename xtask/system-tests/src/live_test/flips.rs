//! Whether a vmlinux with one flipped bit in its tables is refused. Needs no guest: the whole file
//! stands for the running kernel, its System.map for `/proc/kallsyms`.
//!
//! Takes a vmlinux and the boot image of the same build. Each bit of each entry that is about one
//! function is flipped, and each bit of the function's symbol. Every flip must be refused, or make
//! no difference: the copy is then emitted, and must be equal.

use anyhow::{Context, Result, bail, ensure};
use emit::module::{ModulePlan, NUMBER, TextPage, emit};
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use image::linked::tables::{JUMP_BOUNDS, STATIC_CALL_BOUNDS};
use live::group::Group;
use live::install::{loading, prove};
use live::memory::{FileMemory, Memory};
use live::symbols::KernelSymbols;
use live::{freed, resident};
use object::{Object, ObjectSection, ObjectSymbol};
use std::collections::BTreeMap;
use std::ops::Range;

/// They have traps, alternatives, and calls: of these, the first one that also has exception
/// fixups.
const FAULTING: [&str; 2] = ["core_sys_select", "do_sys_poll"];
/// It has static keys and static calls: of these, the one that the kernel has.
const TRACED: [&str; 2] = ["kmem_cache_alloc_noprof", "kmem_cache_alloc"];

/// Bytes of a symbol in an ELF file.
const SYMBOL: usize = 24;

/// A part of an entry: the section, the offset in the section, and bytes.
struct Entry {
    section: &'static str,
    at: usize,
    size: usize,
}

/// The offset in the file of a byte of the table of exceptions, another byte for it, and the
/// function: with it, the function goes on elsewhere after a fault. The guest's test writes it.
pub(super) fn exception_flip(vmlinux: &[u8]) -> Result<(usize, u8, &'static str)> {
    let kernel = LinkedKernel::parse(vmlinux)?;
    let entries = entries(&kernel, &code(&kernel, faulting(&kernel)?)?)?;
    let entry = entries.iter().find(|e| e.section == "__ex_table").context("no exception")?;
    let (_, bytes) = kernel.loaded(entry.section).context("no exceptions")?;
    // The third byte of the second field: another function.
    let at = offset_in(vmlinux, bytes) + entry.at + 6;
    Ok((at, vmlinux[at] ^ 1, faulting(&kernel)?))
}

pub(super) fn flips(vmlinux: &[u8], boot_image: &[u8], system_map: String) -> Result<()> {
    let kernel = LinkedKernel::parse(vmlinux)?;
    let mut unpacked = guest::BzImage::unpack(boot_image).context("the boot image")?;
    let functions = [faulting(&kernel)?, traced(&kernel)?];
    let mut found = Vec::new();
    for name in functions {
        found.extend(entries(&kernel, &code(&kernel, name)?)?);
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut doubtful: Vec<(usize, u8)> = Vec::new();
    for entry in &found {
        let (start, bytes) = kernel.loaded(entry.section).context("a section is gone")?;
        for bit in 0..entry.size * 8 {
            let (byte, mask) = (entry.at + bit / 8, 1u8 << (bit % 8));
            // To read the file anew for each bit would take an hour. Both comparisons are for
            // equality, so the other side gets the bit.
            let refused = match entry.section {
                section if freed::SECTIONS.iter().any(|&(name, _)| name == section) => {
                    let at = offset_of(&unpacked, section)? + byte;
                    unpacked[at] ^= mask;
                    let boot = object::File::parse(&*unpacked)?;
                    let compared = freed::compare_section(&kernel, &boot, section);
                    unpacked[at] ^= mask;
                    compared.is_err()
                }
                section => {
                    let at = LinkAddr(start.0 + byte as u64);
                    let memory = Flipped { memory: FileMemory(&kernel), at, mask };
                    resident::verify_only(&kernel, &memory, section).is_err()
                }
            };
            *counts.entry(entry.section).or_default() += 1;
            if !refused {
                doubtful.push((offset_in(vmlinux, bytes) + byte, mask));
            }
        }
    }
    let bits: usize = counts.values().sum();
    println!(
        "passed: {} of {bits} flipped bits in the tables of {} are refused at once:",
        bits - doubtful.len(),
        functions.join(" and ")
    );
    for (section, bits) in counts {
        println!("        {section} {bits}");
    }
    let symbol = symbol_at(vmlinux, functions[0])?;
    doubtful.extend((0..SYMBOL * 8).map(|bit| (symbol + bit / 8, 1 << (bit % 8))));
    let whole = Whole {
        functions,
        kernel: &kernel,
        symbols: KernelSymbols::from_text(system_map),
        unpacked: &unpacked,
    };
    whole.try_each(vmlinux, &doubtful)
}

/// The whole file, as what runs.
struct Whole<'a, 'd> {
    /// Chosen by the whole file: a damaged one must not have another choice.
    functions: [&'static str; 2],
    kernel: &'a LinkedKernel<'d>,
    symbols: KernelSymbols,
    unpacked: &'a [u8],
}

impl Whole<'_, '_> {
    /// Everything that comes before a copy is installed, and the copy.
    fn copy(&self, vmlinux: &[u8]) -> Result<Vec<u8>> {
        let memory = FileMemory(self.kernel);
        let kernel = LinkedKernel::parse(vmlinux)?;
        self.symbols.verify(&kernel, 0)?;
        freed::check_all_bounds(&kernel)?;
        resident::verify(&kernel, &memory)?;
        ensure!(freed::boot_image(&kernel, self.unpacked)?, "another build id");
        let [faulting, traced] = self.functions;
        let chosen = [index(&kernel, faulting)?, index(&kernel, traced)?];
        let group = Group::new(&kernel, &memory, &chosen)?;
        ensure!(group.left_out.is_empty(), "a function is left out: {:?}", group.left_out);
        let order: Vec<u32> = (0..group.original.pieces.len() as u32).collect();
        let plan = ModulePlan {
            name: "kernlane_flip",
            number: [0; NUMBER],
            order: &order,
            counters: &[],
            padding: 0,
            page: TextPage::Small,
        };
        let module = emit(&group.original, &plan, &loading(&kernel)?)?;
        prove(&group, &module)?;
        Ok(module.bytes)
    }

    /// Flips one bit of the file after the other: it is refused, or the copy is what it was.
    fn try_each(&self, vmlinux: &[u8], bits: &[(usize, u8)]) -> Result<()> {
        let copy = self.copy(vmlinux).context("the whole vmlinux")?;
        let mut harmless = 0;
        let mut damaged = vmlinux.to_vec();
        for &(at, mask) in bits {
            damaged[at] ^= mask;
            if let Ok(other) = self.copy(&damaged) {
                ensure!(
                    other == copy,
                    "with the bits {mask:#x} of the byte at {at:#x} flipped, a function has \
                     another copy, and it is not refused"
                );
                harmless += 1;
            }
            damaged[at] ^= mask;
        }
        println!(
            "passed: {} more, and in its symbol: {} are refused, and {harmless} change nothing",
            bits.len(),
            bits.len() - harmless
        );
        Ok(())
    }
}

/// Memory with another bit.
struct Flipped<'a, 'd> {
    memory: FileMemory<'a, 'd>,
    at: LinkAddr,
    mask: u8,
}

impl Memory for Flipped<'_, '_> {
    fn read(&self, at: LinkAddr, len: usize) -> Result<Vec<u8>> {
        let mut bytes = self.memory.read(at, len)?;
        if let Some(byte) =
            self.at.0.checked_sub(at.0).and_then(|n| bytes.get_mut(usize::try_from(n).ok()?))
        {
            *byte ^= self.mask;
        }
        Ok(bytes)
    }

    fn slide(&self) -> u64 {
        0
    }
}

fn index(kernel: &LinkedKernel<'_>, name: &str) -> Result<usize> {
    let at = kernel.address_of(name).with_context(|| format!("no function {name}"))?;
    kernel.function_at(at).with_context(|| format!("{name} is not a function"))
}

fn faulting(kernel: &LinkedKernel<'_>) -> Result<&'static str> {
    let faults = |name: &&str| {
        let range = code(kernel, name).ok();
        let mut exceptions = kernel.tables.exceptions.iter();
        range.is_some_and(|range| exceptions.any(|e| range.contains(&e.site)))
    };
    let found = FAULTING.into_iter().find(faults);
    found.with_context(|| format!("none of {FAULTING:?} has an exception fixup"))
}

fn traced(kernel: &LinkedKernel<'_>) -> Result<&'static str> {
    let found = TRACED.into_iter().find(|name| kernel.address_of(name).is_some());
    found.with_context(|| format!("the kernel has none of {TRACED:?}"))
}

/// The addresses of the function's code.
fn code(kernel: &LinkedKernel<'_>, name: &str) -> Result<Range<u64>> {
    let function = &kernel.functions[index(kernel, name)?];
    Ok(kernel.link_address(function.at).0..kernel.link_address(function.end).0)
}

/// Where a part of the file begins.
fn offset_in(file: &[u8], part: &[u8]) -> usize {
    part.as_ptr() as usize - file.as_ptr() as usize
}

/// Where a section begins in a file.
fn offset_of(file: &[u8], section: &str) -> Result<usize> {
    let elf = object::File::parse(file)?;
    let section = elf.section_by_name(section).with_context(|| format!("no {section}"))?;
    let (at, _) = section.file_range().context("a section without bytes")?;
    Ok(usize::try_from(at)?)
}

/// Where a function's symbol lies in the file.
fn symbol_at(file: &[u8], function: &str) -> Result<usize> {
    let elf = object::File::parse(file)?;
    let symbol = elf.symbols().find(|s| s.name() == Ok(function)).context("no symbol")?;
    Ok(offset_of(file, ".symtab")? + symbol.index().0 * SYMBOL)
}

/// The entries whose sites are in `code`, of all tables.
fn entries(kernel: &LinkedKernel<'_>, code: &Range<u64>) -> Result<Vec<Entry>> {
    let mut found = Vec::new();
    for (section, size) in [
        ("__ex_table", 12),
        ("__bug_table", 12),
        (".altinstructions", 14),
        (".return_sites", 4),
        (".retpoline_sites", 4),
        (".call_sites", 4),
        (".smp_locks", 4),
        (".ibt_endbr_seal", 4),
        (".orc_unwind_ip", 4),
    ] {
        let Some((start, bytes)) = kernel.loaded(section) else { continue };
        for (n, entry) in bytes.chunks_exact(size).enumerate() {
            let at = n * size;
            let place = (start.0 + at as u64).wrapping_add_signed(relative(entry, 0));
            if !code.contains(&place) {
                continue;
            }
            found.push(Entry { section, at, size });
            if section == ".orc_unwind_ip" {
                found.push(Entry { section: ".orc_unwind", at: n * 6, size: 6 });
            }
            if section == ".altinstructions" {
                let to = (start.0 + at as u64 + 4).wrapping_add_signed(relative(entry, 4));
                let section = ".altinstr_replacement";
                let (start, _) = kernel.loaded(section).context("no replacements")?;
                let at = usize::try_from(to - start.0)?;
                found.push(Entry { section, at, size: entry[13].into() });
            }
        }
    }
    for ((start, end), section, size) in [
        (JUMP_BOUNDS, ".rodata", 16),
        (STATIC_CALL_BOUNDS, ".rodata", 8),
        (("__start_mcount_loc", "__stop_mcount_loc"), ".init.data", 8),
    ] {
        let (Some(start), Some(end)) = (kernel.address_of(start), kernel.address_of(end)) else {
            bail!("no symbols {start} and {end}");
        };
        let (base, bytes) = kernel.loaded(section).context("no such section")?;
        for place in (start.0..end.0).step_by(size) {
            let at = usize::try_from(place - base.0)?;
            let entry = &bytes[at..at + size];
            let absolute = entry.first_chunk().map_or(0, |&word| u64::from_le_bytes(word));
            let relative = place.wrapping_add_signed(relative(entry, 0));
            if code.contains(&if section == ".rodata" { relative } else { absolute }) {
                found.push(Entry { section, at, size });
            }
        }
    }
    Ok(found)
}

fn relative(entry: &[u8], field: usize) -> i64 {
    let word = entry[field..].first_chunk().map_or(0, |&word| i32::from_le_bytes(word));
    i64::from(word)
}
