//! What the guest's page frames are used for: what `struct page` of each says, when recording
//! begins and whenever the guest changes it.
//!
//! Takes the stores of the guest: one into the array of `struct page` is followed by a look at what
//! stands there then. Gives changes of use. Does nothing to the guest. Linux 6.12:
//! include/linux/mm_types.h, include/linux/page-flags.h, mm/slab.h.

use crate::arguments::FrameFacts;
use crate::qemu::read_memory;
use crate::say;
use std::collections::HashMap;
use trace::{FrameUse, UseChange};

/// Bytes of a `struct page`.
const PAGE: usize = 64;
/// No guest has more frames than these: 1 TB.
const MOST_FRAMES: u64 = 1 << 28;

type Words = [u8; PAGE];

pub struct Frames {
    facts: FrameFacts,
    /// The address of the array, and its bytes.
    base: u64,
    bytes: u64,
    /// By frame, what was told last.
    told: Vec<FrameUse>,
    caches: Caches,
}

/// The slab caches that were seen, by the addresses of their `struct kmem_cache`.
#[derive(Default)]
struct Caches {
    numbers: HashMap<u64, u32>,
    /// Names that are not yet taken.
    new_names: Vec<String>,
}

impl Frames {
    /// Finds the array. `None` when the guest's memory cannot be read there.
    pub fn find(facts: FrameFacts) -> Option<Frames> {
        let variable = |addr| Some(u64::from_le_bytes(read_memory(addr)?));
        let found = variable(facts.array)
            .zip(variable(facts.count))
            .filter(|(base, count)| base >> 63 == 1 && (1..MOST_FRAMES).contains(count));
        let Some((base, count)) = found else {
            say(
                "the kernel's array of struct page is not where frames= says: what memory is used for will be missing in the recording",
            );
            return None;
        };
        Some(Frames {
            facts,
            base,
            bytes: count * PAGE as u64,
            told: vec![FrameUse::Free; count as usize],
            caches: Caches::default(),
        })
    }

    /// What all frames are used for now, in runs.
    pub fn all(&mut self) -> Vec<UseChange> {
        const AT_ONCE: usize = 4096 / PAGE;
        let mut runs: Vec<UseChange> = Vec::new();
        for first in (0..self.told.len()).step_by(AT_ONCE) {
            let read = read_memory::<4096>(self.base + (first * PAGE) as u64);
            for frame in first..self.told.len().min(first + AT_ONCE) {
                // Where memory has a hole the array may have one, too.
                let words =
                    read.and_then(|read| read[(frame - first) * PAGE..].first_chunk().copied());
                let used = words.map_or(FrameUse::Free, |words| {
                    self.caches.used(&self.facts, self.base, &words)
                });
                self.told[frame] = used;
                match runs.last_mut() {
                    Some(run) if run.used == used => run.frames += 1,
                    _ => runs.push(UseChange { frame: frame as u64, frames: 1, used }),
                }
            }
        }
        runs
    }

    /// Whether a store to this address may change a frame's use.
    #[inline]
    pub fn covers(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.base) < self.bytes
    }

    /// The guest has stored to this address, which is covered.
    #[cold]
    pub fn stored(&mut self, addr: u64) -> Option<UseChange> {
        let frame = (addr - self.base) / PAGE as u64;
        let words = read_memory(self.base + frame * PAGE as u64)?;
        let used = self.caches.used(&self.facts, self.base, &words);
        let told = self.told.get_mut(frame as usize)?;
        if *told == used {
            return None;
        }
        *told = used;
        Some(UseChange { frame, frames: 1, used })
    }

    /// Names of caches that are new since the last call, in the order of their numbers.
    pub fn new_names(&mut self) -> Vec<String> {
        std::mem::take(&mut self.caches.new_names)
    }
}

impl Caches {
    fn used(&mut self, facts: &FrameFacts, base: u64, words: &Words) -> FrameUse {
        match used(facts, base, words) {
            Used::As(used) => used,
            Used::ForSlab(0) => FrameUse::Unmarked,
            Used::ForSlab(cache) => {
                let next = self.numbers.len() as u32;
                let number = *self.numbers.entry(cache).or_insert(next);
                if number == next {
                    self.new_names.push(name(cache.wrapping_add(facts.cache_name)));
                }
                FrameUse::Slab(number)
            }
        }
    }
}

/// The text that the pointer at `place` points to.
fn name(place: u64) -> String {
    let text = read_memory(place).map(u64::from_le_bytes).and_then(|text| {
        let long = read_memory::<64>(text).map(|bytes| bytes.to_vec());
        // It may stand at the end of what is mapped.
        long.or_else(|| read_memory::<16>(text).map(|bytes| bytes.to_vec()))
    });
    let text = text.unwrap_or_default();
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    String::from_utf8_lossy(&text[..end]).into_owned()
}

#[derive(Debug, PartialEq, Eq)]
enum Used {
    As(FrameUse),
    /// For a slab cache: the address of its `struct kmem_cache`.
    ForSlab(u64),
}

/// What a `struct page` says.
fn used(facts: &FrameFacts, base: u64, page: &Words) -> Used {
    /// Bit 0 of `page.mapping`: PAGE_MAPPING_ANON; bit 1: PAGE_MAPPING_MOVABLE.
    const ANON: u64 = 1;
    const MOVABLE: u64 = 2;
    /// The upper byte of `page.page_type` is an `enum pagetype` from here on, else part of a count.
    const FIRST_TYPE: u32 = 0xf0;
    let u64_at = |at: u64| {
        page.get(at as usize..)
            .and_then(|rest| rest.first_chunk())
            .map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let head = u64_at(facts.compound_head);
    if head & 1 == 1 {
        return Used::As(FrameUse::PartOf(
            ((head - 1).wrapping_sub(base) / PAGE as u64) & (MOST_FRAMES - 1),
        ));
    }
    let kind = u64_at(facts.page_type) as u32 >> 24;
    if kind == facts.slab_type {
        return Used::ForSlab(u64_at(facts.slab_cache));
    }
    if kind == facts.table_type {
        return Used::As(FrameUse::PageTable);
    }
    let mapping = u64_at(facts.mapping);
    Used::As(if u64_at(0) >> facts.reserved_bit & 1 == 1 {
        FrameUse::Reserved
    } else if u64_at(facts.refcount) as u32 == 0 {
        FrameUse::Free
    } else if kind >= FIRST_TYPE && kind != 0xff {
        FrameUse::Unmarked
    } else if mapping & ANON != 0 {
        FrameUse::Anonymous
    } else if mapping != 0 && mapping & MOVABLE == 0 {
        FrameUse::File
    } else {
        FrameUse::Unmarked
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: FrameFacts = FrameFacts {
        array: 0,
        count: 0,
        compound_head: 8,
        mapping: 24,
        page_type: 48,
        refcount: 52,
        reserved_bit: 12,
        slab_type: 0xf5,
        table_type: 0xf2,
        slab_cache: 8,
        cache_name: 96,
    };
    const BASE: u64 = 0xffff_ea00_0000_0000;

    fn page(flags: u64, word: u64, mapping: u64, kind: u32, refs: u32) -> Words {
        let mut page = [0; PAGE];
        page[..8].copy_from_slice(&flags.to_le_bytes());
        page[8..16].copy_from_slice(&word.to_le_bytes());
        page[24..32].copy_from_slice(&mapping.to_le_bytes());
        page[48..52].copy_from_slice(&kind.to_le_bytes());
        page[52..56].copy_from_slice(&refs.to_le_bytes());
        page
    }

    #[test]
    fn a_struct_page_says_what_its_frame_is_used_for() {
        let list = 0xffff_ea00_0001_0008;
        let unmapped = u32::MAX;
        for (words, expected) in [
            (page(0, list, 0, unmapped, 0), Used::As(FrameUse::Free)),
            (page(0, list, 0, 0xf000_0000, 0), Used::As(FrameUse::Free)),
            (page(0, list, 0, unmapped, 1), Used::As(FrameUse::Unmarked)),
            (
                page(0, 0xffff_8880_0100_0000, 0, 0xf500_0000, 1),
                Used::ForSlab(0xffff_8880_0100_0000),
            ),
            (page(0, 0, 0, 0xf200_0000, 1), Used::As(FrameUse::PageTable)),
            (page(0, list, 0xffff_8880_0200_0000, 3, 5), Used::As(FrameUse::File)),
            (page(0, list, 0xffff_8880_0200_0001, 0, 1), Used::As(FrameUse::Anonymous)),
            (page(0, list, 0xffff_8880_0200_0002, unmapped, 1), Used::As(FrameUse::Unmarked)),
            (page(1 << 12, 0, 0, unmapped, 1), Used::As(FrameUse::Reserved)),
            (page(0, BASE + 3 * 64 + 1, 0, unmapped, 0), Used::As(FrameUse::PartOf(3))),
        ] {
            assert_eq!(used(&FACTS, BASE, &words), expected);
        }
    }
}
