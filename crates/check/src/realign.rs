//! Finds where data without symbols went when it was aligned differently.
//!
//! Input: a stretch of data without symbols in both kernels, and which of its bytes belong to
//! addresses. Output: the places at which the distance from old to new changes. Like all of
//! `correspond`, the output is a claim: a later stage compares every byte. This module never looks
//! at symbols.
//!
//! A linker script puts input sections one behind the other, each at a multiple of its alignment A.
//! A section has the same distance as the section in front of it if that distance is a multiple of
//! A. Otherwise the padding in front of it has another length:
//!
//! ```text
//! old   "…string\0" 00 00 00 │ content          distance before s, behind s + 2
//! new     "…string\0" 00 00 00 00 00 │ content
//! ```

use super::kernel::KernelFile;

/// The largest alignment of input sections without symbols in a kernel.
const MOST_ALIGNMENT: u64 = 64;

/// How many equal bytes identify a section, unless the stretch ends earlier.
const SIGNIFICANT: usize = 8;

/// A stretch of data with its address.
#[derive(Clone, Copy)]
pub(crate) struct DataStretch<'d> {
    pub addr: u64,
    pub bytes: &'d [u8],
}

impl<'d> DataStretch<'d> {
    /// The bytes of the kernel's file from `start` to `end`, which must lie in one section.
    pub(crate) fn of(kernel: &KernelFile<'d>, start: u64, end: u64) -> Option<Self> {
        let bytes = kernel.bytes(start, end.checked_sub(start)?)?;
        Some(DataStretch { addr: start, bytes })
    }
}

/// The places, as (old address, new address), at which a section begins whose distance differs from
/// that of the data in front of it. For an address of the old and of the new kernel, `in_address`
/// returns which byte of an address word lies there; such words have other values in the new
/// kernel. The list ends at data that is not equal at any distance.
pub(crate) fn changes(
    old: DataStretch,
    new: DataStretch,
    in_address: [&dyn Fn(u64) -> Option<u64>; 2],
) -> Vec<(u64, u64)> {
    let equal = |i: usize, j: usize| {
        let pairs = old.bytes[i..].iter().zip(&new.bytes[j..]);
        let same = |k: usize, a, b| {
            let words = (
                in_address[0](old.addr + (i + k) as u64),
                in_address[1](new.addr + (j + k) as u64),
            );
            words.0 == words.1 && (a == b || words.0.is_some())
        };
        pairs.enumerate().take_while(|&(k, (a, b))| same(k, a, b)).count()
    };
    let mut found = Vec::new();
    let (mut i, mut j) = (0, 0);
    loop {
        let run = equal(i, j);
        let (x, y) = (i + run, j + run);
        let Some(step) = step(&old.bytes[x..], &new.bytes[y..], |skip_old, skip_new| {
            equal(x + skip_old, y + skip_new)
        }) else {
            return found;
        };
        let distance = (new.addr + j as u64).wrapping_sub(old.addr + i as u64);
        let begins = section_start(old, i, x + step.skip_old, distance, step.change);
        let begins_new = begins.wrapping_add(distance).wrapping_add_signed(step.change);
        found.push((begins, begins_new));
        (i, j) = (x + step.skip_old, y + step.skip_new);
    }
}

/// The step from one section to the next: the padding to skip in each kernel.
struct AlignmentStep {
    skip_old: usize,
    skip_new: usize,
    /// The growth of the distance.
    change: i64,
}

/// The shortest padding in `a` or in `b` in front of the longest run of equal bytes. The first
/// bytes of `a` and `b` differ.
fn step(a: &[u8], b: &[u8], equal: impl Fn(usize, usize) -> usize) -> Option<AlignmentStep> {
    let zeros = |bytes: &[u8]| {
        bytes.iter().take(MOST_ALIGNMENT as usize - 1).take_while(|&&byte| byte == 0).count()
    };
    let in_new = (1..=zeros(b)).map(|skip| (0, skip));
    let in_old = (1..=zeros(a)).map(|skip| (skip, 0));
    let mut best: Option<(usize, AlignmentStep)> = None;
    for (skip_old, skip_new) in in_new.chain(in_old) {
        let rest = (a.len() - skip_old).min(b.len() - skip_new);
        let run = equal(skip_old, skip_new);
        let tells = run >= SIGNIFICANT.min(rest) && run > 0;
        if tells && best.as_ref().is_none_or(|(longest, _)| run > *longest) {
            let change = skip_new as i64 - skip_old as i64;
            best = Some((run, AlignmentStep { skip_old, skip_new, change }));
        }
    }
    best.map(|(_, step)| step)
}

/// The address of the section whose first non-zero byte is at index `content`. The section begins
/// within the zeros in front of that byte. The data in front of it ends with a non-zero byte, or
/// with the 0 that ends a string.
fn section_start(old: DataStretch, from: usize, content: usize, distance: u64, change: i64) -> u64 {
    let padding = old.bytes[from..content].iter().rev().take_while(|&&byte| byte == 0).count();
    let end = content - padding;
    let end = if end > from && padding > 0 { end + 1 } else { end };
    // The smallest alignment that explains the change. The section's alignment is a multiple of it.
    let alignment = 2 * (distance & distance.wrapping_neg());
    let behind = distance.wrapping_add_signed(change);
    // Where the padding became shorter, the section still begins behind the data in front of it.
    let earliest = old.addr + end as u64 + change.min(0).unsigned_abs();
    let latest = old.addr + content as u64;
    if alignment == 0 || !behind.is_multiple_of(alignment) {
        return latest;
    }
    earliest.next_multiple_of(alignment).min(latest)
}

#[cfg(test)]
mod tests {
    use super::{DataStretch, changes};

    const NO_ADDRESSES: [&dyn Fn(u64) -> Option<u64>; 2] = [&|_| None, &|_| None];

    /// Sections, given as (alignment, bytes), one behind the other from `addr`: the bytes, and the
    /// address of each section.
    fn linked(addr: u64, sections: &[(u64, &[u8])]) -> (Vec<u8>, Vec<u64>) {
        let (mut bytes, mut starts) = (Vec::new(), Vec::new());
        for (alignment, content) in sections {
            let start = (addr + bytes.len() as u64).next_multiple_of(*alignment);
            bytes.resize((start - addr) as usize, 0);
            bytes.extend_from_slice(content);
            starts.push(start);
        }
        (bytes, starts)
    }

    /// The new address of `old` according to the changes of the distance.
    fn image(old: u64, first: (u64, u64), changes: &[(u64, u64)]) -> u64 {
        let before = changes.iter().take_while(|change| change.0 <= old).last().unwrap_or(&first);
        before.1 + (old - before.0)
    }

    /// The changes cut both into the same data, each with padding behind it.
    fn fits(old: (u64, &[u8]), new: (u64, &[u8]), changes: &[(u64, u64)]) {
        let ends = [(old.0 + old.1.len() as u64, new.0 + new.1.len() as u64)];
        let mut begin = (old.0, new.0);
        for &end in changes.iter().chain(&ends) {
            let before = &old.1[(begin.0 - old.0) as usize..(end.0 - old.0) as usize];
            let after = &new.1[(begin.1 - new.0) as usize..(end.1 - new.0) as usize];
            let shared = before.len().min(after.len());
            assert_eq!(before[..shared], after[..shared], "{changes:x?}");
            let rest = before[shared..].iter().chain(&after[shared..]);
            assert!(rest.copied().all(|byte| byte == 0), "{changes:x?}");
            begin = end;
        }
    }

    #[test]
    fn every_section_is_found_at_every_distance() {
        let wide = b"strings that are aligned, \0\0\0\0\0\0and the next\0";
        let constants: Vec<u8> = (1u64..=8).flat_map(|n| (n << 40 | n).to_le_bytes()).collect();
        let table: Vec<u8> = (0u8..96).map(|n| n.wrapping_mul(37) | 1).collect();
        let zero_first = [&[0, 0, 0, 0, 0, 0, 0, 0][..], &table].concat();
        const OLD: u64 = 0xffff_ffff_8200_0003;
        for (length, distance) in (0..16).flat_map(|length| (0..192).map(move |d| (length, d))) {
            let strings = format!("linux\0version %s\0a {}message\0", "longer ".repeat(length));
            let sections: [(u64, &[u8]); 6] = [
                (1, strings.as_bytes()),
                (8, wide),
                (4, &constants),
                (32, &table),
                (2, b"odd\0length\0"),
                (64, &zero_first),
            ];
            let (old, starts) = linked(OLD, &sections);
            let (new, new_starts) = linked(OLD + distance, &sections);
            let stretch = |addr, bytes| DataStretch { addr, bytes };
            let changes = changes(stretch(OLD, &old), stretch(OLD + distance, &new), NO_ADDRESSES);
            for (start, new_start) in starts.iter().zip(&new_starts) {
                let found = image(*start, (OLD, OLD + distance), &changes);
                assert_eq!(
                    found, *new_start,
                    "a section at {start:x}, distance {distance}: {changes:x?}"
                );
            }
            fits((OLD, &old), (OLD + distance, &new), &changes);
        }
    }

    #[test]
    fn bytes_of_addresses_may_differ() {
        let words = |base: u64| {
            (0..6u64).flat_map(|n| (base + n * 0x10).to_le_bytes()).collect::<Vec<u8>>()
        };
        let (old, _) = linked(
            0x1001,
            &[(1, b"name\0"), (8, &words(0xffff_ffff_8100_1230)), (1, b"the end\0")],
        );
        let (new, _) = linked(
            0x2004,
            &[(1, b"name\0"), (8, &words(0xffff_ffff_8155_4320)), (1, b"the end\0")],
        );
        let words_from = |start: u64| {
            move |addr: u64| (start..start + 48).contains(&addr).then(|| (addr - start) % 8)
        };
        let (in_old, in_new) = (words_from(0x1008), words_from(0x2010));
        let stretch = |addr, bytes| DataStretch { addr, bytes };
        let found = changes(stretch(0x1001, &old), stretch(0x2004, &new), [&in_old, &in_new]);
        let ends = [
            (0x1000 + old.len() as u64, 0x2003 + new.len() as u64),
            (0x1008, 0x2010),
            (0x1001, 0x2004),
        ];
        for (old, new) in ends {
            assert_eq!(image(old, (0x1001, 0x2004), &found), new, "{found:x?}");
        }
    }

    #[test]
    fn different_data_ends_the_list() {
        let stretch = |bytes| DataStretch { addr: 0x1000, bytes };
        assert_eq!(changes(stretch(b"one thing"), stretch(b"some else"), NO_ADDRESSES), []);
        assert_eq!(changes(stretch(b"one thing"), stretch(b"one"), NO_ADDRESSES), []);
        assert_eq!(changes(stretch(b""), stretch(b"one"), NO_ADDRESSES), []);
    }
}
