//! An order becomes addresses.
//!
//! Takes blocks as arrays and a permutation of them; gives each block's new address, the length of
//! its branches (short where the target is near enough, to a fixpoint), which branches were
//! inverted, dropped or added. Works for a rewritten object and, to predict what it would bring,
//! for an image of which only the final addresses are known. Never reads a file, never looks at
//! bytes.

use crate::address::LinkAddr;

/// What happened to the branch at the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The old terminator, aimed at the new place of its old target.
    Same,
    /// A conditional branch whose condition was inverted: it now jumps to where it used to fall
    /// through.
    Inverted,
    /// An unconditional jump that became a fall-through.
    JumpDropped,
}

/// Where one block of the old image went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    pub old: LinkAddr,
    pub old_size: u32,
    pub new: LinkAddr,
    /// Bytes at the new place without `appended`.
    pub new_size: u32,
    /// Bytes of the unconditional jump put behind the block because its successor by fall-through
    /// lies elsewhere; 0 for none.
    pub appended: u8,
    pub ending: Ending,
}

impl Placed {
    /// The old address behind the block.
    pub fn old_end(&self) -> LinkAddr {
        LinkAddr(self.old.0.wrapping_add(u64::from(self.old_size)))
    }
}

/// The one old → new map: every block that was placed, ascending and disjoint by `old`. Code that
/// is not in it did not move.
///
/// Control that leaves block A for the old address N:
/// * to A's old fall-through: directly behind A when `ending` is not `Inverted` and `appended` is
///   0; through the appended jump when there is one; a taken branch when inverted.
/// * to A's old branch target: a taken branch when `Same`; when `Inverted`, a fall-through (through
///   the appended jump, if any).
/// * by an old unconditional jump: taken when `Same`, nothing when `JumpDropped`.
///
/// The call padding in front of a function is an entry of its own. A block in which a static key's
/// site grew from two bytes to five appears as two: the first ends with the site. So does one with
/// a counter: the first ends with the first byte of the instruction that is counted. Within one
/// entry an instruction keeps its distance from the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    pub blocks: Vec<Placed>,
}

impl Placement {
    /// The block that held the old address `addr`.
    pub fn block_at(&self, addr: LinkAddr) -> Option<&Placed> {
        let after = self.blocks.partition_point(|block| block.old <= addr);
        let block = &self.blocks[after.checked_sub(1)?];
        (addr < block.old_end()).then_some(block)
    }

    /// Where the instruction at `old` went; `None` for a place that is not in the map.
    pub fn new_address(&self, old: LinkAddr) -> Option<LinkAddr> {
        self.block_at(old).map(|block| LinkAddr(block.new.0 + (old.0 - block.old.0)))
    }
}

/// How control leaves a block at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It does not, or in a way that placing does not touch.
    Stop,
    /// Runs on into the block that followed it in the old image.
    Runs,
    /// A direct jump.
    Jump(LinkAddr),
    /// A conditional jump, else the block that followed in the old image.
    Branch(LinkAddr),
}

/// A block to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Movable {
    pub at: LinkAddr,
    /// Bytes, its last branch included.
    pub size: u32,
    /// Bytes in front of `at` that move with it (call padding).
    pub lead: u32,
    /// The lead has a symbol: the map names it, too.
    pub lead_named: bool,
    /// Padding between its end and the next block's lead in the old image.
    pub gap: u32,
    /// Its new address modulo this power of two is to be `residue`.
    pub align: u32,
    pub residue: u32,
    pub exit: Exit,
    /// Bytes of the branch at its end that `exit` speaks of; 0 for none.
    pub tail: u8,
    /// That branch may be aimed anew, but neither dropped nor inverted.
    pub pinned: bool,
}

impl Movable {
    /// A block that nothing belongs to and that may lie anywhere.
    pub fn alone(at: LinkAddr, size: u32, exit: Exit, tail: u8) -> Movable {
        Movable {
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

/// A place inside a block at which the block becomes longer.
#[derive(Clone, Copy, Debug)]
pub struct Growing {
    pub at: LinkAddr,
    pub growth: Growth,
}

#[derive(Clone, Copy, Debug)]
pub enum Growth {
    /// A no-op or jump of two bytes, which has to have five when its target is far.
    WhenFar(LinkAddr),
    /// So many bytes of new code in front of what stands there.
    Always(u8),
}

impl Growing {
    /// Bytes that it gains.
    pub fn bytes(&self) -> u32 {
        match self.growth {
            Growth::WhenFar(_) => 3,
            Growth::Always(bytes) => u32::from(bytes),
        }
    }

    /// Bytes of old code from its place on that the map gives with those that it gains: where
    /// control goes to is in front of them.
    fn with(&self) -> u32 {
        match self.growth {
            Growth::WhenFar(_) => u32::from(SHORT),
            Growth::Always(_) => 1,
        }
    }
}

/// Every block's place, by the number of the block.
#[derive(Clone, Debug)]
pub struct Places {
    pub new: Vec<LinkAddr>,
    pub ending: Vec<Ending>,
    /// Bytes of the branch at the end, and of the jump put behind it.
    pub tail: Vec<u8>,
    pub appended: Vec<u8>,
    /// The padding behind it was kept as it was, because the same block follows.
    pub keeps_gap: Vec<bool>,
    /// Which of the growing sites grew.
    pub grown: Vec<bool>,
    /// The first byte behind all blocks.
    pub end: LinkAddr,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlaceError {
    #[error("the order is not a permutation of the {0} blocks")]
    NoPermutation(usize),
    #[error("the block at {0} overlaps the one behind it")]
    Overlap(LinkAddr),
    #[error("a branch at the end of {0} goes to {1}, where no block is")]
    NoTarget(LinkAddr, LinkAddr),
    #[error("the last block, {0}, runs on into nothing")]
    NoSuccessor(LinkAddr),
}

const SHORT: u8 = 2;
const NEAR_JUMP: u8 = 5;
const NEAR_BRANCH: u8 = 6;
const NOWHERE: (u32, u32) = (u32::MAX, 0);

/// Places `blocks` (ascending by `at`) in the given order, from `start` on.
///
/// Inside a run of blocks that stay together every branch keeps its length and padding stays, so
/// that the old order gives the old addresses. `growing` is ascending, each inside a block that
/// nothing jumps into the middle of.
pub fn place(
    blocks: &[Movable],
    growing: &[Growing],
    order: &[u32],
    start: LinkAddr,
) -> Result<Places, PlaceError> {
    let mut work = Work::new(blocks, growing, order, start)?;
    work.choose_endings();
    loop {
        work.assign_addresses();
        if !work.grow() {
            break;
        }
    }
    Ok(work.places)
}

/// The map that `places` amounts to.
pub fn placement(blocks: &[Movable], growing: &[Growing], places: &Places) -> Placement {
    let mut found = Vec::with_capacity(blocks.len());
    let mut site = 0;
    for (i, block) in blocks.iter().enumerate() {
        let mut old = block.at;
        let mut new = places.new[i];
        if block.lead_named {
            let (old, new) =
                (LinkAddr(old.0 - u64::from(block.lead)), LinkAddr(new.0 - u64::from(block.lead)));
            found.push(Placed {
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
                let part = Placed {
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
            // It ended with a site that grew: the jump stands behind that.
            Some(last) if old_size == 0 && old > block.at => last.appended = appended,
            _ => {
                let new_size =
                    (old_size + u32::from(places.tail[i])).saturating_sub(u32::from(block.tail));
                found.push(Placed { old, old_size, new, new_size, appended, ending });
            }
        }
    }
    Placement { blocks: found }
}

struct Work<'a> {
    blocks: &'a [Movable],
    growing: &'a [Growing],
    order: &'a [u32],
    start: LinkAddr,
    /// Per block: the number of the run of blocks that stay together.
    run: Vec<u32>,
    /// Per block: what follows it in the new order.
    next: Vec<Option<u32>>,
    /// Per block and per site: the block that the branch goes to, and how far into it.
    target: Vec<(u32, u32)>,
    site_target: Vec<(u32, u32)>,
    /// Per block: its sites.
    sites: Vec<std::ops::Range<u32>>,
    places: Places,
}

impl<'a> Work<'a> {
    fn new(
        blocks: &'a [Movable],
        growing: &'a [Growing],
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
            Exit::Jump(to) => find(b.at, to),
            Exit::Branch(_) | Exit::Runs if i + 1 == count => Err(PlaceError::NoSuccessor(b.at)),
            Exit::Branch(to) => find(b.at, to),
            Exit::Stop | Exit::Runs => Ok(NOWHERE),
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
        let places = Places {
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

    /// Decides, from the order alone, which branches stay, are inverted, dropped or added; lengths
    /// begin short, except in runs.
    fn choose_endings(&mut self) {
        for i in 0..self.blocks.len() {
            let block = &self.blocks[i];
            // A block that wants padding in front of it cannot be run into.
            let touching = self.next[i].filter(|&n| {
                self.blocks[n as usize].lead == 0 && self.blocks[n as usize].align == 1
            });
            let same_next = touching == Some(i as u32 + 1);
            let reaches_target =
                touching.is_some_and(|n| (n, 0) == self.target[i]) && !block.pinned && !same_next;
            match block.exit {
                Exit::Stop => {}
                Exit::Runs if same_next => {}
                Exit::Runs => self.places.appended[i] = SHORT,
                Exit::Jump(_) if reaches_target => {
                    self.places.ending[i] = Ending::JumpDropped;
                    self.places.tail[i] = 0;
                }
                Exit::Branch(_) if reaches_target => {
                    self.places.ending[i] = Ending::Inverted;
                    self.places.tail[i] = SHORT;
                }
                Exit::Jump(_) | Exit::Branch(_) => {
                    let together = self.run[self.target[i].0 as usize] == self.run[i];
                    self.places.tail[i] = if together { block.tail } else { SHORT };
                    if matches!(block.exit, Exit::Branch(_)) && !same_next {
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
            // Padding in front of the very first block of the old image belongs to no block.
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
            // The padding at the section's end stays when the last block is the old last one.
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

    /// Makes every short branch near that does not reach its target. Says whether there was one.
    fn grow(&mut self) -> bool {
        let mut any = false;
        let fits = |from: u64, to: u64| i8::try_from(to.wrapping_sub(from) as i64).is_ok();
        for i in 0..self.blocks.len() {
            let block = &self.blocks[i];
            let body = u64::from(block.size) - u64::from(block.tail) + self.grown_in(i);
            let tail_end = self.places.new[i].0 + body + u64::from(self.places.tail[i]);
            let follower = (i as u32 + 1, 0);
            if self.places.tail[i] == SHORT && !matches!(block.exit, Exit::Stop | Exit::Runs) {
                let inverted = self.places.ending[i] == Ending::Inverted;
                let to = self.address(if inverted { follower } else { self.target[i] });
                if !fits(tail_end, to) {
                    self.places.tail[i] =
                        if matches!(block.exit, Exit::Jump(_)) { NEAR_JUMP } else { NEAR_BRANCH };
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
