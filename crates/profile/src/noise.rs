//! Degrades exact profiles to what less exact instruments would measure, to see what a layout
//! loses.
//!
//! Input: a profile. Output: what branch sampling, or counting blocks alone, would have found.
//! Neither sees joint misses. The result is deterministic.

use crate::Profile;
use crate::edges::{CountedBlock, derive};
use image::address::LinkAddr;
use image::{BlockEnd, BlockIndex, Image};
use layout::graph::EdgeKind;
use layout::random::SplitMix64;
use std::collections::BTreeMap;

/// Sees each execution with a probability of one in `rate`, independently, like a processor that
/// records branches at random moments. A seen execution counts `rate` times. Counts stay exact for
/// `rate` 1.
pub fn sampled(profile: &Profile, rate: u64, seed: u64) -> Profile {
    let mut random = SplitMix64::new(seed);
    let mut seen = |count: u64| some_of(count, rate, &mut random).saturating_mul(rate);
    fn keep<K: Ord + Copy>(
        counts: &BTreeMap<K, u64>,
        seen: &mut impl FnMut(u64) -> u64,
    ) -> BTreeMap<K, u64> {
        let all = counts.iter().map(|(&key, &count)| (key, seen(count)));
        all.filter(|&(_, count)| count > 0).collect()
    }
    let edges = profile.edges.iter().map(|(&ends, &(kind, count))| (ends, (kind, seen(count))));
    let edges = edges.filter(|&(_, (_, count))| count > 0).collect();
    Profile {
        sources: profile.sources.clone(),
        blocks: keep(&profile.blocks, &mut seen),
        calls: keep(&profile.calls, &mut seen),
        seeds: keep(&profile.seeds, &mut seen),
        edges,
        ..Profile::empty(profile.build_id.clone())
    }
}

/// How many of `count` executions are seen, each with a probability of one in `rate`. The distance
/// from one seen execution to the next follows a geometric distribution.
fn some_of(count: u64, rate: u64, random: &mut SplitMix64) -> u64 {
    if rate <= 1 {
        return count;
    }
    let miss = (-1.0 / rate as f64).ln_1p();
    let (mut left, mut seen) = (count, 0);
    loop {
        // Greater than 0, at most 1.
        let uniform = ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        let passed_over = uniform.ln() / miss;
        if passed_over >= left as f64 {
            return seen;
        }
        left -= passed_over as u64 + 1;
        seen += 1;
    }
}

/// Counts of blocks, and the edges derived from them (Tamches 2001, section 4.1). A call runs as
/// often as the block that it ends. Calls and jumps through pointers are unknown.
pub fn blocks_only(profile: &Profile, image: &Image) -> Profile {
    let edges = static_edges(image);
    let mut closed_in = vec![false; image.blocks.len()];
    edges.iter().for_each(|&(_, to, _)| closed_in[to as usize] = true);
    for function in &image.functions {
        closed_in[function.blocks.start as usize] = false;
    }
    let mut blocks: Vec<CountedBlock> = image
        .blocks
        .iter()
        .zip(&closed_in)
        .map(|(block, &closed_in)| CountedBlock {
            count: Some(profile.blocks.get(&block.addr).copied().unwrap_or(0)),
            closed_in,
            closed_out: block.end != BlockEnd::Stop,
        })
        .collect();
    let ends: Vec<(u32, u32)> = edges.iter().map(|&(from, to, _)| (from, to)).collect();
    let counts = derive(&mut blocks, &ends);
    let addr = |block: u32| image.block(BlockIndex(block)).addr;
    let mut found = Profile {
        sources: profile.sources.clone(),
        blocks: profile.blocks.clone(),
        seeds: profile.seeds.clone(),
        ..Profile::empty(profile.build_id.clone())
    };
    for (&(from, to, kind), edge) in edges.iter().zip(&counts).filter(|(_, edge)| edge.count > 0) {
        found.edges.entry((addr(from), addr(to))).or_insert((kind, 0)).1 += edge.count;
    }
    for block in &image.blocks {
        let ran = profile.blocks.get(&block.addr);
        // A call may go to code without a name, which has no blocks.
        let callee = match block.end {
            BlockEnd::Call(Some(callee)) => block_at(image, callee).map(|_| callee),
            _ => None,
        };
        if let (Some(callee), Some(&count)) = (callee, ran.filter(|&&count| count > 0)) {
            *found.calls.entry((block.addr, callee)).or_insert(0) += count;
        }
    }
    found
}

/// The edges between blocks that the code itself shows.
fn static_edges(image: &Image) -> Vec<(u32, u32, EdgeKind)> {
    let mut edges = Vec::new();
    for (from, block) in image.blocks.iter().enumerate() {
        let (next, target) = match block.end {
            BlockEnd::FallThrough | BlockEnd::Call(_) => (Some(block.end_addr()), None),
            BlockEnd::Jump(to) => (None, Some((to, EdgeKind::Jump))),
            BlockEnd::Branch(to) => (Some(block.end_addr()), Some((to, EdgeKind::Branch))),
            BlockEnd::Stop => (None, None),
        };
        let next = next.map(|addr| (addr, EdgeKind::FallThrough));
        let known = next
            .into_iter()
            .chain(target)
            .filter_map(|(addr, kind)| Some((block_at(image, addr)?, kind)));
        edges.extend(known.map(|(to, kind)| (from as u32, to.0, kind)));
    }
    edges
}

/// The block that begins at an address.
fn block_at(image: &Image, addr: LinkAddr) -> Option<BlockIndex> {
    image.block_at(addr).filter(|&block| image.block(block).addr == addr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockEpochsTable;
    use image::examples::caller_and_callee;

    const BASE: u64 = 0xffff_ffff_8100_0000;

    /// f runs `times` times and branches over its call in a quarter of the runs.
    fn profile(image: &Image, times: u64) -> Profile {
        let at = |offset: u64| LinkAddr(BASE + offset);
        let called = times - times / 4;
        Profile {
            blocks: BTreeMap::from([
                (at(0), times),
                (at(4), called),
                (at(9), times),
                (at(0x20), called),
            ]),
            edges: BTreeMap::from([
                ((at(0), at(4)), (EdgeKind::FallThrough, called)),
                ((at(0), at(9)), (EdgeKind::Branch, times / 4)),
                ((at(4), at(9)), (EdgeKind::FallThrough, called)),
            ]),
            calls: BTreeMap::from([((at(4), at(0x20)), called)]),
            joint_misses: BTreeMap::from([((at(0), at(4)), 9)]),
            block_epochs: BlockEpochsTable { words: 1, blocks: BTreeMap::from([(at(0), vec![9])]) },
            ..Profile::empty(image.build_id.clone())
        }
    }

    #[test]
    fn edges_follow_from_blocks() {
        let image = caller_and_callee(LinkAddr(BASE));
        let exact = profile(&image, 100);
        let found = blocks_only(&exact, &image);
        assert_eq!(
            (&found.blocks, &found.edges, &found.calls),
            (&exact.blocks, &exact.edges, &exact.calls)
        );
        assert!(found.joint_misses.is_empty() && found.block_epochs.blocks.is_empty());
    }

    #[test]
    fn samples_come_near_and_are_the_same_every_time() {
        let image = caller_and_callee(LinkAddr(BASE));
        let exact = profile(&image, 4_000_000);
        let found = sampled(&exact, 100, 1);
        assert_eq!(found, sampled(&exact, 100, 1));
        assert_ne!(found, sampled(&exact, 100, 2));
        for (addr, &count) in &exact.blocks {
            let seen = found.blocks[addr];
            // Of 30 000 and more samples: six standard deviations are below 4 %.
            assert!(
                seen.is_multiple_of(100) && seen.abs_diff(count) * 25 < count,
                "{seen} of {count}"
            );
        }
    }

    #[test]
    fn every_execution_is_seen_at_rate_1_and_few_are_at_a_high_one() {
        let image = caller_and_callee(LinkAddr(BASE));
        let exact = profile(&image, 1000);
        assert_eq!(sampled(&exact, 1, 1).edges, exact.edges);
        let mut random = SplitMix64::new(5);
        let seen: u64 = (0..1000).map(|_| some_of(1000, 1_000_000, &mut random)).sum();
        // The expected value is one.
        assert!(seen < 12, "{seen}");
    }
}
