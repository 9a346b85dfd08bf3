//! New memory that the kernel clears, and the structures that code finds in it afterwards.
//!
//! Input: the executions and accesses of the kernel in their order, and the structures that its
//! code says. Output: [`ClearedObjects`], for each run of `memset` the memory that it cleared, and
//! the structures that lie in it. The stores of `memset` name no structure, and an allocator clears
//! objects of caches that hold many. What the object is shows when other code accesses it.
//!
//! Two walks of one recording execute the same: the nth run of `memset` is the same run in both.

use super::sites::SitePlace;
use anyhow::Result;
use image::Image;
use image::btf::Btf;
use image::btf::fields::TypeNumber;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use trace::Translation;

/// The functions that clear memory (arch/x86/lib/memset_64.S).
const CLEARING: [&str; 4] = ["memset", "__memset", "memset_orig", "memset_erms"];
/// How many runs may be under way at once: on other CPUs, or interrupted.
const UNDER_WAY: usize = 8;
/// How many places of structures one object may have.
const MOST_PLACES: usize = 16;

/// Where a kernel's functions lie that clear memory.
#[derive(Clone, Debug, Default)]
pub(super) struct ClearingCode(Vec<Range<u64>>);

impl ClearingCode {
    pub(super) fn of(image: &Image) -> ClearingCode {
        let clears = |name: &str| CLEARING.contains(&name);
        let functions = image.functions.iter().filter(|function| clears(&function.name));
        let range = |blocks: &Range<u32>| {
            let blocks = image.blocks.get(blocks.start as usize..blocks.end as usize)?;
            let end = blocks.iter().map(|block| block.end_addr().0).max()?;
            Some(blocks.first()?.addr.0..end)
        };
        ClearingCode(functions.filter_map(|function| range(&function.blocks)).collect())
    }
}

/// What a translation block is of code that clears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClearingBlock {
    No,
    /// A run begins with it.
    Entry,
    Inside,
}

/// Counts the runs of functions that clear memory.
#[derive(Clone, Debug, Default)]
pub(super) struct ClearRuns {
    code: ClearingCode,
    /// By translation block.
    blocks: Vec<ClearingBlock>,
    count: usize,
}

impl ClearRuns {
    pub(super) fn new(code: &ClearingCode) -> ClearRuns {
        ClearRuns { code: code.clone(), ..ClearRuns::default() }
    }

    pub(super) fn define(&mut self, translation: &Translation) {
        let at = translation.addr.0;
        let of = self.code.0.iter().find(|function| function.contains(&at));
        self.blocks.push(match of.filter(|_| translation.is_kernel()) {
            None => ClearingBlock::No,
            Some(function) if function.start == at => ClearingBlock::Entry,
            Some(_) => ClearingBlock::Inside,
        });
    }

    #[inline]
    pub(super) fn executed(&mut self, translation: u32) {
        if self.blocks[translation as usize] == ClearingBlock::Entry {
            self.count += 1;
        }
    }

    #[inline]
    pub(super) fn clears(&self, translation: u32) -> bool {
        self.blocks[translation as usize] != ClearingBlock::No
    }

    /// The runs that may be under way, the last one first.
    fn under_way(&self) -> impl Iterator<Item = usize> + use<> {
        (self.count.saturating_sub(UNDER_WAY)..self.count).rev()
    }
}

/// Memory that a run has cleared, and where code finds structures in it.
#[derive(Clone, Debug, Default)]
struct Clearing {
    start: u64,
    end: u64,
    /// Each with its beginning.
    places: Vec<(u64, TypeNumber)>,
}

/// Watches what is cleared.
#[derive(Debug, Default)]
pub(super) struct ClearStudy {
    pub runs: ClearRuns,
    /// By the number of the run.
    found: Vec<Clearing>,
    /// The last run that cleared memory from an address on.
    live: BTreeMap<u64, usize>,
}

impl ClearStudy {
    pub(super) fn new(code: &ClearingCode) -> ClearStudy {
        ClearStudy { runs: ClearRuns::new(code), ..ClearStudy::default() }
    }

    /// A store of code that clears.
    pub(super) fn cleared(&mut self, addr: u64, size: u8) {
        self.found.resize_with(self.found.len().max(self.runs.count), Clearing::default);
        let end = addr.saturating_add(size.into());
        let Some(last) = self.runs.count.checked_sub(1) else { return };
        if self.found[last].end == 0 {
            self.found[last] = Clearing { start: addr, end, places: Vec::new() };
            self.live.insert(addr, last);
            return;
        }
        let goes_on = self.runs.under_way().find(|&run| self.found[run].end == addr);
        if let Some(run) = goes_on {
            self.found[run].end = end;
            self.live.remove(&addr);
        }
    }

    /// Code accesses a structure whose place in memory it knows.
    pub(super) fn typed(&mut self, addr: u64, site: SitePlace) {
        let Some((_, &run)) = self.live.range(..=addr).next_back() else { return };
        let Clearing { start, end, places } = &mut self.found[run];
        let place = (addr.wrapping_sub(site.offset), site.structure);
        let is_inside = addr < *end && (*start..=addr).contains(&place.0);
        if is_inside && places.len() < MOST_PLACES && !places.contains(&place) {
            places.push(place);
        }
    }

    /// What was cleared. Of structures that overlap, the largest counts: others are its members, or
    /// what a part of its union is used as.
    ///
    /// # Errors
    /// The kernel's BTF is damaged.
    pub(super) fn finish(self, btf: Option<&Btf<'_>>) -> Result<ClearedObjects> {
        let object = |Clearing { start, end, places }: Clearing| -> Result<ClearedObject> {
            let mut found: Vec<ClearedStructure> = Vec::new();
            for (base, kind) in places {
                let size = btf.map_or(Ok(0), |btf| btf.size_of(kind))?;
                let fits = size > 0 && base.checked_add(size).is_some_and(|behind| behind <= end);
                found.extend(fits.then_some(ClearedStructure { base, size, kind }));
            }
            found.sort_by_key(|it| (Reverse(it.size), it.base));
            let mut structures: Vec<ClearedStructure> = Vec::new();
            for new in found {
                let overlaps =
                    |it: &ClearedStructure| new.base < it.behind() && it.base < new.behind();
                if !structures.iter().any(overlaps) {
                    structures.push(new);
                }
            }
            Ok(ClearedObject { start, end, structures: structures.into() })
        };
        let objects = self.found.into_iter().map(object).collect::<Result<_>>()?;
        Ok(ClearedObjects { code: self.runs.code, objects })
    }
}

/// A structure in memory that was cleared.
#[derive(Clone, Copy, Debug)]
struct ClearedStructure {
    base: u64,
    size: u64,
    kind: TypeNumber,
}

impl ClearedStructure {
    fn behind(&self) -> u64 {
        self.base + self.size
    }
}

/// Memory that a run has cleared.
#[derive(Debug)]
struct ClearedObject {
    start: u64,
    end: u64,
    structures: Box<[ClearedStructure]>,
}

/// What each run has cleared.
#[derive(Debug, Default)]
pub(super) struct ClearedObjects {
    pub code: ClearingCode,
    objects: Vec<ClearedObject>,
}

impl ClearedObjects {
    /// The structure that code which clears stores to, and its beginning.
    pub(super) fn structure(&self, runs: &ClearRuns, addr: u64) -> Option<(TypeNumber, u64)> {
        let mut objects = runs.under_way().filter_map(|run| self.objects.get(run));
        let object = objects.find(|object| (object.start..object.end).contains(&addr))?;
        let holds = |it: &&ClearedStructure| (it.base..it.behind()).contains(&addr);
        object.structures.iter().find(holds).map(|it| (it.kind, it.base))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::examples::btf_section;
    use trace::{RunAddr, TranslationId};

    const MEMSET: u64 = 0xffff_ffff_8100_0000;
    const OBJECT: u64 = 0xffff_8880_0000_1000;
    /// The translation blocks: where memset begins, its loop, other code.
    const ENTRY: u32 = 0;
    const LOOP: u32 = 1;
    const OTHER: u32 = 2;

    /// `struct head { u64 n; }; struct whole { struct head head; u64 n; u64 n; }; struct pair { u64
    /// n; u64 n; }`
    fn section() -> Vec<u8> {
        const STRUCTURE: u32 = 4 << 24;
        let types = [
            vec![1, 1 << 24, 8, 64],                                     // 1: u64
            vec![5, STRUCTURE | 1, 8, 10, 1, 0],                         // 2: head
            vec![12, STRUCTURE | 3, 24, 5, 2, 0, 10, 1, 64, 10, 1, 128], // 3: whole
            vec![18, STRUCTURE | 2, 16, 10, 1, 0, 10, 1, 64],            // 4: pair
        ];
        btf_section(&types, b"\0u64\0head\0n\0whole\0pair\0")
    }

    fn translation(id: u32, addr: u64) -> Translation {
        Translation {
            id: TranslationId(id),
            addr: RunAddr(addr),
            lengths: Box::new([1]),
            code: Box::new([0x90]),
        }
    }

    fn study() -> ClearStudy {
        let memset = MEMSET..MEMSET + 0x20;
        let mut study = ClearStudy::new(&ClearingCode([memset].into()));
        for (id, addr) in [(ENTRY, MEMSET), (LOOP, MEMSET + 8), (OTHER, MEMSET + 0x20)] {
            study.runs.define(&translation(id, addr));
        }
        study
    }

    fn clear(study: &mut ClearStudy, start: u64, bytes: u64) {
        study.runs.executed(ENTRY);
        for at in (start..start + bytes).step_by(8) {
            study.runs.executed(LOOP);
            study.cleared(at, 8);
        }
        study.runs.executed(OTHER);
    }

    /// What the nth run cleared, as a second walk of the same executions finds it.
    fn found(known: &ClearedObjects, run: u32, addr: u64) -> Option<(TypeNumber, u64)> {
        let mut runs = ClearRuns::new(&known.code);
        for (id, addr) in [(ENTRY, MEMSET), (LOOP, MEMSET + 8), (OTHER, MEMSET + 0x20)] {
            runs.define(&translation(id, addr));
        }
        (0..run).for_each(|_| runs.executed(ENTRY));
        assert!(runs.clears(LOOP) && !runs.clears(OTHER));
        known.structure(&runs, addr)
    }

    #[test]
    fn cleared_memory_is_what_code_finds_there_afterwards() {
        let section = section();
        let btf = Btf::parse(&section).unwrap();
        let kind = |name: &str| btf.type_of_structure(name).unwrap().unwrap();
        let site = |name: &str, offset: u64| SitePlace { structure: kind(name), offset };
        let mut study = study();
        // As its first member, then whole, and something behind it; then as something else.
        clear(&mut study, OBJECT, 48);
        study.typed(OBJECT, site("head", 0));
        study.typed(OBJECT + 16, site("whole", 16));
        study.typed(OBJECT + 32, site("pair", 0));
        study.typed(OBJECT + 40, site("whole", 8));
        clear(&mut study, OBJECT, 48);
        study.typed(OBJECT + 8, site("pair", 8));
        // Two objects, one behind the other, and a structure that begins in front of the second.
        clear(&mut study, OBJECT + 0x100, 16);
        clear(&mut study, OBJECT + 0x110, 16);
        study.typed(OBJECT + 0x110, site("whole", 16));
        study.typed(OBJECT + 0x110, site("pair", 0));
        let known = study.finish(Some(&btf)).unwrap();
        let whole = Some((kind("whole"), OBJECT));
        for (offset, found_there) in [
            (0, whole),
            (16, whole),
            (24, None),
            (32, Some((kind("pair"), OBJECT + 32))),
            (40, Some((kind("pair"), OBJECT + 32))),
            (48, None),
        ] {
            assert_eq!(found(&known, 1, OBJECT + offset), found_there, "{offset}");
        }
        assert_eq!(found(&known, 2, OBJECT), Some((kind("pair"), OBJECT)));
        assert_eq!(found(&known, 2, OBJECT + 16), None);
        assert_eq!(found(&known, 3, OBJECT + 0x100), None);
        assert_eq!(found(&known, 4, OBJECT + 0x118), Some((kind("pair"), OBJECT + 0x110)));
    }

    /// An interrupt clears memory in the middle of a run.
    #[test]
    fn an_interrupted_run_goes_on() {
        let section = section();
        let btf = Btf::parse(&section).unwrap();
        let whole = btf.type_of_structure("whole").unwrap().unwrap();
        let mut study = study();
        study.runs.executed(ENTRY);
        study.cleared(OBJECT, 8);
        clear(&mut study, OBJECT + 0x100, 64);
        for at in [OBJECT + 8, OBJECT + 16] {
            study.cleared(at, 8);
        }
        study.typed(OBJECT + 16, SitePlace { structure: whole, offset: 16 });
        let known = study.finish(Some(&btf)).unwrap();
        assert_eq!(found(&known, 2, OBJECT + 16), Some((whole, OBJECT)));
        assert_eq!(found(&known, 2, OBJECT + 0x100), None);
    }
}
