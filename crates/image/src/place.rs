//! Computes addresses from an order.
//!
//! Input: blocks as arrays, and a permutation of them. Output: each block's new address, the length
//! of its branches, and which branches were inverted, dropped or added. A branch is short if its
//! target is near enough; lengths are computed to a fixpoint. This works for a rewritten object. It
//! also works for an image of which only the final addresses are known, to predict what a rewrite
//! would bring. This module never reads a file and never looks at bytes.

use crate::address::LinkAddr;

/// What happened to the branch at the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The old terminator. It goes to the new place of its old target.
    Same,
    /// A conditional branch whose condition was inverted: it now jumps to the block that it used to
    /// fall through to.
    Inverted,
    /// An unconditional jump that became a fall-through.
    JumpDropped,
}

/// The new place of one block of the old image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedBlock {
    /// The old address.
    pub old: LinkAddr,
    /// Bytes at the old place.
    pub old_size: u32,
    /// The new address.
    pub new: LinkAddr,
    /// Bytes at the new place, without `appended`.
    pub new_size: u32,
    /// Bytes of the unconditional jump that was put behind the block because its fall-through
    /// successor lies elsewhere; 0 if there is none.
    pub appended: u8,
    /// What happened to the branch at the end.
    pub ending: Ending,
}

impl PlacedBlock {
    /// The old address behind the block.
    pub fn old_end(&self) -> LinkAddr {
        LinkAddr(self.old.0.wrapping_add(u64::from(self.old_size)))
    }
}

/// The one map from old to new addresses: every block that was placed, ascending and disjoint by
/// `old`. Code that is not in the map did not move.
///
/// Control that leaves block A for the old address N takes one of these ways:
/// * N is A's old fall-through: directly behind A if `ending` is not `Inverted` and `appended` is
///   0; through the appended jump if there is one; by a taken branch if the branch was inverted.
/// * N is A's old branch target: by a taken branch if `Same`; if `Inverted`, by fall-through
///   (through the appended jump, if any).
/// * N is the target of A's old unconditional jump: by a taken jump if `Same`, by fall-through if
///   `JumpDropped`.
///
/// The call padding in front of a function is an entry of its own. If the site of a static key grew
/// from two bytes to five, its block has two entries; the first one ends with the site. A block
/// with a counter also has two entries; the first one ends with the first byte of the counted
/// instruction. Within one entry an instruction keeps its distance from the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// What became of the call padding of functions that moved.
    pub call_padding: CallPadding,
    /// The placed blocks, ascending by old address.
    pub blocks: Vec<PlacedBlock>,
    /// The calls whose callee's code, or a guard, stands in their place. A call in such code
    /// follows the call that this code belongs to.
    pub inlined: Vec<InlinedCall>,
}

/// A call in whose place other code stands. So that blocks of this code have an old address, it is
/// numbered as if it lay behind the old kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlinedCall {
    /// The old address of the call. That of the direct call in a guard is where the guard has it.
    pub site: LinkAddr,
    /// The old address that its code has.
    pub at: LinkAddr,
    /// The code.
    pub code: InPlaceOfCall,
}

/// The code in the place of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InPlaceOfCall {
    /// The code of the callee: the old address and the bytes of each stretch. The first one begins
    /// behind the tracer's site. The instructions stand one behind the other, with branches in
    /// their long form, a static key of five bytes, a jump behind the call for each return, and a
    /// call with such a jump for each jump to a function.
    Code(Vec<(LinkAddr, u32)>),
    /// Of an indirect call by a thunk, its guard, for the function at this old address: a
    /// comparison of the pointer with it (`cmp`, 7 bytes), where they differ a jump (6 bytes) to
    /// the indirect call, a direct call (5 bytes), a jump behind the call, the indirect call, and
    /// a jump behind it.
    Guard(LinkAddr),
}

impl InlinedCall {
    /// Where the old addresses of inlined code begin. No kernel has its own code here
    /// (`MODULES_VADDR`, arch/x86/include/asm/pgtable_64_types.h).
    pub const BASE: LinkAddr = LinkAddr(0xffff_ffff_c000_0000);
}

/// What becomes of the no-ops in front of a function that moves.
///
/// A kernel with call-depth tracking copies a template into them when it boots with
/// `retbleed=stuff` (arch/x86/kernel/callthunks.c).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CallPadding {
    /// As many no-ops stay as the template has bytes.
    #[default]
    Kept,
    /// None stay. `retbleed=stuff` warns at boot, and does not count calls of these functions.
    Dropped,
}

impl CallPadding {
    /// The line of a layout or a map that says that the padding is dropped.
    pub(crate) const DROPPED: &str = "call-padding dropped";

    /// The line of a layout or a map, with its end. No line says that the padding is kept.
    pub(crate) fn line(self) -> &'static str {
        match self {
            CallPadding::Kept => "",
            CallPadding::Dropped => concat!("call-padding dropped", "\n"),
        }
    }
}

impl Placement {
    /// The block that held the old address `addr`.
    pub fn block_at(&self, addr: LinkAddr) -> Option<&PlacedBlock> {
        let after = self.blocks.partition_point(|block| block.old <= addr);
        let block = &self.blocks[after.checked_sub(1)?];
        (addr < block.old_end()).then_some(block)
    }

    /// Where the instruction at `old` went; `None` if no block of the map holds `old`.
    pub fn new_address(&self, old: LinkAddr) -> Option<LinkAddr> {
        self.block_at(old).map(|block| LinkAddr(block.new.0 + (old.0 - block.old.0)))
    }
}

/// How control leaves a block at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MovableExit {
    /// Control does not leave at the end, or leaves in a way that placing does not change.
    Stop,
    /// Control continues in the block that followed in the old image.
    Runs,
    /// A direct jump.
    Jump(LinkAddr),
    /// A conditional jump to this target, or else the block that followed in the old image.
    Branch(LinkAddr),
}

/// A block to be placed.
#[derive(Clone, Copy, Debug)]
pub struct MovableBlock {
    /// The old address.
    pub at: LinkAddr,
    /// Bytes, including the branch at the end.
    pub size: u32,
    /// Bytes in front of `at` that move with it (call padding).
    pub lead: u32,
    /// The lead has a symbol, so the map has an entry for it.
    pub lead_named: bool,
    /// Bytes of padding between the end and the next block's lead in the old image.
    pub gap: u32,
    /// The new address must equal `residue` modulo this power of two.
    pub align: u32,
    /// See `align`.
    pub residue: u32,
    /// How control leaves the block at its end.
    pub exit: MovableExit,
    /// Bytes of the branch at the end that `exit` describes; 0 if there is none.
    pub tail: u8,
    /// The branch may get another target, but may be neither dropped nor inverted.
    pub pinned: bool,
}

impl MovableBlock {
    /// A block without lead and padding that may lie anywhere.
    pub fn alone(at: LinkAddr, size: u32, exit: MovableExit, tail: u8) -> MovableBlock {
        MovableBlock {
            at,
            size,
            lead: 0,
            lead_named: false,
            gap: 0,
            align: 1,
            residue: 0,
            exit,
            tail,
            pinned: false,
        }
    }
}

/// A place inside a block at which the block grows.
#[derive(Clone, Copy, Debug)]
pub struct GrowthSite {
    /// The old address of the place.
    pub at: LinkAddr,
    /// When the block grows there, and by how much.
    pub growth: Growth,
}

/// When and by how much a block grows.
#[derive(Clone, Copy, Debug)]
pub enum Growth {
    /// A two-byte no-op or jump. It needs five bytes if this target is far.
    WhenFar(LinkAddr),
    /// New code with this number of bytes is put in front of the place.
    Always(u8),
}

impl GrowthSite {
    /// The bytes that the block gains if it grows here.
    pub fn bytes(&self) -> u32 {
        match self.growth {
            Growth::WhenFar(_) => 3,
            Growth::Always(bytes) => u32::from(bytes),
        }
    }

    /// Bytes of old code from the place on that share an entry of the map with the gained bytes:
    /// control that goes to the place enters in front of the gained bytes.
    fn with(&self) -> u32 {
        match self.growth {
            Growth::WhenFar(_) => u32::from(SHORT),
            Growth::Always(_) => 1,
        }
    }
}

/// The new place of every block, by the block's number.
#[derive(Clone, Debug)]
pub struct BlockPlaces {
    /// The new addresses.
    pub new: Vec<LinkAddr>,
    /// What happened to the branches.
    pub ending: Vec<Ending>,
    /// Bytes of the branch at the end.
    pub tail: Vec<u8>,
    /// Bytes of the jump that was put behind the block.
    pub appended: Vec<u8>,
    /// The padding behind the block was kept because the same block follows.
    pub keeps_gap: Vec<bool>,
    /// Which of the growth sites grew.
    pub grown: Vec<bool>,
    /// The first byte behind all blocks.
    pub end: LinkAddr,
}

/// Why blocks cannot be placed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlaceError {
    /// The order lacks blocks or names one twice.
    #[error("the order is not a permutation of the {0} blocks")]
    NoPermutation(usize),
    /// Two blocks of the old image overlap.
    #[error("the block at {0} overlaps the one behind it")]
    Overlap(LinkAddr),
    /// A branch goes to an address outside the blocks.
    #[error("the branch at the end of {0} goes to {1}, but no block is there")]
    NoTarget(LinkAddr, LinkAddr),
    /// The last block needs a successor.
    #[error("the last block, {0}, continues in a next block, but no block follows")]
    NoSuccessor(LinkAddr),
}

const SHORT: u8 = 2;
const NEAR_JUMP: u8 = 5;
const NEAR_BRANCH: u8 = 6;
const NOWHERE: (u32, u32) = (u32::MAX, 0);

/// Places `blocks` (ascending by `at`) in the given order, beginning at `start`.
///
/// Inside a run of blocks that stay together, every branch keeps its length and padding stays. The
/// old order therefore gives the old addresses. `growing` is ascending. No jump may go into the
/// middle of a block that contains a growth site.
///
/// # Errors
/// The order is not a permutation, blocks overlap, or control leaves a block for a place without
/// one.
pub fn place(
    blocks: &[MovableBlock],
    growing: &[GrowthSite],
    order: &[u32],
    start: LinkAddr,
) -> Result<BlockPlaces, PlaceError> {
    let mut work = Placer::new(blocks, growing, order, start)?;
    work.choose_endings();
    loop {
        work.assign_addresses();
        if !work.grow() {
            break;
        }
    }
    Ok(work.places)
}

/// The map that describes `places`.
pub fn placement(
    blocks: &[MovableBlock],
    growing: &[GrowthSite],
    places: &BlockPlaces,
) -> Placement {
    let mut found = Vec::with_capacity(blocks.len());
    let mut site = 0;
    for (i, block) in blocks.iter().enumerate() {
        let mut old = block.at;
        let mut new = places.new[i];
        if block.lead_named {
            let (old, new) =
                (LinkAddr(old.0 - u64::from(block.lead)), LinkAddr(new.0 - u64::from(block.lead)));
            found.push(PlacedBlock {
                old,
                old_size: block.lead,
                new,
                new_size: block.lead,
                appended: 0,
                ending: Ending::Same,
            });
        }
        let old_end = LinkAddr(block.at.0 + u64::from(block.size));
        while site < growing.len() && growing[site].at < old_end {
            if places.grown[site] {
                let len = (growing[site].at.0 + u64::from(growing[site].with()) - old.0) as u32;
                let part = PlacedBlock {
                    old,
                    old_size: len,
                    new,
                    new_size: len + growing[site].bytes(),
                    appended: 0,
                    ending: Ending::Same,
                };
                found.push(part);
                old = LinkAddr(old.0 + u64::from(len));
                new = LinkAddr(new.0 + u64::from(part.new_size));
            }
            site += 1;
        }
        let old_size = (old_end.0 - old.0) as u32;
        let (appended, ending) = (places.appended[i], places.ending[i]);
        match found.last_mut() {
            // The block ended with a site that grew. The appended jump stands behind that site.
            Some(last) if old_size == 0 && old > block.at => last.appended = appended,
            _ => {
                let new_size =
                    (old_size + u32::from(places.tail[i])).saturating_sub(u32::from(block.tail));
                found.push(PlacedBlock { old, old_size, new, new_size, appended, ending });
            }
        }
    }
    Placement { blocks: found, ..Placement::default() }
}

struct Placer<'a> {
    blocks: &'a [MovableBlock],
    growing: &'a [GrowthSite],
    order: &'a [u32],
    start: LinkAddr,
    /// Per block: the number of its run of blocks that stay together.
    run: Vec<u32>,
    /// Per block: the next block in the new order.
    next: Vec<Option<u32>>,
    /// Per block and per site: the block that the branch goes to, and the offset in that block.
    target: Vec<(u32, u32)>,
    site_target: Vec<(u32, u32)>,
    /// Per block: the range of its sites.
    sites: Vec<std::ops::Range<u32>>,
    places: BlockPlaces,
}

impl<'a> Placer<'a> {
    fn new(
        blocks: &'a [MovableBlock],
        growing: &'a [GrowthSite],
        order: &'a [u32],
        start: LinkAddr,
    ) -> Result<Self, PlaceError> {
        let count = blocks.len();
        for pair in blocks.windows(2) {
            if pair[0].at.0 + u64::from(pair[0].size) + u64::from(pair[1].lead) > pair[1].at.0 {
                return Err(PlaceError::Overlap(pair[0].at));
            }
        }
        let mut seen = vec![false; count];
        let is_new =
            |&b: &u32| seen.get_mut(b as usize).is_some_and(|s| !std::mem::replace(s, true));
        if order.len() != count || !order.iter().all(is_new) {
            return Err(PlaceError::NoPermutation(count));
        }
        let mut run = vec![0; count];
        let mut next = vec![None; count];
        let mut number = 0;
        for pair in order.windows(2) {
            run[pair[0] as usize] = number;
            next[pair[0] as usize] = Some(pair[1]);
            number += u32::from(pair[0] + 1 != pair[1]);
        }
        if let Some(&last) = order.last() {
            run[last as usize] = number;
        }
        let find = |from: LinkAddr, at: LinkAddr| {
            let index = blocks.partition_point(|b| b.at <= at).checked_sub(1);
            let hit = index
                .map(|i| (i as u32, (at.0 - blocks[i].at.0) as u32))
                .filter(|&(i, d)| d <= blocks[i as usize].size);
            hit.ok_or(PlaceError::NoTarget(from, at))
        };
        let target = blocks.iter().enumerate().map(|(i, b)| match b.exit {
            MovableExit::Jump(to) => find(b.at, to),
            MovableExit::Branch(_) | MovableExit::Runs if i + 1 == count => {
                Err(PlaceError::NoSuccessor(b.at))
            }
            MovableExit::Branch(to) => find(b.at, to),
            MovableExit::Stop | MovableExit::Runs => Ok(NOWHERE),
        });
        let target = target.collect::<Result<_, _>>()?;
        let site_target = growing.iter().map(|g| match g.growth {
            Growth::WhenFar(target) => find(g.at, target),
            Growth::Always(_) => Ok(NOWHERE),
        });
        let site_target = site_target.collect::<Result<_, _>>()?;
        let sites = blocks
            .iter()
            .map(|b| {
                let end = LinkAddr(b.at.0 + u64::from(b.size));
                growing.partition_point(|g| g.at < b.at) as u32
                    ..growing.partition_point(|g| g.at < end) as u32
            })
            .collect();
        let places = BlockPlaces {
            new: vec![start; count],
            ending: vec![Ending::Same; count],
            tail: blocks.iter().map(|b| b.tail).collect(),
            appended: vec![0; count],
            keeps_gap: vec![false; count],
            grown: growing.iter().map(|g| matches!(g.growth, Growth::Always(_))).collect(),
            end: start,
        };
        Ok(Self { blocks, growing, order, start, run, next, target, site_target, sites, places })
    }

    /// Decides from the order alone which branches stay, are inverted, are dropped or are added.
    /// Lengths begin short, except inside runs.
    fn choose_endings(&mut self) {
        for i in 0..self.blocks.len() {
            let block = &self.blocks[i];
            // Control cannot fall through into a block with padding in front of it.
            let touching = self.next[i].filter(|&n| {
                self.blocks[n as usize].lead == 0 && self.blocks[n as usize].align == 1
            });
            let same_next = touching == Some(i as u32 + 1);
            let reaches_target =
                touching.is_some_and(|n| (n, 0) == self.target[i]) && !block.pinned && !same_next;
            match block.exit {
                MovableExit::Stop => {}
                MovableExit::Runs if same_next => {}
                MovableExit::Runs => self.places.appended[i] = SHORT,
                MovableExit::Jump(_) if reaches_target => {
                    self.places.ending[i] = Ending::JumpDropped;
                    self.places.tail[i] = 0;
                }
                MovableExit::Branch(_) if reaches_target => {
                    self.places.ending[i] = Ending::Inverted;
                    self.places.tail[i] = SHORT;
                }
                MovableExit::Jump(_) | MovableExit::Branch(_) => {
                    let together = self.run[self.target[i].0 as usize] == self.run[i];
                    self.places.tail[i] = if together { block.tail } else { SHORT };
                    if matches!(block.exit, MovableExit::Branch(_)) && !same_next {
                        self.places.appended[i] = SHORT;
                    }
                }
            }
        }
    }

    fn assign_addresses(&mut self) {
        let mut at = self.start.0;
        let mut previous: Option<u32> = None;
        for &i in self.order {
            let block = &self.blocks[i as usize];
            let aligned = |at: u64| {
                (at + u64::from(block.lead)) % u64::from(block.align) == u64::from(block.residue)
            };
            // Padding in front of the first block of the old image belongs to no block.
            if let Some(p) = previous {
                let with_gap = at + u64::from(self.blocks[p as usize].gap);
                let keeps = p + 1 == i && aligned(with_gap);
                self.places.keeps_gap[p as usize] = keeps;
                if keeps {
                    at = with_gap;
                }
            }
            if !aligned(at) {
                let align = u64::from(block.align);
                at += (u64::from(block.residue) + align * 2 - (at + u64::from(block.lead)) % align)
                    % align;
            }
            at += u64::from(block.lead);
            self.places.new[i as usize] = LinkAddr(at);
            at += self.length(i as usize);
            previous = Some(i);
        }
        if let Some(p) = previous {
            // The padding at the section's end stays if the last block is the old last one.
            let keeps = p as usize + 1 == self.blocks.len();
            self.places.keeps_gap[p as usize] = keeps;
            at += if keeps { u64::from(self.blocks[p as usize].gap) } else { 0 };
        }
        self.places.end = LinkAddr(at);
    }

    fn grown_in(&self, i: usize) -> u64 {
        let sites = self.sites[i].clone().map(|s| s as usize);
        let grown = sites.filter(|&s| self.places.grown[s]);
        grown.map(|s| u64::from(self.growing[s].bytes())).sum()
    }

    fn length(&self, i: usize) -> u64 {
        let block = &self.blocks[i];
        u64::from(block.size) - u64::from(block.tail)
            + self.grown_in(i)
            + u64::from(self.places.tail[i])
            + u64::from(self.places.appended[i])
    }

    fn address(&self, (block, distance): (u32, u32)) -> u64 {
        self.places.new[block as usize].0 + u64::from(distance)
    }

    /// Lengthens every short branch that does not reach its target. Returns whether there was one.
    fn grow(&mut self) -> bool {
        let mut any = false;
        let fits = |from: u64, to: u64| i8::try_from(to.wrapping_sub(from) as i64).is_ok();
        for i in 0..self.blocks.len() {
            let block = &self.blocks[i];
            let body = u64::from(block.size) - u64::from(block.tail) + self.grown_in(i);
            let tail_end = self.places.new[i].0 + body + u64::from(self.places.tail[i]);
            let follower = (i as u32 + 1, 0);
            if self.places.tail[i] == SHORT
                && !matches!(block.exit, MovableExit::Stop | MovableExit::Runs)
            {
                let inverted = self.places.ending[i] == Ending::Inverted;
                let to = self.address(if inverted { follower } else { self.target[i] });
                if !fits(tail_end, to) {
                    self.places.tail[i] = if matches!(block.exit, MovableExit::Jump(_)) {
                        NEAR_JUMP
                    } else {
                        NEAR_BRANCH
                    };
                    any = true;
                }
            }
            if self.places.appended[i] == SHORT
                && !fits(tail_end + u64::from(SHORT), self.address(follower))
            {
                self.places.appended[i] = NEAR_JUMP;
                any = true;
            }
            let mut earlier = 0;
            for site in self.sites[i].clone().map(|s| s as usize) {
                let at = self.places.new[i].0 + (self.growing[site].at.0 - block.at.0) + earlier;
                if !self.places.grown[site]
                    && !fits(at + u64::from(SHORT), self.address(self.site_target[site]))
                {
                    self.places.grown[site] = true;
                    any = true;
                }
                earlier +=
                    u64::from(self.places.grown[site]) * u64::from(self.growing[site].bytes());
            }
        }
        any
    }
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
