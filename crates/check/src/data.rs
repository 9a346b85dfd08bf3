//! Compares everything in memory that is neither code nor a side table.
//!
//! Input: both kernels, the correspondence and the relocations. Each data region must have the same
//! bytes, except for words that are addresses; these must refer to the same thing. The kept
//! relocations say which words are addresses. If PC-relative relocations were not kept, a word that
//! differs is accepted only if, read as a distance, it refers to the same thing in both kernels.
//! This module also proves that KASLR will shift the same words.

use super::address_words::{AddressWord, AddressWords};
use super::correspond::{Correspondence, Landing, ShiftedRegion};
use super::intervals::contains;
use super::kernel::KernelFile;
use super::relocs::Relocs;
use super::verdict::Findings;
use rayon::prelude::*;

/// Compares all data regions, except the stretches `elsewhere`, which other stages compare.
pub(crate) fn check(
    c: &Correspondence,
    places: &AddressWords,
    elsewhere: &[(u64, u64)],
) -> Findings {
    let mut stretches: Vec<(u64, u64, u64, u64)> = Vec::new();
    let mut findings = Findings::default();
    for region in c.regions.iter().filter(|r| !r.executable) {
        if c.old.section_at(region.old).is_none_or(|s| s.data.is_empty()) {
            without_bytes(region, c, &mut findings);
        } else {
            cut(region, elsewhere, &mut stretches);
        }
    }
    let parts: Vec<Findings> = stretches
        .par_iter()
        .map(|&(old, old_end, new, new_end)| {
            let mut part = Findings::default();
            compare(old, old_end, new, new_end, c, places, &mut part);
            part
        })
        .collect();
    parts.into_iter().for_each(|part| findings.absorb(part));
    findings
}

/// The lookup table that the kernel fills at boot. Its size depends on the size of the code.
const FILLED_AT_BOOT: &str = ".orc_lookup";

fn without_bytes(region: &ShiftedRegion, c: &Correspondence, findings: &mut Findings) {
    if c.old.section_at(region.old).is_some_and(|s| s.name == FILLED_AT_BOOT) {
        return;
    }
    let (old, new) = (region.old_end - region.old, region.new_end - region.new);
    let what = || format!("{old} bytes of zeroed memory became {new}");
    let fits = old <= new || is_filled_up(region) && named_bytes(region, c) <= new;
    findings.expect(fits, "zeroed regions", region.old, region.new, what);
}

/// Whether a region ends where a large page does, in both kernels. With memory encryption the
/// linker script fills `.bss` up to there (arch/x86/kernel/vmlinux.lds.S), so what is left of the
/// last page depends on the size of the code.
fn is_filled_up(region: &ShiftedRegion) -> bool {
    const LARGE_PAGE: u64 = 2 << 20;
    [region.old_end, region.new_end].iter().all(|end| end.is_multiple_of(LARGE_PAGE))
}

/// The bytes of a region up to the end of its last variable.
fn named_bytes(region: &ShiftedRegion, c: &Correspondence) -> u64 {
    let symbols = &c.old.symbols;
    let from = symbols.partition_point(|s| s.addr.0 < region.old);
    let inside = symbols[from..].iter().take_while(|s| s.addr.0 < region.old_end);
    let ends = inside.filter(|s| s.size > 0).map(|s| s.addr.0.saturating_add(s.size));
    ends.max().map_or(region.old_end, |end| end.max(region.old)) - region.old
}

/// The parts of a region outside `elsewhere`. The last part ends at the region's end in both
/// kernels.
fn cut(
    region: &ShiftedRegion,
    elsewhere: &[(u64, u64)],
    stretches: &mut Vec<(u64, u64, u64, u64)>,
) {
    let mut at = region.old;
    let image = |at: u64| region.new.wrapping_add(at - region.old);
    let first = elsewhere.partition_point(|e| e.1 <= region.old);
    for &(start, end) in elsewhere[first..].iter().take_while(|e| e.0 < region.old_end) {
        if at < start {
            stretches.push((at, start, image(at), image(start)));
        }
        at = at.max(end);
    }
    if at < region.old_end {
        stretches.push((at, region.old_end, image(at), region.new_end));
    }
}

const KIND: &str = "bytes of data";

fn compare(
    old: u64,
    old_end: u64,
    new: u64,
    new_end: u64,
    c: &Correspondence,
    places: &AddressWords,
    findings: &mut Findings,
) {
    let bytes = |kernel: &KernelFile<'_>, start: u64, end: u64| {
        let in_file =
            kernel.section_at(start).map_or(0, |s| s.addr.saturating_add(s.data.len() as u64));
        kernel.bytes(start, end.min(in_file).saturating_sub(start)).map(<[u8]>::to_vec)
    };
    let (Some(a), Some(b)) = (bytes(c.old, old, old_end), bytes(c.new, new, new_end)) else {
        if old < old_end {
            findings.differ(KIND, Some(old), Some(new), "only one of the kernels has this data");
        }
        return;
    };
    let shared = a.len().min(b.len());
    let rest = if a.len() > b.len() { &a[shared..] } else { &b[shared..] };
    if rest.iter().any(|byte| !matches!(byte, 0 | 0xcc | 0x90)) {
        let what = format!(
            "{} bytes became {}, and the additional bytes are not padding",
            a.len(),
            b.len()
        );
        return findings.differ(KIND, Some(old), Some(new), what);
    }
    let mut at = 0;
    for &(place, word) in places.inside(old, old + shared as u64) {
        let start = (place - old) as usize;
        if start < at {
            continue;
        }
        plain(&a[at..start], &b[at..start], old + at as u64, new + at as u64, c, places, findings);
        address(place, new + start as u64, word, c, findings);
        at = (start + word.width() as usize).min(shared);
    }
    plain(&a[at..shared], &b[at..shared], old + at as u64, new + at as u64, c, places, findings);
}

fn address(place: u64, twin: u64, word: AddressWord, c: &Correspondence, findings: &mut Findings) {
    let (Some(old), Some(new)) = (word.read(c.old, place), word.read(c.new, twin)) else {
        return findings.differ(KIND, Some(place), Some(twin), "an address is cut off");
    };
    let landing = c.lands(old, new);
    let kind = match landing {
        Landing::Biased => "references beside a thing",
        _ => "addresses in data",
    };
    let what = || format!("holds {} instead of {}", c.new.describe(new), c.old.describe(old));
    findings.expect(landing != Landing::No, kind, place, twin, what);
}

/// Compares bytes that hold no known address.
fn plain(
    a: &[u8],
    b: &[u8],
    old: u64,
    new: u64,
    c: &Correspondence,
    places: &AddressWords,
    findings: &mut Findings,
) {
    let mut at = 0;
    let mut equal = a.len() as u64;
    while let Some(next) = first_difference(&a[at..], &b[at..]) {
        let byte = at + next;
        let place = old + byte as u64;
        let explained = places.guesses().find_map(|word| {
            let place = place & !(word.width().min(4) - 1);
            let twin = new.wrapping_add(place.wrapping_sub(old));
            let (from, to) = (word.read(c.old, place)?, word.read(c.new, twin)?);
            (place >= old && c.lands(from, to) == Landing::Exact)
                .then(|| (place - old) as usize + word.width() as usize)
        });
        match explained {
            Some(end) => {
                findings.prove("addresses in data, known by their change", 1);
                equal = equal.saturating_sub(4);
                at = end.min(a.len());
            }
            None => {
                let end = (byte | 7).min(a.len() - 1);
                let (was, is) = (&a[byte..=end], &b[byte..=end]);
                let at_new = new + byte as u64;
                findings.differ(
                    KIND,
                    Some(place),
                    Some(at_new),
                    format!("{was:02x?} became {is:02x?}"),
                );
                at = end + 1;
            }
        }
    }
    findings.prove(KIND, equal);
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    const STEP: usize = 64;
    let coarse = a.chunks(STEP).zip(b.chunks(STEP)).position(|(x, y)| x != y)? * STEP;
    a[coarse..].iter().zip(&b[coarse..]).position(|(x, y)| x != y).map(|fine| coarse + fine)
}

/// Checks that KASLR shifts the same words: the new addresses of the old places must be the new
/// places.
pub(crate) fn relocations(old: &Relocs, new: &Relocs, c: &Correspondence) -> Findings {
    let mut findings = Findings::default();
    let lists =
        [(&old.abs64, &new.abs64), (&old.abs32, &new.abs32), (&old.inverse32, &new.inverse32)];
    for (old, new) in lists {
        let mut carried: Vec<(u64, u64)> = Vec::with_capacity(old.len());
        for &place in old {
            match c.image(place) {
                Some(image) => carried.push((image, place)),
                None => findings.differ(
                    "KASLR relocations",
                    Some(place),
                    None,
                    "the new kernel has nothing that corresponds to the place of this relocation",
                ),
            }
        }
        carried.sort_unstable();
        let images: Vec<(u64, u64)> = carried.iter().map(|c| (c.0, 1)).collect();
        let images = super::intervals::intervals(images.into_iter());
        for &(image, place) in &carried {
            let found = new.binary_search(&image).is_ok();
            let what = || "KASLR does not shift this address in the new kernel".to_owned();
            findings.expect(found, "KASLR relocations", place, image, what);
        }
        for &place in new.iter().filter(|&&place| !contains(&images, place)) {
            findings.differ(
                "KASLR relocations",
                None,
                Some(place),
                "KASLR shifts this word only in the new kernel",
            );
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use crate::kernel::KernelFile;
    use crate::test_elf::{DATA, TestSymbol, elf};
    use crate::{CheckedKernel, check};
    use image::place::Placement;

    const TEXT: u64 = 0xffff_ffff_8100_0000;
    /// Where a large page ends.
    const END: u64 = DATA + (2 << 20);

    /// A kernel whose zeroed memory lies from `start` to `end`, with a variable of `size` bytes.
    fn kernel(start: u64, end: u64, size: u64) -> Vec<u8> {
        let zeroed = vec![0; (end - start) as usize];
        let sections = [(".text", TEXT, 0x6, vec![0xc3; 16]), (".bss", start, 0x3, zeroed)];
        let symbols = [TestSymbol("f", TEXT, 16), TestSymbol("variable", start, size)];
        elf(&sections, &symbols, 0)
    }

    #[test]
    fn zeroed_memory_that_fills_a_large_page_may_shrink_down_to_its_variables() {
        let equal = |old: Vec<u8>, new: Vec<u8>| {
            let side =
                |file| CheckedKernel { kernel: KernelFile::parse(file).unwrap(), relocs: None };
            check(&side(&old), &side(&new), &Placement::default()).unwrap().equal()
        };
        let (before, behind) = (END - 0x3000, END - 0x1000);
        assert!(equal(kernel(before, END, 0x1000), kernel(behind, END, 0x1000)));
        assert!(equal(kernel(behind, END, 0x1000), kernel(before, END, 0x1000)));
        assert!(!equal(kernel(before, END, 0x1001), kernel(behind, END, 0x1001)));
        let end = END - 0x800;
        assert!(!equal(kernel(before, end, 0x800), kernel(behind, end, 0x800)));
    }
}
