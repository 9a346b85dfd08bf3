//! Modules that a running kernel has loaded, as parts of it.
//!
//! Input: the files of the modules, where the kernel put their sections, and its vmlinux. Output:
//! their sections as the loader wrote them, by link address. A module's link address is its address
//! in the running kernel less the distance by which KASLR moved the kernel. So distances between
//! the kernel and its modules are those of the running kernel, and the code of a module can be
//! read, compared and copied as the kernel's own. Whether this is what memory has is for others to
//! compare. This module changes no file.

use super::forms::LinkedForms;
use super::tables::{JUMP_BOUNDS, LinkedTables, STATIC_CALL_BOUNDS};
use super::{LinkedKernel, LoadedSection, TextSymbol};
use crate::BuildId;
use crate::address::LinkAddr;
use crate::module::{self, ModuleIdentity};
use crate::object::elf::{Elf, ElfRelocation, ElfSection, ElfSymbol, SectionId, SymbolId};
use crate::object::functions::{self, FunctionSymbol, TextFunction};
use anyhow::{Context, Result, bail, ensure};
use object::elf;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

/// The file of a loaded module, and where its sections are.
pub struct ModuleFile<'a> {
    /// The bytes of the `.ko`.
    pub data: &'a [u8],
    /// The link address of each section that the kernel shows, by name.
    pub sections: BTreeMap<String, LinkAddr>,
}

/// A section as the loader wrote it.
struct RelocatedSection {
    name: String,
    addr: u64,
    bytes: Vec<u8>,
    code: bool,
}

impl RelocatedSection {
    fn range(&self) -> Range<u64> {
        self.addr..self.addr + self.bytes.len() as u64
    }
}

struct ModuleSymbol {
    name: String,
    addr: LinkAddr,
    size: u64,
    local: bool,
}

/// A module of a running kernel, with its relocations applied.
pub struct LoadedModule {
    /// Which module.
    pub identity: ModuleIdentity,
    /// The sections that stay in memory, ascending by address.
    sections: Vec<RelocatedSection>,
    /// The addresses of all of its sections that stay, those without bytes in the file included.
    memory: Vec<Range<u64>>,
    /// The symbols of its code.
    symbols: Vec<ModuleSymbol>,
    /// The addresses of data that the kernel makes read-only when the module has started.
    read_only: Vec<Range<u64>>,
    /// Its code, and the addresses that name this code at every boot ([`crate::module`]).
    lasting: Vec<(Range<u64>, LinkAddr)>,
}

/// A module's parts before its relocations are applied.
struct ReadModule<'a> {
    identity: ModuleIdentity,
    elf: Elf<'a>,
    /// The link address of each section that has one.
    places: HashMap<SectionId, u64>,
}

/// What makes a table of a module from a section: the symbols around the kernel's table.
const BOUNDS: [(&str, (&str, &str)); 4] = [
    ("__mcount_loc", ("__start_mcount_loc", "__stop_mcount_loc")),
    ("_kprobe_blacklist", ("__start_kprobe_blacklist", "__stop_kprobe_blacklist")),
    ("__jump_table", JUMP_BOUNDS),
    (".static_call_sites", STATIC_CALL_BOUNDS),
];

/// The beginnings of the names of sections that say nothing about the inside of functions, and of
/// those that this crate reads.
const KNOWN: [&str; 44] = [
    ".text",
    ".init",
    ".exit",
    ".altinstr",
    ".rodata",
    ".data",
    ".bss",
    ".note",
    ".parainstructions",
    ".return_sites",
    ".retpoline_sites",
    ".call_sites",
    ".ibt_endbr_seal",
    ".smp_locks",
    ".static_call",
    ".orc_",
    ".ref.data",
    ".modinfo",
    ".gnu.linkonce.this_module",
    ".printk_index",
    ".BTF",
    ".codetag",
    ".eh_frame",
    "__jump_table",
    "__ex_table",
    "__bug_table",
    "__mcount_loc",
    "__patchable_function_entries",
    "__ksymtab",
    "__kcrctab",
    "__kflagstab",
    "__versions",
    "__version_ext",
    "__param",
    "__modver",
    "__tracepoint",
    "__bpf_raw_tp_map",
    "__dyndbg",
    "__verbose",
    "__syscalls_metadata",
    "_ftrace_",
    "_kprobe_blacklist",
    "_error_injection_whitelist",
    "_srcu_struct_ptrs",
];

/// The bit of a static call's key that tells a jump from a call.
const TAIL: u64 = 1;

/// Data that is read-only as soon as a module has started.
const READ_ONLY_AFTER_INIT: [&str; 2] = [".data..ro_after_init", "__jump_table"];

/// Whether the kernel frees a section when the module has started.
fn is_freed(name: &str) -> bool {
    name.starts_with(".init")
}

/// Whether a section holds functions that may be copied, or parts of them.
fn holds_functions(section: &RelocatedSection) -> bool {
    section.code && (section.name == ".text" || section.name.starts_with(".text."))
}

/// Applies the relocations of modules. They may refer to each other and to `kernel`. Gives each
/// module, or why it cannot be read, in the order of `files`.
pub fn relocate(kernel: &LinkedKernel<'_>, files: &[ModuleFile<'_>]) -> Vec<Result<LoadedModule>> {
    let read: Vec<Result<ReadModule<'_>>> = files.iter().map(ReadModule::new).collect();
    let exports = kernel.exports();
    // A name that two modules have says nothing. What is wrong here is not what memory has.
    let mut others: HashMap<&str, Option<u64>> = HashMap::new();
    for module in read.iter().flatten() {
        for (name, addr) in module.globals() {
            others.entry(name).and_modify(|known| *known = None).or_insert(Some(addr));
        }
    }
    let symbol = |name: &str| {
        let own = exports.get(name).map(|addr| addr.0);
        own.or_else(|| others.get(name).copied().flatten())
    };
    let relocated = read.iter().map(|module| match module {
        Ok(module) => module.relocated(&symbol),
        Err(error) => Err(anyhow::anyhow!("{error:#}")),
    });
    relocated.collect()
}

impl<'a> ReadModule<'a> {
    fn new(file: &ModuleFile<'a>) -> Result<ReadModule<'a>> {
        let elf = Elf::parse(file.data)?;
        let identity = module::identity(&elf)?;
        let mut seen = BTreeSet::new();
        let mut places = HashMap::new();
        for id in elf.ids().filter(|&id| is_loaded(elf.section(id))) {
            let section = elf.section(id);
            ensure!(
                KNOWN.iter().any(|known| section.name.starts_with(known)),
                "has a section {} that Kernlane does not know, and that may describe code",
                section.name
            );
            let Some(&addr) = file.sections.get(&section.name) else { continue };
            ensure!(seen.insert(section.name.clone()), "two sections {}", section.name);
            let ends = addr.0.checked_add(section.size);
            ends.with_context(|| format!("{} ends beyond the address space", section.name))?;
            places.insert(id, addr.0);
        }
        Ok(ReadModule { identity, elf, places })
    }

    /// The global symbols that it defines.
    fn globals(&self) -> impl Iterator<Item = (&str, u64)> {
        let defined = self.elf.symbols.iter().filter(|symbol| !symbol.is_local());
        defined.filter_map(|symbol| Some((self.elf.name(symbol), self.place(symbol)?)))
    }

    /// The address of a symbol that the module defines in a section with an address.
    fn place(&self, symbol: &ElfSymbol) -> Option<u64> {
        Some(self.places.get(&symbol.section()?)?.wrapping_add(symbol.value))
    }

    /// The value of a symbol. `None`: it is not known, as that of per-CPU data.
    fn value(&self, id: SymbolId, other: &dyn Fn(&str) -> Option<u64>) -> Option<u64> {
        let symbol = self.elf.symbol(id);
        match symbol.place {
            _ if symbol.section().is_some() => self.place(symbol),
            place if place == crate::object::elf::SymbolPlace::Elsewhere(elf::SHN_ABS) => {
                Some(symbol.value)
            }
            _ => {
                let found = other(self.elf.name(symbol));
                found.or_else(|| symbol.is_weak().then_some(0))
            }
        }
    }

    fn relocated(&self, other: &dyn Fn(&str) -> Option<u64>) -> Result<LoadedModule> {
        let mut module = LoadedModule {
            identity: self.identity.clone(),
            sections: Vec::new(),
            memory: Vec::new(),
            symbols: Vec::new(),
            read_only: Vec::new(),
            lasting: Vec::new(),
        };
        for (id, lasting) in module::code_sections(&self.elf, &self.identity.name)? {
            let Some(&addr) = self.places.get(&id) else { continue };
            module.lasting.push((addr..addr + self.elf.section(id).size, lasting));
        }
        for (&id, &addr) in &self.places {
            let section = self.elf.section(id);
            if is_freed(&section.name) {
                continue;
            }
            let range = addr..addr + section.size;
            if READ_ONLY_AFTER_INIT.contains(&section.name.as_str()) {
                module.read_only.push(range.clone());
            }
            module.memory.push(range);
            if section.kind == elf::SHT_NOBITS {
                continue;
            }
            let mut bytes = self.elf.bytes(id).to_vec();
            for relocation in self.elf.relocations(id)? {
                self.apply(&relocation, addr, &mut bytes, other)
                    .with_context(|| format!("{}+{:#x}", section.name, relocation.offset))?;
            }
            let (name, code) = (section.name.clone(), section.is_code());
            module.sections.push(RelocatedSection { name, addr, bytes, code });
        }
        module.sections.sort_by_key(|section| section.addr);
        module.memory.sort_by_key(|range| range.start);
        module.take_symbols(self);
        Ok(module)
    }

    /// Fills in a field of a section at `addr`. A field whose symbol has no known value stays as in
    /// the file.
    fn apply(
        &self,
        relocation: &ElfRelocation,
        addr: u64,
        bytes: &mut [u8],
        other: &dyn Fn(&str) -> Option<u64>,
    ) -> Result<()> {
        if relocation.is_none() {
            return Ok(());
        }
        let Some(symbol) = self.value(relocation.symbol, other) else { return Ok(()) };
        let value = symbol.wrapping_add_signed(relocation.addend);
        let field = addr.wrapping_add(relocation.offset);
        let value = match relocation.kind {
            elf::R_X86_64_64 | elf::R_X86_64_32 | elf::R_X86_64_32S => value,
            elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 | elf::R_X86_64_PC64 => {
                value.wrapping_sub(field)
            }
            kind => bail!("a relocation of type {kind}"),
        };
        let (from, width) = (usize::try_from(relocation.offset)?, relocation.width());
        let place = bytes.get_mut(from..from.saturating_add(width)).context("is cut short")?;
        place.copy_from_slice(&value.to_le_bytes()[..width]);
        Ok(())
    }
}

/// Whether a section is loaded into memory.
fn is_loaded(section: &ElfSection) -> bool {
    section.flags.contains(elf::SHF_ALLOC) && section.size > 0
}

impl LoadedModule {
    fn take_symbols(&mut self, read: &ReadModule<'_>) {
        let code: Vec<Range<u64>> = self.areas().collect();
        for symbol in &read.elf.symbols {
            let is_code = matches!(symbol.kind(), elf::STT_FUNC | elf::STT_NOTYPE);
            let Some(addr) = read.place(symbol).filter(|_| is_code) else { continue };
            let end = addr.saturating_add(symbol.size);
            let name = read.elf.name(symbol);
            if !name.is_empty() && code.iter().any(|area| area.start <= addr && end <= area.end) {
                self.symbols.push(ModuleSymbol {
                    name: name.to_owned(),
                    addr: LinkAddr(addr),
                    size: symbol.size,
                    local: symbol.is_local(),
                });
            }
        }
    }

    /// The addresses of the sections that hold functions, ascending.
    fn areas(&self) -> impl Iterator<Item = Range<u64>> {
        self.sections.iter().filter(|s| holds_functions(s)).map(RelocatedSection::range)
    }

    /// The side tables, as `kernel` makes them.
    ///
    /// # Errors
    /// A table cannot be read.
    pub fn tables(&self, kernel: &LinkedKernel<'_>) -> Result<LinkedTables> {
        let sections = self.sections.iter().map(|section| (section, section.bytes.as_slice()));
        let mut tables = tables_of(sections, kernel.tables.forms)?;
        // A key that is not exported is named by its trampoline. The loader writes the key there
        // (`static_call_add_module`, kernel/static_call_inline.c).
        for call in &mut tables.static_calls {
            let tail = call.key & TAIL;
            if let Some(&key) = kernel.keys_of_trampolines.get(&(call.key & !TAIL)) {
                call.key = key | tail;
            }
        }
        Ok(tables)
    }

    /// Likewise with the bytes that memory has for each section. `slide`: the distance by which
    /// KASLR moved the kernel.
    ///
    /// # Errors
    /// Memory cannot be read, or a table cannot.
    pub fn tables_in(
        &self,
        kernel: &LinkedKernel<'_>,
        slide: u64,
        memory: &dyn Fn(LinkAddr, usize) -> Result<Vec<u8>>,
    ) -> Result<LinkedTables> {
        let mut live = Vec::new();
        for section in &self.sections {
            let mut bytes = memory(LinkAddr(section.addr), section.bytes.len())
                .with_context(|| section.name.clone())?;
            if ["__mcount_loc", "_kprobe_blacklist"].contains(&section.name.as_str()) {
                for field in bytes.as_chunks_mut::<8>().0 {
                    *field = u64::from_le_bytes(*field).wrapping_sub(slide).to_le_bytes();
                }
            }
            if section.name == ".parainstructions" {
                for entry in bytes.chunks_exact_mut(super::forms::PARAVIRT) {
                    let Some(field) = entry.first_chunk_mut::<8>() else { break };
                    *field = u64::from_le_bytes(*field).wrapping_sub(slide).to_le_bytes();
                }
            }
            live.push(bytes);
        }
        let sections = self.sections.iter().zip(live.iter().map(Vec::as_slice));
        tables_of(sections, kernel.tables.forms)
    }
}

/// The side tables in sections with these bytes.
fn tables_of<'s>(
    sections: impl Iterator<Item = (&'s RelocatedSection, &'s [u8])>,
    forms: LinkedForms,
) -> Result<LinkedTables> {
    let loaded = sections.map(|(section, bytes)| LoadedSection {
        name: section.name.as_str(),
        addr: section.addr,
        bytes,
        code: section.code,
        of_module: false,
    });
    let mut part = LinkedKernel::without_code(BuildId(String::new()), loaded.collect());
    for (name, (start, end)) in BOUNDS {
        let Some(section) = part.section(name) else { continue };
        let (from, to) = (section.addr, section.end());
        part.named.insert(start, vec![from]);
        part.named.insert(end, vec![to]);
    }
    LinkedTables::of_forms(&part, forms)
}

impl<'a> LinkedKernel<'a> {
    /// The kernel with modules that it has loaded. Their functions stand behind the kernel's, with
    /// the side tables of both.
    ///
    /// # Errors
    /// A module lies where the kernel or another one does, or farther away than a call reaches; a
    /// side table cannot be read.
    pub fn with_modules<'m>(self, modules: &'m [LoadedModule]) -> Result<LinkedKernel<'m>>
    where
        'a: 'm,
    {
        let mut kernel: LinkedKernel<'m> = self;
        let mut order: Vec<&LoadedModule> = modules.iter().collect();
        order.sort_by_key(|module| module.areas().next().map_or(0, |area| area.start));
        for module in order {
            let named = || module.identity.to_string();
            let tables = module.tables(&kernel).with_context(named)?;
            kernel.tables.append(tables);
            kernel.tables.unwritable.extend(module.read_only.iter().cloned());
            kernel.memory.extend(module.memory.iter().cloned());
            kernel.lasting.extend(module.lasting.iter().cloned());
            let first = kernel.symbols.len();
            kernel.symbols.extend(module.symbols.iter().map(|symbol| TextSymbol {
                name: &symbol.name,
                addr: symbol.addr,
                size: symbol.size,
            }));
            for section in &module.sections {
                kernel.sections.push(LoadedSection {
                    name: &section.name,
                    addr: section.addr,
                    bytes: &section.bytes,
                    code: section.code,
                    of_module: true,
                });
            }
            for section in module.sections.iter().filter(|section| holds_functions(section)) {
                let found = kernel.functions_of(module, section, first).with_context(named)?;
                kernel.functions.extend(found);
                kernel.modules.push((section.range(), &module.identity));
            }
        }
        kernel.functions.sort_by_key(|function| function.at);
        kernel.modules.sort_by_key(|(area, _)| area.start);
        kernel.memory.sort_by_key(|range| range.start);
        kernel.sections.sort_by_key(|section| section.addr);
        let apart = |pair: &[Range<u64>]| pair[0].end <= pair[1].start;
        ensure!(
            kernel.memory.windows(2).all(apart)
                && kernel.memory.first().is_none_or(|first| first.start >= kernel.image.end),
            "two modules lie at one address: one was removed while they were read; try again"
        );
        kernel.tables.sort();
        kernel.sites = super::sites::PatchSites::of(&kernel.tables);
        Ok(kernel)
    }

    /// The modules that are a part of it.
    pub fn module_identities(&self) -> BTreeSet<&'a ModuleIdentity> {
        self.modules.iter().map(|(_, module)| *module).collect()
    }

    /// The address that names code at every boot: for code of a loaded module that of
    /// [`crate::module`], which profiles have too, and for the kernel's own its link address.
    pub fn lasting_address(&self, at: LinkAddr) -> LinkAddr {
        let found = self.lasting.iter().find(|(range, _)| range.contains(&at.0));
        found.map_or(at, |(range, lasting)| LinkAddr(lasting.0 + (at.0 - range.start)))
    }

    /// The link address of code with that lasting address. `None`: its module is not a part of this
    /// kernel.
    pub fn present_address(&self, lasting: LinkAddr) -> Option<LinkAddr> {
        if !module::is_of_module(lasting) {
            return Some(lasting);
        }
        self.lasting.iter().find_map(|(range, first)| {
            let offset = lasting.0.checked_sub(first.0)?;
            (offset < range.end - range.start).then(|| LinkAddr(range.start + offset))
        })
    }

    /// The functions in a section of a module, by offsets from the start of the kernel's `.text`.
    /// `first`: the number of the module's first symbol.
    fn functions_of(
        &self,
        module: &LoadedModule,
        section: &RelocatedSection,
        first: usize,
    ) -> Result<Vec<TextFunction>> {
        let range = section.range();
        let from = |at: u64| at.checked_sub(self.text.start).and_then(|at| i32::try_from(at).ok());
        let base = from(range.start).filter(|_| from(range.end).is_some());
        let base = base.context("lies farther from the kernel than a call reaches")? as u32;
        let inside = module.symbols.iter().enumerate().filter(|(_, symbol)| {
            range.start <= symbol.addr.0 && symbol.addr.0 + symbol.size <= range.end
        });
        let named = inside.map(|(n, symbol)| FunctionSymbol {
            id: SymbolId((first + n) as u32),
            name: &symbol.name,
            at: (symbol.addr.0 - range.start) as u32,
            end: (symbol.addr.0 + symbol.size - range.start) as u32,
            local: symbol.local,
        });
        let mut found = functions::from_named(named, &section.bytes);
        for function in &mut found {
            (function.at, function.end) = (function.at + base, function.end + base);
        }
        Ok(found)
    }
}
