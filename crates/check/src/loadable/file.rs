//! A module as its file describes it: sections, symbols, relocations.
//!
//! Input: the bytes of a module. Output: borrowed views of them. A damaged file gives an error,
//! never a panic. This module does not use Kernlane's other readers on purpose.

use anyhow::{Context, Result, ensure};
use image::module::base_of;
use object::elf::{self, FileHeader64, RelocationType};
use object::read::elf::{FileHeader, SectionHeader, Sym};
use object::{LittleEndian, SectionIndex};

const LE: LittleEndian = LittleEndian;

pub(super) struct FileSection<'d> {
    pub name: &'d str,
    pub kind: elf::SectionType,
    pub flags: elf::SectionFlags,
    pub align: u64,
    pub size: u64,
    pub data: &'d [u8],
}

impl FileSection<'_> {
    pub(super) fn is_loaded(&self) -> bool {
        self.flags.contains(elf::SHF_ALLOC)
    }

    pub(super) fn is_code(&self) -> bool {
        self.is_loaded() && self.flags.contains(elf::SHF_EXECINSTR) && self.size > 0
    }
}

/// Where a symbol is.
#[derive(Clone, Copy)]
pub(super) enum SymbolPlace {
    /// An offset in a section.
    In(usize, u64),
    /// In the kernel or in another module.
    Elsewhere,
    Absolute(u64),
}

pub(super) struct FileSymbol<'d> {
    pub name: &'d str,
    pub place: SymbolPlace,
    pub size: u64,
    pub kind: elf::SymbolType,
}

pub(super) struct FileRelocation {
    pub offset: u64,
    pub symbol: usize,
    pub kind: RelocationType,
    pub addend: i64,
}

/// A module as its file describes it.
pub(super) struct ModuleFile<'d> {
    pub sections: Vec<FileSection<'d>>,
    pub symbols: Vec<FileSymbol<'d>>,
    /// By section.
    pub relocations: Vec<Vec<FileRelocation>>,
}

impl<'d> ModuleFile<'d> {
    pub(super) fn parse(file: &'d [u8]) -> Result<ModuleFile<'d>> {
        let header =
            FileHeader64::<LittleEndian>::parse(file).context("this is not a 64-bit ELF file")?;
        ensure!(
            header.is_little_endian()
                && header.e_machine(LE) == elf::EM_X86_64
                && header.e_type(LE) == elf::ET_REL,
            "this is not a kernel module for x86-64"
        );
        let table = header.sections(LE, file).context("its section headers are damaged")?;
        let mut sections = Vec::new();
        for section in table.iter() {
            let name = table.section_name(LE, section).context("a section name is damaged")?;
            let name = std::str::from_utf8(name).context("a section name is not text")?;
            let data = section.data(LE, file);
            sections.push(FileSection {
                name,
                kind: section.sh_type(LE),
                flags: section.sh_flags(LE),
                align: section.sh_addralign(LE).max(1),
                size: section.sh_size(LE),
                data: data.with_context(|| format!("section {name} reaches beyond the file"))?,
            });
        }
        let symtab =
            table.symbols(LE, file, elf::SHT_SYMTAB).context("its symbol table is damaged")?;
        let mut symbols = Vec::with_capacity(symtab.len());
        for (index, symbol) in symtab.enumerate() {
            let name = symtab.symbol_name(LE, symbol).context("a symbol name is damaged")?;
            let section = symtab
                .symbol_section(LE, symbol, index)
                .context("a symbol's section index is damaged")?;
            let place = match section {
                Some(SectionIndex(section)) => {
                    ensure!(section < sections.len(), "symbol {} is in no section", index.0);
                    SymbolPlace::In(section, symbol.st_value(LE))
                }
                None if symbol.st_shndx(LE) == elf::SHN_ABS => {
                    SymbolPlace::Absolute(symbol.st_value(LE))
                }
                None => SymbolPlace::Elsewhere,
            };
            symbols.push(FileSymbol {
                name: std::str::from_utf8(name).context("a symbol name is not text")?,
                place,
                size: symbol.st_size(LE),
                kind: symbol.st_type(),
            });
        }
        let mut relocations: Vec<Vec<FileRelocation>> = Vec::new();
        relocations.resize_with(sections.len(), Vec::new);
        for section in table.iter() {
            let rela = section.rela(LE, file).context("a relocation section is damaged")?;
            let Some((entries, _)) = rela else { continue };
            let target = section.sh_info(LE) as usize;
            let list = relocations.get_mut(target).context("relocations of no section")?;
            for entry in entries {
                list.push(FileRelocation {
                    offset: entry.r_offset.get(LE),
                    symbol: entry.r_sym(LE, false) as usize,
                    kind: entry.r_type(LE, false),
                    addend: entry.r_addend.get(LE),
                });
            }
        }
        Ok(ModuleFile { sections, symbols, relocations })
    }

    pub(super) fn section(&self, name: &str) -> Option<&FileSection<'d>> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// The value of `name=` in `.modinfo`.
    pub(super) fn name(&self) -> Result<&'d str> {
        let info = self.section(".modinfo").context("no section .modinfo: not a kernel module")?;
        let mut entries = info.data.split(|&byte| byte == 0);
        let name = entries.find_map(|entry| entry.strip_prefix(b"name="));
        let name = name.context(".modinfo does not say the module's name")?;
        std::str::from_utf8(name).context("the module's name is not text")
    }

    /// The GNU build id in hex; empty if there is none.
    pub(super) fn build_id(&self) -> String {
        let note = self.section(".note.gnu.build-id").map_or(&[][..], |section| section.data);
        // The sizes of name and descriptor, the type, and the name take 16 bytes.
        let id = note.get(16..).unwrap_or_default();
        id.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The link address of `.text` in a map: code sections have 64 MB each, in the order of the
    /// file.
    pub(super) fn text_in_map(&self) -> Result<u64> {
        let rank = self.sections.iter().filter(|s| s.is_code()).position(|s| s.name == ".text");
        Ok(base_of(self.name()?).0 + ((rank.context("it has no code in .text")? as u64) << 26))
    }

    pub(super) fn names_elsewhere(&self) -> impl Iterator<Item = &'d str> {
        let elsewhere = |s: &&FileSymbol<'d>| matches!(s.place, SymbolPlace::Elsewhere);
        self.symbols.iter().filter(elsewhere).map(|symbol| symbol.name)
    }
}
