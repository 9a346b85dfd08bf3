//! The unwinder's table (ORC) of an object, as a function from address to state.
//!
//! Takes `.orc_unwind_ip` and `.orc_unwind`; gives the entries of one section of code. Never
//! interprets a state.

use super::elf::{Elf, Relocation, SectionId};
use anyhow::{Context, Result, ensure};
use object::elf::R_X86_64_PC32;

/// Bytes of a `struct orc_entry` (arch/x86/include/asm/orc_types.h).
pub const ENTRY: usize = 6;
pub type State = [u8; ENTRY];
/// No unwinding from here.
pub const UNDEFINED: State = [0; ENTRY];

/// The two sections, checked to fit together.
pub struct OrcSections<'a> {
    pub ip: SectionId,
    pub unwind: SectionId,
    pub states: &'a [State],
}

impl<'a> OrcSections<'a> {
    /// `None` when the kernel was built without.
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

    /// The entries of `code`, ascending. Where two stand at one address (an object's terminator and
    /// the next object's first) the one that says something counts.
    pub fn table(
        &self,
        elf: &Elf<'_>,
        ip: &[Relocation],
        code: SectionId,
    ) -> Result<Vec<(u32, State)>> {
        let mut table: Vec<(u32, State)> = Vec::with_capacity(ip.len());
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

/// The state in force at `at`.
pub fn state_at(table: &[(u32, State)], at: u32) -> State {
    table.partition_point(|&(from, _)| from <= at).checked_sub(1).map_or(UNDEFINED, |i| table[i].1)
}
