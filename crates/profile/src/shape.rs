//! The shape of a function: its blocks and how control leaves each of them, without addresses and
//! without bytes. By it a profile's counts are found again in another build ([`crate::carry`]).
//!
//! Input: an image. Output: shapes, and their text in a profile's file. This module compares
//! nothing.

use image::address::LinkAddr;
use image::{Block, BlockEnd, BlockIndex, Image, ImageFunction};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// What a profile knows of a function beside its counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionShape {
    /// The function's name in the symbol table.
    pub name: String,
    /// Which one it is of the functions with this name, by address: 0 for the first.
    pub rank: u32,
    /// How many functions have this name.
    pub namesakes: u32,
    /// Its blocks, in the order of their addresses.
    pub blocks: Vec<BlockShape>,
}

/// A block of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockShape {
    /// Bytes from its start to the start of the next block, or to the function's end.
    pub bytes: u32,
    /// How control leaves it.
    pub end: EndShape,
}

/// How control leaves a block, in terms that hold in another build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndShape {
    /// It continues in the next block.
    FallThrough,
    /// A return, an indirect jump, or no way out.
    Stop,
    /// A call through a pointer.
    CallPointer,
    /// A call of the function whose name has this hash.
    Call(u32),
    /// A jump.
    Jump(TargetShape),
    /// A conditional jump.
    Branch(TargetShape),
}

/// Where a jump leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetShape {
    /// Into the same function, this number of blocks ahead.
    Inside(i32),
    /// Into the function whose name has this hash.
    Outside(u32),
}

/// The name without what compilers append to it (`.isra.0`, `.llvm.123`) and without its module.
pub(crate) fn base_name(name: &str) -> &str {
    name.split(['.', ' ']).next().unwrap_or(name)
}

/// FNV-1a (Fowler, Noll, Vo) of a name without what compilers append.
fn hash(name: &str) -> u32 {
    let bytes = base_name(name).bytes();
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The shape of a function of an image: of its blocks alone.
pub(crate) fn blocks_of(image: &Image, function: &ImageFunction) -> Vec<BlockShape> {
    let end = function.addr.0 + function.size;
    let own = function.blocks.clone();
    own.clone()
        .map(|index| {
            let block = image.block(BlockIndex(index));
            let next = (index + 1 < own.end).then(|| image.block(BlockIndex(index + 1)).addr.0);
            let bytes = next.unwrap_or(end).saturating_sub(block.addr.0) as u32;
            BlockShape { bytes, end: end_of(image, function, index, block) }
        })
        .collect()
}

fn end_of(image: &Image, function: &ImageFunction, index: u32, block: &Block) -> EndShape {
    let function_hash = |at: LinkAddr| {
        let entered = image.block_at(at).map(|block| image.function_of(block));
        entered.map_or(0, |function| hash(&function.name))
    };
    let target = |at: LinkAddr| match image.block_at(at) {
        Some(to) if function.blocks.contains(&to.0) => {
            TargetShape::Inside(to.0 as i32 - index as i32)
        }
        _ => TargetShape::Outside(function_hash(at)),
    };
    match block.end {
        BlockEnd::FallThrough => EndShape::FallThrough,
        BlockEnd::Stop => EndShape::Stop,
        BlockEnd::Call(None) => EndShape::CallPointer,
        BlockEnd::Call(Some(at)) => EndShape::Call(function_hash(at)),
        BlockEnd::Jump(at) => EndShape::Jump(target(at)),
        BlockEnd::Branch(at) => EndShape::Branch(target(at)),
    }
}

/// The shapes of the functions in which these blocks lie, by the functions' entries.
pub(crate) fn of_blocks<'a>(
    image: &Image,
    blocks: impl Iterator<Item = &'a LinkAddr>,
) -> BTreeMap<LinkAddr, FunctionShape> {
    let mut ranks: HashMap<&str, Vec<LinkAddr>> = HashMap::new();
    for function in &image.functions {
        ranks.entry(&function.name).or_default().push(function.addr);
    }
    let mut shapes = BTreeMap::new();
    for block in blocks.filter_map(|&at| image.block_at(at)) {
        let function = image.function_of(block);
        shapes.entry(function.addr).or_insert_with(|| {
            let namesakes = &ranks[function.name.as_str()];
            let rank = namesakes.iter().position(|&addr| addr == function.addr);
            FunctionShape {
                name: function.name.clone(),
                rank: rank.unwrap_or(0) as u32,
                namesakes: namesakes.len() as u32,
                blocks: blocks_of(image, function),
            }
        });
    }
    shapes
}

impl FunctionShape {
    /// The offset of each block from the function's entry.
    pub fn offsets(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.iter().scan(0_u32, |at, block| {
            let here = *at;
            *at = at.saturating_add(block.bytes);
            Some(here)
        })
    }
}

/// The blocks as text: for each its bytes, and a letter for its end with what belongs to it.
pub(crate) fn to_text(blocks: &[BlockShape]) -> String {
    let mut text = String::new();
    for BlockShape { bytes, end } in blocks {
        let gap = if text.is_empty() { "" } else { " " };
        let _ = match end {
            EndShape::FallThrough => write!(text, "{gap}{bytes}f"),
            EndShape::Stop => write!(text, "{gap}{bytes}s"),
            EndShape::CallPointer => write!(text, "{gap}{bytes}p"),
            EndShape::Call(hash) => write!(text, "{gap}{bytes}c{hash:x}"),
            EndShape::Jump(TargetShape::Inside(ahead)) => write!(text, "{gap}{bytes}j{ahead}"),
            EndShape::Jump(TargetShape::Outside(hash)) => write!(text, "{gap}{bytes}J{hash:x}"),
            EndShape::Branch(TargetShape::Inside(ahead)) => write!(text, "{gap}{bytes}b{ahead}"),
            EndShape::Branch(TargetShape::Outside(hash)) => write!(text, "{gap}{bytes}B{hash:x}"),
        };
    }
    text
}

/// What [`to_text`] wrote. `None`: it did not.
pub(crate) fn from_text(text: &str) -> Option<Vec<BlockShape>> {
    text.split_ascii_whitespace().map(block_from_text).collect()
}

fn block_from_text(word: &str) -> Option<BlockShape> {
    let letter_at = word.find(|c: char| !c.is_ascii_digit())?;
    let (bytes, rest) = word.split_at(letter_at);
    let mut letters = rest.chars();
    let letter = letters.next()?;
    let operand = letters.as_str();
    let hash = || u32::from_str_radix(operand, 16).ok();
    let ahead = || operand.parse::<i32>().ok();
    let end = match letter {
        'f' | 's' | 'p' if !operand.is_empty() => return None,
        'f' => EndShape::FallThrough,
        's' => EndShape::Stop,
        'p' => EndShape::CallPointer,
        'c' => EndShape::Call(hash()?),
        'j' => EndShape::Jump(TargetShape::Inside(ahead()?)),
        'J' => EndShape::Jump(TargetShape::Outside(hash()?)),
        'b' => EndShape::Branch(TargetShape::Inside(ahead()?)),
        'B' => EndShape::Branch(TargetShape::Outside(hash()?)),
        _ => return None,
    };
    Some(BlockShape { bytes: bytes.parse().ok()?, end })
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::examples::caller_and_callee;

    #[test]
    fn a_shape_has_no_address() {
        let shapes = |base: u64| {
            let image = caller_and_callee(LinkAddr(base));
            of_blocks(&image, [LinkAddr(base + 4), LinkAddr(base + 0x20)].iter())
        };
        let (one, other) = (shapes(0x1000), shapes(0x77000));
        assert_eq!(one.keys().collect::<Vec<_>>(), [&LinkAddr(0x1000), &LinkAddr(0x1020)]);
        assert!(one.values().eq(other.values()));
        let f = &one[&LinkAddr(0x1000)];
        let g = hash("g.isra.0 [ext4]");
        let block = |bytes, end| BlockShape { bytes, end };
        let blocks = [
            block(4, EndShape::Branch(TargetShape::Inside(2))),
            block(5, EndShape::Call(g)),
            block(2, EndShape::Stop),
        ];
        assert_eq!((f.name.as_str(), f.rank, f.namesakes, &f.blocks[..]), ("f", 0, 1, &blocks[..]));
        assert_eq!(f.offsets().collect::<Vec<_>>(), [0, 4, 9]);
    }

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let ends = [
            EndShape::FallThrough,
            EndShape::Stop,
            EndShape::CallPointer,
            EndShape::Call(0xfe),
            EndShape::Jump(TargetShape::Inside(-3)),
            EndShape::Jump(TargetShape::Outside(u32::MAX)),
            EndShape::Branch(TargetShape::Inside(2)),
            EndShape::Branch(TargetShape::Outside(0xbad)),
        ];
        let blocks: Vec<BlockShape> =
            ends.iter().zip(10..).map(|(&end, bytes)| BlockShape { bytes, end }).collect();
        let text = to_text(&blocks);
        assert_eq!(text, "10f 11s 12p 13cfe 14j-3 15Jffffffff 16b2 17Bbad");
        assert_eq!(from_text(&text), Some(blocks));
        assert_eq!(from_text(""), Some(Vec::new()));
        for wrong in ["f", "10", "10f3", "10cxyz", "10j", "10q1", "99999999999f", "10cfffffffff"] {
            assert_eq!(from_text(wrong), None, "{wrong}");
        }
    }
}
