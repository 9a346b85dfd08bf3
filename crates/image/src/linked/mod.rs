//! A final `vmlinux` as the source of code to copy: bytes, symbols, functions, side tables,
//! exports.
//!
//! Input: the bytes of the file, which needs neither relocations nor DWARF. Output: everything by
//! link address. `crate::vmlinux` gives blocks for counting and predicting; this module gives what
//! writing a function again requires. It never changes anything.

mod cut;
pub mod exports;
pub mod fields;
pub mod forms;
pub mod loaded;
mod raw_table;
pub mod release;
pub mod sites;
pub mod tables;

use crate::BuildId;
use crate::address::LinkAddr;
use crate::module::ModuleIdentity;
use crate::object::elf::SymbolId;
use crate::object::functions::{self, FunctionSymbol, TextFunction};
use crate::ordinary::{ReservedCode, ReservedParts};
use anyhow::{Context, Result, bail, ensure};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolFlags, SymbolKind};
use sites::PatchSites;
use std::collections::HashMap;
use std::ops::Range;
use tables::LinkedTables;

/// A section that is loaded into memory.
struct LoadedSection<'a> {
    name: &'a str,
    addr: u64,
    bytes: &'a [u8],
    /// It has instructions.
    code: bool,
    /// It is not the kernel's own.
    of_module: bool,
}

impl LoadedSection<'_> {
    /// The address behind its last byte.
    fn end(&self) -> u64 {
        self.addr + self.bytes.len() as u64
    }
}

/// A symbol of `.text`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextSymbol<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its link address.
    pub addr: LinkAddr,
    /// Its size in bytes, 0 if the symbol has none.
    pub size: u64,
}

/// A vmlinux that was read.
pub struct LinkedKernel<'a> {
    /// The kernel's build id.
    pub build_id: BuildId,
    /// The addresses of `.text`.
    pub text: Range<u64>,
    /// The addresses of the whole image, which KASLR moves together.
    pub image: Range<u64>,
    /// The functions of `.text`, by offsets from its start, ascending and disjoint; behind them
    /// those of loaded modules. `function_name` gives the name of a function;
    /// `TextFunction::symbol` is an index into this kernel's symbols.
    pub functions: Vec<TextFunction>,
    /// The side tables.
    pub tables: LinkedTables,
    /// What the kernel patches, by these tables.
    pub sites: PatchSites,
    sections: Vec<LoadedSection<'a>>,
    symbols: Vec<TextSymbol<'a>>,
    named: HashMap<&'a str, Vec<u64>>,
    reserved: ReservedParts,
    /// Where loaded modules have functions, ascending.
    modules: Vec<(Range<u64>, &'a ModuleIdentity)>,
    /// The memory of loaded modules, ascending.
    memory: Vec<Range<u64>>,
    /// The code of loaded modules, and the addresses that name it at every boot.
    lasting: Vec<(Range<u64>, LinkAddr)>,
    /// The key of each static call whose trampoline modules may call, by the trampoline.
    keys_of_trampolines: HashMap<u64, u64>,
}

impl<'a> LinkedKernel<'a> {
    /// Reads a vmlinux.
    ///
    /// # Errors
    /// The bytes are not an ELF file for x86-64, or have no build id or no symbols, or Kernlane
    /// does not understand a side table.
    pub fn parse(data: &'a [u8]) -> Result<LinkedKernel<'a>> {
        let elf = object::File::parse(data).context("not a readable ELF file")?;
        let x86 = elf.architecture() == object::Architecture::X86_64;
        ensure!(x86, "made for {:?}; Kernlane reads kernels for x86-64", elf.architecture());
        let id = elf.build_id().context("its notes cannot be read")?;
        let id = id.context("has no build id: link the kernel with --build-id, as kbuild does")?;
        let build_id = BuildId::from_bytes(id);
        let sections = read_sections(&elf)?;
        let text_section = elf.section_by_name(".text").context("has no section .text")?;
        let text = extent(".text", text_section.address(), text_section.size())?;
        let mut kernel = LinkedKernel {
            image: image_range(&elf, &text),
            text,
            ..LinkedKernel::without_code(build_id, sections)
        };
        let size = text_section.size();
        ensure!(
            kernel.text_bytes().len() as u64 == size && size < u64::from(u32::MAX),
            ".text is larger than 4 GB, or does not have all of its bytes in the file"
        );
        kernel.read_symbols(&elf, text_section.index())?;
        kernel.ensure_known_sections()?;
        kernel.tables = LinkedTables::read(&kernel)?;
        kernel.sites = PatchSites::of(&kernel.tables);
        kernel.keys_of_trampolines = tables::keys_of_trampolines(&kernel)?;
        Ok(kernel)
    }

    fn without_code(build_id: BuildId, sections: Vec<LoadedSection<'a>>) -> LinkedKernel<'a> {
        LinkedKernel {
            build_id,
            text: 0..0,
            image: 0..0,
            functions: Vec::new(),
            tables: LinkedTables::default(),
            sites: PatchSites::default(),
            sections,
            symbols: Vec::new(),
            named: HashMap::new(),
            reserved: ReservedParts::default(),
            modules: Vec::new(),
            memory: Vec::new(),
            lasting: Vec::new(),
            keys_of_trampolines: HashMap::new(),
        }
    }

    /// The side tables of a file of any version that say where control goes. A table of another
    /// format than the known ones has no entries.
    ///
    /// # Errors
    /// A section cannot be read.
    pub(crate) fn tables_of_code(
        build_id: BuildId,
        elf: &object::File<'a>,
    ) -> Result<LinkedTables> {
        let mut kernel = LinkedKernel::without_code(build_id, read_sections(elf)?);
        for symbol in elf.symbols() {
            if let Ok(name) = symbol.name() {
                kernel.named.entry(name).or_default().push(symbol.address());
            }
        }
        Ok(LinkedTables::of_code(&kernel))
    }

    fn read_symbols(&mut self, elf: &object::File<'a>, text: object::SectionIndex) -> Result<()> {
        let mut locals = Vec::new();
        for symbol in elf.symbols() {
            let Ok(name) = symbol.name() else { continue };
            if name.is_empty()
                || symbol.kind() == SymbolKind::Section
                || symbol.kind() == SymbolKind::File
            {
                continue;
            }
            self.named.entry(name).or_default().push(symbol.address());
            let code =
                matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Label | SymbolKind::Unknown);
            let inside = symbol.address() >= self.text.start
                && symbol.address().saturating_add(symbol.size()) <= self.text.end;
            if symbol.section_index() == Some(text) && code && inside {
                let local = matches!(
                    symbol.flags(),
                    SymbolFlags::Elf { st_info, .. }
                        if st_info.st_bind() == object::elf::STB_LOCAL
                );
                locals.push(local);
                self.symbols.push(TextSymbol {
                    name,
                    addr: LinkAddr(symbol.address()),
                    size: symbol.size(),
                });
            }
        }
        let base = self.text.start;
        let named = self.symbols.iter().zip(&locals).enumerate().map(|(i, (symbol, &local))| {
            FunctionSymbol {
                id: SymbolId(i as u32),
                name: symbol.name,
                at: (symbol.addr.0 - base) as u32,
                end: (symbol.addr.0 + symbol.size - base) as u32,
                local,
            }
        });
        self.functions = functions::from_named(named, self.text_bytes());
        if self.functions.is_empty() {
            bail!(
                "has no function symbols (was it stripped?): use the vmlinux of the build tree or \
                 of the -dbg package"
            );
        }
        self.reserved = ReservedParts::new(|name| self.address_of(name).map(|addr| addr.0));
        Ok(())
    }

    /// The `len` bytes at an address. `None` if they do not all lie in one section.
    pub fn bytes(&self, at: LinkAddr, len: usize) -> Option<&'a [u8]> {
        let index = self.sections.partition_point(|s| s.addr <= at.0).checked_sub(1)?;
        let section = &self.sections[index];
        let from = usize::try_from(at.0 - section.addr).ok()?;
        section.bytes.get(from..from.checked_add(len)?)
    }

    /// The bytes of the kernel's own `.text`.
    pub fn text_bytes(&self) -> &'a [u8] {
        self.bytes(LinkAddr(self.text.start), (self.text.end - self.text.start) as usize)
            .unwrap_or_default()
    }

    /// The bytes of code between two offsets, which lie in one section; else no bytes.
    pub fn code(&self, from: u32, to: u32) -> &'a [u8] {
        self.bytes(self.link_address(from), to.saturating_sub(from) as usize).unwrap_or_default()
    }

    /// Where functions are: the kernel's `.text`, and behind it sections of loaded modules.
    pub fn areas(&self) -> impl Iterator<Item = Range<u64>> {
        std::iter::once(self.text.clone()).chain(self.modules.iter().map(|(area, _)| area.clone()))
    }

    /// The module that has code at an address. `None`: it is the kernel's own, or no code of
    /// functions.
    pub fn module_at(&self, at: LinkAddr) -> Option<&'a ModuleIdentity> {
        let behind = self.modules.partition_point(|(area, _)| area.start <= at.0);
        let (area, module) = self.modules.get(behind.checked_sub(1)?)?;
        area.contains(&at.0).then_some(*module)
    }

    /// The offset of an address in code of functions.
    pub fn text_offset(&self, at: u64) -> Option<u32> {
        let inside = self.text.contains(&at) || self.module_at(LinkAddr(at)).is_some();
        inside.then(|| (at - self.text.start) as u32)
    }

    /// The offset behind all code of functions.
    fn code_end(&self) -> u32 {
        let end = self.modules.last().map_or(self.text.end, |(area, _)| area.end);
        (end - self.text.start) as u32
    }

    /// Whether an address moves with the kernel: it is in its image, or in a loaded module.
    pub fn moves(&self, at: u64) -> bool {
        let behind = self.memory.partition_point(|range| range.start <= at);
        let of_module = behind.checked_sub(1).is_some_and(|n| at <= self.memory[n].end);
        self.image.contains(&at) || of_module
    }

    fn section(&self, name: &str) -> Option<&LoadedSection<'a>> {
        self.sections.iter().find(|s| s.name == name && !s.of_module)
    }

    /// The address and the bytes of a section that is loaded into memory.
    pub fn loaded(&self, name: &str) -> Option<(LinkAddr, &'a [u8])> {
        self.section(name).map(|s| (LinkAddr(s.addr), s.bytes))
    }

    /// The names of the sections that are loaded into memory.
    pub fn loaded_names(&self) -> impl Iterator<Item = &'a str> {
        self.sections.iter().filter(|s| !s.of_module).map(|s| s.name)
    }

    /// The address of the symbol with that name. `None` if there is no such symbol or more than
    /// one.
    pub fn address_of(&self, name: &str) -> Option<LinkAddr> {
        match self.named.get(name).map(Vec::as_slice) {
            Some(&[addr]) => Some(LinkAddr(addr)),
            _ => None,
        }
    }

    /// The addresses of all symbols with that name.
    pub fn addresses_of(&self, name: &str) -> &[u64] {
        self.named.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether a symbol with that name has that address.
    pub fn has_symbol(&self, name: &str, at: LinkAddr) -> bool {
        self.addresses_of(name).contains(&at.0)
    }

    /// A function's name, or "(nameless)".
    pub fn function_name(&self, function: &TextFunction) -> &'a str {
        function.symbol.map_or("(nameless)", |id| self.symbols[id.0 as usize].name)
    }

    /// A function's name for people: with its module behind it, as in `/proc/kallsyms`.
    pub fn title(&self, function: &TextFunction) -> String {
        let name = self.function_name(function);
        match self.module_at(self.link_address(function.at)) {
            Some(module) => format!("{name} [{}]", module.name),
            None => name.to_owned(),
        }
    }

    /// The functions of a name, by their numbers: the kernel's own, or else those of loaded
    /// modules. With a module behind the name, as [`LinkedKernel::title`] gives it, those of that
    /// module.
    pub fn functions_named(&self, title: &str) -> Vec<usize> {
        let (name, module) = match title.split_once(" [") {
            Some((name, module)) => (name, Some(module.strip_suffix(']').unwrap_or(module))),
            None => (title, None),
        };
        let own = self.addresses_of(name).iter().filter(|_| module.is_none());
        let own: Vec<usize> = own.filter_map(|&at| self.function_at(LinkAddr(at))).collect();
        if !own.is_empty() {
            return own;
        }
        let is_meant = |index: &usize| {
            let function = &self.functions[*index];
            let of = self.module_at(self.link_address(function.at));
            self.function_name(function) == name
                && of.is_some_and(|of| module.is_none_or(|module| of.name == module))
        };
        let end = self.text.end - self.text.start;
        let first = self.functions.partition_point(|f| u64::from(f.at) < end);
        (first..self.functions.len()).filter(is_meant).collect()
    }

    /// The function that contains an address.
    pub fn function_at(&self, at: LinkAddr) -> Option<usize> {
        let offset = u32::try_from(at.0.checked_sub(self.text.start)?).ok()?;
        let index = self.functions.partition_point(|f| f.at <= offset).checked_sub(1)?;
        (offset < self.functions[index].end).then_some(index)
    }

    /// Why Kernlane does not replace the code at an address; `None` if it may replace it.
    pub fn apart(&self, at: LinkAddr) -> Option<ReservedCode> {
        self.reserved.at(at.0)
    }

    /// The link address of an offset from the start of `.text`.
    pub fn link_address(&self, offset: u32) -> LinkAddr {
        LinkAddr(self.text.start + u64::from(offset))
    }
}

/// From a section's address to its end.
fn extent(name: &str, addr: u64, size: u64) -> Result<Range<u64>> {
    let end = addr.checked_add(size);
    Ok(addr..end.with_context(|| format!("section {name} ends beyond the address space"))?)
}

fn read_sections<'a>(elf: &object::File<'a>) -> Result<Vec<LoadedSection<'a>>> {
    let mut sections = Vec::new();
    for section in elf.sections() {
        let object::SectionFlags::Elf { sh_flags, .. } = section.flags() else {
            continue;
        };
        let loaded = sh_flags.contains(object::elf::SHF_ALLOC)
            && section.kind() != SectionKind::UninitializedData;
        // Per-CPU data is linked at 0, so its addresses would be ambiguous.
        if loaded && section.address() != 0 {
            let name = section.name().context("a section's name cannot be read")?;
            let bytes = section.data().with_context(|| format!("section {name} cannot be read"))?;
            let addr = section.address();
            extent(name, addr, bytes.len() as u64)?;
            let code = sh_flags.contains(object::elf::SHF_EXECINSTR);
            sections.push(LoadedSection { name, addr, bytes, code, of_module: false });
        }
    }
    sections.sort_by_key(|s| s.addr);
    Ok(sections)
}

fn image_range(elf: &object::File<'_>, text: &Range<u64>) -> Range<u64> {
    let ends = elf
        .sections()
        .filter(|s| s.address() >= text.start)
        .map(|s| s.address().saturating_add(s.size()));
    text.start..ends.max().unwrap_or(text.end)
}
