//! A kernel as functions, blocks and side tables, and new addresses for its code.
//!
//! Input: ELF files. Output: an [`Image`] of functions and blocks, or everything that moving the
//! code requires ([`object`], [`linked`]). With an order of blocks ([`order`]) this crate also
//! computes their new addresses ([`place`], [`map`]). It never changes a file. Only
//! [`source_lines`] reads DWARF.
//!
//! ```
//! use kernlane_image::address::LinkAddr;
//! use kernlane_image::place::{MovableBlock, MovableExit, place};
//! // Two blocks of 16 bytes. Neither ends with a branch that placing could change.
//! let block = |at| MovableBlock::alone(LinkAddr(at), 16, MovableExit::Stop, 0);
//! let places = place(&[block(0x1000), block(0x1010)], &[], &[1, 0], LinkAddr(0x1000)).unwrap();
//! assert_eq!(places.new, [LinkAddr(0x1010), LinkAddr(0x1000)]);
//! ```

#![warn(missing_docs, clippy::missing_errors_doc)]
#![deny(unsafe_code)]

pub mod address;
mod blocks;
pub mod btf;
pub mod estimate;
#[cfg(any(test, feature = "examples"))]
pub mod examples;
pub mod exits;
pub mod forms;
pub mod linked;
pub mod locals;
pub mod map;
pub mod mapping;
pub mod module;
pub mod object;
pub mod order;
pub mod ordinary;
pub mod place;
pub mod programs;
pub mod relative_words;
pub mod runs;
pub mod sealed;
pub mod source_lines;
mod symbols;
pub mod vmlinux;

pub use linked::sites;

use crate::address::LinkAddr;
use crate::ordinary::ReservedCode;
use crate::place::CallPadding;
use std::ops::Range;

/// The build id of a kernel: the GNU build-id note as lower-case hex.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct BuildId(pub String);

impl BuildId {
    /// The build id with these bytes, which a GNU build-id note contains.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(sealed::hex(bytes))
    }
}

/// How a block ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockEnd {
    /// Control continues in the next block.
    FallThrough,
    /// A call of a known function, or of an unknown one through a pointer. When the callee returns,
    /// control continues behind the call.
    Call(Option<LinkAddr>),
    /// An unconditional direct jump.
    Jump(LinkAddr),
    /// A conditional jump to this target, or else the next block.
    Branch(LinkAddr),
    /// A return, an indirect jump, or an instruction behind which control never continues (`ud2`).
    Stop,
}

/// An index into `Image::blocks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockIndex(pub u32);

/// Straight code that is entered only at its start and left only at its end. A call ends a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The link address of the first byte.
    pub addr: LinkAddr,
    /// Bytes.
    pub size: u32,
    /// How control leaves the block.
    pub end: BlockEnd,
    /// The block must directly follow the block before it, wherever that one goes.
    pub glued: bool,
    /// The kernel patches the instruction at the end when it boots or runs: a static key, or the
    /// end of an alternative. A jump in the file may be a no-op in memory, and the other way round.
    pub patched: bool,
}

impl Block {
    /// The address behind the last byte.
    pub fn end_addr(&self) -> LinkAddr {
        LinkAddr(self.addr.0 + u64::from(self.size))
    }
}

/// A function of the image.
#[derive(Clone, Debug)]
pub struct ImageFunction {
    /// Its name in the symbol table.
    pub name: String,
    /// The link address of its entry.
    pub addr: LinkAddr,
    /// Bytes from `addr` to the end of the last block, without padding.
    pub size: u64,
    /// Indices into `Image::blocks`.
    pub blocks: Range<u32>,
    /// The name of its output section, e.g. ".text".
    pub section: String,
    /// Why a layout may not move the function; `None` if it may.
    pub stays: Option<ReservedCode>,
}

impl ImageFunction {
    /// Whether a layout may rearrange the function.
    pub fn movable(&self) -> bool {
        self.stays.is_none()
    }
}

/// Functions and blocks. Both are ascending by address and disjoint.
#[derive(Clone, Debug)]
pub struct Image {
    /// The kernel's build id.
    pub build_id: BuildId,
    /// Bytes of padding in front of each function's entry that the kernel patches, or may patch, at
    /// run time; 0 if there are none.
    pub entry_padding: u32,
    /// What becomes of this padding where a function moves. If it is dropped, `entry_padding` is 0.
    pub call_padding: CallPadding,
    /// The alignment, in bytes, that the compiler gave the entries of functions.
    pub entry_alignment: u32,
    /// The functions, ascending by address.
    pub functions: Vec<ImageFunction>,
    /// The blocks, ascending by address.
    pub blocks: Vec<Block>,
    /// The modules whose functions and blocks are among these.
    pub modules: Vec<module::ImageModule>,
}

impl Image {
    /// Plans to drop the call padding of functions that move.
    pub fn drop_call_padding(&mut self) {
        self.entry_padding = 0;
        self.call_padding = CallPadding::Dropped;
    }

    /// The block that holds `addr`.
    pub fn block_at(&self, addr: LinkAddr) -> Option<BlockIndex> {
        let after = self.blocks.partition_point(|block| block.addr <= addr);
        let index = after.checked_sub(1)?;
        (addr < self.blocks[index].end_addr()).then_some(BlockIndex(index as u32))
    }

    /// The function that holds `block`.
    pub fn function_of(&self, block: BlockIndex) -> &ImageFunction {
        let after = self.functions.partition_point(|function| function.blocks.start <= block.0);
        &self.functions[after - 1]
    }

    /// The block with this number.
    pub fn block(&self, block: BlockIndex) -> &Block {
        &self.blocks[block.0 as usize]
    }
}
