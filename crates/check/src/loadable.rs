//! Proves that a rewritten kernel module is the old module.
//!
//! Input: the bytes of two modules (`.ko`), and the map of an emitter. Output: the proof, or the
//! differences. This module loads both as the kernel's loader does (kernel/module/main.c): it gives
//! each section an address, applies the relocations, and sorts the tables that the loader sorts.
//! What it gets is two images, which are compared like two kernels. It does so twice, with
//! different distances between sections: a reference that is right by accident at one place is
//! wrong at the other. A symbol of the kernel has the same address in both images.
//!
//! The sections that the loader does not place in memory (types, names of symbol versions) must be
//! equal byte for byte, except for debugging information and what informs the linker only, which
//! may be left out. The build id must differ if the code moved.

mod file;

use crate::kernel::{KernelFile, KernelSection, KernelSymbol, SectionLoad};
use crate::relocs::Relocs;
use crate::verdict::Findings;
use crate::{CheckedKernel, check};
use anyhow::{Context, Result, bail, ensure};
use file::{FileSection, FileSymbol, ModuleFile, SymbolPlace};
use image::address::LinkAddr;
use image::map::PlacementMap;
use image::place::{PlacedBlock, Placement};
use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::FileHeader;
use std::collections::BTreeMap;

const LE: LittleEndian = LittleEndian;

/// Where sections lie, in bytes.
#[derive(Clone, Copy)]
struct LoadPlan {
    /// The address of the first section.
    start: u64,
    /// What lies between two sections, at least.
    gap: u64,
    /// The address of the first symbol of the kernel.
    symbols: u64,
}

/// Two places of a module. All addresses lie in the last 2 GB, as the kernel's and its modules' do.
const PLANS: [LoadPlan; 2] = [
    LoadPlan { start: 0xffff_ffff_c000_0000, gap: 0x40, symbols: 0xffff_ffff_8000_0000 },
    LoadPlan { start: 0xffff_ffff_d003_0000, gap: 0x2340, symbols: 0xffff_ffff_9100_0000 },
];
/// Bytes for the code. The data behind it has the same addresses in both images. So a reference
/// that is off by a little does not have the distance of anything near.
const CODE_SPACE: u64 = 1 << 27;
/// Bytes for each symbol of the kernel: more than any addend to one.
const SYMBOL_SPACE: u64 = 1 << 16;

/// The most symbols of the kernel that a module may use.
const MOST_SYMBOLS: u64 = 1 << 12;

/// The tables that the kernel finds by symbols in vmlinux, and by the section's name in a module.
const NAMED_TABLES: [(&str, &str, &str); 4] = [
    ("__jump_table", "__start___jump_table", "__stop___jump_table"),
    (".static_call_sites", "__start_static_call_sites", "__stop_static_call_sites"),
    ("__mcount_loc", "__start_mcount_loc", "__stop_mcount_loc"),
    ("__tracepoints_ptrs", "__start___tracepoints_ptrs", "__stop___tracepoints_ptrs"),
];

/// Whether the bytes are a relocatable file, as modules are.
pub fn is_relocatable(bytes: &[u8]) -> bool {
    let header = FileHeader64::<LittleEndian>::parse(bytes);
    header.is_ok_and(|header| header.e_type(LE) == elf::ET_REL)
}

/// A module in memory.
struct LoadedImage<'d> {
    plan: LoadPlan,
    /// Name, address, bytes of code or data (empty without bytes in the file), size, code, and the
    /// number in the file. Ascending by address.
    sections: Vec<LoadedSection<'d>>,
    symbols: Vec<(&'d str, u64, u64, Option<usize>, bool)>,
    relocs: Relocs,
    /// The distances in data: address and bytes of each field.
    relative: Vec<(u64, u8)>,
}

struct LoadedSection<'d> {
    name: &'d str,
    addr: u64,
    size: u64,
    data: Vec<u8>,
    executable: bool,
    writable: bool,
    number: usize,
}

impl<'d> LoadedImage<'d> {
    fn load(
        file: &ModuleFile<'d>,
        plan: LoadPlan,
        elsewhere: &BTreeMap<&str, u64>,
    ) -> Result<LoadedImage<'d>> {
        let mut sections = Vec::new();
        let mut next = plan.start;
        let loaded =
            || file.sections.iter().enumerate().filter(|(_, s)| s.is_loaded() && s.size > 0);
        let code = loaded().filter(|(_, s)| s.is_code());
        let data = loaded().filter(|(_, s)| !s.is_code());
        // The unwinder's tables grow with the code. Behind them nothing is left to move.
        let (unwinder, data): (Vec<_>, Vec<_>) =
            data.partition(|(_, s)| s.name.starts_with(".orc_unwind"));
        for (number, section) in code.chain(data).chain(unwinder) {
            if !section.is_code() {
                next = next.max(plan.start + CODE_SPACE);
            }
            let addr = next.next_multiple_of(section.align.clamp(16, 1 << 21));
            next = addr.checked_add(section.size + plan.gap).context("it is too large")?;
            ensure!(next < u64::MAX - (1 << 24), "it is too large");
            sections.push(LoadedSection {
                name: section.name,
                addr,
                size: section.size,
                data: section.data.to_vec(),
                executable: section.is_code(),
                writable: section.flags.contains(elf::SHF_WRITE),
                number,
            });
        }
        let mut image = LoadedImage {
            plan,
            sections,
            symbols: Vec::new(),
            relocs: Relocs::default(),
            relative: Vec::new(),
        };
        image.relocate(file, elsewhere)?;
        image.sort_tables()?;
        image.name(file, elsewhere);
        Ok(image)
    }

    /// The address of a section without bytes. `None`: the section has bytes and is not loaded.
    fn empty(&self, file: &ModuleFile<'_>, section: usize) -> Option<u64> {
        let is_empty = file.sections.get(section).is_some_and(|s| s.is_loaded() && s.size == 0);
        is_empty.then(|| {
            self.plan.symbols + MOST_SYMBOLS * SYMBOL_SPACE + section as u64 * SYMBOL_SPACE
        })
    }

    fn address_of(
        &self,
        file: &ModuleFile<'_>,
        symbol: &FileSymbol<'_>,
        elsewhere: &BTreeMap<&str, u64>,
    ) -> Option<u64> {
        match symbol.place {
            SymbolPlace::Absolute(value) => Some(value),
            SymbolPlace::Elsewhere => elsewhere.get(symbol.name).copied(),
            SymbolPlace::In(section, offset) => {
                let loaded = self.sections.iter().find(|s| s.number == section);
                // A section without bytes has no place of its own.
                let addr = loaded.map_or_else(|| self.empty(file, section), |s| Some(s.addr))?;
                Some(addr.wrapping_add(offset))
            }
        }
    }

    /// Applies the relocations (apply_relocate_add, arch/x86/kernel/module.c).
    fn relocate(&mut self, file: &ModuleFile<'_>, elsewhere: &BTreeMap<&str, u64>) -> Result<()> {
        for at in 0..self.sections.len() {
            let LoadedSection { name, addr, executable, number, .. } = self.sections[at];
            for r in &file.relocations[number] {
                let named = || format!("{name}+{:#x}", r.offset);
                let symbol = file.symbols.get(r.symbol).with_context(named)?;
                let place = addr.wrapping_add(r.offset);
                let (width, relative) = match r.kind {
                    elf::R_X86_64_NONE => continue,
                    elf::R_X86_64_64 => (8, false),
                    elf::R_X86_64_32 | elf::R_X86_64_32S => (4, false),
                    elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 => (4, true),
                    elf::R_X86_64_PC64 => (8, true),
                    other => bail!("{}: a relocation of type {other}", named()),
                };
                let target = self
                    .address_of(file, symbol, elsewhere)
                    .with_context(|| format!("{}: refers to what is not loaded", named()))?
                    .wrapping_add_signed(r.addend);
                let value = if relative { target.wrapping_sub(place) } else { target };
                ensure!(
                    width == 8 || i64::from(value as u32 as i32) as u64 == value,
                    "{}: the value of the relocation does not fit",
                    named()
                );
                let data = &mut self.sections[at].data;
                let field = usize::try_from(r.offset).ok().and_then(|offset| {
                    data.get_mut(offset..offset.checked_add(usize::from(width))?)
                });
                let field = field.with_context(|| format!("{}: outside the section", named()))?;
                field.copy_from_slice(&value.to_le_bytes()[..usize::from(width)]);
                match (relative, width) {
                    (true, _) if executable => {}
                    (true, _) => self.relative.push((place, width)),
                    (false, 8) => self.relocs.abs64.push(place),
                    (false, _) => self.relocs.abs32.push(place),
                }
            }
        }
        self.relative.sort_unstable();
        self.relocs.abs64.sort_unstable();
        self.relocs.abs32.sort_unstable();
        Ok(())
    }

    /// Sorts what the loader sorts: the exception table (post_relocation), the tracer's sites
    /// (ftrace_process_locs) and the unwinder's table (unwind_module_init).
    fn sort_tables(&mut self) -> Result<()> {
        let find = |sections: &[LoadedSection<'_>], name: &str| {
            sections.iter().position(|section| section.name == name)
        };
        if let Some(at) = find(&self.sections, "__mcount_loc") {
            let data = &mut self.sections[at].data;
            let mut words: Vec<u64> = data.chunks_exact(8).map(word).collect();
            words.sort_unstable();
            let sorted = words.iter().flat_map(|word| word.to_le_bytes());
            data.iter_mut().zip(sorted).for_each(|(byte, new)| *byte = new);
        }
        if let Some(at) = find(&self.sections, "__ex_table") {
            let LoadedSection { addr, data, .. } = &mut self.sections[at];
            sort_entries(data, *addr, 12, &[0, 4], &mut [])?;
        }
        let (ip, unwind) =
            (find(&self.sections, ".orc_unwind_ip"), find(&self.sections, ".orc_unwind"));
        if let (Some(ip), Some(unwind)) = (ip, unwind) {
            let mut states = std::mem::take(&mut self.sections[unwind].data);
            let LoadedSection { addr, data, .. } = &mut self.sections[ip];
            sort_entries(data, *addr, 4, &[0], &mut states)?;
            self.sections[unwind].data = states;
        }
        Ok(())
    }

    /// Names the places that have symbols, and the tables that have them in vmlinux only.
    fn name(&mut self, file: &ModuleFile<'d>, elsewhere: &BTreeMap<&str, u64>) {
        for symbol in &file.symbols {
            if matches!(symbol.kind, elf::STT_FILE | elf::STT_SECTION) || symbol.name.is_empty() {
                continue;
            }
            let Some(addr) = self.address_of(file, symbol, elsewhere) else { continue };
            let section = match symbol.place {
                SymbolPlace::In(number, _) => self.sections.iter().position(|s| s.number == number),
                SymbolPlace::Elsewhere | SymbolPlace::Absolute(_) => None,
            };
            let is_function = symbol.kind == elf::STT_FUNC;
            self.symbols.push((symbol.name, addr, symbol.size, section, is_function));
        }
        for (name, start, stop) in NAMED_TABLES {
            if let Some(at) = self.sections.iter().position(|section| section.name == name) {
                let LoadedSection { addr, size, .. } = self.sections[at];
                self.symbols.push((start, addr, 0, Some(at), false));
                self.symbols.push((stop, addr + size, 0, Some(at), false));
            }
        }
    }

    fn kernel(&self) -> CheckedKernel<'_> {
        let sections = self.sections.iter().map(|section| KernelSection {
            name: section.name,
            addr: section.addr,
            size: section.size,
            data: &section.data,
            executable: section.executable,
            loaded: SectionLoad::By { flags: u32::from(section.writable), bias: 0 },
        });
        let symbol = |&(name, addr, size, section, function): &(&'d str, _, _, _, _)| {
            KernelSymbol { name, addr: LinkAddr(addr), size, section, function }
        };
        let symbols = self.symbols.iter().map(symbol).collect();
        let relative = Some(self.relative.clone());
        let Relocs { abs64, abs32, inverse32 } = &self.relocs;
        let relocs =
            Relocs { abs64: abs64.clone(), abs32: abs32.clone(), inverse32: inverse32.clone() };
        CheckedKernel {
            kernel: KernelFile::of_parts(sections.collect(), symbols, relative),
            relocs: Some(relocs),
        }
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Sorts a table at `addr` with entries of `size` bytes by the address that the first of `fields`
/// names. Each field is a distance of 32 bits from itself. `beside`: a table whose entries go with
/// those of the first.
fn sort_entries(
    data: &mut [u8],
    addr: u64,
    size: usize,
    fields: &[usize],
    beside: &mut [u8],
) -> Result<()> {
    let count = data.len() / size;
    ensure!(data.len().is_multiple_of(size), "a table ends within an entry");
    let other = beside.len().checked_div(count).unwrap_or(0);
    ensure!(other * count == beside.len(), "the two tables of the unwinder differ in length");
    let place = |entry: usize, field: usize| addr + (entry * size + field) as u64;
    let mut entries = Vec::with_capacity(count);
    for entry in 0..count {
        let bytes = &data[entry * size..(entry + 1) * size];
        let named = fields.iter().map(|&field| {
            let distance = word(&bytes[field..field + 4]) as u32 as i32;
            place(entry, field).wrapping_add_signed(distance.into())
        });
        let named: Vec<u64> = named.collect();
        let with = beside[entry * other..(entry + 1) * other].to_vec();
        entries.push((named, bytes.to_vec(), with));
    }
    entries.sort_by(|a, b| a.0[0].cmp(&b.0[0]));
    for (entry, (named, mut bytes, with)) in entries.into_iter().enumerate() {
        for (&field, target) in fields.iter().zip(named) {
            let distance = target.wrapping_sub(place(entry, field)) as u32;
            bytes[field..field + 4].copy_from_slice(&distance.to_le_bytes());
        }
        data[entry * size..(entry + 1) * size].copy_from_slice(&bytes);
        beside[entry * other..(entry + 1) * other].copy_from_slice(&with);
    }
    Ok(())
}

/// The result of a proof: whether the new module is the old one, and what to print.
pub struct ModuleProof {
    /// Whether the new module is the old program.
    pub holds: bool,
    /// How much was proved, and the first differences of each kind.
    pub text: String,
    /// The same, as JSON.
    pub json: String,
}

/// Compares two modules. `shown`: how many differences of each kind text and JSON have. Without a
/// map no code may have moved.
///
/// # Errors
/// A file is not a module or is damaged, or the map belongs to another module: then nothing is
/// compared.
pub fn prove(
    old: &[u8],
    new: &[u8],
    map: Option<&PlacementMap>,
    shown: usize,
) -> Result<ModuleProof> {
    let old = ModuleFile::parse(old).context("the old module")?;
    let new = ModuleFile::parse(new).context("the new module")?;
    let names = [old.name()?, new.name()?];
    ensure!(names[0] == names[1], "the modules are {} and {}: two modules", names[0], names[1]);
    let moved = map.map_or(Ok(Placement::default()), |map| {
        let id = old.build_id();
        ensure!(
            map.build_id.0 == id,
            "the map belongs to the module with build id {}, but the old module has build id {id}",
            map.build_id.0
        );
        Ok(map.placement.clone())
    })?;
    let mut all = Findings::default();
    let mut shown_by = None;
    for plan in PLANS {
        let mut elsewhere = BTreeMap::new();
        for name in old.names_elsewhere().chain(new.names_elsewhere()) {
            let next = plan.symbols + elsewhere.len() as u64 * SYMBOL_SPACE;
            elsewhere.entry(name).or_insert(next);
        }
        ensure!(
            (elsewhere.len() as u64) < MOST_SYMBOLS,
            "it needs too many symbols of other objects"
        );
        let loaded =
            |file, what: &'static str| LoadedImage::load(file, plan, &elsewhere).context(what);
        let images = [loaded(&old, "the old module")?, loaded(&new, "the new module")?];
        let (before, after) = (images[0].kernel(), images[1].kernel());
        let placement = placed(&moved, [&old, &new], [&before.kernel, &after.kernel])?;
        let mut findings = check(&before, &after, &placement)?;
        unloaded(&old, &new, &mut findings);
        identity(&old, &new, &placement, &mut findings);
        findings.differences.sort();
        if !findings.equal() || shown_by.is_none() {
            let text = findings.text(&before.kernel, &after.kernel, shown);
            let json = findings.json(&before.kernel, &after.kernel, shown);
            shown_by = Some((text, json));
        }
        let holds = findings.equal();
        all.absorb(findings);
        if !holds {
            break;
        }
    }
    let (text, json) = shown_by.unwrap_or_default();
    Ok(ModuleProof { holds: all.equal(), text, json })
}

/// The map's blocks at the addresses of the images.
fn placed(
    map: &Placement,
    files: [&ModuleFile<'_>; 2],
    images: [&KernelFile<'_>; 2],
) -> Result<Placement> {
    if map.blocks.is_empty() {
        return Ok(map.clone());
    }
    let text = |file: &ModuleFile<'_>, image: &KernelFile<'_>| {
        let section = image.section(".text").context("it has no .text")?;
        anyhow::Ok((file.text_in_map()?, section.addr, section.size))
    };
    let [old, new] = [text(files[0], images[0])?, text(files[1], images[1])?];
    let moved = |addr: LinkAddr, bytes: u64, (from, to, size): (u64, u64, u64)| {
        let offset = addr.0.checked_sub(from).filter(|&at| at.saturating_add(bytes) <= size);
        let offset =
            offset.with_context(|| format!("the map's block at {addr} is not in .text"))?;
        anyhow::Ok(LinkAddr(to + offset))
    };
    let block = |block: &PlacedBlock| {
        let new_bytes = u64::from(block.new_size) + u64::from(block.appended);
        Ok(PlacedBlock {
            old: moved(block.old, block.old_size.into(), old)?,
            new: moved(block.new, new_bytes, new)?,
            ..*block
        })
    };
    let blocks = map.blocks.iter().map(block).collect::<Result<_>>()?;
    Ok(Placement { call_padding: map.call_padding, blocks, ..Placement::default() })
}

/// Compares the sections that are not placed in memory.
fn unloaded(old: &ModuleFile<'_>, new: &ModuleFile<'_>, findings: &mut Findings) {
    const KIND: &str = "sections that are not loaded";
    let compared = |section: &&FileSection<'_>| {
        let tables = [elf::SHT_NULL, elf::SHT_SYMTAB, elf::SHT_STRTAB, elf::SHT_RELA];
        !section.is_loaded() && !tables.contains(&section.kind)
    };
    // A compiler's map of blocks (`-fbasic-block-address-map`) is about code, like DWARF. A linker
    // reads excluded sections (`.llvm_addrsig`), which name symbols by number, and copies none.
    let may_go = |section: &FileSection<'_>| {
        let about_code = [".debug_", ".llvm_bb_addr_map"];
        about_code.iter().any(|known| section.name.starts_with(known))
            || section.flags.contains(elf::SHF_EXCLUDE)
    };
    for section in old.sections.iter().filter(compared) {
        match new.section(section.name) {
            Some(twin) if twin.data == section.data => findings.prove(KIND, 1),
            Some(twin) if may_go(section) && twin.data.is_empty() => {}
            None if may_go(section) => {}
            other => {
                let how = if other.is_some() { "differs" } else { "is missing" };
                findings.differ(KIND, None, None, format!("{} {how}", section.name));
            }
        }
    }
    for section in new.sections.iter().filter(compared) {
        if old.section(section.name).is_none() {
            let what = format!("{} is only in the new module", section.name);
            findings.differ(KIND, None, None, what);
        }
    }
}

/// Two builds of a module have two build ids, so that recordings tell them apart.
fn identity(old: &ModuleFile<'_>, new: &ModuleFile<'_>, map: &Placement, findings: &mut Findings) {
    const KIND: &str = "build ids";
    let (was, is) = (old.build_id(), new.build_id());
    let moved = map.blocks.windows(2).any(|pair| pair[0].new > pair[1].new);
    if was.len() != is.len() {
        findings.differ(KIND, None, None, "the build id has another length".to_owned());
    } else if moved && was == is && !was.is_empty() {
        findings.differ(
            KIND,
            None,
            None,
            "the code moved, and the build id is the same".to_owned(),
        );
    } else {
        findings.prove(KIND, 1);
    }
}

#[cfg(test)]
mod tests;
