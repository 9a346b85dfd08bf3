//! Writes a relocatable ELF file for the kernel's module loader.
//!
//! Input: sections with their relocations, and symbols. Output: the file's bytes. This module does
//! not know what the sections contain.

use anyhow::{Context, Result};
use object::elf::{RelocationType, SHT_PROGBITS, SectionFlags};
use object::write::{Object, Relocation, SectionId, Symbol, SymbolId, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind,
    SymbolScope,
};

/// A section to write.
pub(super) struct ModuleSection {
    pub name: &'static str,
    pub flags: SectionFlags,
    pub align: u64,
    pub data: Vec<u8>,
    pub relocations: Vec<ModuleRelocation>,
}

/// The symbol of a relocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RelocationBase {
    /// A section's symbol, by the section's number in the list.
    Section(usize),
    /// The one undefined symbol.
    Import,
}

/// A relocation of a section.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModuleRelocation {
    /// The offset of the field in its section.
    pub offset: u64,
    pub kind: RelocationType,
    pub base: RelocationBase,
    pub addend: i64,
}

/// A function's symbol.
pub(super) struct ModuleSymbol {
    pub name: String,
    /// The section's number in the list.
    pub section: usize,
    pub offset: u64,
    pub size: u64,
}

/// The file. `import` is the name of the undefined symbol. The first section's bytes stand directly
/// behind the file's header, if its alignment allows that.
///
/// # Errors
/// A name contains a zero, or the file would be larger than the format allows.
pub(super) fn write(
    sections: &[ModuleSection],
    symbols: &[ModuleSymbol],
    import: &str,
) -> Result<Vec<u8>> {
    let mut file = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let ids: Vec<SectionId> = sections.iter().map(|section| add(&mut file, section)).collect();
    let section_symbols: Vec<SymbolId> = ids.iter().map(|&id| file.section_symbol(id)).collect();
    for symbol in symbols {
        let section = SymbolSection::Section(ids[symbol.section]);
        file.add_symbol(function(&symbol.name, section, symbol.offset, symbol.size));
    }
    let import =
        Symbol { scope: SymbolScope::Unknown, ..function(import, SymbolSection::Undefined, 0, 0) };
    let import = file.add_symbol(import);
    for (section, &id) in sections.iter().zip(&ids) {
        for relocation in &section.relocations {
            let symbol = match relocation.base {
                RelocationBase::Section(index) => section_symbols[index],
                RelocationBase::Import => import,
            };
            let &ModuleRelocation { offset, kind, addend, .. } = relocation;
            let flags = RelocationFlags::Elf { r_type: kind };
            file.add_relocation(id, Relocation { offset, symbol, addend, flags })
                .with_context(|| section.name)?;
        }
    }
    file.write().context("writing the module")
}

fn add<'a>(file: &mut Object<'a>, section: &'a ModuleSection) -> SectionId {
    let id = file.add_section(Vec::new(), section.name.into(), SectionKind::Data);
    file.set_section_data(id, section.data.as_slice(), section.align);
    file.section_mut(id).flags =
        object::SectionFlags::Elf { sh_type: SHT_PROGBITS, sh_flags: section.flags };
    id
}

/// The symbol of a local function.
fn function(name: &str, section: SymbolSection, value: u64, size: u64) -> Symbol {
    Symbol {
        name: name.into(),
        value,
        size,
        kind: SymbolKind::Text,
        scope: SymbolScope::Compilation,
        weak: false,
        section,
        flags: SymbolFlags::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::elf::{R_X86_64_PC32, SHF_ALLOC, SHF_EXECINSTR};
    use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

    fn section(name: &'static str, align: u64, data: &[u8]) -> ModuleSection {
        let flags = SHF_ALLOC | SHF_EXECINSTR;
        ModuleSection { name, flags, align, data: data.to_vec(), relocations: Vec::new() }
    }

    #[test]
    fn the_file_is_read_as_it_was_meant() {
        let mut sections = [section(".text", 64, &[0x90; 20]), section(".rest", 2, &[0; 6])];
        let relocation =
            |offset, base, addend| ModuleRelocation { offset, kind: R_X86_64_PC32, base, addend };
        sections[0].relocations.push(relocation(4, RelocationBase::Import, -4));
        sections[1].relocations.push(relocation(0, RelocationBase::Section(0), 7));
        let symbols = [ModuleSymbol { name: "f.kernlane".into(), section: 0, offset: 8, size: 12 }];
        let bytes = write(&sections, &symbols, "_printk").unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        assert_eq!(file.kind(), object::ObjectKind::Relocatable);
        for (at, section) in [(64, &sections[0]), (84, &sections[1])] {
            let read = file.section_by_name(section.name).unwrap();
            assert_eq!(read.file_range(), Some((at, section.data.len() as u64)));
            assert_eq!((read.align(), read.data()), (section.align, Ok(&section.data[..])));
            let flags =
                object::SectionFlags::Elf { sh_type: SHT_PROGBITS, sh_flags: section.flags };
            assert_eq!(read.flags(), flags);
            let (offset, found) = read.relocations().next().unwrap();
            let wanted = section.relocations[0];
            assert_eq!((offset, found.addend()), (wanted.offset, wanted.addend));
            assert_eq!(found.flags(), RelocationFlags::Elf { r_type: wanted.kind });
            let object::RelocationTarget::Symbol(symbol) = found.target() else { panic!() };
            let symbol = file.symbol_by_index(symbol).unwrap();
            match wanted.base {
                RelocationBase::Import => {
                    assert!(symbol.is_undefined() && symbol.is_global());
                    assert_eq!(symbol.name(), Ok("_printk"));
                }
                RelocationBase::Section(_) => assert_eq!(symbol.kind(), SymbolKind::Section),
            }
        }
        let named = file.symbols().find(|symbol| symbol.name() == Ok("f.kernlane")).unwrap();
        assert_eq!((named.address(), named.size(), named.kind()), (8, 12, SymbolKind::Text));
        assert!(named.is_local());
    }
}
