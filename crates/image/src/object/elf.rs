//! The parts of a relocatable object: sections, symbols, relocations.
//!
//! Input: the bytes of a little-endian ELF64 relocatable file for x86-64. Output: its parts. Every
//! index is checked once, so users need not check again. This module does not know what a section
//! means, and never writes.

use anyhow::{Context, Result, bail, ensure};
use object::LittleEndian as Le;
use object::elf::{self, FileHeader64, Rela64, SectionHeader64, Sym64};
use object::pod;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The number of a section in its file. 0 is the null section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectionId(pub u32);

/// The number of a symbol in its file. 0 is the null symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SymbolId(pub u32);

/// Where a symbol is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolPlace {
    /// In this section.
    Section(SectionId),
    /// In none: `SHN_UNDEF`, `SHN_ABS`, `SHN_COMMON`, as stored.
    Elsewhere(elf::SymbolSection),
}

/// A section's header with its name.
#[derive(Clone, Debug)]
pub struct ElfSection {
    /// Its name.
    pub name: String,
    /// Its type (`sh_type`).
    pub kind: elf::SectionType,
    /// Its flags (`sh_flags`).
    pub flags: elf::SectionFlags,
    /// The number of a linked section (`sh_link`).
    pub link: u32,
    /// More about the section, depending on its type (`sh_info`).
    pub info: u32,
    /// Its alignment in bytes.
    pub align: u64,
    /// The size of an entry in bytes, 0 if it has no entries of one size.
    pub entry_size: u64,
    /// Bytes in memory. In the file it has as many bytes, or none if its type is `SHT_NOBITS`.
    pub size: u64,
    /// The place of its bytes in the file.
    pub range: Range<usize>,
}

impl ElfSection {
    /// Whether it holds code.
    pub fn is_code(&self) -> bool {
        self.flags.contains(elf::SHF_EXECINSTR)
    }

    /// Whether it informs the linker only and is not linked: symbols whose address matters, weights
    /// of calls (`.llvm_addrsig`, `.llvm.call-graph-profile`).
    pub fn is_for_linker(&self) -> bool {
        self.flags.contains(elf::SHF_EXCLUDE) && !self.flags.contains(elf::SHF_ALLOC)
    }

    /// Whether it holds DWARF debugging information, a compiler's map of blocks
    /// (`-fbasic-block-address-map`), or relocations for one of them. No kernel reads it, and it
    /// does not fit code that moved.
    pub fn is_debug(&self) -> bool {
        let name = self.name.strip_prefix(".rela").unwrap_or(&self.name);
        [".debug_", ".zdebug_", ".llvm_bb_addr_map"].iter().any(|known| name.starts_with(known))
    }
}

/// A symbol as it stands in the file.
#[derive(Clone, Copy, Debug)]
pub struct ElfSymbol {
    /// The offset of its name in the string table.
    pub name: u32,
    /// Its binding and type (`st_info`).
    pub info: elf::SymbolInfo,
    /// Its visibility (`st_other`).
    pub other: elf::SymbolOther,
    /// Where it is defined.
    pub place: SymbolPlace,
    /// Its value: in a relocatable object, an offset in its section.
    pub value: u64,
    /// Its size in bytes.
    pub size: u64,
}

impl ElfSymbol {
    /// Its type (`STT_…`).
    pub fn kind(&self) -> elf::SymbolType {
        self.info.st_type()
    }

    /// Whether its binding is local.
    pub(crate) fn is_local(&self) -> bool {
        self.info.st_bind() == elf::STB_LOCAL
    }

    /// Whether its binding is weak.
    pub(crate) fn is_weak(&self) -> bool {
        self.info.st_bind() == elf::STB_WEAK
    }

    /// The section in which it is defined. `None` if it is defined in no section.
    pub fn section(&self) -> Option<SectionId> {
        match self.place {
            SymbolPlace::Section(id) => Some(id),
            SymbolPlace::Elsewhere(_) => None,
        }
    }
}

/// A relocation: the field at `offset` of its section gets symbol + addend, encoded as `kind` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElfRelocation {
    /// The offset of the field in its section.
    pub offset: u64,
    /// The symbol.
    pub symbol: SymbolId,
    /// How the value is encoded (`R_X86_64_…`).
    pub kind: elf::RelocationType,
    /// The addend.
    pub addend: i64,
}

impl ElfRelocation {
    /// Whether objtool disabled the relocation (`R_X86_64_NONE`) after it wrote the field itself.
    /// Such a relocation refers to nothing. The emitter copies it.
    pub(crate) fn is_none(&self) -> bool {
        self.kind == elf::R_X86_64_NONE
    }

    /// Whether the field is relative to its own address and has 32 bits.
    pub(crate) fn is_relative(&self) -> bool {
        matches!(self.kind, elf::R_X86_64_PC32 | elf::R_X86_64_PLT32)
    }

    /// The bytes of the field.
    pub fn width(&self) -> usize {
        if matches!(self.kind, elf::R_X86_64_64 | elf::R_X86_64_PC64) { 8 } else { 4 }
    }

    /// Whether the field is an absolute address of 32 or 64 bits.
    pub(crate) fn is_absolute(&self) -> bool {
        matches!(self.kind, elf::R_X86_64_64 | elf::R_X86_64_32 | elf::R_X86_64_32S)
    }
}

/// A section that became part of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JoinedPart {
    /// The section.
    pub section: SectionId,
    /// The offset of its first byte in the other one.
    pub at: u64,
    /// Its bytes.
    pub size: u64,
}

/// The section that others became part of.
struct JoinedSection<'a> {
    into: SectionId,
    /// The symbol that stands for it.
    symbol: SymbolId,
    /// The parts, each with the section of its relocations.
    parts: Vec<(JoinedPart, Option<SectionId>)>,
    /// The offset of each part in it.
    at: HashMap<SectionId, u64>,
    bytes: &'a [u8],
    /// The offsets in `bytes` whose relocations are applied already.
    filled: &'a HashSet<u64>,
}

/// The parts of a file.
pub struct Elf<'a> {
    /// The bytes of the file.
    pub data: &'a [u8],
    /// The flags of its header.
    pub flags: elf::FileFlags,
    /// The sections by number.
    pub sections: Vec<ElfSection>,
    /// The symbols by number.
    pub symbols: Vec<ElfSymbol>,
    /// The symbol table.
    pub symtab: SectionId,
    /// The string table of the symbols.
    pub strtab: SectionId,
    /// The section numbers of symbols that do not fit into 16 bits, if the file has such a table.
    pub symtab_shndx: Option<SectionId>,
    /// The string table of the sections' names.
    pub section_names: SectionId,
    /// The section that holds the relocations of each section.
    relocation_sections: HashMap<SectionId, SectionId>,
    joined: Option<JoinedSection<'a>>,
}

impl<'a> Elf<'a> {
    /// Reads the parts of a file.
    ///
    /// # Errors
    /// The file is not a relocatable object of the kind that kernels are built from, or it is
    /// damaged.
    pub fn parse(data: &'a [u8]) -> Result<Elf<'a>> {
        // Raw, and in a wrapper (llvm/BinaryFormat/Magic.cpp).
        let is_bitcode =
            [*b"BC\xc0\xde", [0xde, 0xc0, 0x17, 0x0b]].iter().any(|m| data.starts_with(m));
        ensure!(
            !is_bitcode,
            "holds LLVM's bitcode and no code: with LTO the linker makes the code; give the object \
             that was linked from it"
        );
        let (header, _) = pod::from_bytes::<FileHeader64<Le>>(data)
            .ok()
            .context("too short for an ELF header")?;
        let ident = &header.e_ident;
        ensure!(ident.magic == elf::ELFMAG, "not an ELF file");
        ensure!(
            ident.class == elf::ELFCLASS64
                && ident.data == elf::ELFDATA2LSB
                && header.e_machine.get(Le) == elf::EM_X86_64,
            "not an object for x86-64"
        );
        ensure!(header.e_type.get(Le) == elf::ET_REL, "not a relocatable object");
        let (sections, section_names) = read_sections(data, header)?;
        let only = |kind: elf::SectionType, what: &str| -> Result<SectionId> {
            let mut found = (0..sections.len()).filter(|&i| sections[i].kind == kind);
            let first = found.next().with_context(|| format!("no {what}"))?;
            ensure!(found.next().is_none(), "more than one {what}");
            Ok(SectionId(first as u32))
        };
        let symtab = only(elf::SHT_SYMTAB, "symbol table (built without symbols, or stripped?)")?;
        let strtab = SectionId(sections[symtab.0 as usize].link);
        let names =
            sections.get(strtab.0 as usize).context("the symbol table names no string table")?;
        ensure!(
            names.kind == elf::SHT_STRTAB,
            "the symbol table's strings are in {}, which is not a string table",
            names.name
        );
        let symtab_shndx = sections
            .iter()
            .position(|s| s.kind == elf::SHT_SYMTAB_SHNDX && s.link == symtab.0)
            .map(|index| SectionId(index as u32));
        let symbols = read_symbols(data, &sections, symtab, symtab_shndx)?;
        let mut relocation_sections = HashMap::new();
        let for_linker =
            |s: &ElfSection| sections.get(s.info as usize).is_some_and(ElfSection::is_for_linker);
        let of_kind = |kind| move |s: &ElfSection| s.kind == kind && !for_linker(s);
        let with_addends = of_kind(elf::SHT_RELA);
        for (i, section) in sections.iter().enumerate().filter(|(_, s)| with_addends(s)) {
            ensure!(
                section.link == symtab.0,
                "{}: relocations against a symbol table other than .symtab",
                section.name
            );
            ensure!(
                (section.info as usize) < sections.len(),
                "{}: relocates section {}, which does not exist",
                section.name,
                section.info
            );
            let earlier = relocation_sections.insert(SectionId(section.info), SectionId(i as u32));
            ensure!(
                earlier.is_none(),
                "{}: a second relocation table for the same section",
                section.name
            );
        }
        let without_addends = of_kind(elf::SHT_REL);
        if let Some(section) = sections.iter().find(|s| without_addends(s)) {
            bail!("{}: relocations without addends, which x86-64 does not use", section.name);
        }
        Ok(Elf {
            data,
            flags: header.e_flags.get(Le),
            sections,
            symbols,
            symtab,
            strtab,
            symtab_shndx,
            section_names,
            relocation_sections,
            joined: None,
        })
    }

    /// The section with this number.
    pub fn section(&self, id: SectionId) -> &ElfSection {
        &self.sections[id.0 as usize]
    }

    /// The symbol with this number.
    pub fn symbol(&self, id: SymbolId) -> &ElfSymbol {
        &self.symbols[id.0 as usize]
    }

    /// Whether a section informs the linker only, or holds relocations for such a section. Nothing
    /// in it holds for code that moved.
    pub fn is_for_linker(&self, id: SectionId) -> bool {
        let section = self.section(id);
        let relocates = matches!(section.kind, elf::SHT_REL | elf::SHT_RELA)
            && self.sections.get(section.info as usize).is_some_and(ElfSection::is_for_linker);
        section.is_for_linker() || relocates
    }

    /// Makes `parts` one section with these bytes. The number `into` names that section; the others
    /// become empty. Symbols and relocations follow; `filled` are the offsets of relocations that
    /// are applied already.
    ///
    /// # Errors
    /// `into` has no section symbol.
    pub(super) fn join(
        &mut self,
        into: SectionId,
        parts: &[JoinedPart],
        bytes: &'a [u8],
        filled: &'a HashSet<u64>,
        align: u64,
    ) -> Result<()> {
        let symbol = self.section_symbol(into)?;
        let at: HashMap<SectionId, u64> =
            parts.iter().map(|part| (part.section, part.at)).collect();
        for symbol in self.symbols.iter_mut().filter(|s| s.kind() != elf::STT_SECTION) {
            if let Some(at) = symbol.section().and_then(|section| at.get(&section)) {
                symbol.place = SymbolPlace::Section(into);
                symbol.value = symbol.value.wrapping_add(*at);
            }
        }
        for part in parts {
            let section = &mut self.sections[part.section.0 as usize];
            (section.size, section.range) = (0, 0..0);
        }
        let section = &mut self.sections[into.0 as usize];
        (section.size, section.align) = (bytes.len() as u64, align);
        let table = |part: &JoinedPart| self.relocation_section(part.section);
        let parts: Vec<_> = parts.iter().map(|part| (*part, table(part))).collect();
        let first = parts.iter().find_map(|&(part, table)| Some((part.section, table?)));
        if let (None, Some((part, table))) = (self.relocation_section(into), first) {
            self.relocation_sections.remove(&part);
            self.relocation_sections.insert(into, table);
            self.sections[table.0 as usize].info = into.0;
        }
        self.joined = Some(JoinedSection { into, symbol, parts, at, bytes, filled });
        Ok(())
    }

    /// The numbers of all sections.
    pub fn ids(&self) -> impl Iterator<Item = SectionId> + use<> {
        (0..self.sections.len() as u32).map(SectionId)
    }

    /// The symbol that stands for a section.
    ///
    /// # Errors
    /// The section has no such symbol.
    pub fn section_symbol(&self, section: SectionId) -> Result<SymbolId> {
        let stands_for =
            |s: &ElfSymbol| s.kind() == object::elf::STT_SECTION && s.section() == Some(section);
        let index = self.symbols.iter().position(stands_for);
        let index = index
            .with_context(|| format!("{} has no section symbol", self.section(section).name))?;
        Ok(SymbolId(index as u32))
    }

    /// The section with this name. `None` if there is no such section or more than one.
    pub fn by_name(&self, name: &str) -> Option<SectionId> {
        self.sections.iter().position(|s| s.name == name).map(|i| SectionId(i as u32))
    }

    /// The bytes of a section.
    pub fn bytes(&self, id: SectionId) -> &'a [u8] {
        if let Some(joined) = self.joined.as_ref().filter(|joined| joined.into == id) {
            return joined.bytes;
        }
        &self.data[self.section(id).range.clone()]
    }

    /// A symbol's name. Empty if the file is damaged: the name is not UTF-8 or does not end within
    /// its table.
    pub fn name(&self, symbol: &ElfSymbol) -> &'a str {
        string_at(self.bytes(self.strtab), symbol.name).unwrap_or("")
    }

    /// The section that holds the relocations of a section.
    pub fn relocation_section(&self, of: SectionId) -> Option<SectionId> {
        self.relocation_sections.get(&of).copied()
    }

    /// The relocations of a section in the file's order. Each one's symbol exists, and its field
    /// lies inside the section.
    ///
    /// # Errors
    /// A relocation breaks this rule.
    pub fn relocations(&self, of: SectionId) -> Result<Vec<ElfRelocation>> {
        let target = self.section(of);
        let list = self.debug_relocations(of)?;
        for r in &list {
            let width = if matches!(r.kind, elf::R_X86_64_64 | elf::R_X86_64_PC64) { 8 } else { 1 };
            ensure!(
                r.offset.checked_add(width).is_some_and(|end| end <= target.size),
                "{}: a relocation at {:#x}, outside the section",
                target.name,
                r.offset
            );
        }
        Ok(list)
    }

    /// Like `relocations`, for sections that may be compressed: their size does not limit the
    /// offsets of fields.
    ///
    /// # Errors
    /// A relocation's symbol does not exist.
    pub fn debug_relocations(&self, of: SectionId) -> Result<Vec<ElfRelocation>> {
        let stored = |of, table: Option<_>| table.map(|table| self.stored_relocations(of, table));
        let own = || stored(of, self.relocation_section(of)).unwrap_or_else(|| Ok(Vec::new()));
        let Some(joined) = &self.joined else { return own() };
        let mut list = if joined.at.contains_key(&of) { Vec::new() } else { own()? };
        for &(part, table) in joined.parts.iter().filter(|_| joined.into == of) {
            for r in stored(part.section, table).unwrap_or_else(|| Ok(Vec::new()))? {
                ensure!(
                    r.offset < part.size,
                    "{}: a relocation at {:#x}, outside the section",
                    self.section(part.section).name,
                    r.offset
                );
                let offset = r.offset + part.at;
                if !joined.filled.contains(&offset) {
                    list.push(ElfRelocation { offset, ..r });
                }
            }
        }
        for r in &mut list {
            let symbol = self.symbol(r.symbol);
            if symbol.kind() == elf::STT_SECTION
                && let Some(at) = symbol.section().and_then(|section| joined.at.get(&section))
            {
                r.symbol = joined.symbol;
                r.addend = r.addend.wrapping_add(*at as i64);
            }
        }
        Ok(list)
    }

    /// The relocations that stand in the section `table`, which is that of `of`.
    fn stored_relocations(&self, of: SectionId, table: SectionId) -> Result<Vec<ElfRelocation>> {
        let raw = self.bytes(table);
        let (entries, _) = pod::slice_from_bytes::<Rela64<Le>>(raw, raw.len() / 24)
            .ok()
            .context("relocations cut short")?;
        let read = |r: &Rela64<Le>| {
            let found = ElfRelocation {
                offset: r.r_offset.get(Le),
                symbol: SymbolId(r.r_sym(Le, false)),
                kind: r.r_type(Le, false),
                addend: r.r_addend.get(Le),
            };
            ensure!(
                (found.symbol.0 as usize) < self.symbols.len(),
                "{}+{:#x}: a relocation against symbol {}, which does not exist",
                self.section(of).name,
                found.offset,
                found.symbol.0
            );
            Ok(found)
        };
        entries.iter().map(read).collect()
    }
}

/// The largest alignment that is accepted. No section of a kernel is aligned to more than a large
/// page.
const MOST_ALIGNED: u64 = 2 << 20;

/// The sections, and the number of the one that holds their names.
fn read_sections(data: &[u8], header: &FileHeader64<Le>) -> Result<(Vec<ElfSection>, SectionId)> {
    let start = header.e_shoff.get(Le) as usize;
    ensure!(start != 0, "no section table");
    let table = data.get(start..).context("the section table lies outside the file")?;
    let headers = |count| {
        let read = pod::slice_from_bytes::<SectionHeader64<Le>>(table, count).ok();
        read.map(|(headers, _)| headers).context("the section table is cut short")
    };
    // A number that does not fit into 16 bits stands in the null section.
    let null = &headers(1)?[0];
    let count = match header.e_shnum.get(Le) {
        0 => null.sh_size.get(Le) as usize,
        count => usize::from(count),
    };
    let headers = headers(count)?;
    let range = |h: &SectionHeader64<Le>| -> Result<Range<usize>> {
        if h.sh_type.get(Le) == elf::SHT_NOBITS || h.sh_type.get(Le) == elf::SHT_NULL {
            return Ok(0..0);
        }
        let from = h.sh_offset.get(Le) as usize;
        let to = from.checked_add(h.sh_size.get(Le) as usize).filter(|&to| to <= data.len());
        to.map(|to| from..to).context("a section lies outside the file")
    };
    let section_names = match header.e_shstrndx.get(Le) {
        elf::SHN_XINDEX => null.sh_link.get(Le),
        index => u32::from(index.0),
    };
    let names = headers.get(section_names as usize).context("no section names")?;
    let names = &data[range(names)?];
    let sections: Result<_> = headers
        .iter()
        .map(|h| {
            let name =
                string_at(names, h.sh_name.get(Le)).context("a section's name cannot be read")?;
            let align = h.sh_addralign.get(Le);
            ensure!(
                align <= MOST_ALIGNED && (align == 0 || align.is_power_of_two()),
                "{name}: aligned to {align} bytes"
            );
            Ok(ElfSection {
                name: name.to_owned(),
                kind: h.sh_type.get(Le),
                flags: h.sh_flags.get(Le),
                link: h.sh_link.get(Le),
                info: h.sh_info.get(Le),
                align,
                entry_size: h.sh_entsize.get(Le),
                size: h.sh_size.get(Le),
                range: range(h).with_context(|| name.to_owned())?,
            })
        })
        .collect();
    Ok((sections?, SectionId(section_names)))
}

fn read_symbols(
    data: &[u8],
    sections: &[ElfSection],
    symtab: SectionId,
    symtab_shndx: Option<SectionId>,
) -> Result<Vec<ElfSymbol>> {
    let raw = &data[sections[symtab.0 as usize].range.clone()];
    let (entries, _) = pod::slice_from_bytes::<Sym64<Le>>(raw, raw.len() / 24)
        .ok()
        .context("the symbol table is cut short")?;
    let indexes = symtab_shndx.map(|id| &data[sections[id.0 as usize].range.clone()]);
    let indexes = indexes.unwrap_or_default().as_chunks::<4>().0;
    entries
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let stored = s.st_shndx.get(Le);
            let place = match stored {
                elf::SHN_XINDEX => {
                    let index = indexes.get(i).with_context(|| {
                        format!("symbol {i} has no entry in a table of extended section numbers")
                    })?;
                    SymbolPlace::Section(SectionId(u32::from_le_bytes(*index)))
                }
                _ => match stored.index() {
                    Some(index) => SymbolPlace::Section(SectionId(u32::from(index))),
                    None => SymbolPlace::Elsewhere(stored),
                },
            };
            let symbol = ElfSymbol {
                name: s.st_name.get(Le),
                info: s.st_info,
                other: s.st_other,
                place,
                value: s.st_value.get(Le),
                size: s.st_size.get(Le),
            };
            if let Some(section) = symbol.section() {
                ensure!(
                    (section.0 as usize) < sections.len(),
                    "symbol {i} is in section {}, which does not exist",
                    section.0
                );
            }
            Ok(symbol)
        })
        .collect()
}

/// The zero-terminated string at `offset`.
fn string_at(table: &[u8], offset: u32) -> Option<&str> {
    let rest = table.get(offset as usize..)?;
    let end = rest.iter().position(|&b| b == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}
