//! The raw parts of a relocatable object: sections, symbols, relocations.
//!
//! Takes the bytes of an ELF64 little-endian x86-64 relocatable file; gives its parts with every
//! index checked, so that what stands on it need not check again. Knows nothing of what a section
//! means, and never writes.

use anyhow::{Context, Result, bail, ensure};
use object::LittleEndian as Le;
use object::elf::{self, FileHeader64, Rela64, SectionHeader64, Sym64};
use object::pod;
use std::collections::HashMap;
use std::ops::Range;

/// A section, numbered as in the file; 0 is the null section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectionId(pub u32);

/// A symbol, numbered as in the file; 0 is the null symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SymbolId(pub u32);

/// A section's header, its name resolved.
#[derive(Clone, Debug)]
pub struct Section {
    pub name: String,
    pub kind: u32,
    pub flags: u64,
    pub link: u32,
    pub info: u32,
    pub align: u64,
    pub entry_size: u64,
    /// Bytes in memory; equal to the bytes in the file unless the section has none there
    /// (`SHT_NOBITS`).
    pub size: u64,
    /// Where its bytes lie in the file.
    pub range: Range<usize>,
}

impl Section {
    pub fn is_code(&self) -> bool {
        self.flags & u64::from(elf::SHF_EXECINSTR) != 0
    }

    /// Debugging information in DWARF, or the relocations of it.
    pub fn is_debug(&self) -> bool {
        let name = self.name.strip_prefix(".rela").unwrap_or(&self.name);
        name.starts_with(".debug_") || name.starts_with(".zdebug_")
    }
}

/// A symbol as in the file.
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    /// Offset of its name in the string table.
    pub name: u32,
    pub info: u8,
    pub other: u8,
    /// The index as stored; `SHN_UNDEF`, `SHN_ABS` and `SHN_COMMON` are not sections.
    pub index: u16,
    pub value: u64,
    pub size: u64,
}

impl Symbol {
    pub fn kind(&self) -> u8 {
        self.info & 0xf
    }

    pub fn is_local(&self) -> bool {
        self.info >> 4 == elf::STB_LOCAL
    }

    pub fn is_weak(&self) -> bool {
        self.info >> 4 == elf::STB_WEAK
    }

    /// The section it is defined in, if it is in one.
    pub fn section(&self) -> Option<SectionId> {
        (self.index != elf::SHN_UNDEF && self.index < elf::SHN_LORESERVE)
            .then(|| SectionId(u32::from(self.index)))
    }
}

/// One relocation: the field at `offset` of its section becomes symbol + addend, in the way `kind`
/// says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    pub offset: u64,
    pub symbol: SymbolId,
    pub kind: u32,
    pub addend: i64,
}

impl Relocation {
    /// Struck out by objtool, which wrote the field itself; refers to nothing, and is carried
    /// along.
    pub fn is_none(&self) -> bool {
        self.kind == elf::R_X86_64_NONE
    }

    /// Relative to the field's own address, 32 bits wide.
    pub fn is_relative(&self) -> bool {
        matches!(self.kind, elf::R_X86_64_PC32 | elf::R_X86_64_PLT32)
    }

    /// The absolute address, in 32 or 64 bits.
    pub fn is_absolute(&self) -> bool {
        matches!(self.kind, elf::R_X86_64_64 | elf::R_X86_64_32 | elf::R_X86_64_32S)
    }
}

/// The file, taken apart.
pub struct Elf<'a> {
    pub data: &'a [u8],
    pub flags: u32,
    pub sections: Vec<Section>,
    pub symbols: Vec<Symbol>,
    pub symtab: SectionId,
    pub strtab: SectionId,
    pub section_names: SectionId,
    /// For each section, the section that holds its relocations.
    relocation_sections: HashMap<SectionId, SectionId>,
}

impl<'a> Elf<'a> {
    /// Takes the file apart. Fails on anything but a relocatable object of the kind kernels are
    /// built from.
    pub fn parse(data: &'a [u8]) -> Result<Elf<'a>> {
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
        ensure!(
            header.e_shnum.get(Le) != 0,
            "no section table, or one with more than 65 279 sections"
        );
        let sections = read_sections(data, header)?;
        let only = |kind: u32, what: &str| -> Result<SectionId> {
            let mut found = (0..sections.len()).filter(|&i| sections[i].kind == kind);
            let first = found.next().with_context(|| format!("no {what}"))?;
            ensure!(found.next().is_none(), "more than one {what}");
            Ok(SectionId(first as u32))
        };
        ensure!(
            !sections.iter().any(|s| s.kind == elf::SHT_SYMTAB_SHNDX),
            "has extended section numbers (SHT_SYMTAB_SHNDX), which are not understood"
        );
        let symtab = only(elf::SHT_SYMTAB, "symbol table (built without symbols, or stripped?)")?;
        let strtab = SectionId(sections[symtab.0 as usize].link);
        let names =
            sections.get(strtab.0 as usize).context("the symbol table names no string table")?;
        ensure!(
            names.kind == elf::SHT_STRTAB,
            "the symbol table's strings are in {}, which is no string table",
            names.name
        );
        let symbols = read_symbols(data, &sections, symtab)?;
        let mut relocation_sections = HashMap::new();
        for (i, section) in sections.iter().enumerate().filter(|(_, s)| s.kind == elf::SHT_RELA) {
            ensure!(
                section.link == symtab.0,
                "{}: relocations against a symbol table other than .symtab",
                section.name
            );
            ensure!(
                (section.info as usize) < sections.len(),
                "{}: relocates section {}, which is not there",
                section.name,
                section.info
            );
            let earlier = relocation_sections.insert(SectionId(section.info), SectionId(i as u32));
            ensure!(
                earlier.is_none(),
                "{}: a second table of relocations for one section",
                section.name
            );
        }
        if let Some(section) = sections.iter().find(|s| s.kind == elf::SHT_REL) {
            bail!("{}: relocations without addends, which x86-64 does not use", section.name);
        }
        let section_names = SectionId(u32::from(header.e_shstrndx.get(Le)));
        Ok(Elf {
            data,
            flags: header.e_flags.get(Le),
            sections,
            symbols,
            symtab,
            strtab,
            section_names,
            relocation_sections,
        })
    }

    pub fn section(&self, id: SectionId) -> &Section {
        &self.sections[id.0 as usize]
    }

    pub fn symbol(&self, id: SymbolId) -> &Symbol {
        &self.symbols[id.0 as usize]
    }

    pub fn ids(&self) -> impl Iterator<Item = SectionId> + use<> {
        (0..self.sections.len() as u32).map(SectionId)
    }

    /// The symbol that stands for a section.
    ///
    /// # Errors
    /// The section has none.
    pub fn section_symbol(&self, section: SectionId) -> Result<SymbolId> {
        let stands_for =
            |s: &Symbol| s.kind() == object::elf::STT_SECTION && s.section() == Some(section);
        let index = self.symbols.iter().position(stands_for);
        let index = index
            .with_context(|| format!("{} has no section symbol", self.section(section).name))?;
        Ok(SymbolId(index as u32))
    }

    /// The one section of that name.
    pub fn by_name(&self, name: &str) -> Option<SectionId> {
        self.sections.iter().position(|s| s.name == name).map(|i| SectionId(i as u32))
    }

    pub fn bytes(&self, id: SectionId) -> &'a [u8] {
        &self.data[self.section(id).range.clone()]
    }

    /// A symbol's name; a name that is no UTF-8 or runs off its table is an error of the file and
    /// comes back empty.
    pub fn name(&self, symbol: &Symbol) -> &'a str {
        string_at(self.bytes(self.strtab), symbol.name).unwrap_or("")
    }

    pub fn relocation_section(&self, of: SectionId) -> Option<SectionId> {
        self.relocation_sections.get(&of).copied()
    }

    /// The relocations of a section in the file's order, each with a symbol that exists and a field
    /// inside the section.
    pub fn relocations(&self, of: SectionId) -> Result<Vec<Relocation>> {
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

    /// As `relocations`, for sections that may be compressed, so that their size says nothing about
    /// where fields lie.
    pub fn debug_relocations(&self, of: SectionId) -> Result<Vec<Relocation>> {
        let Some(table) = self.relocation_section(of) else {
            return Ok(Vec::new());
        };
        let raw = self.bytes(table);
        let (entries, _) = pod::slice_from_bytes::<Rela64<Le>>(raw, raw.len() / 24)
            .ok()
            .context("relocations cut short")?;
        let read = |r: &Rela64<Le>| {
            let found = Relocation {
                offset: r.r_offset.get(Le),
                symbol: SymbolId(r.r_sym(Le, false)),
                kind: r.r_type(Le, false),
                addend: r.r_addend.get(Le),
            };
            ensure!(
                (found.symbol.0 as usize) < self.symbols.len(),
                "{}+{:#x}: a relocation against symbol {}, which is not there",
                self.section(of).name,
                found.offset,
                found.symbol.0
            );
            Ok(found)
        };
        entries.iter().map(read).collect()
    }
}

/// No section of a kernel is aligned to more than a large page.
const MOST_ALIGNED: u64 = 2 << 20;

fn read_sections(data: &[u8], header: &FileHeader64<Le>) -> Result<Vec<Section>> {
    let start = header.e_shoff.get(Le) as usize;
    let count = usize::from(header.e_shnum.get(Le));
    let table = data.get(start..).context("the section table lies outside the file")?;
    let (headers, _) = pod::slice_from_bytes::<SectionHeader64<Le>>(table, count)
        .ok()
        .context("the section table is cut short")?;
    let range = |h: &SectionHeader64<Le>| -> Result<Range<usize>> {
        if h.sh_type.get(Le) == elf::SHT_NOBITS || h.sh_type.get(Le) == elf::SHT_NULL {
            return Ok(0..0);
        }
        let from = h.sh_offset.get(Le) as usize;
        let to = from.checked_add(h.sh_size.get(Le) as usize).filter(|&to| to <= data.len());
        to.map(|to| from..to).context("a section lies outside the file")
    };
    let names = headers.get(usize::from(header.e_shstrndx.get(Le))).context("no section names")?;
    let names = &data[range(names)?];
    headers
        .iter()
        .map(|h| {
            let name =
                string_at(names, h.sh_name.get(Le)).context("a section without a readable name")?;
            let align = h.sh_addralign.get(Le);
            ensure!(
                align <= MOST_ALIGNED && (align == 0 || align.is_power_of_two()),
                "{name}: aligned to {align} bytes"
            );
            Ok(Section {
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
        .collect()
}

fn read_symbols(data: &[u8], sections: &[Section], symtab: SectionId) -> Result<Vec<Symbol>> {
    let raw = &data[sections[symtab.0 as usize].range.clone()];
    let (entries, _) = pod::slice_from_bytes::<Sym64<Le>>(raw, raw.len() / 24)
        .ok()
        .context("the symbol table is cut short")?;
    entries
        .iter()
        .enumerate()
        .map(|(i, s)| {
            let symbol = Symbol {
                name: s.st_name.get(Le),
                info: s.st_info,
                other: s.st_other,
                index: s.st_shndx.get(Le),
                value: s.st_value.get(Le),
                size: s.st_size.get(Le),
            };
            if let Some(section) = symbol.section() {
                ensure!(
                    (section.0 as usize) < sections.len(),
                    "symbol {i} is in section {}, which is not there",
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
