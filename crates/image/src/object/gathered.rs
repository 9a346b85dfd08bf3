//! The sections of ordinary functions of an object as one section.
//!
//! Input: the sections that lie beside each other in the linked kernel, with their addresses there.
//! Output: the bytes of one section that holds them all at the same distances, and the object with
//! that section in the place of its `.text`. Code, symbols, relocations and side tables then need
//! to know one section only. This module does not decide which sections these are.

use super::elf::{Elf, ElfRelocation, JoinedPart, SectionId};
use crate::address::LinkAddr;
use anyhow::{Context, Result, ensure};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The byte in front of the first part: `int3`, as in the kernel's own linker script.
const FILL: u8 = 0xcc;

/// Several code sections as one.
#[derive(Debug)]
pub struct GatheredText {
    into: SectionId,
    parts: Vec<JoinedPart>,
    bytes: Vec<u8>,
    /// The offsets of fields that this module has filled in; they have no relocation any more.
    filled: HashSet<u64>,
    align: u64,
    /// Bytes in front of the first part, which hold no code of the sections. With them, an offset
    /// in the section and its link address are equal modulo the section's alignment.
    pub head: u32,
    /// The link addresses of the parts and of what lies between them.
    pub linked: Range<u64>,
}

impl GatheredText {
    /// Puts `parts` together: sections with their link addresses, ascending and disjoint. `into`,
    /// one of them, is the section that they become. `between` gives the bytes of the linked kernel
    /// behind each part but the last, up to the next one.
    ///
    /// # Errors
    /// The parts overlap, or `into` has no section symbol.
    pub(super) fn new(
        elf: &Elf<'_>,
        into: SectionId,
        parts: &[(SectionId, LinkAddr)],
        between: &[&[u8]],
    ) -> Result<GatheredText> {
        let align = parts.iter().map(|&(id, _)| elf.section(id).align.max(1)).max().unwrap_or(1);
        let first = parts.first().map_or(0, |&(_, at)| at.0);
        let head = (first % align) as usize;
        let mut bytes = vec![FILL; head];
        let mut joined = Vec::with_capacity(parts.len());
        for (index, &(section, address)) in parts.iter().enumerate() {
            let at = bytes.len() as u64;
            ensure!(
                at == address.0.wrapping_sub(first) + head as u64,
                "{} does not lie where vmlinux.o says",
                elf.section(section).name
            );
            joined.push(JoinedPart { section, at, size: elf.section(section).size });
            bytes.extend_from_slice(elf.bytes(section));
            bytes.extend_from_slice(between.get(index).copied().unwrap_or_default());
        }
        elf.section_symbol(into)?;
        let mut filled = HashSet::new();
        for (field, distance) in key_jumps(elf, &joined, &bytes)? {
            let at = field as usize;
            bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
            filled.insert(field);
        }
        let linked = first..first.saturating_add((bytes.len() - head) as u64);
        Ok(GatheredText { into, parts: joined, bytes, filled, align, head: head as u32, linked })
    }

    /// Puts the one section in the place of the others, which become empty.
    ///
    /// # Errors
    /// The object is not the one that the sections are of.
    pub(super) fn join<'a>(&'a self, elf: &mut Elf<'a>) -> Result<()> {
        let same = |part: &JoinedPart| {
            elf.sections.get(part.section.0 as usize).is_some_and(|s| s.size == part.size)
        };
        ensure!(self.parts.iter().all(same), "the sections are those of another object");
        elf.join(self.into, &self.parts, &self.bytes, &self.filled, self.align)
            .with_context(|| format!("{} cannot be put together", elf.section(self.into).name))
    }

    /// Whether `section` is one of the parts.
    pub fn holds(&self, section: SectionId) -> bool {
        self.parts.iter().any(|part| part.section == section)
    }
}

/// The jumps from one part to another at sites of static keys: the offset of each field in the one
/// section, and the distance that the linker writes there.
///
/// With a section for each function, and one for what is rare in it, the compiler leaves such jumps
/// to the linker. Inside of one section it resolves them, and so are the sites understood that the
/// kernel patches.
fn key_jumps(elf: &Elf<'_>, parts: &[JoinedPart], bytes: &[u8]) -> Result<Vec<(u64, i32)>> {
    /// `struct jump_entry`: the distances of the site and of its target, then the key.
    const ENTRY: u64 = 16;
    const TARGET: u64 = 4;
    const JMP: u8 = 0xe9;
    let Some(table) = elf.by_name("__jump_table") else { return Ok(Vec::new()) };
    let at: HashMap<SectionId, u64> = parts.iter().map(|part| (part.section, part.at)).collect();
    let place = |r: &ElfRelocation, behind: i64| {
        let symbol = elf.symbols.get(r.symbol.0 as usize)?;
        let part = at.get(&symbol.section()?)?;
        Some(part.wrapping_add(symbol.value).wrapping_add_signed(r.addend.wrapping_add(behind)))
    };
    let entries: HashMap<u64, u64> =
        elf.relocations(table)?.iter().filter_map(|r| Some((r.offset, place(r, 0)?))).collect();
    let keys = entries.iter().filter(|(offset, _)| *offset % ENTRY == 0);
    let targets: HashMap<u64, u64> = keys
        .filter_map(|(offset, &site)| Some((site, *entries.get(&(offset + TARGET))?)))
        .collect();
    let mut found = Vec::new();
    for part in parts {
        for r in elf.relocations(part.section)?.iter().filter(|r| r.is_relative()) {
            let field = part.at + r.offset;
            let Some(site) = field.checked_sub(1) else { continue };
            let is_jump = bytes.get(site as usize) == Some(&JMP) && r.width() == 4;
            let target = place(r, 4).filter(|target| targets.get(&site) == Some(target));
            if let (true, Some(target)) = (is_jump, target) {
                found.push((field, target.wrapping_sub(field + 4) as i32));
            }
        }
    }
    Ok(found)
}
