//! The new relocations: of `.text`, whose fields moved, and of every section that refers to it.

use super::counters::Room;
use super::symbols::Symbols;
use super::translate::Translation;
use super::{Debug, Plan};
use anyhow::{Context, Result};
use image::object::KernelObject;
use image::object::elf::{Relocation, SectionId};
use image::object::tables::{Meaning, Reference};
use rayon::prelude::*;

/// The relocations of every section, by number, with new symbol numbers.
pub fn rewrite(
    object: &KernelObject<'_>,
    translation: &Translation<'_>,
    plan: &Plan<'_>,
    counters: Option<&Room>,
    symbols: &Symbols,
    debug: Debug,
) -> Result<Vec<Vec<Relocation>>> {
    let mut lists = object.relocations.clone();
    aim(object, translation, symbols, &mut lists)?;
    let text = &mut lists[object.text.0 as usize];
    move_fields(object, translation, plan.order, text)?;
    if let Some(room) = counters {
        text.extend(room.relocations(object, translation, plan.counters)?);
        text.sort_by_key(|r| r.offset);
    }
    if debug == Debug::Kept {
        for id in object.elf.ids().filter(|&id| object.elf.section(id).is_debug()) {
            lists[id.0 as usize] = of_debug(object, translation, id)?;
        }
    }
    lists.par_iter_mut().flatten().for_each(|r| r.symbol = symbols.number(r.symbol));
    Ok(lists)
}

/// The relocations of a section of debugging information, aimed where the code went. A place that
/// is nowhere (padding) keeps its number: what speaks of it is stripped, or did not move.
fn of_debug(
    object: &KernelObject<'_>,
    translation: &Translation<'_>,
    id: SectionId,
) -> Result<Vec<Relocation>> {
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

/// Aims every reference at its target's new place.
fn aim(
    object: &KernelObject<'_>,
    translation: &Translation<'_>,
    symbols: &Symbols,
    lists: &mut [Vec<Relocation>],
) -> Result<()> {
    let shifts: Vec<(&Reference, i64)> = object
        .references
        .par_iter()
        .filter(|r| r.meaning != Meaning::Regenerated)
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

/// Puts the relocations of `.text` where their fields went, ascending again.
fn move_fields(
    object: &KernelObject<'_>,
    translation: &Translation<'_>,
    order: &[u32],
    list: &mut Vec<Relocation>,
) -> Result<()> {
    let mut moved = Vec::with_capacity(list.len());
    for &i in order {
        let piece = &object.pieces[i as usize];
        let from = list.partition_point(|r| r.offset < u64::from(piece.at - piece.lead));
        let to = list.partition_point(|r| r.offset < u64::from(piece.end()));
        for r in &list[from..to] {
            moved.push(Relocation {
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
