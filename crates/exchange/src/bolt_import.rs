//! Reads the profiles of BOLT as text: pre-aggregated branches by address, and fdata by function.
//!
//! ```text
//! B FROM TO COUNT MISPREDICTED                 pre-aggregated (parsePreAggregated in BOLT's
//! F FROM TO COUNT                              DataAggregator.h): a branch, a straight stretch,
//! T FROM TO END COUNT                          and a branch with the stretch behind it
//! 1 FUNCTION OFFSET 1 FUNCTION OFFSET MISPREDICTED COUNT      fdata (DataReader.h)
//! ```
//!
//! Input: text, and for fdata the kernel. Output: branches, or a profile. Lines that do not name a
//! place of the kernel are counted and left out. `bolt.rs` writes the first format.

use super::branches::{self, Branches, ImportedBranches, sampled};
use super::perf;
use anyhow::{Context, Result, bail};
use image::address::LinkAddr;
use image::sites::PatchableCode;
use image::{BlockEnd, BlockIndex, Image};
use layout::graph::EdgeKind;
use object::{Object, ObjectSymbol};
use profile::Profile;
use std::collections::BTreeMap;
use std::path::Path;

/// Whether a text is a pre-aggregated profile, by its first line that is not empty.
pub fn is_pre_aggregated(text: &str) -> bool {
    first_line(text).is_some_and(|line| Entry::read(line).is_some())
}

/// Whether a text is fdata, by its first line that is not empty.
pub fn is_fdata(text: &str) -> bool {
    first_line(text).is_some_and(|line| is_head(line) || fdata_line(line).is_some())
}

fn first_line(text: &str) -> Option<&str> {
    text.lines().find(|line| !line.trim().is_empty())
}

/// Lines in front of fdata that say how it was made.
fn is_head(line: &str) -> bool {
    line == "boltedcollection" || line.starts_with("no_lbr")
}

/// A line of a pre-aggregated profile.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    Branch((u64, u64), u64),
    Straight((u64, u64), u64),
    /// A branch, and the end of the stretch behind it.
    Trace((u64, u64), u64, u64),
    /// A sample without a branch, or the name of the event.
    Other,
}

/// From this value on, an address means "not known" (`Trace` in DataAggregator.h).
const UNKNOWN: u64 = u64::MAX - 1;

impl Entry {
    fn read(line: &str) -> Option<Entry> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = |word: &str| match word.split_once(':') {
            // The sample is of an unknown program, not of the kernel's code.
            Some(("X", _)) => Some(0),
            Some((_, offset)) => u64::from_str_radix(offset, 16).ok(),
            None => u64::from_str_radix(word, 16).ok(),
        };
        let count = |word: &str| word.parse().ok();
        Some(match words[..] {
            ["B", from, to, taken, wrong] => {
                let _: u64 = count(wrong)?;
                Entry::Branch((at(from)?, at(to)?), count(taken)?)
            }
            ["F" | "f" | "r", from, to, taken] => {
                Entry::Straight((at(from)?, at(to)?), count(taken)?)
            }
            ["T" | "R", from, to, end, taken] => {
                Entry::Trace((at(from)?, at(to)?), at(end)?, count(taken)?)
            }
            ["S", start, taken] => {
                let _: (u64, u64) = (at(start)?, count(taken)?);
                Entry::Other
            }
            ["E", _] => Entry::Other,
            _ => return None,
        })
    }
}

/// The message for counts that are refused so that no sum of them overflows.
const TOO_LARGE: &str = "the counts together are more than 64 bits hold: it is damaged";

/// Reads a pre-aggregated profile. Its addresses are those of the file that ran.
///
/// # Errors
/// A line does not follow the format, or no line has a branch.
pub fn pre_aggregated(text: &str) -> Result<Branches> {
    let (mut branches, mut total) = (Branches::default(), 0_u64);
    let mut add = |counts: &mut BTreeMap<(u64, u64), u64>, ends: (u64, u64), count: u64| {
        total = total.checked_add(count).context(TOO_LARGE)?;
        if ends.0 < UNKNOWN && ends.1 < UNKNOWN {
            *counts.entry(ends).or_insert(0) += count;
        }
        Ok::<(), anyhow::Error>(())
    };
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let entry = Entry::read(line).with_context(|| {
            format!("line {}: no line of BOLT's pre-aggregated profile", number + 1)
        })?;
        match entry {
            Entry::Branch(ends, count) => add(&mut branches.taken, ends, count)?,
            Entry::Straight(ends, count) => add(&mut branches.straight, ends, count)?,
            Entry::Trace(ends, end, count) => {
                add(&mut branches.taken, ends, count)?;
                add(&mut branches.straight, (ends.1, end), count)?;
            }
            Entry::Other => {}
        }
    }
    if branches.taken.is_empty() {
        bail!("BOLT's pre-aggregated profile has no branch: {}", perf::RECORD);
    }
    Ok(branches)
}

/// A function's name, and the distance from its entry.
type Place = (String, u64);

/// Branches by function and offset.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NamedBranches {
    counts: BTreeMap<(Place, Place), u64>,
    /// Counts of branches from or to code without a name.
    unnamed: u64,
}

/// A line of fdata: the places of a branch, if both have a function, and its count. Lines of memory
/// accesses have none.
fn fdata_line(line: &str) -> Option<(Option<(Place, Place)>, u64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let offset = |word: &str| u64::from_str_radix(word, 16).ok();
    match words[..] {
        [from_kind, from, from_offset, to_kind, to, to_offset, wrong, count] => {
            let kinds: (u8, u8) = (from_kind.parse().ok()?, to_kind.parse().ok()?);
            let _: u64 = wrong.parse().ok()?;
            let from = (from.to_owned(), offset(from_offset)?);
            let to = (to.to_owned(), offset(to_offset)?);
            let count = count.parse().ok()?;
            match kinds {
                (1, 1) => Some((Some((from, to)), count)),
                (0..=2, 0..=2) => Some((None, count)),
                _ => None,
            }
        }
        ["3" | "4" | "5", _, from, "3" | "4" | "5", _, to, count] => {
            let _: (u64, u64) = (offset(from)?, offset(to)?);
            let _: u64 = count.parse().ok()?;
            Some((None, 0))
        }
        _ => None,
    }
}

/// Reads fdata.
///
/// # Errors
/// A line does not follow the format, or the file was made without branch stacks.
pub fn fdata(text: &str) -> Result<NamedBranches> {
    let (mut found, mut total) = (NamedBranches::default(), 0_u64);
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        if line.starts_with("no_lbr") {
            bail!("BOLT's profile was made without branches (no_lbr): {}", perf::RECORD);
        }
        if is_head(line) {
            bail!(
                "BOLT's profile is of a program that BOLT had changed, so its offsets are not the \
                 kernel's: {}",
                perf::RECORD
            );
        }
        let (places, count) = fdata_line(line)
            .with_context(|| format!("line {}: no line of BOLT's fdata", number + 1))?;
        total = total.checked_add(count).context(TOO_LARGE)?;
        *match places {
            Some(places) => found.counts.entry(places).or_insert(0),
            None => &mut found.unnamed,
        } += count;
    }
    Ok(found)
}

impl NamedBranches {
    /// The profile of the kernel in the file `path`. BOLT gives no stretches. If control went on
    /// behind a branch, BOLT counts a branch to the next instruction.
    ///
    /// # Errors
    /// The file cannot be read, or is not ELF.
    pub fn profile(
        &self,
        image: &Image,
        code: &PatchableCode,
        path: &Path,
        name: &str,
    ) -> Result<ImportedBranches> {
        let named = || path.display().to_string();
        let bytes = std::fs::read(path).with_context(named)?;
        let elf = object::File::parse(&*bytes).with_context(named)?;
        let mut symbols: BTreeMap<&str, Option<u64>> = BTreeMap::new();
        for symbol in elf.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text) {
            // BOLT numbers several functions of one name in an order that only BOLT knows.
            let address = symbols.entry(symbol.name()?).or_insert(Some(symbol.address()));
            *address = address.filter(|&address| address == symbol.address());
        }
        Ok(self.profile_by(image, code, name, &|name| *symbols.get(name)?))
    }

    /// The profile, by the addresses of functions.
    pub fn profile_by(
        &self,
        image: &Image,
        code: &PatchableCode,
        name: &str,
        address: &dyn Fn(&str) -> Option<u64>,
    ) -> ImportedBranches {
        // Local functions are FUNCTION/NUMBER or FUNCTION/FILE/NUMBER.
        let at =
            |(function, offset): &Place| address(function.split('/').next()?)?.checked_add(*offset);
        let (mut taken, mut on, mut lost) = (Branches::default(), Vec::new(), self.unnamed);
        for ((from, to), &count) in &self.counts {
            match at(from).zip(at(to)) {
                None => lost = lost.saturating_add(count),
                Some((from, to)) => match goes_on(image, LinkAddr(from), LinkAddr(to)) {
                    Some(blocks) => on.push((blocks, count)),
                    None => *taken.taken.entry((from, to)).or_insert(0) += count,
                },
            }
        }
        let mut imported = branches::profile(&taken, image, code, 0, name);
        let mut profile = Profile::empty(image.build_id.clone());
        (profile.edges, profile.calls) = (imported.profile.edges, imported.profile.calls);
        for ((from, to), count) in on {
            let ends = (image.block(from).addr, image.block(to).addr);
            add(&mut profile.edges.entry(ends).or_insert((EdgeKind::FallThrough, 0)).1, count);
            add(&mut imported.branches_used, count);
            add(&mut imported.branches_inside, count);
            add(&mut imported.branches, count);
        }
        count_blocks(&mut profile, image);
        add(&mut imported.branches, lost);
        imported.profile = sampled(profile, name);
        imported
    }
}

/// The block that ends there and the one behind it, if control goes on without a branch.
fn goes_on(image: &Image, from: LinkAddr, to: LinkAddr) -> Option<(BlockIndex, BlockIndex)> {
    let source = image.block_at(from)?;
    let block = image.block(source);
    let target = BlockIndex(source.0 + 1);
    let goes_on = match block.end {
        BlockEnd::FallThrough => true,
        BlockEnd::Branch(taken) => taken != to,
        _ => false,
    };
    let adjoins = image.blocks.get(target.0 as usize)?.addr == to && block.end_addr() == to;
    (goes_on && adjoins).then_some((source, target))
}

/// Sets the count of each block to how often control came to it or left it, whichever is more. A
/// call does not end a block of BOLT, so the block behind the call has the count of the block
/// before it.
fn count_blocks(profile: &mut Profile, image: &Image) {
    let mut come: BTreeMap<LinkAddr, u64> = BTreeMap::new();
    let mut left = come.clone();
    let edges = profile.edges.iter().map(|(&ends, &(_, count))| (ends, count));
    let calls = profile.calls.iter().map(|(&ends, &count)| (ends, count));
    for ((from, to), count) in edges.chain(calls) {
        add(left.entry(from).or_insert(0), count);
        add(come.entry(to).or_insert(0), count);
    }
    for function in &image.functions {
        let mut before: Option<(LinkAddr, u64)> = None;
        for index in function.blocks.clone() {
            let block = image.block(BlockIndex(index));
            let go_on = before.filter(|&(at, count)| {
                count > 0 && !come.contains_key(&block.addr) && at != block.addr
            });
            if let Some((from, count)) = go_on {
                let edge = (EdgeKind::FallThrough, count);
                profile.edges.insert((from, block.addr), edge);
                come.insert(block.addr, count);
            }
            let of = |counts: &BTreeMap<LinkAddr, u64>| counts.get(&block.addr).copied();
            let count = of(&come).max(of(&left)).unwrap_or(0);
            if count > 0 {
                profile.blocks.insert(block.addr, count);
            }
            let next = image.blocks.get(index as usize + 1);
            let adjoins = next.is_some_and(|next| next.addr == block.end_addr());
            let ends = matches!(block.end, BlockEnd::Call(_) | BlockEnd::FallThrough);
            before = (adjoins && ends).then_some((block.addr, count));
        }
    }
}

fn add(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count);
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0xffff_ffff_8100_0000;

    #[test]
    fn a_pre_aggregated_profile_is_read() {
        let text = "E cycles\nB 30 40 2 1\nF 20 30 5\nf 20 30 1\nS 10 3\nT 10 20 30 4\nr 7 8 1\n\
            R 10 20 ffffffffffffffff 1\nB X:0 40 3 0\nB ab12:30 40 1 0\n";
        assert!(is_pre_aggregated(text) && !is_fdata(text));
        let branches = pre_aggregated(text).unwrap();
        assert_eq!(branches.taken, [((0x30, 0x40), 3), ((0x10, 0x20), 5), ((0, 0x40), 3)].into());
        assert_eq!(branches.straight, [((0x20, 0x30), 10), ((7, 8), 1)].into());
        let error = |text: &str| pre_aggregated(text).unwrap_err().to_string();
        assert!(error("B 1 2 3 4\nB 1 2 x 4\n").starts_with("line 2: "), "{}", error("B"));
        assert!(error("S 10 3\n").contains("has no branch"));
        let most = u64::MAX;
        assert!(error(&format!("B 1 2 {most} 0\nF 2 3 1\n")).contains("more than 64 bits"));
    }

    #[test]
    fn fdata_becomes_blocks_edges_and_calls() {
        // f: 0 ─branch→ 9, or 4: call g, then 9. g: 0x20.
        let image = image::examples::caller_and_callee(LinkAddr(BASE));
        let text = "1 f 2 1 f 4 0 5\n1 f 2 1 f 9 1 2\n1 f 4 1 g/file.c/1 0 0 5\n\
            0 [unknown] 0 1 f 0 0 9\n4 f 4 4 data 10 3\n1 h 0 1 f 0 0 1\n";
        assert!(is_fdata(text) && !is_pre_aggregated(text));
        let named = |name: &str| match name {
            "f" => Some(BASE),
            "g" => Some(BASE + 0x20),
            _ => None,
        };
        let code = image::examples::caller_and_callee_code(LinkAddr(BASE));
        let found = fdata(text).unwrap().profile_by(&image, &code, "bolt.fdata", &named);
        let link = |offset: u64| LinkAddr(BASE + offset);
        assert_eq!((found.branches_used, found.branches), (12, 22));
        let profile = found.profile;
        assert_eq!(profile.calls, [((link(4), link(0x20)), 5)].into());
        assert_eq!(
            profile.edges,
            [
                ((link(0), link(4)), (EdgeKind::FallThrough, 5)),
                ((link(0), link(9)), (EdgeKind::Branch, 2)),
            ]
            .into()
        );
        let blocks = [(link(0), 7), (link(4), 5), (link(9), 2), (link(0x20), 5)];
        assert_eq!(profile.blocks, blocks.into());
        assert_eq!(profile.sources.len(), 1);
    }

    #[test]
    fn what_follows_a_call_has_the_count_of_the_block_before_it() {
        let mut image = image::examples::caller_and_callee(LinkAddr(BASE));
        image.blocks[0].end = BlockEnd::FallThrough;
        let code = image::examples::caller_and_callee_code(LinkAddr(BASE));
        let named = |name: &str| Some(if name == "f" { BASE } else { BASE + 0x20 });
        let branches = fdata("1 f 4 1 g 0 0 5\n").unwrap();
        let found = branches.profile_by(&image, &code, "x", &named);
        let edge = (LinkAddr(BASE + 4), LinkAddr(BASE + 9));
        assert_eq!(found.profile.edges[&edge], (EdgeKind::FallThrough, 5));
        assert_eq!(found.profile.blocks[&LinkAddr(BASE + 9)], 5);
    }

    #[test]
    fn fdata_without_branches_of_the_kernel_is_refused() {
        let error = |text: &str| fdata(text).unwrap_err().to_string();
        assert!(error("no_lbr cycles:\n1 f 0 3\n").contains("without branches"));
        assert!(error("boltedcollection\n1 f 0 1 f 4 0 1\n").contains("BOLT had changed"));
        assert!(error("1 f 0 1 f 4 0 1\n1 f 0 1 f z 0 1\n").starts_with("line 2: "));
        let most = u64::MAX;
        let sum = format!("1 f 0 1 f 4 0 {most}\n1 f/1 0 1 f 4 0 1\n");
        assert!(error(&sum).contains("more than 64 bits"));
        assert!(!is_fdata("f:1:2\n") && !is_fdata("0x1/0x2/P/-/-/0\n") && is_fdata("no_lbr\n"));
    }
}
