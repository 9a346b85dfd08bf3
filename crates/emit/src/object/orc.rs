//! Makes the unwinder's table (ORC) for the new `.text`.
//!
//! Input: the old table, as a function from address to state. Output: the table for the new
//! addresses. An appended jump has the state of its target, not of the instruction in front of it.
//! Padding has no state. Entries of other sections do not change.

use super::translate::TextTranslation;
use anyhow::Result;
use image::object::KernelObject;
use image::object::elf::{ElfRelocation, SectionId};
use image::object::orc::{OrcSections, OrcState, UNDEFINED, state_at};
use image::place::BlockPlaces;

/// The new `.orc_unwind_ip`, its relocations, and the new `.orc_unwind`.
pub(super) struct OrcTables {
    pub ip_section: SectionId,
    pub unwind_section: SectionId,
    pub ip: Vec<u8>,
    pub relocations: Vec<ElfRelocation>,
    pub unwind: Vec<u8>,
}

/// Makes the new table; `None` if the kernel has none.
pub(super) fn rewrite(
    object: &KernelObject<'_>,
    places: &BlockPlaces,
    translation: &TextTranslation<'_>,
    order: &[u32],
    head: u32,
) -> Result<Option<OrcTables>> {
    let elf = &object.elf;
    let Some(sections) = OrcSections::find(elf, |id| object.relocations[id.0 as usize].len())?
    else {
        return Ok(None);
    };
    let old_ip = &object.relocations[sections.ip.0 as usize];
    let old = sections.table(elf, old_ip, object.text)?;
    let fresh = new_table(object, places, translation, order, head, &old);
    Ok(Some(with_states_of_text(object, &sections, &fresh)?))
}

/// The tables with these states of `.text`, ascending, in the place of the old ones.
pub(super) fn with_states_of_text(
    object: &KernelObject<'_>,
    sections: &OrcSections<'_>,
    fresh: &[(u32, OrcState)],
) -> Result<OrcTables> {
    let elf = &object.elf;
    let (ip_section, unwind_section, states) = (sections.ip, sections.unwind, sections.states);
    let old_ip = &object.relocations[ip_section.0 as usize];
    let is_text = |r: &ElfRelocation| elf.symbol(r.symbol).section() == Some(object.text);
    let symbol = object.elf.section_symbol(object.text)?;
    let first_of_text = old_ip.iter().position(is_text).unwrap_or(old_ip.len());
    let mut orc = OrcTables {
        ip_section,
        unwind_section,
        ip: Vec::new(),
        relocations: Vec::new(),
        unwind: Vec::new(),
    };
    for (i, r) in old_ip.iter().enumerate() {
        if i == first_of_text {
            for &(at, state) in fresh {
                orc.push(ElfRelocation { symbol, addend: i64::from(at), ..*r }, state);
            }
        }
        if !is_text(r) {
            orc.push(*r, states[i]);
        }
    }
    orc.ip = vec![0; orc.relocations.len() * 4];
    Ok(orc)
}

impl OrcTables {
    fn push(&mut self, relocation: ElfRelocation, state: OrcState) {
        let offset = self.relocations.len() as u64 * 4;
        self.relocations.push(ElfRelocation { offset, ..relocation });
        self.unwind.extend_from_slice(&state);
    }
}

fn new_table(
    object: &KernelObject<'_>,
    places: &BlockPlaces,
    translation: &TextTranslation<'_>,
    order: &[u32],
    head: u32,
    old: &[(u32, OrcState)],
) -> Vec<(u32, OrcState)> {
    let mut new: Vec<(u32, OrcState)> = Vec::with_capacity(old.len() + old.len() / 2);
    let mut last = None;
    let mut push = |at: u32, state: OrcState| {
        if last != Some(state) {
            new.push((at, state));
            last = Some(state);
        }
    };
    // Adds a stretch of the old code, with the entries that begin inside it.
    let copy =
        |push: &mut dyn FnMut(u32, OrcState), from: u32, to: u32, place: &dyn Fn(u32) -> u32| {
            if from == to {
                return;
            }
            push(place(from), state_at(old, from));
            let first = old.partition_point(|&(at, _)| at <= from);
            for &(at, state) in old[first..].iter().take_while(|&&(at, _)| at < to) {
                push(place(at), state);
            }
        };
    copy(&mut push, 0, head, &|at| at);
    let mut end = head;
    for &i in order {
        let i = i as usize;
        let piece = &object.pieces[i];
        if translation.new[i] - piece.lead > end {
            push(end, UNDEFINED);
        }
        // An instruction of the branch at the end keeps its state wherever it begins in the new
        // code. A dropped branch has no state.
        let dropped = places.tail[i] == 0;
        let to = piece.end() - if dropped { u32::from(piece.tail) } else { 0 };
        copy(&mut push, piece.at - piece.lead, to, &|at| translation.inside(i, at));
        end = translation.code_end[i];
        if places.appended[i] > 0 {
            push(end, state_at(old, object.pieces[i + 1].at));
            end += u32::from(places.appended[i]);
        }
        if places.keeps_gap[i] {
            let from = piece.end();
            copy(&mut push, from, from + piece.gap, &|at| end + (at - from));
            end += piece.gap;
        }
    }
    if end < translation.size {
        push(end, UNDEFINED);
    }
    // The terminator is needed even if the last state is the same.
    new.push((translation.size, UNDEFINED));
    new
}
