//! Makes a profile from sampled branch stacks.
//!
//! Input: taken branches, and the straight stretches between one branch and the next. Output:
//! counts of blocks, edges and calls. A kernel patches its text at boot and later, so a branch is
//! compared with everything that the instruction can be ([`image::sites`]). Branches that do not
//! fit are counted and left out: those of another kernel, of modules, of user programs, and
//! stretches that the image's code leaves earlier.

use image::address::LinkAddr;
use image::sites::{BranchForm, BranchTarget, PatchableCode};
use image::{Block, BlockEnd, BlockIndex, Image};
use layout::graph::EdgeKind;
use profile::{BlockTransfer, Process, Profile, ProfileSource};
use sim::BranchKind;
use std::collections::{BTreeMap, HashMap};

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
    /// Taken branches that the image's code can take, in the file or after the kernel patched it.
    pub branches_used: u64,
    /// Branches with both ends in the image's code. The others belong to user programs, modules and
    /// the like.
    pub branches_inside: u64,
    /// All branches.
    pub branches: u64,
    /// Straight stretches that the image's code can run through.
    pub stretches_used: u64,
    /// Straight stretches with both ends in the image's code.
    pub stretches_inside: u64,
}

/// The least share of branches that the code can take, in a profile of that code. Profiles of the
/// right kernel have more than 0.99, those of another version less than 0.1.
pub const LEAST_SHARE: f64 = 0.8;

impl ImportedBranches {
    /// The share of the branches in the image's code that this code can take; 1 if there are none.
    pub fn share(&self) -> f64 {
        match self.branches_inside {
            0 => 1.0,
            inside => self.branches_used as f64 / inside as f64,
        }
    }
}

/// The profile of branches whose addresses are the image's addresses plus `slide` (KASLR). `code`
/// is the image's code.
pub fn profile(
    branches: &Branches,
    image: &Image,
    code: &PatchableCode,
    slide: u64,
    name: &str,
) -> ImportedBranches {
    let mut import = BranchImporter {
        image,
        code,
        profile: Profile::empty(image.build_id.clone()),
        lasts: HashMap::new(),
    };
    let link = |addr: u64| LinkAddr(addr.wrapping_sub(slide));
    let inside = |&(from, to): &(u64, u64)| {
        let (from, to) = (link(from), link(to));
        (code.contains(from.0) && code.contains(to.0)).then_some((from, to))
    };
    let mut imported = ImportedBranches {
        profile: Profile::empty(image.build_id.clone()),
        branches_used: 0,
        branches_inside: 0,
        branches: branches.total(),
        stretches_used: 0,
        stretches_inside: 0,
    };
    for (ends, &count) in &branches.taken {
        let Some((from, to)) = inside(ends) else { continue };
        add(&mut imported.branches_inside, count);
        if import.taken(from, to, count) {
            add(&mut imported.branches_used, count);
        }
    }
    for (ends, &count) in &branches.straight {
        let Some((from, to)) = inside(ends) else { continue };
        add(&mut imported.stretches_inside, count);
        if import.straight(from, to, count) {
            add(&mut imported.stretches_used, count);
        }
    }
    imported.profile = sampled(import.profile, name);
    imported.profile.describe(image);
    imported
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
        recorded_on: None,
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
    code: &'a PatchableCode,
    profile: Profile,
    /// The address of each block's last instruction, as far as needed.
    lasts: HashMap<BlockIndex, LinkAddr>,
}

/// Where a branch arrives.
#[derive(Clone, Copy)]
struct Arrival {
    at: LinkAddr,
    /// The block that begins there, or behind the call padding there.
    block: Option<BlockIndex>,
    /// Whether that block is its function's first.
    entry: bool,
    /// Whether control can come there from a call.
    behind_call: bool,
}

impl BranchImporter<'_> {
    /// Counts a taken branch. Returns whether the code can take it.
    fn taken(&mut self, from: LinkAddr, to: LinkAddr, count: u64) -> bool {
        let arrival = self.arrival(to);
        let forms = self.code.forms(from.0);
        let kind = forms.iter().find_map(|&form| self.kind(form, &arrival));
        let Some(kind) = kind else {
            // An interrupt or exception comes at any instruction, and `iret` goes back there.
            return (!forms.is_empty() && profile::is_gate(self.image, to))
                || forms.contains(&BranchForm::InterruptReturn);
        };
        let ends = self.image.block_at(from).zip(arrival.block);
        let transfer = ends.and_then(|(from, to)| profile::taken(self.image, from, kind, to));
        match transfer {
            Some(BlockTransfer::Edge(from, to, kind)) => self.edge(from, to, kind, count),
            Some(BlockTransfer::Call(from, to)) => {
                let ends = (self.addr(from), self.addr(to));
                add(self.profile.calls.entry(ends).or_insert(0), count);
            }
            None => {}
        }
        true
    }

    fn arrival(&self, at: LinkAddr) -> Arrival {
        let block = self.starts(at).or_else(|| self.behind_padding(at));
        let entry = |block| self.image.function_of(block).addr == self.addr(block);
        let behind_call = self.starts(at).is_some_and(|block| self.follows_call(block));
        Arrival {
            at,
            block,
            entry: block.is_some_and(entry),
            behind_call: behind_call || self.code.may_return_to(at.0),
        }
    }

    /// The kind of the branch if an instruction of this form can go there.
    fn kind(&self, form: BranchForm, to: &Arrival) -> Option<BranchKind> {
        let hits = |target| match target {
            BranchTarget::AnyFunction => to.entry,
            BranchTarget::At(target) => {
                target == to.at.0 || to.block.is_some_and(|block| self.addr(block).0 == target)
            }
        };
        let (fits, kind) = match form {
            BranchForm::Next | BranchForm::InterruptReturn => return None,
            BranchForm::Conditional(target) => (hits(target), BranchKind::Conditional),
            BranchForm::Jump(target) => (hits(target), BranchKind::Jump),
            BranchForm::Call(target) => (hits(target), BranchKind::Call),
            BranchForm::IndirectCall => (to.entry, BranchKind::IndirectCall),
            BranchForm::IndirectJump => (to.block.is_some(), BranchKind::IndirectJump),
            // A retpoline enters a function with a return.
            BranchForm::Return => (to.entry || to.behind_call, BranchKind::Return),
        };
        fits.then_some(kind)
    }

    /// Counts the blocks from one address to another and the edges between them. Returns whether
    /// the code can run straight through.
    fn straight(&mut self, from: LinkAddr, to: LinkAddr, count: u64) -> bool {
        let first = self.image.block_at(from).or_else(|| self.behind_padding(from));
        let (Some(first), Some(last)) = (first, self.image.block_at(to)) else {
            return false;
        };
        let from = from.max(self.addr(first).min(to));
        let inside = (first.0..last.0).map(BlockIndex);
        if from > to || !inside.clone().all(|block| self.runs_on(block, from)) {
            return false;
        }
        if self.addr(first) == from {
            add(self.profile.blocks.entry(from).or_insert(0), count);
        }
        for block in inside {
            let next = BlockIndex(block.0 + 1);
            self.edge(block, next, EdgeKind::FallThrough, count);
            add(self.profile.blocks.entry(self.addr(next)).or_insert(0), count);
        }
        true
    }

    /// Whether control that comes into a block, or to `from` in the block, can run straight into
    /// the next block.
    fn runs_on(&mut self, block: BlockIndex, from: LinkAddr) -> bool {
        let Block { end, .. } = *self.image.block(block);
        let end_addr = self.image.block(block).end_addr();
        if end_addr != self.addr(BlockIndex(block.0 + 1)) {
            return false;
        }
        if matches!(end, BlockEnd::FallThrough | BlockEnd::Branch(_)) {
            return true;
        }
        let last = self.last_instruction(block);
        // A return may come back in front of no-ops that a patch put behind a shorter call.
        (from > last && from < end_addr) || self.code.may_run_on(last.0, end_addr.0)
    }

    fn last_instruction(&mut self, block: BlockIndex) -> LinkAddr {
        let found = self.image.block(block);
        let last = || self.code.last_instruction(found.addr.0, found.end_addr().0);
        *self.lasts.entry(block).or_insert_with(|| LinkAddr(last()))
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

    /// The entry behind the call padding that contains `addr`.
    fn behind_padding(&self, addr: LinkAddr) -> Option<BlockIndex> {
        let block = self.image.blocks.partition_point(|block| block.addr <= addr);
        let entry = self.image.blocks.get(block)?.addr;
        let padding = entry.0 - addr.0 <= u64::from(self.image.entry_padding);
        let outside = self.image.block_at(addr).is_none();
        let block = BlockIndex(u32::try_from(block).ok()?);
        let is_entry = self.image.function_of(block).addr == entry;
        (padding && outside && is_entry).then_some(block)
    }

    /// Whether the block in front of this one ends with a call that returns here.
    fn follows_call(&self, block: BlockIndex) -> bool {
        let Some(before) = block.0.checked_sub(1).map(BlockIndex) else { return false };
        let found = self.image.block(before);
        matches!(found.end, BlockEnd::Call(_)) && found.end_addr() == self.addr(block)
    }
}

fn add(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count);
}

#[cfg(test)]
#[path = "branches_tests.rs"]
mod tests;
