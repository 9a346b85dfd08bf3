//! Which functions belong to a group: the root and the hot ones among those that it leads to
//! (Tamches 2001, section 2.2).
//!
//! Input: a profile's calls and tail jumps. Output: functions. A function is hot when one of its
//! blocks ran more often than a given share of the root's calls.

use crate::chunks::{self, Chunks};
use crate::group::Group;
use crate::memory::Memory;
use crate::occupancy::{InstructionCacheGeometry, Occupancy};
use anyhow::Result;
use image::address::LinkAddr;
use image::linked::LinkedKernel;
use profile::Profile;
use std::collections::{BTreeMap, BTreeSet};

/// The root and its hot descendants, ascending by number.
pub fn group(
    kernel: &LinkedKernel<'_>,
    profile: &Profile,
    root: usize,
    threshold: f64,
) -> Vec<usize> {
    let limit = limit(kernel, profile, root, threshold);
    let function = |at: &LinkAddr| kernel.function_at(*at);
    let mut callees: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let calls = profile.calls.iter().map(|((from, to), &count)| (from, to, count));
    let jumps = profile.edges.iter().map(|((from, to), &(_, count))| (from, to, count));
    for (from, to, count) in calls.chain(jumps) {
        if let (Some(from), Some(to), true) = (function(from), function(to), count > 0) {
            callees.entry(from).or_default().insert(to);
        }
    }
    let mut hottest: BTreeMap<usize, u64> = BTreeMap::new();
    for (at, &count) in &profile.blocks {
        if let Some(index) = function(at) {
            let most = hottest.entry(index).or_default();
            *most = count.max(*most);
        }
    }
    let is_hot = |index: usize| hottest.get(&index).is_some_and(|&count| count as f64 > limit);
    let mut found = BTreeSet::from([root]);
    let mut waiting = vec![root];
    while let Some(index) = waiting.pop() {
        for &callee in callees.get(&index).into_iter().flatten() {
            if is_hot(callee) && found.insert(callee) {
                waiting.push(callee);
            }
        }
    }
    found.into_iter().collect()
}

/// How often a block must have run to be hot: more than a given share of the root's calls.
pub(crate) fn limit(
    kernel: &LinkedKernel<'_>,
    profile: &Profile,
    root: usize,
    threshold: f64,
) -> f64 {
    let entry = kernel.link_address(kernel.functions[root].at);
    profile.blocks.get(&entry).copied().unwrap_or(0) as f64 * threshold
}

/// The hottest functions: the fewest that together hold this share (0 to 1) of all bytes of code
/// that the profile counts; ascending.
pub fn hottest(kernel: &LinkedKernel<'_>, profile: &Profile, share: f64) -> Vec<usize> {
    let ran = profile.blocks.iter().filter(|&(_, &count)| count > 0);
    let ran: BTreeSet<usize> = ran.filter_map(|(&at, _)| kernel.function_at(at)).collect();
    let ran: Vec<usize> = ran.into_iter().collect();
    let mut executed: BTreeMap<usize, u64> = BTreeMap::new();
    for piece in kernel.cut(&ran).pieces {
        let at = kernel.link_address(piece.at);
        let count = profile.blocks.get(&at).copied().unwrap_or(0);
        if let Some(index) = kernel.function_at(at) {
            let bytes = executed.entry(index).or_default();
            *bytes = bytes.saturating_add(count.saturating_mul(u64::from(piece.size)));
        }
    }
    let wanted = executed.values().map(|&bytes| bytes as f64).sum::<f64>() * share;
    let mut by_heat: Vec<(usize, u64)> = executed.into_iter().collect();
    by_heat.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
    let mut held = 0.0;
    let hottest = by_heat.into_iter().take_while(|&(_, bytes)| {
        let is_wanted = held < wanted;
        held += bytes as f64;
        is_wanted
    });
    let mut hottest: Vec<usize> = hottest.map(|(index, _)| index).collect();
    hottest.sort_unstable();
    hottest
}

/// The groups of several roots, together; ascending.
pub fn groups(
    kernel: &LinkedKernel<'_>,
    profile: &Profile,
    roots: &[usize],
    threshold: f64,
) -> Vec<usize> {
    let groups = roots.iter().flat_map(|&root| group(kernel, profile, root, threshold));
    groups.collect::<BTreeSet<usize>>().into_iter().collect()
}

/// How often a block must have run to be hot for one of the roots.
pub fn least_limit(
    kernel: &LinkedKernel<'_>,
    profile: &Profile,
    roots: &[usize],
    threshold: f64,
) -> f64 {
    let limits = roots.iter().map(|&root| limit(kernel, profile, root, threshold));
    limits.fold(f64::INFINITY, f64::min)
}

/// The blocks of a group that ran more often than `limit`, by their numbers, ascending. With
/// inlined calls, each copy of a block has its share of the profile's count.
pub fn blocks(group: &Group<'_, '_>, profile: &Profile, limit: f64) -> Vec<usize> {
    if !group.original.inlining.calls().is_empty() {
        let counts = group.graph(Some(profile)).counts;
        return (0..counts.len()).filter(|&n| counts[n] as f64 > limit).collect();
    }
    let count = |n: usize| {
        let at = group.original.kernel.link_address(group.original.pieces[n].at);
        profile.blocks.get(&at).copied().unwrap_or(0)
    };
    (0..group.original.pieces.len()).filter(|&n| count(n) as f64 > limit).collect()
}

/// A group, and which of its blocks are hot.
pub struct HotGroup<'k, 'd> {
    /// The hot functions that the roots lead to.
    pub group: Group<'k, 'd>,
    /// The numbers of its hot blocks, ascending.
    pub blocks: Vec<usize>,
}

impl<'k, 'd> HotGroup<'k, 'd> {
    /// The functions that run more than `threshold` times as often as one of the roots is called,
    /// and their blocks that do. `roots`: indices into the kernel's functions.
    ///
    /// # Errors
    /// Memory cannot be read, or the functions cannot be copied together.
    pub fn new(
        kernel: &'k LinkedKernel<'d>,
        memory: &dyn Memory,
        profile: &Profile,
        roots: &[usize],
        threshold: f64,
    ) -> Result<HotGroup<'k, 'd>> {
        let group = Group::new(kernel, memory, &groups(kernel, profile, roots, threshold))?;
        let limit = least_limit(kernel, profile, roots, threshold);
        Ok(HotGroup { blocks: blocks(&group, profile, limit), group })
    }

    /// How the hot blocks lie over a cache in the kernel's own text.
    pub fn original(&self, cache: InstructionCacheGeometry) -> Occupancy {
        let original = &self.group.original;
        let place = |&n: &usize| {
            let piece = &original.pieces[n];
            (original.kernel.link_address(piece.at).0.wrapping_add(original.slide), piece.size)
        };
        Occupancy::of(cache, self.blocks.iter().map(place))
    }

    /// How the copies of the hot blocks lie over a cache. `places`: offset in the module's `.text`
    /// and size of each of the group's blocks; `text`: the address of that `.text`.
    pub fn copied(
        &self,
        cache: InstructionCacheGeometry,
        places: &[(u32, u32)],
        text: u64,
    ) -> Occupancy {
        let place = |&n: &usize| (text + u64::from(places[n].0), places[n].1);
        Occupancy::of(cache, self.blocks.iter().map(place))
    }

    /// How the functions are split over their hot blocks. `places`: as for [`HotGroup::copied`].
    pub fn chunks(&self, places: &[(u32, u32)]) -> Vec<Chunks> {
        let is_hot = |n: usize| self.blocks.binary_search(&n).is_ok();
        chunks::chunks(&self.group, places, &is_hot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kernel::{ChangedMemory, F, G, H, SLIDE, at, tables, with};

    #[test]
    fn the_hottest_functions_hold_their_share_of_the_executed_bytes() {
        with(tables(), |kernel| {
            let mut profile = Profile::empty(kernel.build_id.clone());
            // Blocks of 12, 13 and 10 bytes: 1200 of 1340 bytes are of f.
            profile.blocks.extend([(at(0), 100), (at(0x40), 10), (at(0x80), 1)]);
            let hottest = |share| hottest(kernel, &profile, share);
            assert!(hottest(0.0).is_empty());
            assert_eq!((hottest(0.5), hottest(0.89)), (vec![F], vec![F]));
            assert_eq!(hottest(0.95), [F, G]);
            assert_eq!(hottest(1.0), [F, G, H]);
        });
    }

    #[test]
    fn hot_blocks_lie_where_the_kernel_is_and_where_their_copies_are() {
        with(tables(), |kernel| {
            let mut profile = Profile::empty(kernel.build_id.clone());
            profile.blocks.extend([(at(0), 100), (at(0x0c), 11), (at(0x17), 100), (at(0x40), 11)]);
            profile.blocks.insert(at(0x80), 10);
            profile.calls.insert((at(0x0c), at(0x40)), 11);
            let memory = ChangedMemory { kernel, slide: SLIDE + 0x10, changes: Vec::new() };
            let hot = HotGroup::new(kernel, &memory, &profile, &[F], 0.105).unwrap();
            // Three blocks of f and one of g. h is not called by f.
            assert_eq!((hot.group.members.len(), &hot.blocks[..]), (2, &[0, 1, 2, 3][..]));
            let cold = HotGroup::new(kernel, &memory, &profile, &[F, H], 0.5).unwrap();
            // h, a root, is called 10 times: what ran more often than 5 times is hot for it.
            assert_eq!((cold.group.members.len(), &cold.blocks[..]), (2, &[0, 1, 2, 3][..]));

            let cache = InstructionCacheGeometry { sets: 8, ways: 1, line: 16 };
            // Of f: 10 to 28; of g: 50 to 5d.
            assert_eq!(hot.original(cache).lines, [0, 1, 1, 0, 0, 1, 0, 0]);
            let places = [(0x00, 12), (0x50, 11), (0x10, 1), (0x20, 13)];
            assert_eq!(hot.copied(cache, &places, 0x1000).lines, [1, 1, 1, 0, 0, 1, 0, 0]);
            let row = |function: &str, hot_bytes, chains, cold_bytes| Chunks {
                function: function.into(),
                hot_bytes,
                chains,
                cold_bytes,
            };
            assert_eq!(hot.chunks(&places), [row("f", 24, 3, 0), row("g", 13, 1, 0)]);
            let hot = HotGroup { blocks: vec![0, 3], ..hot };
            assert_eq!(hot.original(cache).lines, [0, 1, 0, 0, 0, 1, 0, 0]);
            assert_eq!(hot.chunks(&places), [row("g", 13, 1, 0), row("f", 12, 1, 12)]);
        });
    }
}
