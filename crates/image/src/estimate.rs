//! Predicts the addresses of a layout's blocks from the linked kernel alone.
//!
//! Input: an [`Image`] and a layout. Output: a [`Placement`] for `replay`. Only the relocatable
//! object shows what must stay together for reasons other than control flow. A relink can therefore
//! place blocks a little differently. If a build tree is at hand, the rewriter computes the
//! placement instead.

use crate::address::LinkAddr;
use crate::module::is_of_module;
use crate::order::Layout;
use crate::place::{self, CallPadding, MovableBlock, MovableExit, PlacedBlock, Placement};
use crate::runs::LayoutRuns;
use crate::{Block, BlockEnd, Image, ImageFunction};
use anyhow::{Result, ensure};
use std::collections::HashMap;
use std::ops::Range;

/// Places the movable blocks of `image`'s vmlinux in the layout's order, beginning at the address
/// of the first movable block.
///
/// # Errors
/// The layout is for another kernel, or the blocks cannot be placed.
pub fn placement(image: &Image, layout: &Layout) -> Result<Placement> {
    ensure!(
        image.build_id == layout.build_id,
        "the layout is for the kernel {}, but the image is of {}",
        layout.build_id.0,
        image.build_id.0
    );
    let layout = &layout.of_vmlinux();
    layout.ensure_within(&code_of(image))?;
    let padding = match layout.call_padding {
        CallPadding::Kept => image.entry_padding,
        CallPadding::Dropped => 0,
    };
    let mut movables = movables(image, padding);
    let Some(first) = movables.first() else {
        return Ok(Placement::default());
    };
    let start = LinkAddr(first.at.0 - u64::from(first.lead));
    let (order, hot) = order(&movables, layout);
    // The rewriter does not align hot entries, either.
    for &index in &order[..hot] {
        movables[index as usize].align = 1;
    }
    let places = place::place(&movables, &[], &order, start)?;
    let mut placement = place::placement(&movables, &[], &places);
    let old_end =
        movables.last().map_or(start, |last| LinkAddr(last.at.0 + u64::from(last.size + last.gap)));
    let behind = unmoved_behind(image, old_end, places.end);
    placement.blocks.extend(behind);
    placement.blocks.sort_by_key(|block| block.old);
    placement.call_padding = layout.call_padding;
    Ok(placement)
}

/// Where each section's code lies, from its first function to its last one.
fn code_of(image: &Image) -> Vec<Range<u64>> {
    let mut sections: Vec<(&str, Range<u64>)> = Vec::new();
    for function in &image.functions {
        let end = function.addr.0 + function.size;
        match sections.last_mut().filter(|(name, _)| *name == function.section) {
            Some((_, code)) => code.end = code.end.max(end),
            None => sections.push((&function.section, function.addr.0..end)),
        }
    }
    sections.into_iter().map(|(_, code)| code).collect()
}

/// The blocks of functions that may move; glued ones are one. `padding` bytes in front of an entry
/// move with it.
fn movables(image: &Image, padding: u32) -> Vec<MovableBlock> {
    let functions: Vec<&ImageFunction> = image
        .functions
        .iter()
        .filter(|function| function.movable() && !function.blocks.is_empty())
        .filter(|function| !is_of_module(function.addr))
        .collect();
    let alignment = image.entry_alignment.max(1);
    let mut movables: Vec<MovableBlock> = Vec::new();
    for function in &functions {
        let blocks = &image.blocks[function.blocks.start as usize..function.blocks.end as usize];
        for (index, block) in blocks.iter().enumerate() {
            let (exit, tail) = exit(block, index + 1 == blocks.len());
            match movables.last_mut().filter(|_| block.glued) {
                Some(glued) => {
                    glued.size = (block.end_addr().0 - glued.at.0) as u32;
                    (glued.exit, glued.tail) = (exit, tail);
                }
                None => movables.push(MovableBlock {
                    at: block.addr,
                    size: block.size,
                    lead: 0,
                    lead_named: false,
                    gap: 0,
                    align: if index == 0 && block.addr.0.is_multiple_of(alignment.into()) {
                        alignment
                    } else {
                        1
                    },
                    residue: 0,
                    exit,
                    tail,
                    pinned: false,
                }),
            }
        }
    }
    for index in 0..movables.len() {
        let room = match index.checked_sub(1).map(|before| &movables[before]) {
            Some(before) => {
                movables[index].at.0.saturating_sub(before.at.0 + u64::from(before.size))
            }
            None => 0,
        };
        let entry = &mut movables[index];
        if entry.align > 1 && room >= u64::from(padding) {
            entry.lead = padding;
        }
        let gap = room.saturating_sub(entry.lead.into());
        if let Some(before) = index.checked_sub(1) {
            movables[before].gap = gap as u32;
        }
    }
    stay_within(&mut movables);
    movables
}

/// How a block ends, and the bytes of the branch at its end. Assemblers choose the shortest form
/// that reaches. A branch that the kernel patches can be a no-op in memory, whatever it is in the
/// file. So it keeps its length and condition, and control can go on behind it.
fn exit(block: &Block, last: bool) -> (MovableExit, u8) {
    let at = block.end_addr();
    let short = |target: LinkAddr| i8::try_from(target.0.wrapping_sub(at.0) as i64).is_ok();
    match block.end {
        _ if block.patched && !last => (MovableExit::Runs, 0),
        _ if block.patched => (MovableExit::Stop, 0),
        BlockEnd::Jump(target) => (MovableExit::Jump(target), if short(target) { 2 } else { 5 }),
        BlockEnd::Branch(target) => {
            (MovableExit::Branch(target), if short(target) { 2 } else { 6 })
        }
        // A call at the end of a function does not return.
        BlockEnd::Call(_) if last => (MovableExit::Stop, 0),
        BlockEnd::Call(_) | BlockEnd::FallThrough => (MovableExit::Runs, 0),
        BlockEnd::Stop => (MovableExit::Stop, 0),
    }
}

/// Branches to code that does not move keep their length and their condition.
fn stay_within(movables: &mut [MovableBlock]) {
    let starts: HashMap<LinkAddr, usize> =
        movables.iter().enumerate().map(|(index, movable)| (movable.at, index)).collect();
    let count = movables.len();
    for (index, movable) in movables.iter_mut().enumerate() {
        let last = index + 1 == count;
        (movable.exit, movable.tail) = match movable.exit {
            MovableExit::Jump(target) if !starts.contains_key(&target) => (MovableExit::Stop, 0),
            MovableExit::Branch(target) if !starts.contains_key(&target) => (MovableExit::Runs, 0),
            unchanged => (unchanged, movable.tail),
        };
        if last && matches!(movable.exit, MovableExit::Runs | MovableExit::Branch(_)) {
            (movable.exit, movable.tail) = (MovableExit::Stop, 0);
        }
    }
}

/// Orders the blocks. A block goes with the run that holds its first byte. Blocks without a run
/// keep their order behind the others. The second value is the number of hot blocks.
fn order(movables: &[MovableBlock], layout: &Layout) -> (Vec<u32>, usize) {
    let runs = LayoutRuns::of(layout);
    runs.order(movables.iter().map(|movable| runs.run_of(movable.at)))
}

/// Functions of the same section that lie behind the movable ones. They move by the growth of the
/// movable code.
fn unmoved_behind(image: &Image, old_end: LinkAddr, new_end: LinkAddr) -> Vec<PlacedBlock> {
    let section = image
        .functions
        .iter()
        .find(|function| function.movable() && !is_of_module(function.addr))
        .map(|function| &function.section);
    let align = u64::from(image.entry_alignment.max(1));
    let shift = new_end.0.wrapping_sub(old_end.0).wrapping_add(align - 1) / align * align;
    image
        .functions
        .iter()
        .filter(|function| {
            function.addr >= old_end
                && !function.movable()
                && Some(&function.section) == section
                && function.size > 0
        })
        .map(|function| PlacedBlock {
            old: function.addr,
            old_size: function.size as u32,
            new: LinkAddr(function.addr.0.wrapping_add(shift)),
            new_size: function.size as u32,
            appended: 0,
            ending: place::Ending::Same,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BuildId;
    use crate::order::Run;
    use crate::place::Ending;

    const K: u64 = 0xffff_ffff_8100_0000;

    /// Function f has the blocks A (branches to C), B (jumps to D), C and D (returns): 40 bytes.
    /// Function g has the block E (calls, then ends), 24 bytes behind the end of f.
    fn image() -> Image {
        let ends = [
            (0, 10, BlockEnd::Branch(at(20))),
            (10, 10, BlockEnd::Jump(at(30))),
            (20, 10, BlockEnd::FallThrough),
            (30, 10, BlockEnd::Stop),
        ];
        let mut blocks: Vec<Block> = ends
            .into_iter()
            .map(|(addr, size, end)| Block {
                addr: at(addr),
                size,
                end,
                glued: false,
                patched: false,
            })
            .collect();
        blocks.push(Block {
            addr: at(64),
            size: 8,
            end: BlockEnd::Call(None),
            glued: false,
            patched: false,
        });
        let function = |name: &str, start, size, blocks| ImageFunction {
            name: name.to_owned(),
            addr: at(start),
            size,
            blocks,
            section: ".text".to_owned(),
            stays: None,
        };
        Image {
            build_id: BuildId("0a".to_owned()),
            entry_padding: 16,
            call_padding: CallPadding::Kept,
            entry_alignment: 16,
            functions: vec![function("f", 0, 40, 0..4), function("g", 64, 8, 4..5)],
            blocks,
            modules: Vec::new(),
        }
    }

    fn at(offset: u64) -> LinkAddr {
        LinkAddr(K + offset)
    }

    fn layout(runs: &[(u64, u64)]) -> Layout {
        let run = |&(start, size): &(u64, u64)| Run { start: at(start), size, name: String::new() };
        Layout {
            build_id: BuildId("0a".to_owned()),
            modules: Vec::new(),
            algorithm: "test".to_owned(),
            seed: 0,
            profile: "none".to_owned(),
            hot: runs.len(),
            call_padding: CallPadding::Kept,
            runs: runs.iter().map(run).collect(),
        }
    }

    #[test]
    fn the_old_order_gives_the_old_addresses() {
        let placement = placement(&image(), &layout(&[])).unwrap();
        for block in &placement.blocks {
            assert_eq!(
                (block.old, block.old_size, block.appended, block.ending),
                (block.new, block.new_size, 0, Ending::Same)
            );
        }
        assert_eq!(placement.blocks.len(), 5);
    }

    /// A C D B E: A is inverted. The jump of B stays. C still falls through to D.
    #[test]
    fn a_branch_to_a_block_that_moved_away_is_inverted() {
        let placement = placement(&image(), &layout(&[(0, 10), (20, 20), (10, 10)])).unwrap();
        let found: Vec<_> = placement
            .blocks
            .iter()
            .map(|b| (b.new.0 - K, b.new_size, b.appended, b.ending))
            .collect();
        let expected = [
            (0, 10, 0, Ending::Inverted),
            (30, 10, 0, Ending::Same),
            (10, 10, 0, Ending::Same),
            (20, 10, 0, Ending::Same),
            (64, 8, 0, Ending::Same),
        ];
        assert_eq!(found, expected);
    }

    /// A jumps to C where the kernel has a static key or an alternative. In the order A C B D E it
    /// must stay a jump, and B must be reached from behind it.
    #[test]
    fn a_jump_that_the_kernel_patches_is_not_dropped() {
        let mut image = image();
        let order = layout(&[(0, 10), (20, 20), (10, 10)]);
        image.blocks[0].end = BlockEnd::Jump(at(20));
        let dropped = placement(&image, &order).unwrap().blocks[0];
        assert_eq!((dropped.new_size, dropped.appended), (8, 0));
        assert_eq!(dropped.ending, Ending::JumpDropped);
        // The target may also lie outside of the code that moves.
        for target in [at(20), at(0x10_0000)] {
            image.blocks[0].end = BlockEnd::Jump(target);
            image.blocks[0].patched = true;
            let kept = placement(&image, &order).unwrap().blocks[0];
            assert_eq!((kept.new_size, kept.appended, kept.ending), (10, 2, Ending::Same));
        }
    }

    #[test]
    fn a_layout_of_another_kernel_is_refused() {
        let other = Layout { build_id: BuildId("0b".to_owned()), ..layout(&[]) };
        let message = placement(&image(), &other).unwrap_err().to_string();
        assert_eq!(message, "the layout is for the kernel 0b, but the image is of 0a");
    }

    #[test]
    fn a_run_outside_of_the_image_is_refused() {
        assert!(placement(&image(), &layout(&[(64, 8)])).is_ok());
        for outside in [(64, 9), (80, 4), (0x0010_0000, 64)] {
            let message = placement(&image(), &layout(&[outside])).unwrap_err().to_string();
            assert!(message.contains("lies outside of the kernel's code"), "{message}");
        }
    }
}
