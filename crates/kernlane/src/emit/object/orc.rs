//! The unwinder's table (ORC) for the new `.text`.
//!
//! Takes the old table as a function from address to state; gives the table for the new addresses. A jump that was added has the state of
//! the place it goes to, not of the instruction in front of it; padding has none. Entries for other sections pass unchanged.

use super::relocations::section_symbol;
use super::translate::Translation;
use crate::image::object::KernelObject;
use crate::image::object::elf::{Relocation, SectionId};
use crate::place::Places;
use anyhow::{Context, Result, ensure};
use object::elf::R_X86_64_PC32;

/// Bytes of a `struct orc_entry` (arch/x86/include/asm/orc_types.h).
const ENTRY: usize = 6;
type State = [u8; ENTRY];
/// No unwinding from here.
const UNDEFINED: State = [0; ENTRY];

/// The new `.orc_unwind_ip`, its relocations, and `.orc_unwind`.
pub struct Orc {
    pub ip_section: SectionId,
    pub unwind_section: SectionId,
    pub ip: Vec<u8>,
    pub relocations: Vec<Relocation>,
    pub unwind: Vec<u8>,
}

/// Makes the table anew; `None` when the kernel has none.
pub fn rewrite(object: &KernelObject<'_>, places: &Places, translation: &Translation<'_>, order: &[u32], head: u32) -> Result<Option<Orc>> {
    let elf = &object.elf;
    let (Some(ip_section), Some(unwind_section)) = (elf.by_name(".orc_unwind_ip"), elf.by_name(".orc_unwind")) else {
        return Ok(None);
    };
    let old_ip = &object.relocations[ip_section.0 as usize];
    let (states, _) = elf.bytes(unwind_section).as_chunks::<ENTRY>();
    let fits = elf.section(unwind_section).size as usize == states.len() * ENTRY && old_ip.len() == states.len();
    ensure!(
        fits && elf.section(ip_section).size as usize == states.len() * 4,
        ".orc_unwind and .orc_unwind_ip do not fit together"
    );
    let is_text = |r: &Relocation| elf.symbol(r.symbol).section() == Some(object.text);
    let old = old_table(object, old_ip, states)?;
    let fresh = new_table(object, places, translation, order, head, &old);

    let symbol = section_symbol(object, object.text)?;
    let first_of_text = old_ip.iter().position(is_text).unwrap_or(old_ip.len());
    let mut orc = Orc {
        ip_section,
        unwind_section,
        ip: Vec::new(),
        relocations: Vec::new(),
        unwind: Vec::new(),
    };
    for (i, r) in old_ip.iter().enumerate() {
        ensure!(
            r.offset == i as u64 * 4 && r.kind == R_X86_64_PC32,
            ".orc_unwind_ip: entry {i} is not a 32-bit relative address"
        );
        if i == first_of_text {
            for &(at, state) in &fresh {
                orc.push(
                    Relocation {
                        symbol,
                        addend: i64::from(at),
                        ..*r
                    },
                    state,
                );
            }
        }
        if !is_text(r) {
            orc.push(*r, states[i]);
        }
    }
    orc.ip = vec![0; orc.relocations.len() * 4];
    Ok(Some(orc))
}

impl Orc {
    fn push(&mut self, relocation: Relocation, state: State) {
        let offset = self.relocations.len() as u64 * 4;
        self.relocations.push(Relocation { offset, ..relocation });
        self.unwind.extend_from_slice(&state);
    }
}

/// The entries of `.text`, ascending. Where two stand at one address (an object's terminator and the next object's first) the one that says
/// something counts.
fn old_table(object: &KernelObject<'_>, ip: &[Relocation], states: &[State]) -> Result<Vec<(u32, State)>> {
    let mut table: Vec<(u32, State)> = Vec::with_capacity(states.len());
    for (r, &state) in ip.iter().zip(states) {
        let symbol = object.elf.symbol(r.symbol);
        if symbol.section() == Some(object.text) {
            let at = (symbol.value as i64).wrapping_add(r.addend);
            table.push((u32::try_from(at).context(".orc_unwind_ip: an address outside .text")?, state));
        }
    }
    table.sort_by_key(|&(at, state)| (at, state == UNDEFINED));
    table.dedup_by_key(|&mut (at, _)| at);
    Ok(table)
}

/// The entry in force at `at`.
fn state_at(table: &[(u32, State)], at: u32) -> State {
    table
        .partition_point(|&(from, _)| from <= at)
        .checked_sub(1)
        .map_or(UNDEFINED, |i| table[i].1)
}

fn new_table(
    object: &KernelObject<'_>,
    places: &Places,
    translation: &Translation<'_>,
    order: &[u32],
    head: u32,
    old: &[(u32, State)],
) -> Vec<(u32, State)> {
    let mut new: Vec<(u32, State)> = Vec::with_capacity(old.len() + old.len() / 2);
    let mut last = None;
    let mut push = |at: u32, state: State| {
        if last != Some(state) {
            new.push((at, state));
            last = Some(state);
        }
    };
    // A stretch of the old code, with the entries that begin inside it.
    let copy = |push: &mut dyn FnMut(u32, State), from: u32, to: u32, place: &dyn Fn(u32) -> u32| {
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
        // An instruction of the branch at the end keeps its state wherever it begins now; a dropped one leaves none.
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
    // The terminator stands even where the last state is the same.
    new.push((translation.size, UNDEFINED));
    new
}
