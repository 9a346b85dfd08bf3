//! Padding: no-ops in front of functions, which call-depth tracking patches, and bytes between
//! things.
//!
//! Input: both kernels and the map. Output: where the padding of each function went. A claim that
//! padding was dropped is proven here.

use super::intervals::contains;
use super::kernel::{KernelFile, KernelSymbol};
use super::verdict::Findings;
use image::place::{CallPadding, Placement};
use std::collections::HashMap;

/// The prefix that the kernel's build gives to the padding in front of a function.
pub(crate) const PADDING_PREFIX: &str = "__pfx_";

/// The byte of which this padding consists.
const NO_OP: u8 = 0x90;

/// The beginnings of labels around functions that the compiler sorted by how often they run
/// (include/asm-generic/vmlinux.lds.h, since 6.13). A relink sorts them anew, and leaves these
/// sections empty. The kernel uses none of these labels.
const BY_FREQUENCY: [&str; 3] = ["__hot_text_", "__unlikely_text_", "__split_text_"];

/// Whether a label lies around functions that the compiler sorted by how often they run.
pub(crate) fn is_by_frequency(label: &str) -> bool {
    BY_FREQUENCY.iter().any(|begin| label.starts_with(begin))
}

/// The padding of one function: its old and its new address.
pub(super) struct FunctionPadding {
    pub old: u64,
    /// Bytes in the old kernel.
    pub size: u64,
    pub new: u64,
    pub change: PaddingChange,
}

/// What a relink did to the padding of a function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PaddingChange {
    Kept,
    /// Only the bytes that the kernel patches are left.
    Shortened,
    /// Nothing is left, and the name is gone.
    Dropped,
}

/// Pairs the padding in front of functions, which goes where its function goes. It may become
/// shorter if the rest is all that the kernel patches, and the removed bytes were no-ops. It may
/// vanish with its name if the map says so.
pub(super) fn paddings(
    name: &str,
    section: usize,
    old: &KernelFile,
    new: &KernelFile,
    patched: Option<u64>,
    map: &Placement,
) -> Vec<FunctionPadding> {
    let blocks = &map.blocks;
    let no_ops =
        |addr, size| old.bytes(addr, size).is_some_and(|bytes| bytes.iter().all(|&b| b == NO_OP));
    let of_section = old.named(name).filter(|s| s.section == Some(section));
    let found = of_section.filter_map(|s| {
        let end = s.addr.0.checked_add(s.size)?;
        let function = blocks[blocks.binary_search_by_key(&end, |b| b.old.0).ok()?].new.0;
        let padding = |new, change| FunctionPadding { old: s.addr.0, size: s.size, new, change };
        let as_before = padding(function.wrapping_sub(s.size), PaddingChange::Kept);
        let stands_before = |t: &KernelSymbol| t.addr.0.checked_add(t.size) == Some(function);
        if map.call_padding == CallPadding::Dropped
            && !new.named(name).any(stands_before)
            && no_ops(s.addr.0, s.size)
        {
            return Some(padding(function, PaddingChange::Dropped));
        }
        let suffices =
            |t: &&KernelSymbol| t.size < s.size && patched.is_some_and(|patched| t.size >= patched);
        let twin = new.named(name).filter(suffices).find(|t| stands_before(t));
        let twin = twin.filter(|twin| no_ops(s.addr.0, s.size - twin.size));
        Some(twin.map_or(as_before, |twin| padding(twin.addr.0, PaddingChange::Shortened)))
    });
    found.collect()
}

/// A kernel that boots with `retbleed=stuff` would mistake no-ops in front of an entry for padding,
/// and write its template over them. So where padding was dropped, the code of another function in
/// front of the entry must not consist of no-ops.
pub(super) fn prove_dropped(
    old: &KernelFile,
    new: &KernelFile,
    dropped: &HashMap<u64, u64>,
    placed: &[(u64, u64)],
    findings: &mut Findings,
) {
    let patched = patched_padding(old).unwrap_or(0);
    for (&at, &entry) in dropped {
        let from = entry.wrapping_sub(patched);
        let like_padding = patched > 0
            && new.bytes(from, patched).is_none_or(|bytes| bytes.iter().all(|&b| b == NO_OP))
            && (from..entry).any(|byte| contains(placed, byte));
        findings.expect(!like_padding, "call padding dropped", at, entry, || {
            "the code in front of the entry looks like call padding".to_owned()
        });
    }
}

/// The number of bytes in front of an entry that a kernel with call-depth tracking patches: the
/// length of its template (arch/x86/kernel/callthunks.c). `None` if the kernel has no template.
/// Then padding keeps its length.
pub(super) fn patched_padding(kernel: &KernelFile) -> Option<u64> {
    let [from, to] =
        ["skl_call_thunk_template", "skl_call_thunk_tail"].map(|name| kernel.symbol(name));
    to?.checked_sub(from?).filter(|&length| length > 0)
}

/// The four bytes that the linker repeats between sections of code in kernels up to 6.2
/// (`=0xcccc` in arch/x86/kernel/vmlinux.lds.S). Others have int3.
const FILL: [u8; 4] = [0, 0, 0xcc, 0xcc];

/// The length of `code` without padding at its end: int3, behind at least eight bytes of `FILL`.
/// Less of it may be code.
pub(super) fn length_without_padding(code: &[u8]) -> usize {
    let filled = |start: &usize| is_fill(&code[*start..]);
    // A fill that ends the code begins at most four bytes behind the place where it could.
    let mut end = code.len();
    if let Some(start) = (code.len().saturating_sub(11)..=code.len().saturating_sub(8)).find(filled)
        && code.len() >= 8
    {
        end = start;
        while end >= FILL.len() && code[end - FILL.len()..end] == FILL {
            end -= FILL.len();
        }
    }
    code[..end].iter().rposition(|&byte| byte != 0xcc).map_or(0, |last| last + 1)
}

fn is_fill(bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(i, &byte)| byte == FILL[i % FILL.len()])
}

/// Whether `bytes` consist of int3 and no-ops, which linkers and assemblers put between things, and
/// perhaps end with the linker's other fill.
pub(crate) fn is_padding(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while let Some(&first) = rest.first() {
        if is_fill(rest) {
            return true;
        }
        let len = if first == 0xcc { 1 } else { no_op_length(rest) };
        if len == 0 {
            return false;
        }
        rest = &rest[len..];
    }
    true
}

/// The length of the no-op at the beginning of `bytes`; 0 if there is none.
pub(crate) fn no_op_length(bytes: &[u8]) -> usize {
    let mut decoder = iced_x86::Decoder::new(64, bytes, iced_x86::DecoderOptions::NONE);
    let instruction = decoder.decode();
    if !instruction.is_invalid() && instruction.mnemonic() == iced_x86::Mnemonic::Nop {
        instruction.len()
    } else {
        0
    }
}

/// Whether a symbol is a label in padding that goes with a function of the map, or one around code
/// that is sorted by how often it runs, and lies between functions of the map. `covered`: the
/// map's blocks; `padding`: what is in front of its functions.
pub(super) fn is_label_in_padding(
    old: &KernelFile,
    covered: &[(u64, u64)],
    padding: &[(u64, u64)],
    symbol: &KernelSymbol,
) -> bool {
    let at = symbol.addr.0;
    let is_behind = || is_by_frequency(symbol.name) && is_between(old, [covered, padding], at);
    !symbol.function && symbol.size == 0 && (contains(padding, at) || is_behind())
}

/// Whether `at` lies between two functions of the map, with nothing but padding between them.
/// `known`: the intervals of the map's blocks, and those of the padding in front of its functions.
fn is_between(old: &KernelFile, known: [&[(u64, u64)]; 2], at: u64) -> bool {
    if known.iter().any(|intervals| contains(intervals, at)) {
        return false;
    }
    let ends = known.iter().filter_map(|intervals| {
        let before = intervals.partition_point(|interval| interval.1 <= at);
        before.checked_sub(1).map(|last| intervals[last].1)
    });
    let starts = known.iter().filter_map(|intervals| {
        intervals.get(intervals.partition_point(|interval| interval.0 < at))
    });
    let gap = ends.max().zip(starts.map(|interval| interval.0).min());
    gap.is_some_and(|(from, to)| old.bytes(from, to - from).is_some_and(is_padding))
}

/// Whether the symbol is a label that a compiler numbered: with LTO and line tables, one lies in
/// the padding of each function. Thousands have the same name, so a name says nothing of a place.
pub(crate) fn is_compilers_label(symbol: &KernelSymbol) -> bool {
    // Names of code that runs before the kernel is mapped have a prefix (arch/x86/boot/startup).
    symbol.name.strip_prefix("__pi_").unwrap_or(symbol.name).starts_with(".L")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linkers_fill_is_padding_and_less_of_it_may_be_code() {
        let fill = |len: usize| FILL.iter().copied().cycle().take(len).collect::<Vec<u8>>();
        for len in [0, 8, 9, 10, 11, 12, 31] {
            assert_eq!(length_without_padding(&[&[0xc3, 0xcc][..], &fill(len)].concat()), 1);
            assert_eq!(length_without_padding(&[&[0xe9, 0, 0, 0, 0][..], &fill(len)].concat()), 5);
            assert!(is_padding(&[&[0x90, 0xcc][..], &fill(len)].concat()), "{len} bytes");
        }
        assert_eq!(length_without_padding(&[0xc3, 0, 0]), 3);
        assert_eq!(length_without_padding(&[0xcc, 0xcc]), 0);
        assert!(is_padding(&[0]) && !is_padding(&[0, 0xcc]) && !is_padding(&[0xcc, 0, 0, 0xc3]));
    }
}
