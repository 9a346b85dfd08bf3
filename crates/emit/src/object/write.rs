//! Writes the new object file.
//!
//! Input: the old object, and the sections that changed. Output: the bytes of a file with the same
//! sections in the same order. What informs the linker only is taken out: it names symbols by
//! number, and weighs code that lies elsewhere now. This module makes no contents of its own.

use super::DebugInformation;
use super::counters::CountStorage;
use super::orc::OrcTables;
use super::symbols::RewrittenSymbols;
use anyhow::{Context, Result, ensure};
use image::object::KernelObject;
use image::object::elf::{ElfRelocation, ElfSection, ElfSymbol, SectionId, SymbolId, SymbolPlace};
use object::LittleEndian as Le;
use object::elf::{self, FileHeader64, Rela64, SectionHeader64, Sym64};
use object::endian::{U16, U32, U64};
use object::pod;
use std::borrow::Cow;
use std::collections::HashMap;

/// What has other bytes than before, beside the tables that follow from code.
pub(super) struct ChangedSections {
    pub text: Vec<u8>,
    /// Tables with other entries.
    pub tables: Vec<(SectionId, Vec<u8>)>,
}

/// Assembles the file. Removed debugging information leaves empty sections.
pub(super) fn write(
    object: &KernelObject<'_>,
    changed: ChangedSections,
    symbols: &RewrittenSymbols,
    orc: Option<OrcTables>,
    mut relocations: Vec<Vec<ElfRelocation>>,
    counters: Option<&CountStorage>,
    debug: DebugInformation,
) -> Result<Vec<u8>> {
    let file = &object.elf;
    let mut contents: HashMap<SectionId, Cow<'_, [u8]>> = HashMap::new();
    contents.insert(object.text, Cow::Owned(changed.text));
    contents.extend(changed.tables.into_iter().map(|(id, bytes)| (id, Cow::Owned(bytes))));
    contents.insert(file.strtab, Cow::Borrowed(&symbols.strings));
    contents.insert(file.symtab, Cow::Owned(symbol_bytes(&symbols.table, file.symtab_shndx)?));
    if let Some(id) = file.symtab_shndx {
        contents.insert(id, Cow::Owned(section_numbers(&symbols.table)));
    }
    if let Some(orc) = orc {
        contents.insert(orc.ip_section, Cow::Owned(orc.ip));
        contents.insert(orc.unwind_section, Cow::Owned(orc.unwind));
        let number = |r: ElfRelocation| ElfRelocation { symbol: symbols.number(r.symbol), ..r };
        relocations[orc.ip_section.0 as usize] = orc.relocations.into_iter().map(number).collect();
    }
    for id in file.ids() {
        if file.is_for_linker(id)
            || file.section(id).is_debug() && debug == DebugInformation::Dropped
        {
            contents.insert(id, Cow::Borrowed(&[]));
        } else if let Some(table) = file.relocation_section(id) {
            contents.insert(table, Cow::Owned(relocation_bytes(&relocations[id.0 as usize])));
        }
    }

    let mut out = vec![0u8; size_of::<FileHeader64<Le>>()];
    let mut headers: Vec<SectionHeader64<Le>> = Vec::with_capacity(file.sections.len());
    for id in file.ids() {
        let section = file.section(id);
        let bytes = contents.get(&id).map_or(file.bytes(id), |c| c.as_ref());
        let align = section.align.max(1) as usize;
        let offset = if id.0 == 0 { 0 } else { out.len().next_multiple_of(align) };
        let changed = contents.contains_key(&id);
        let room = counters.filter(|room| room.section == id);
        let size = match room {
            Some(room) => room.at + room.size,
            None if changed => bytes.len() as u64,
            None => section.size,
        };
        if !bytes.is_empty() {
            out.resize(offset, 0);
            out.extend_from_slice(bytes);
        }
        let mut header = section_header(object, id, section, offset as u64, size, symbols)?;
        if room.is_some() {
            header.sh_addralign = U64::new(Le, section.align.max(CountStorage::ALIGN));
        }
        headers.push(header);
    }
    out.resize(out.len().next_multiple_of(8), 0);
    let table = out.len() as u64;
    out.extend_from_slice(pod::bytes_of_slice(&headers));
    let (mut header, _) = pod::from_bytes::<FileHeader64<Le>>(file.data)
        .map(|(h, rest)| (*h, rest))
        .ok()
        .context("no ELF header")?;
    header.e_shoff = U64::new(Le, table);
    out[..size_of::<FileHeader64<Le>>()].copy_from_slice(pod::bytes_of(&header));
    Ok(out)
}

fn section_header(
    object: &KernelObject<'_>,
    id: SectionId,
    section: &ElfSection,
    offset: u64,
    size: u64,
    symbols: &RewrittenSymbols,
) -> Result<SectionHeader64<Le>> {
    let file = &object.elf;
    if file.is_for_linker(id) {
        return Ok(unused_header(name_offset(file, id)?));
    }
    let info = match section.kind {
        elf::SHT_SYMTAB => symbols.first_global,
        elf::SHT_GROUP => symbols.number(SymbolId(section.info)).0,
        _ => section.info,
    };
    Ok(SectionHeader64 {
        sh_name: U32::new(Le, name_offset(file, id)?),
        sh_type: U32::new(Le, section.kind),
        sh_flags: U64::new(Le, section.flags),
        sh_addr: U64::new(Le, 0),
        sh_offset: U64::new(Le, offset),
        sh_size: U64::new(Le, size),
        sh_link: U32::new(Le, section.link),
        sh_info: U32::new(Le, info),
        sh_addralign: U64::new(Le, section.align),
        sh_entsize: U64::new(Le, section.entry_size),
    })
}

/// The header of a section that linkers ignore. It keeps the numbers of those behind it.
fn unused_header(name: u32) -> SectionHeader64<Le> {
    SectionHeader64 {
        sh_name: U32::new(Le, name),
        sh_type: U32::new(Le, elf::SHT_NULL),
        sh_flags: U64::new(Le, elf::SectionFlags(0)),
        sh_addr: U64::new(Le, 0),
        sh_offset: U64::new(Le, 0),
        sh_size: U64::new(Le, 0),
        sh_link: U32::new(Le, 0),
        sh_info: U32::new(Le, 0),
        sh_addralign: U64::new(Le, 0),
        sh_entsize: U64::new(Le, 0),
    }
}

/// The offset of a section's name in the old file.
fn name_offset(file: &image::object::elf::Elf<'_>, id: SectionId) -> Result<u32> {
    let (header, _) =
        pod::from_bytes::<FileHeader64<Le>>(file.data).ok().context("no ELF header")?;
    let at = header.e_shoff.get(Le) as usize + id.0 as usize * size_of::<SectionHeader64<Le>>();
    let raw = file.data.get(at..).context("the section table is cut short")?;
    let (old, _) = pod::from_bytes::<SectionHeader64<Le>>(raw)
        .ok()
        .context("the section table is cut short")?;
    Ok(old.sh_name.get(Le))
}

/// `extended`: the table of section numbers that do not fit into 16 bits.
fn symbol_bytes(table: &[ElfSymbol], extended: Option<SectionId>) -> Result<Vec<u8>> {
    let index = |s: &ElfSymbol| match s.place {
        SymbolPlace::Section(id) => elf::SymbolSection::new(id.0),
        SymbolPlace::Elsewhere(stored) => stored,
    };
    let fits = extended.is_some() || !table.iter().any(|s| index(s) == elf::SHN_XINDEX);
    ensure!(fits, "a symbol in a section beyond 65 279, and no table of extended section numbers");
    let raw: Vec<Sym64<Le>> = table
        .iter()
        .map(|s| Sym64 {
            st_name: U32::new(Le, s.name),
            st_info: s.info,
            st_other: s.other,
            st_shndx: U16::new(Le, index(s)),
            st_value: U64::new(Le, s.value),
            st_size: U64::new(Le, s.size),
        })
        .collect();
    Ok(pod::bytes_of_slice(&raw).to_vec())
}

/// The table of extended section numbers: 0 for a symbol whose number fits into the symbol.
fn section_numbers(table: &[ElfSymbol]) -> Vec<u8> {
    let number = |s: &ElfSymbol| match s.section() {
        Some(id) if elf::SymbolSection::new(id.0) == elf::SHN_XINDEX => id.0,
        _ => 0,
    };
    table.iter().flat_map(|s| number(s).to_le_bytes()).collect()
}

fn relocation_bytes(list: &[ElfRelocation]) -> Vec<u8> {
    let raw: Vec<Rela64<Le>> = list
        .iter()
        .map(|r| Rela64 {
            r_offset: U64::new(Le, r.offset),
            r_info: Rela64::r_info(Le, false, r.symbol.0, r.kind),
            r_addend: object::endian::I64::new(Le, r.addend),
        })
        .collect();
    pod::bytes_of_slice(&raw).to_vec()
}
