//! An order becomes addresses.

use crate::image::address::LinkAddr;

/// What happened to the branch at the end of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The old terminator, aimed at the new place of its old target.
    Same,
    /// A conditional branch whose condition was inverted: it now jumps to where it used to fall through.
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
    /// Bytes of the unconditional jump put behind the block because its successor by fall-through lies elsewhere; 0 for none.
    pub appended: u8,
    pub ending: Ending,
}

impl Placed {
    /// The old address behind the block.
    pub fn old_end(&self) -> LinkAddr {
        LinkAddr(self.old.0.wrapping_add(u64::from(self.old_size)))
    }
}

/// The one old → new map: every block that was placed, ascending and disjoint by `old`. Code that is not in it did not move.
///
/// Control that leaves block A for the old address N:
/// * to A's old fall-through: directly behind A when `ending` is not `Inverted` and `appended` is 0; through the appended jump when
///   there is one; a taken branch when inverted.
/// * to A's old branch target: a taken branch when `Same`; when `Inverted`, a fall-through (through the appended jump, if any).
/// * by an old unconditional jump: taken when `Same`, nothing when `JumpDropped`.
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
}
