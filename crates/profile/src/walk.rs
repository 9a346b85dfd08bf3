//! An execution that the counts describe, for profiles that do not say what ran together.
//!
//! Samples, counters and other tools give counts only. `packed` and `joint` also ask which code was
//! needed in the same stretches of time. This module walks through the counts at random: it enters
//! functions as often as the counts cannot explain by calls, takes edges and calls as often as they
//! were counted, and returns. The walk runs through the ideal cache as a recording does
//! (`joint.rs`).
//!
//! Input: a profile and its image. Output: joint misses and working-set epochs. A walk knows what a
//! service needs together. It does not know which services follow one another.

use crate::joint::{CACHE_BYTES, JointMisses};
use crate::{BlockEpochsTable, Profile};
use image::Image;
use image::address::LinkAddr;
use layout::random::SplitMix64;
use std::collections::BTreeMap;

/// The length of a walk: blocks for each block that ran, and at most.
const STEPS_A_BLOCK: u64 = 1000;
const MOST_STEPS: u64 = 30_000_000;
/// A visit that is longer is left: its loops have no counted end.
const LONGEST_VISIT: u64 = 200_000;
/// Calls that are deeper are passed over.
const DEEPEST: usize = 64;
/// A function is entered from outside when at least this share of its executions comes from no
/// counted call or edge. Samples leave small differences everywhere.
const ENTERED: f64 = 0.1;
const SEED: u64 = 1;

/// Where control can go, each with the sum of the counts up to it.
#[derive(Default)]
struct Choices {
    targets: Vec<(u32, u64)>,
    total: u64,
}

impl Choices {
    fn add(&mut self, target: u32, count: u64) {
        if count > 0 {
            self.total = self.total.saturating_add(count);
            self.targets.push((target, self.total));
        }
    }

    /// A target, as often as it was counted; `None` when there is none.
    fn pick(&self, random: &mut SplitMix64) -> Option<u32> {
        let drawn = match self.targets.len() {
            0 => return None,
            1 => 0,
            _ => random.below(self.total),
        };
        let at = self.targets.partition_point(|&(_, sum)| sum <= drawn);
        self.targets.get(at).map(|&(target, _)| target)
    }
}

/// The counts by block.
struct Counted {
    counts: Vec<u64>,
    edges: Vec<Choices>,
    calls: Vec<Choices>,
    /// Where the kernel is entered.
    entries: Choices,
}

impl Counted {
    fn new(image: &Image, profile: &Profile) -> Counted {
        let none = || image.blocks.iter().map(|_| Choices::default()).collect::<Vec<_>>();
        let mut counted = Counted {
            counts: vec![0; image.blocks.len()],
            edges: none(),
            calls: none(),
            entries: Choices::default(),
        };
        let at = |addr: &LinkAddr| image.block_at(*addr).map(|block| block.0);
        for (addr, &count) in &profile.blocks {
            if let Some(block) = at(addr) {
                counted.counts[block as usize] = count;
            }
        }
        let mut explained = vec![0_u64; image.blocks.len()];
        let mut add = |choices: &mut [Choices], ends: &(LinkAddr, LinkAddr), count: u64| {
            if let (Some(from), Some(to)) = (at(&ends.0), at(&ends.1)) {
                choices[from as usize].add(to, count);
                explained[to as usize] = explained[to as usize].saturating_add(count);
            }
        };
        profile.edges.iter().for_each(|(ends, &(_, count))| add(&mut counted.edges, ends, count));
        profile.calls.iter().for_each(|(ends, &count)| add(&mut counted.calls, ends, count));
        for function in image.functions.iter().filter(|function| !function.blocks.is_empty()) {
            let entry = function.blocks.start;
            let count = counted.counts[entry as usize];
            let from_outside = count.saturating_sub(explained[entry as usize]);
            if from_outside as f64 >= ENTERED * count as f64 {
                counted.entries.add(entry, from_outside);
            }
        }
        counted
    }

    /// The callee of a block's call, when it makes one this time.
    fn callee(&self, block: u32, random: &mut SplitMix64) -> Option<u32> {
        let calls = &self.calls[block as usize];
        let executions = self.counts[block as usize].max(calls.total);
        (calls.total > 0 && random.below(executions) < calls.total)
            .then(|| calls.pick(random))
            .flatten()
    }

    /// Walks one entry into the kernel to its end, at most `most` blocks. Returns their number.
    fn visit(&self, most: u64, random: &mut SplitMix64, mut ran: impl FnMut(u32)) -> u64 {
        let Some(mut block) = self.entries.pick(random) else { return 0 };
        let mut callers = Vec::new();
        for step in 1..=most {
            ran(block);
            let callee = self.callee(block, random).filter(|_| callers.len() < DEEPEST);
            let next = match callee {
                Some(callee) => {
                    callers.push(block);
                    Some(callee)
                }
                None => self.edges[block as usize].pick(random),
            };
            // Nothing follows: the function returns, and so do callers with nothing behind a call.
            let returned = || {
                std::iter::from_fn(|| callers.pop())
                    .find_map(|caller| self.edges[caller as usize].pick(random))
            };
            match next.or_else(returned) {
                Some(next) => block = next,
                None => return step,
            }
        }
        most
    }
}

/// Joint misses and working-set epochs of a walk through the counts of a profile.
pub(crate) fn walked(
    image: &Image,
    profile: &Profile,
) -> (BTreeMap<(LinkAddr, LinkAddr), u64>, BlockEpochsTable) {
    let counted = Counted::new(image, profile);
    let mut joint = JointMisses::new(CACHE_BYTES, u64::from(image.entry_padding));
    for block in &image.blocks {
        // One translation block for each block, as if it were one instruction.
        joint.define(image, block.addr.0, &[1]);
    }
    let mut random = SplitMix64::new(SEED);
    let ran = profile.blocks.values().filter(|&&count| count > 0).count() as u64;
    let mut left = (ran * STEPS_A_BLOCK).min(MOST_STEPS);
    while left > 0 {
        let most = left.min(LONGEST_VISIT);
        let steps = counted.visit(most, &mut random, |block| joint.ran(block, 1));
        if steps == 0 {
            break;
        }
        left -= steps;
    }
    (joint.counts(image), joint.block_epochs(image))
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::examples::row_of_blocks;
    use layout::EdgeKind;

    /// Counts by the numbers of blocks.
    fn profile(
        image: &Image,
        blocks: &[(usize, u64)],
        calls: &[(usize, usize, u64)],
        edges: &[(usize, usize, u64)],
    ) -> Profile {
        let at = |block: usize| image.blocks[block].addr;
        Profile {
            blocks: blocks.iter().map(|&(block, count)| (at(block), count)).collect(),
            calls: calls.iter().map(|&(from, to, n)| ((at(from), at(to)), n)).collect(),
            edges: edges
                .iter()
                .map(|&(from, to, n)| ((at(from), at(to)), (EdgeKind::Jump, n)))
                .collect(),
            ..Profile::empty(image.build_id.clone())
        }
    }

    fn visits(image: &Image, profile: &Profile, count: usize) -> Vec<Vec<u32>> {
        let counted = Counted::new(image, profile);
        let mut random = SplitMix64::new(7);
        let mut visit = || {
            let mut ran = Vec::new();
            counted.visit(1000, &mut random, |block| ran.push(block));
            ran
        };
        (0..count).map(|_| visit()).collect()
    }

    /// Block 0 is entered, calls 1, and goes on in 2. Block 1 jumps to 3.
    #[test]
    fn a_walk_calls_returns_and_takes_edges_as_counted() {
        let image = row_of_blocks(&[10, 10, 10, 10], false);
        let profile = profile(
            &image,
            &[(0, 100), (1, 100), (2, 100), (3, 100)],
            &[(0, 1, 100)],
            &[(0, 2, 100), (1, 3, 100)],
        );
        assert_eq!(visits(&image, &profile, 3), vec![vec![0, 1, 3, 2]; 3]);
    }

    #[test]
    fn a_call_is_made_as_often_as_it_was_counted() {
        let image = row_of_blocks(&[10, 10], false);
        let profile = profile(&image, &[(0, 400), (1, 100)], &[(0, 1, 100)], &[]);
        let called = visits(&image, &profile, 4000).iter().filter(|ran| ran.len() == 2).count();
        // 1000 of 4000 are expected; six standard deviations are 164.
        assert!((836..=1164).contains(&called), "{called}");
    }

    #[test]
    fn a_profile_without_counts_gives_nothing() {
        let image = row_of_blocks(&[10, 10], false);
        let (joint, epochs) = walked(&image, &profile(&image, &[], &[], &[]));
        assert!(joint.is_empty() && epochs.blocks.is_empty());
    }

    #[test]
    fn a_loop_without_an_end_is_left() {
        let image = row_of_blocks(&[10, 10], false);
        let profile = profile(&image, &[(0, 9), (1, 9)], &[], &[(0, 1, 9), (1, 1, 9)]);
        assert_eq!(visits(&image, &profile, 1)[0].len(), 1000);
    }
}
