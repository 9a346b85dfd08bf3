//! A kernel as functions, blocks and side tables, and where its code goes.
//!
//! Takes ELF files; gives an [`Image`] of functions and blocks, or all that it takes to move the
//! code ([`object`], [`linked`]). Takes an order of blocks ([`order`]); gives their new addresses
//! ([`place`], [`map`]). Never changes a file, and needs no DWARF.

pub mod address;
mod blocks;
pub mod btf;
pub mod estimate;
#[cfg(any(test, feature = "examples"))]
pub mod examples;
pub mod linked;
pub mod map;
pub mod object;
pub mod order;
pub mod place;
pub mod sealed;
mod symbols;
pub mod vmlinux;

use crate::address::LinkAddr;
use std::ops::Range;

/// The build id of a kernel: the GNU build-id note, as lower-case hex.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct BuildId(pub String);

/// What ends a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Runs on into the next block.
    FallThrough,
    /// A call, of a known callee or through a pointer; runs on behind it when the callee returns.
    Call(Option<LinkAddr>),
    /// An unconditional direct jump.
    Jump(LinkAddr),
    /// A conditional jump: target, else the next block.
    Branch(LinkAddr),
    /// Return, indirect jump, or an instruction that never continues (`ud2`).
    Stop,
}

/// An index into `Image::blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockIndex(pub u32);

/// Straight code, entered only at its start and left only at its end. A call ends a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub addr: LinkAddr,
    pub size: u32,
    pub end: End,
    /// Must directly follow the block before it, wherever that goes.
    pub glued: bool,
}

impl Block {
    pub fn end_addr(&self) -> LinkAddr {
        LinkAddr(self.addr.0 + u64::from(self.size))
    }
}

#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    pub addr: LinkAddr,
    /// Bytes from `addr` to the end of its last block, padding excluded.
    pub size: u64,
    /// Indices into `Image::blocks`.
    pub blocks: Range<u32>,
    /// The output section's name, e.g. ".text".
    pub section: String,
    /// Lies in the part of the kernel's text that a layout may rearrange: not entry, noinstr,
    /// scheduler, init code and the like.
    pub movable: bool,
}

/// Functions and blocks, both ascending by address and disjoint.
#[derive(Clone, Debug)]
pub struct Image {
    pub build_id: BuildId,
    /// Bytes of padding in front of each function's entry that the kernel patches at run time, or
    /// may; 0 for none.
    pub entry_padding: u32,
    /// What the compiler aligned the entries of functions to, in bytes.
    pub entry_alignment: u32,
    pub functions: Vec<Function>,
    pub blocks: Vec<Block>,
}

impl Image {
    /// The block that holds `addr`.
    pub fn block_at(&self, addr: LinkAddr) -> Option<BlockIndex> {
        let after = self.blocks.partition_point(|block| block.addr <= addr);
        let index = after.checked_sub(1)?;
        (addr < self.blocks[index].end_addr()).then_some(BlockIndex(index as u32))
    }

    /// The function that holds `block`.
    pub fn function_of(&self, block: BlockIndex) -> &Function {
        let after = self.functions.partition_point(|function| function.blocks.start <= block.0);
        &self.functions[after - 1]
    }

    pub fn block(&self, block: BlockIndex) -> &Block {
        &self.blocks[block.0 as usize]
    }
}
