//! Small images for the tests of code that reads images.

use crate::address::LinkAddr;
use crate::place::CallPadding;
use crate::{Block, BlockEnd, BuildId, Image, ImageFunction};
use std::ops::Range;

/// An image of two functions:
///
/// ```text
/// +00 f: … je +09 ─┐    +20 g: … ret
/// +04    call g    │
/// +09    … ret ◄───┘
/// ```
pub fn caller_and_callee(base: LinkAddr) -> Image {
    let at = |offset: u64| LinkAddr(base.0 + offset);
    let block =
        |offset, size, end| Block { addr: at(offset), size, end, glued: false, patched: false };
    let function = |name: &str, offset, size, blocks| ImageFunction {
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
        call_padding: CallPadding::Kept,
        entry_alignment: 16,
        functions: vec![function("f", 0, 11, 0..3), function("g", 0x20, 2, 3..4)],
        blocks: vec![
            block(0, 4, BlockEnd::Branch(at(9))),
            block(4, 5, BlockEnd::Call(Some(at(0x20)))),
            block(9, 2, BlockEnd::Stop),
            block(0x20, 2, BlockEnd::Stop),
        ],
    }
}

/// Blocks of these sizes, one behind the other from 0x1000. All of them may move. If `apart` is
/// true, each block is a function; otherwise one function has them all.
pub fn row_of_blocks(sizes: &[u32], apart: bool) -> Image {
    let mut at = 0x1000;
    let block = |&size: &u32| {
        at += u64::from(size);
        Block {
            addr: LinkAddr(at - u64::from(size)),
            size,
            end: BlockEnd::Stop,
            glued: false,
            patched: false,
        }
    };
    let blocks: Vec<Block> = sizes.iter().map(block).collect();
    let all = 0..blocks.len() as u32;
    let function = |range: Range<u32>| ImageFunction {
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
        call_padding: CallPadding::Kept,
        entry_alignment: 1,
        functions: match apart {
            true => all.map(|block| function(block..block + 1)).collect(),
            false => vec![function(all)],
        },
        blocks,
    }
}

/// A `.BTF` section with these types, each as words, and these strings.
pub fn btf_section(types: &[Vec<u32>], strings: &[u8]) -> Vec<u8> {
    let types: Vec<u8> = types.concat().iter().flat_map(|word| word.to_le_bytes()).collect();
    let (size, end) = (types.len() as u32, strings.len() as u32);
    // The magic number with the version, the bytes of the header, and where both parts lie.
    let header = [0x1_eb9f, 24, 0, size, size, end].map(u32::to_le_bytes);
    [header.concat(), types, strings.to_vec()].concat()
}
