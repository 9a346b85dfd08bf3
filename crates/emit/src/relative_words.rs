//! Finds the words of a linked kernel that are distances to something.
//!
//! Input: the last but one link of a kernel, which keeps its relocations, and the vmlinux that came
//! of it. Output: the list of these words, for `check`. This module changes nothing.

use anyhow::{Context, Result};
use image::BuildId;
use image::relative_words::RelativeWords;
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, elf};
use std::ops::Range;

/// A section in memory: its addresses, and whether it is code.
type Section = (Range<u64>, bool);

/// The words that are PC-relative by the relocations of `linked`. `None`: the file keeps no
/// relocations, or it is not the link that became `vmlinux`.
///
/// # Errors
/// A file is damaged.
pub(crate) fn relative_words(
    linked: &[u8],
    vmlinux: &[u8],
    build_id: &BuildId,
) -> Result<Option<RelativeWords>> {
    let (sections, text) = in_memory(vmlinux).context("the new vmlinux")?;
    if in_memory(linked).context("the last but one link")? != (sections.clone(), text) {
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
