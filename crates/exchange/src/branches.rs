//! Makes a profile from sampled branch stacks.
//!
//! Input: taken branches, and the straight stretches between one branch and the next. Output:
//! counts of blocks, edges and calls. Branches that do not fit the image are counted and left out:
//! those of another kernel, of modules, of user programs, and stretches that the image's code
//! leaves earlier.

use image::address::LinkAddr;
use image::{Block, BlockEnd, BlockIndex, Image};
use layout::graph::EdgeKind;
use profile::{Process, Profile, ProfileSource};
use std::collections::BTreeMap;

/// Counts of taken branches and straight stretches, by run-time addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Branches {
    /// From the branch's own address to its target.
    pub taken: BTreeMap<(u64, u64), u64>,
    /// From a target to the address of the next taken branch.
    pub straight: BTreeMap<(u64, u64), u64>,
}

impl Branches {
    /// Adds the branch stack of one sample. The latest branch comes first. Each branch goes from
    /// its own address to its target.
    pub fn add_stack(&mut self, latest_first: &[(u64, u64)]) {
        for &branch in latest_first {
            *self.taken.entry(branch).or_insert(0) += 1;
        }
        for pair in latest_first.windows(2) {
            *self.straight.entry((pair[1].1, pair[0].0)).or_insert(0) += 1;
        }
    }

    /// The number of branches in all stacks.
    pub fn total(&self) -> u64 {
        self.taken.values().sum()
    }
}

/// A profile from branches, and how many of the branches it contains.
#[derive(Debug)]
pub struct ImportedBranches {
    /// The profile.
    pub profile: Profile,
    /// Taken branches between blocks of the image that the image's code can take.
    pub branches_used: u64,
    /// All branches.
    pub branches: u64,
}

/// The profile of branches whose addresses are the image's addresses plus `slide` (KASLR).
pub fn profile(branches: &Branches, image: &Image, slide: u64, name: &str) -> ImportedBranches {
    let mut import = BranchImporter { image, profile: Profile::empty(image.build_id.clone()) };
    let link = |addr: u64| LinkAddr(addr.wrapping_sub(slide));
    let mut branches_used = 0;
    for (&(from, to), &count) in &branches.taken {
        if import.taken(link(from), link(to), count) {
            branches_used += count;
        }
    }
    for (&(from, to), &count) in &branches.straight {
        import.straight(link(from), link(to), count);
    }
    ImportedBranches {
        profile: sampled(import.profile, name),
        branches_used,
        branches: branches.total(),
    }
}

/// The profile with its counts as those of one sampled run.
pub(super) fn sampled(mut profile: Profile, name: &str) -> Profile {
    // Samples do not count instructions, so the number of blocks is used.
    let blocks = profile.blocks.values().fold(0, |sum: u64, &count| sum.saturating_add(count));
    profile.sources.push(ProfileSource {
        workload: name.to_owned(),
        seed: 0,
        kernel_instructions: blocks,
        user_instructions: 0,
        part: None,
    });
    let process = Process {
        kernel_instructions: blocks,
        user_instructions: 0,
        blocks: profile.blocks.clone(),
    };
    profile.processes.insert("(sampled)".to_owned(), process);
    profile
}

struct BranchImporter<'a> {
    image: &'a Image,
    profile: Profile,
}

impl BranchImporter<'_> {
    /// Counts a taken branch. Returns whether the image's code can take it.
    fn taken(&mut self, from: LinkAddr, to: LinkAddr, count: u64) -> bool {
        let (Some(source), Some(target)) = (self.image.block_at(from), self.starts(to)) else {
            return false;
        };
        let entry = self.image.function_of(target).addr == to;
        match self.image.block(source).end {
            BlockEnd::Branch(at) if at == to => self.edge(source, target, EdgeKind::Branch, count),
            BlockEnd::Jump(at) if at == to => self.edge(source, target, EdgeKind::Jump, count),
            BlockEnd::Call(callee) if entry && callee.is_none_or(|callee| callee == to) => {
                let ends = (self.addr(source), to);
                add(self.profile.calls.entry(ends).or_insert(0), count);
            }
            BlockEnd::Stop if entry => self.edge(source, target, EdgeKind::Indirect, count),
            BlockEnd::Stop => match self.call_before(target) {
                Some(call) => self.edge(call, target, EdgeKind::FallThrough, count),
                None => self.edge(source, target, EdgeKind::Indirect, count),
            },
            _ => return false,
        }
        true
    }

    /// Counts the blocks from one address to another and the edges between them, as far as the code
    /// is straight.
    fn straight(&mut self, from: LinkAddr, to: LinkAddr, count: u64) {
        let (Some(first), Some(last)) = (self.image.block_at(from), self.image.block_at(to)) else {
            return;
        };
        let runs_on =
            |block: &Block| matches!(block.end, BlockEnd::FallThrough | BlockEnd::Branch(_));
        let inside = (first.0..last.0).map(BlockIndex);
        let adjoining = |block: BlockIndex| {
            self.image.block(block).end_addr() == self.image.block(BlockIndex(block.0 + 1)).addr
        };
        if first > last
            || !inside.clone().all(|block| runs_on(self.image.block(block)) && adjoining(block))
        {
            return;
        }
        if self.addr(first) == from {
            add(self.profile.blocks.entry(from).or_insert(0), count);
        }
        for block in inside {
            let next = BlockIndex(block.0 + 1);
            self.edge(block, next, EdgeKind::FallThrough, count);
            add(self.profile.blocks.entry(self.addr(next)).or_insert(0), count);
        }
    }

    fn edge(&mut self, from: BlockIndex, to: BlockIndex, kind: EdgeKind, count: u64) {
        let ends = (self.addr(from), self.addr(to));
        add(&mut self.profile.edges.entry(ends).or_insert((kind, 0)).1, count);
    }

    fn addr(&self, block: BlockIndex) -> LinkAddr {
        self.image.block(block).addr
    }

    fn starts(&self, addr: LinkAddr) -> Option<BlockIndex> {
        self.image.block_at(addr).filter(|&block| self.addr(block) == addr)
    }

    /// The block in front of this one, if it ends with a call that returns here.
    fn call_before(&self, block: BlockIndex) -> Option<BlockIndex> {
        let before = BlockIndex(block.0.checked_sub(1)?);
        let found = self.image.block(before);
        (matches!(found.end, BlockEnd::Call(_)) && found.end_addr() == self.addr(block))
            .then_some(before)
    }
}

fn add(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count);
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0xffff_ffff_8100_0000;

    fn image() -> Image {
        image::examples::caller_and_callee(LinkAddr(BASE))
    }

    #[test]
    fn a_stack_becomes_blocks_edges_and_calls() {
        let slide = 0x1200_0000;
        let at = |offset: u64| BASE + slide + offset;
        let mut branches = Branches::default();
        // g is called and returns; then f is entered again from g. The latest branch comes first.
        branches.add_stack(&[(at(0x21), at(9)), (at(4), at(0x20)), (at(0x21), at(0))]);
        let imported = profile(&branches, &image(), slide, "perf.data");
        let link = |offset: u64| LinkAddr(BASE + offset);
        let found = &imported.profile;
        assert_eq!(found.calls, BTreeMap::from([((link(4), link(0x20)), 1)]));
        assert_eq!(found.edges[&(link(0), link(4))], (EdgeKind::FallThrough, 1));
        assert_eq!(found.edges[&(link(4), link(9))], (EdgeKind::FallThrough, 1));
        assert_eq!(found.blocks, BTreeMap::from([(link(0), 1), (link(4), 1), (link(0x20), 1)]));
        assert_eq!((imported.branches_used, imported.branches), (3, 3));
    }

    #[test]
    fn branches_that_the_code_cannot_take_are_left_out_and_counted() {
        let mut branches = Branches::default();
        branches.add_stack(&[(BASE, BASE + 4), (0x1000, 0x2000), (BASE + 4, BASE + 9)]);
        branches.add_stack(&[(BASE + 0x21, BASE + 2), (u64::MAX, u64::MAX)]);
        let imported = profile(&branches, &image(), 0, "perf.data");
        assert_eq!((imported.branches_used, imported.branches), (0, 5));
        assert!(imported.profile.edges.is_empty() && imported.profile.blocks.is_empty());
    }
}
