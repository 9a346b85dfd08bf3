//! The unwinder's table (ORC) of an object: a state for each address.
//!
//! Input: `.orc_unwind_ip` and `.orc_unwind`. Output: the entries of one code section. This module
//! never interprets a state.

use super::elf::{Elf, ElfRelocation, SectionId};
use anyhow::{Context, Result, ensure};
use object::elf::R_X86_64_PC32;

/// The bytes of a `struct orc_entry` (arch/x86/include/asm/orc_types.h).
pub const ENTRY: usize = 6;
/// One `struct orc_entry`, uninterpreted.
pub type OrcState = [u8; ENTRY];
/// The state of code that cannot be unwound.
pub const UNDEFINED: OrcState = [0; ENTRY];

/// The two sections, whose sizes fit together.
pub struct OrcSections<'a> {
    /// `.orc_unwind_ip`.
    pub ip: SectionId,
    /// `.orc_unwind`.
    pub unwind: SectionId,
    /// The states in the order of the section.
    pub states: &'a [OrcState],
}

impl<'a> OrcSections<'a> {
    /// Finds the two sections. `None` if the kernel was built without ORC.
    ///
    /// # Errors
    /// The sizes of the sections do not fit together.
    pub fn find(
        elf: &Elf<'a>,
        ip_relocations: impl Fn(SectionId) -> usize,
    ) -> Result<Option<OrcSections<'a>>> {
        let (Some(ip), Some(unwind)) = (elf.by_name(".orc_unwind_ip"), elf.by_name(".orc_unwind"))
        else {
            return Ok(None);
        };
        let (states, rest) = elf.bytes(unwind).as_chunks::<ENTRY>();
        let count = states.len();
        let fits = rest.is_empty()
            && elf.section(ip).size as usize == count * 4
            && ip_relocations(ip) == count;
        ensure!(fits, ".orc_unwind and .orc_unwind_ip do not fit together");
        Ok(Some(OrcSections { ip, unwind, states }))
    }

    /// The entries of `code`, ascending. Two entries may stand at one address: one object's
    /// terminator and the next object's first entry. Then the entry with a defined state wins.
    ///
    /// # Errors
    /// A relocation of `.orc_unwind_ip` is not understood.
    pub fn table(
        &self,
        elf: &Elf<'_>,
        ip: &[ElfRelocation],
        code: SectionId,
    ) -> Result<Vec<(u32, OrcState)>> {
        let mut table: Vec<(u32, OrcState)> = Vec::with_capacity(ip.len());
        for (i, (r, &state)) in ip.iter().zip(self.states).enumerate() {
            ensure!(
                r.offset == i as u64 * 4 && r.kind == R_X86_64_PC32,
                ".orc_unwind_ip: entry {i} is not a 32-bit relative address"
            );
            let symbol = elf.symbol(r.symbol);
            if symbol.section() == Some(code) {
                let at = (symbol.value as i64).wrapping_add(r.addend);
                table.push((
                    u32::try_from(at).context(".orc_unwind_ip: an address outside its section")?,
                    state,
                ));
            }
        }
        table.sort_by_key(|&(at, state)| (at, state == UNDEFINED));
        table.dedup_by_key(|&mut (at, _)| at);
        Ok(table)
    }
}

/// The state that is in force at `at`.
pub fn state_at(table: &[(u32, OrcState)], at: u32) -> OrcState {
    table.partition_point(|&(from, _)| from <= at).checked_sub(1).map_or(UNDEFINED, |i| table[i].1)
}
