//! A kernel image as functions and blocks.
//!
//! Takes an ELF file; gives what `profile`, `place` and `replay` need of it. Never changes it, and needs no DWARF.

pub mod address;
mod blocks;
pub mod btf;
pub mod linked;
pub mod object;
mod symbols;
pub mod vmlinux;

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
    /// Lies in the part of the kernel's text that a layout may rearrange: not entry, noinstr, scheduler, init code and the like.
    pub movable: bool,
}

/// Functions and blocks, both ascending by address and disjoint.
#[derive(Clone, Debug)]
pub struct Image {
    pub build_id: BuildId,
    /// Bytes of padding in front of each function's entry that the kernel patches at run time, or may; 0 for none.
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

/// A small image, for the tests of what reads images:
///
/// ```text
/// +00 f: … je +09 ─┐    +20 g: … ret
/// +04    call g    │
/// +09    … ret ◄───┘
/// ```
#[cfg(test)]
pub fn caller_and_callee(base: LinkAddr) -> Image {
    let at = |offset: u64| LinkAddr(base.0 + offset);
    let block = |offset, size, end| Block {
        addr: at(offset),
        size,
        end,
        glued: false,
    };
    let function = |name: &str, offset, size, blocks| Function {
        name: name.to_owned(),
        addr: at(offset),
        size,
        blocks,
        section: ".text".to_owned(),
        movable: true,
    };
    Image {
        build_id: BuildId("5f3c".into()),
        entry_padding: 0,
        entry_alignment: 16,
        functions: vec![function("f", 0, 11, 0..3), function("g", 0x20, 2, 3..4)],
        blocks: vec![
            block(0, 4, End::Branch(at(9))),
            block(4, 5, End::Call(Some(at(0x20)))),
            block(9, 2, End::Stop),
            block(0x20, 2, End::Stop),
        ],
    }
}

/// For tests: blocks of these sizes, one behind the other from 0x1000, that all move; each a function of its own if `apart`, else all of one.
#[cfg(test)]
pub fn row_of_blocks(sizes: &[u32], apart: bool) -> Image {
    let mut at = 0x1000;
    let block = |&size: &u32| {
        at += u64::from(size);
        Block {
            addr: LinkAddr(at - u64::from(size)),
            size,
            end: End::Stop,
            glued: false,
        }
    };
    let blocks: Vec<Block> = sizes.iter().map(block).collect();
    let all = 0..blocks.len() as u32;
    let function = |range: Range<u32>| Function {
        name: format!("f{}", range.start),
        addr: blocks[range.start as usize].addr,
        size: sizes[range.start as usize..range.end as usize]
            .iter()
            .map(|&size| u64::from(size))
            .sum(),
        blocks: range,
        section: ".text".into(),
        movable: true,
    };
    Image {
        build_id: BuildId("00".into()),
        entry_padding: 0,
        entry_alignment: 1,
        functions: match apart {
            true => all.map(|block| function(block..block + 1)).collect(),
            false => vec![function(all)],
        },
        blocks,
    }
}
