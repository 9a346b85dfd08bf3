//! Finds the words of a kernel's data that are addresses.
//!
//! Input: the relocations that the link kept. Output: the places of these words, and how each holds
//! its address. If a kind of relocation was not kept, this module only lists the forms that a word
//! may have.

use super::kernel::KernelFile;
use super::relocs::Relocs;

/// How a word holds an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AddressWord {
    Absolute64,
    Absolute32,
    Relative64,
    Relative32,
}

impl AddressWord {
    pub(super) fn width(self) -> u64 {
        if matches!(self, AddressWord::Absolute64 | AddressWord::Relative64) { 8 } else { 4 }
    }

    /// Reads the address in the word at `place`.
    pub(super) fn read(self, kernel: &KernelFile, place: u64) -> Option<u64> {
        let value = if self.width() == 8 {
            kernel.u64_at(place)?
        } else {
            i64::from(kernel.u32_at(place)? as i32) as u64
        };
        Some(if matches!(self, AddressWord::Relative64 | AddressWord::Relative32) {
            place.wrapping_add(value)
        } else {
            value
        })
    }
}

/// The words of the old kernel's data that are addresses.
pub(crate) struct AddressWords {
    words: Vec<(u64, AddressWord)>,
    absolute_known: bool,
    relative_known: bool,
}

impl AddressWords {
    pub(crate) fn new(relocs: Option<&Relocs>, pc_relative: Option<&[(u64, u8)]>) -> Self {
        let mut words = Vec::new();
        if let Some(relocs) = relocs {
            words.extend(relocs.abs64.iter().map(|&place| (place, AddressWord::Absolute64)));
            words.extend(relocs.abs32.iter().map(|&place| (place, AddressWord::Absolute32)));
        }
        let relative = |&(place, width): &(u64, u8)| {
            (place, if width == 8 { AddressWord::Relative64 } else { AddressWord::Relative32 })
        };
        words.extend(pc_relative.into_iter().flatten().map(relative));
        words.sort_unstable();
        AddressWords {
            words,
            absolute_known: relocs.is_some(),
            relative_known: pc_relative.is_some(),
        }
    }

    pub(super) fn inside(&self, start: u64, end: u64) -> &[(u64, AddressWord)] {
        let from = self.words.partition_point(|w| w.0 < start);
        let to = self.words.partition_point(|w| w.0 < end);
        &self.words[from..to.max(from)]
    }

    /// Which byte of an address lies at `addr`, if the byte is known to belong to one.
    pub(crate) fn byte_of_address(&self, addr: u64) -> Option<u64> {
        let near = self.inside(addr.saturating_sub(7), addr.saturating_add(1));
        let (place, _) = near.iter().rfind(|&&(place, word)| addr < place + word.width())?;
        Some(addr - place)
    }

    /// The forms of address that a differing word may have if the relocations do not say.
    pub(super) fn guesses(&self) -> impl Iterator<Item = AddressWord> {
        let absolute = [AddressWord::Absolute64, AddressWord::Absolute32]
            .into_iter()
            .filter(|_| !self.absolute_known);
        absolute.chain(
            [AddressWord::Relative32, AddressWord::Relative64]
                .into_iter()
                .filter(|_| !self.relative_known),
        )
    }
}
