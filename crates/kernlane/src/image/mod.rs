//! A kernel image as functions and blocks.
//!
//! Takes an ELF file; gives what `profile`, `place` and `replay` need of it. Never changes it.

pub mod address;

use crate::image::address::LinkAddr;
use std::ops::Range;

/// The build id of a kernel: the GNU build-id note, as lower-case hex.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct BuildId(pub String);

/// What ends a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Runs on into the next block.
    FallThrough,
    /// An unconditional direct jump.
    Jump(LinkAddr),
    /// A conditional jump: target, else the next block.
    Branch(LinkAddr),
    /// Return, indirect jump, or an instruction that never continues (ud2, hlt loop, call to noreturn).
    Stop,
}

#[derive(Clone, Debug)]
pub struct Block {
    pub addr: LinkAddr,
    pub size: u32,
    pub end: End,
    /// Must directly follow the block before it, wherever that goes.
    pub glued: bool,
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
}

/// Functions and blocks, both ascending by address and disjoint.
#[derive(Clone, Debug)]
pub struct Image {
    pub build_id: BuildId,
    pub functions: Vec<Function>,
    pub blocks: Vec<Block>,
}
