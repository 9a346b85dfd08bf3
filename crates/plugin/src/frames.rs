//! The uses of the guest's page frames, from the `struct page` of each: when recording begins, and
//! whenever the guest changes one.
//!
//! Input: the guest's stores. After a store into the array of `struct page`, the plugin reads the
//! changed element. Output: changes of use. The guest is not changed. What differs between versions
//! of Linux stands in `StructPageFacts` (include/linux/mm_types.h, include/linux/page-flags.h,
//! mm/slab.h).

use crate::arguments::{FrameMarks, StructPageFacts};
use crate::qemu::read_memory;
use crate::say;
use std::collections::HashMap;
use trace::{FrameUse, FrameUseChange};

/// The bytes of a `struct page`.
const PAGE: usize = 64;
/// The largest number of frames: 1 TB of memory.
const MOST_FRAMES: u64 = 1 << 28;

type StructPage = [u8; PAGE];

pub(crate) struct FrameUses {
    facts: StructPageFacts,
    /// The address and the size of the array in bytes.
    base: u64,
    bytes: u64,
    /// The last recorded use of each frame.
    recorded: Vec<FrameUse>,
    caches: SlabCaches,
}

/// The slab caches seen so far, by the addresses of their `struct kmem_cache`.
#[derive(Default)]
struct SlabCaches {
    numbers: HashMap<u64, u32>,
    /// The names that [`FrameUses::new_names`] has not returned.
    new_names: Vec<String>,
}

impl FrameUses {
    /// Finds the array. `None`: the guest's memory cannot be read there.
    pub(crate) fn find(facts: StructPageFacts) -> Option<FrameUses> {
        let variable = |addr| Some(u64::from_le_bytes(read_memory(addr)?));
        let found = variable(facts.array)
            .zip(variable(facts.count))
            .filter(|(base, count)| base >> 63 == 1 && (1..MOST_FRAMES).contains(count));
        let Some((base, count)) = found else {
            say("the kernel's array of struct page is not where frames= says; the uses of memory \
                 will be missing in the recording");
            return None;
        };
        Some(FrameUses {
            facts,
            base,
            bytes: count * PAGE as u64,
            recorded: vec![FrameUse::Free; count as usize],
            caches: SlabCaches::default(),
        })
    }

    /// The uses of all frames now, as runs of frames with the same use.
    pub(crate) fn all(&mut self) -> Vec<FrameUseChange> {
        const AT_ONCE: usize = 4096 / PAGE;
        let mut runs: Vec<FrameUseChange> = Vec::new();
        for first in (0..self.recorded.len()).step_by(AT_ONCE) {
            let read = read_memory::<4096>(self.base + (first * PAGE) as u64);
            for frame in first..self.recorded.len().min(first + AT_ONCE) {
                // Where memory has a hole, the array may also have a hole.
                let words =
                    read.and_then(|read| read[(frame - first) * PAGE..].first_chunk().copied());
                let used = words.map_or(FrameUse::Free, |words| {
                    self.caches.frame_use(&self.facts, self.base, frame as u64, &words)
                });
                self.recorded[frame] = used;
                match runs.last_mut() {
                    Some(run) if run.used == used => run.frames += 1,
                    _ => runs.push(FrameUseChange { frame: frame as u64, frames: 1, used }),
                }
            }
        }
        runs
    }

    /// Whether a store to this address can change the use of a frame.
    #[inline]
    pub(crate) fn covers(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.base) < self.bytes
    }

    /// The change of use after a store to this address, which must be covered.
    #[cold]
    pub(crate) fn stored(&mut self, addr: u64) -> Option<FrameUseChange> {
        let frame = (addr - self.base) / PAGE as u64;
        let words = read_memory(self.base + frame * PAGE as u64)?;
        let used = self.caches.frame_use(&self.facts, self.base, frame, &words);
        let recorded = self.recorded.get_mut(frame as usize)?;
        if *recorded == used {
            return None;
        }
        *recorded = used;
        Some(FrameUseChange { frame, frames: 1, used })
    }

    /// The names of slab caches that are new since the last call, in the order of their numbers.
    pub(crate) fn new_names(&mut self) -> Vec<String> {
        std::mem::take(&mut self.caches.new_names)
    }
}

impl SlabCaches {
    fn frame_use(
        &mut self,
        facts: &StructPageFacts,
        base: u64,
        frame: u64,
        words: &StructPage,
    ) -> FrameUse {
        match struct_page_use(facts, base, frame, words) {
            StructPageUse::Plain(used) => used,
            StructPageUse::Slab(0) => FrameUse::Unmarked,
            StructPageUse::Slab(cache) => {
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

/// The text at the pointer that is stored at `place`.
fn name(place: u64) -> String {
    let text = read_memory(place).map(u64::from_le_bytes).and_then(|text| {
        let long = read_memory::<64>(text).map(|bytes| bytes.to_vec());
        // The text may stand at the end of the mapped memory.
        long.or_else(|| read_memory::<16>(text).map(|bytes| bytes.to_vec()))
    });
    let text = text.unwrap_or_default();
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    String::from_utf8_lossy(&text[..end]).into_owned()
}

#[derive(Debug, PartialEq, Eq)]
enum StructPageUse {
    Plain(FrameUse),
    /// Objects of a slab cache, given by the address of its `struct kmem_cache`.
    Slab(u64),
}

/// The use of a frame according to its `struct page`.
fn struct_page_use(
    facts: &StructPageFacts,
    base: u64,
    frame: u64,
    page: &StructPage,
) -> StructPageUse {
    /// Bit 0 of `page.mapping` is PAGE_MAPPING_ANON, bit 1 is PAGE_MAPPING_MOVABLE.
    const ANON: u64 = 1;
    const MOVABLE: u64 = 2;
    let u64_at = |at: u64| {
        page.get(at as usize..)
            .and_then(|rest| rest.first_chunk())
            .map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let head = u64_at(facts.compound_head);
    if head & 1 == 1 {
        return StructPageUse::Plain(FrameUse::PartOf(head_of(base, frame, head - 1)));
    }
    let (flags, kind) = (u64_at(0), u64_at(facts.page_type) as u32);
    let (is_slab, is_table, is_typed) = facts.marks.of(flags, kind);
    if is_slab {
        return StructPageUse::Slab(u64_at(facts.slab_cache));
    }
    if is_table {
        return StructPageUse::Plain(FrameUse::PageTable);
    }
    let mapping = u64_at(facts.mapping);
    StructPageUse::Plain(if flags >> facts.reserved_bit & 1 == 1 {
        FrameUse::Reserved
    } else if u64_at(facts.refcount) as u32 == 0 {
        FrameUse::Free
    } else if is_typed {
        FrameUse::Unmarked
    } else if mapping & ANON != 0 {
        FrameUse::Anonymous
    } else if mapping != 0 && mapping & MOVABLE == 0 {
        FrameUse::File
    } else {
        FrameUse::Unmarked
    })
}

/// The first frame of those that `frame` was allocated with. `head`: the address of its
/// `struct page`, or, in kernels that can free a part of the array, the bits that this address has
/// in common with that of `frame`'s (`compound_info_has_mask()`, since Linux 7.0).
fn head_of(base: u64, frame: u64, head: u64) -> u64 {
    let own = base.wrapping_add(frame * PAGE as u64);
    let head = match head.wrapping_sub(base) / PAGE as u64 {
        number if number < MOST_FRAMES => head,
        _ => own & head,
    };
    (head.wrapping_sub(base) / PAGE as u64) & (MOST_FRAMES - 1)
}

impl FrameMarks {
    /// Whether a frame with these words holds a slab, whether it holds a page table, and whether it
    /// has any type.
    fn of(self, flags: u64, page_type: u32) -> (bool, bool, bool) {
        /// From this value on, the upper byte is an `enum pagetype`. Below, it is a part of a
        /// count.
        const FIRST_TYPE: u32 = 0xf0;
        /// PAGE_TYPE_BASE: these bits are set, and a type's own bit is clear.
        const BASE: u32 = 0xf000_0000;
        match self {
            FrameMarks::Type { slab, table } => {
                let kind = page_type >> 24;
                (kind == slab, kind == table, kind >= FIRST_TYPE && kind != 0xff)
            }
            FrameMarks::Bits { slab, table } => (
                flags >> slab & 1 == 1,
                page_type & (BASE | table) == BASE,
                page_type & BASE == BASE && page_type != u32::MAX,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: StructPageFacts = StructPageFacts {
        array: 0,
        count: 0,
        compound_head: 8,
        mapping: 24,
        page_type: 48,
        refcount: 52,
        reserved_bit: 12,
        marks: FrameMarks::Type { slab: 0xf5, table: 0xf2 },
        slab_cache: 8,
        cache_name: 96,
    };
    const BASE: u64 = 0xffff_ea00_0000_0000;

    fn page(flags: u64, word: u64, mapping: u64, kind: u32, refs: u32) -> StructPage {
        let mut page = [0; PAGE];
        page[..8].copy_from_slice(&flags.to_le_bytes());
        page[8..16].copy_from_slice(&word.to_le_bytes());
        page[24..32].copy_from_slice(&mapping.to_le_bytes());
        page[48..52].copy_from_slice(&kind.to_le_bytes());
        page[52..56].copy_from_slice(&refs.to_le_bytes());
        page
    }

    #[test]
    fn a_struct_page_gives_the_use_of_its_frame() {
        let list = 0xffff_ea00_0001_0008;
        let unmapped = u32::MAX;
        for (words, expected) in [
            (page(0, list, 0, unmapped, 0), StructPageUse::Plain(FrameUse::Free)),
            (page(0, list, 0, 0xf000_0000, 0), StructPageUse::Plain(FrameUse::Free)),
            (page(0, list, 0, unmapped, 1), StructPageUse::Plain(FrameUse::Unmarked)),
            (
                page(0, 0xffff_8880_0100_0000, 0, 0xf500_0000, 1),
                StructPageUse::Slab(0xffff_8880_0100_0000),
            ),
            (page(0, 0, 0, 0xf200_0000, 1), StructPageUse::Plain(FrameUse::PageTable)),
            (page(0, list, 0xffff_8880_0200_0000, 3, 5), StructPageUse::Plain(FrameUse::File)),
            (page(0, list, 0xffff_8880_0200_0001, 0, 1), StructPageUse::Plain(FrameUse::Anonymous)),
            (
                page(0, list, 0xffff_8880_0200_0002, unmapped, 1),
                StructPageUse::Plain(FrameUse::Unmarked),
            ),
            (page(1 << 12, 0, 0, unmapped, 1), StructPageUse::Plain(FrameUse::Reserved)),
            (page(0, BASE + 3 * 64 + 1, 0, unmapped, 0), StructPageUse::Plain(FrameUse::PartOf(3))),
        ] {
            assert_eq!(struct_page_use(&FACTS, BASE, 9, &words), expected);
        }
    }

    /// As Linux 6.1 marks frames.
    #[test]
    fn bits_mark_slabs_and_page_tables() {
        let marks = FrameMarks::Bits { slab: 9, table: 0x200 };
        let facts = StructPageFacts { slab_cache: 24, marks, ..FACTS };
        let cache = 0xffff_8880_0100_0000;
        let unmapped = u32::MAX;
        for (words, expected) in [
            (page(1 << 9, 0, cache, unmapped, 1), StructPageUse::Slab(cache)),
            (page(1 << 9, 0, cache, 0, 1), StructPageUse::Slab(cache)),
            (page(0, 0, 0, !0x200, 1), StructPageUse::Plain(FrameUse::PageTable)),
            (page(0, 0, 0, !0x80, 0), StructPageUse::Plain(FrameUse::Free)),
            (page(0, 0, cache, !0x100, 1), StructPageUse::Plain(FrameUse::Unmarked)),
            (page(0, 0, cache, unmapped, 1), StructPageUse::Plain(FrameUse::File)),
            (page(0, 0, cache + 1, 3, 1), StructPageUse::Plain(FrameUse::Anonymous)),
        ] {
            assert_eq!(struct_page_use(&facts, BASE, 9, &words), expected);
        }
    }

    /// As Linux 7.2 links the frames of one allocation when CONFIG_HUGETLB_PAGE_OPTIMIZE_VMEMMAP is
    /// on.
    #[test]
    fn a_mask_leads_to_the_first_frame() {
        // Eight frames: nine bits of the address are those of the frame in the allocation.
        let mask = u64::MAX << 9;
        for frame in 8..16 {
            let words = page(0, mask | 1, 0, u32::MAX, 0);
            let expected = StructPageUse::Plain(FrameUse::PartOf(8));
            assert_eq!(struct_page_use(&FACTS, BASE, frame, &words), expected, "{frame}");
        }
    }
}
