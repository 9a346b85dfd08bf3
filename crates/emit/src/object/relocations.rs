//! Makes the new relocations.
//!
//! Input: the old relocations of `.text`, whose fields moved, and those of every section that
//! refers to `.text`; the translation of offsets. Output: the relocations of the new object. This
//! module never changes what a relocation refers to.

use super::counters::CountStorage;
use super::symbols::RewrittenSymbols;
use super::translate::TextTranslation;
use super::{DebugInformation, RewritePlan};
use anyhow::{Context, Result};
use image::object::KernelObject;
use image::object::elf::{ElfRelocation, SectionId};
use image::object::tables::{CodeReference, ReferenceMeaning};
use rayon::prelude::*;

/// The relocations of every section, by the section's number, with new symbol numbers.
pub(super) fn rewrite(
    object: &KernelObject<'_>,
    translation: &TextTranslation<'_>,
    plan: &RewritePlan<'_>,
    counters: Option<&CountStorage>,
    symbols: &RewrittenSymbols,
    debug: DebugInformation,
) -> Result<Vec<Vec<ElfRelocation>>> {
    let mut lists = object.relocations.clone();
    aim(object, translation, symbols, &mut lists)?;
    let text = &mut lists[object.text.0 as usize];
    move_fields(object, translation, plan.order, text)?;
    if let Some(room) = counters {
        text.extend(room.relocations(object, translation, plan.counters)?);
        text.sort_by_key(|r| r.offset);
    }
    if debug == DebugInformation::Kept {
        for id in object.elf.ids().filter(|&id| object.elf.section(id).is_debug()) {
            lists[id.0 as usize] = of_debug(object, translation, id)?;
        }
    }
    lists.par_iter_mut().flatten().for_each(|r| r.symbol = symbols.number(r.symbol));
    Ok(lists)
}

/// The relocations of a section of debugging information, with the new places of code. An offset
/// without a new place (padding) stays as it is. In that case the debugging information is removed,
/// or nothing moved.
fn of_debug(
    object: &KernelObject<'_>,
    translation: &TextTranslation<'_>,
    id: SectionId,
) -> Result<Vec<ElfRelocation>> {
    let mut list = object.elf.debug_relocations(id)?;
    for r in &mut list {
        let symbol = object.elf.symbol(r.symbol);
        if symbol.section() != Some(object.text) || symbol.kind() != object::elf::STT_SECTION {
            continue;
        }
        if let Ok(new) = u32::try_from(r.addend)
            .map_err(anyhow::Error::from)
            .and_then(|at| translation.start(at))
        {
            r.addend = i64::from(new);
        }
    }
    Ok(list)
}

/// Changes every reference to the new place of its target.
fn aim(
    object: &KernelObject<'_>,
    translation: &TextTranslation<'_>,
    symbols: &RewrittenSymbols,
    lists: &mut [Vec<ElfRelocation>],
) -> Result<()> {
    let shifts: Vec<(&CodeReference, i64)> = object
        .references
        .par_iter()
        .filter(|r| r.meaning != ReferenceMeaning::Regenerated)
        .map(|r| {
            let new = translation
                .translate(r.target, r.meaning)
                .with_context(|| object.elf.section(r.section).name.clone())?;
            Ok((r, i64::from(new) - i64::from(r.target)))
        })
        .collect::<Result<_>>()?;
    for (reference, shift) in shifts {
        let relocation = &mut lists[reference.section.0 as usize][reference.relocation as usize];
        let old = object.elf.symbol(relocation.symbol).value;
        let new = symbols.table[symbols.number(relocation.symbol).0 as usize].value;
        relocation.addend += shift - (new as i64 - old as i64);
    }
    Ok(())
}

/// Moves the relocations of `.text` to the new places of their fields, in ascending order.
fn move_fields(
    object: &KernelObject<'_>,
    translation: &TextTranslation<'_>,
    order: &[u32],
    list: &mut Vec<ElfRelocation>,
) -> Result<()> {
    let mut moved = Vec::with_capacity(list.len());
    for &i in order {
        let piece = &object.pieces[i as usize];
        let from = list.partition_point(|r| r.offset < u64::from(piece.at - piece.lead));
        let to = list.partition_point(|r| r.offset < u64::from(piece.end()));
        for r in &list[from..to] {
            moved.push(ElfRelocation {
                offset: u64::from(translation.inside(i as usize, r.offset as u32)),
                ..*r
            });
        }
    }
    anyhow::ensure!(
        moved.len() == list.len(),
        ".text: {} relocations lie in padding",
        list.len() - moved.len()
    );
    *list = moved;
    Ok(())
}
