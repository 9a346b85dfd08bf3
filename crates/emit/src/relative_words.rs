//! Finds the words of a linked kernel that are distances to something.
//!
//! Input: a link of a kernel that keeps its relocations, and the vmlinux that came of it. Output:
//! the list of these words, for `check`. This module changes nothing.

use anyhow::{Context, Result};
use image::BuildId;
use image::relative_words::RelativeWords;
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, elf};
use std::ops::Range;

/// A section in memory: its addresses, and whether it is code.
type Section = (Range<u64>, bool);

/// The words that are PC-relative by the relocations of `linked`. `None`: the file keeps no
/// relocations, or it is not the link that became `vmlinux`. Stripping may have removed sections.
///
/// # Errors
/// A file is damaged.
pub(crate) fn relative_words(
    linked: &[u8],
    vmlinux: &[u8],
    build_id: &BuildId,
) -> Result<Option<RelativeWords>> {
    let (sections, text) = in_memory(vmlinux).context("the new vmlinux")?;
    let (unstripped, linked_text) = in_memory(linked).context("the link with relocations")?;
    if linked_text != text || !sections.iter().all(|section| unstripped.contains(section)) {
        return Ok(None);
    }
    let header = elf::FileHeader64::<Endianness>::parse(linked)?;
    let endian = header.endian()?;
    let table = header.sections(endian, linked)?;
    let (mut words, mut keeps_relocations) = (Vec::new(), false);
    for section in table.iter() {
        if section.sh_type(endian) != elf::SHT_RELA || section.sh_addr(endian) != 0 {
            continue;
        }
        let Some((entries, _)) = section.rela(endian, linked)? else { continue };
        keeps_relocations = true;
        for entry in entries {
            let bytes = match entry.r_type(endian, false) {
                elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 => 4,
                elf::R_X86_64_PC64 => 8,
                _ => continue,
            };
            let place = entry.r_offset.get(endian);
            if sections.iter().any(|(range, is_code)| range.contains(&place) && !is_code) {
                words.push((place, bytes));
            }
        }
    }
    words.sort_unstable();
    words.dedup();
    let found = RelativeWords { build_id: build_id.clone(), words };
    Ok(keeps_relocations.then_some(found))
}

/// The sections of a kernel that lie in memory, and the bytes of `.text`.
fn in_memory(file: &[u8]) -> Result<(Vec<Section>, &[u8])> {
    let header = elf::FileHeader64::<Endianness>::parse(file)?;
    let endian = header.endian()?;
    let table = header.sections(endian, file)?;
    let (mut sections, mut text): (Vec<Section>, &[u8]) = (Vec::new(), &[]);
    for section in table.iter() {
        let flags = section.sh_flags(endian);
        if !flags.contains(elf::SHF_ALLOC) || section.sh_size(endian) == 0 {
            continue;
        }
        let start = section.sh_addr(endian);
        let range = start..start.saturating_add(section.sh_size(endian));
        sections.push((range, flags.contains(elf::SHF_EXECINSTR)));
        if table.section_name(endian, section)? == b".text" {
            text = section.data(endian, file)?;
        }
    }
    Ok((sections, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::write::{Object, Relocation, StandardSection};
    use object::{Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind};

    /// A link with code and data. It may have a word of data that is a distance, and a section that
    /// stripping removes.
    fn link(code: &[u8], relocated: bool, modinfo: bool) -> Vec<u8> {
        let mut file = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let text = file.section_id(StandardSection::Text);
        file.append_section_data(text, code, 16);
        let data = file.section_id(StandardSection::ReadOnlyData);
        file.append_section_data(data, &[0; 16], 16);
        if relocated {
            let symbol = file.section_symbol(text);
            let flags = RelocationFlags::Elf { r_type: elf::R_X86_64_PC32 };
            let word = Relocation { offset: 4, symbol, addend: 0, flags };
            file.add_relocation(data, word).unwrap();
        }
        if modinfo {
            let name = b".modinfo".to_vec();
            let modinfo = file.add_section(Vec::new(), name, SectionKind::ReadOnlyData);
            file.append_section_data(modinfo, b"license=GPL", 1);
        }
        file.write().unwrap()
    }

    #[test]
    fn the_words_come_from_the_kernel_before_it_was_stripped() {
        let id = BuildId("aa".into());
        let vmlinux = link(&[0xc3], false, false);
        let words =
            |linked: &[u8]| relative_words(linked, &vmlinux, &id).unwrap().map(|found| found.words);
        assert_eq!(words(&link(&[0xc3], true, false)), Some(vec![(4, 4)]));
        assert_eq!(words(&link(&[0xc3], true, true)), Some(vec![(4, 4)]));
        assert_eq!(words(&vmlinux), None, "no relocations");
        assert_eq!(words(&link(&[0x90], true, true)), None, "other code");
        let with_modinfo = link(&[0xc3], false, true);
        assert_eq!(relative_words(&link(&[0xc3], true, false), &with_modinfo, &id).unwrap(), None);
    }
}
