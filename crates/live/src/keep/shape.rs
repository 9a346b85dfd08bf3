//! The shape of a function: its blocks, how control goes between them, and where they call. A
//! function of two builds with one shape keeps its counts, block by block, although addresses and
//! bytes differ.
//!
//! Input: functions of one kernel. Output: shapes; and where the blocks of a shape begin in another
//! build. This module does not compare instructions: the counts of a function choose an order, and
//! whatever the order, a copy is proven.

use anyhow::{Result, ensure};
use image::linked::LinkedKernel;
use image::object::flow;
use image::object::instructions::InstructionKind;
use layout::graph::EdgeKind;
use serde::{Deserialize, Serialize};

/// A block: the offset of its first byte from the function's entry, its number of instructions, its
/// edges, and the offsets behind its calls. Profiles of recordings begin a block behind each call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ShapeBlock(u32, u32, String, Vec<u32>);

/// The shape of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Shape {
    blocks: Vec<ShapeBlock>,
}

impl Shape {
    /// The shape of a function, by its number.
    pub(crate) fn of(kernel: &LinkedKernel<'_>, index: usize) -> Shape {
        let function = &kernel.functions[index];
        let cut = kernel.cut(&[index]);
        let edges = flow::edges(&cut.pieces, &cut.sites);
        let code = kernel.instructions(function);
        let block = |(n, piece): (u32, &image::object::pieces::Piece)| {
            let own = code.iter().filter(|i| piece.at <= i.at && i.at < piece.end());
            let calls = own.clone().filter(|i| i.kind == InstructionKind::Call);
            let leave = edges.iter().filter(|&&(from, ..)| from == n);
            let edge = |&(_, to, kind): &(u32, u32, EdgeKind)| format!("{}{to}", letter(kind));
            ShapeBlock(
                piece.at - function.at,
                own.count() as u32,
                leave.map(edge).collect::<Vec<_>>().join(" "),
                calls.map(|call| call.end() - function.at).collect(),
            )
        };
        Shape { blocks: (0..).zip(&cut.pieces).map(block).collect() }
    }

    /// Whether another function has as many blocks, with the same edges and as many calls in each.
    pub(crate) fn is_that_of(&self, other: &Shape) -> bool {
        let same =
            |(one, two): (&ShapeBlock, &ShapeBlock)| one.2 == two.2 && one.3.len() == two.3.len();
        self.blocks.len() == other.blocks.len() && self.blocks.iter().zip(&other.blocks).all(same)
    }

    /// For each place of this function at which a profile's block may begin, its offset from the
    /// entry here and in `other`, which has the same shape.
    pub(crate) fn places<'a>(
        &'a self,
        other: &'a Shape,
    ) -> impl Iterator<Item = (u32, u32)> + use<'a> {
        let blocks = self.blocks.iter().zip(&other.blocks);
        blocks.flat_map(|(one, two)| {
            std::iter::once((one.0, two.0)).chain(one.3.iter().copied().zip(two.3.iter().copied()))
        })
    }

    /// The instructions that a profile says were executed, where `count` gives the executions of
    /// the block that begins at an offset from the entry.
    pub(crate) fn executed(&self, count: impl Fn(u32) -> u64) -> f64 {
        self.blocks.iter().map(|block| count(block.0) as f64 * f64::from(block.1)).sum()
    }

    /// The number of instructions.
    pub(crate) fn instructions(&self) -> u32 {
        self.blocks.iter().map(|block| block.1).sum()
    }

    /// Refuses what no function has: blocks that do not ascend.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(
            self.blocks.is_sorted_by(|one, two| one.0 < two.0),
            "the blocks of a function do not ascend"
        );
        Ok(())
    }
}

fn letter(kind: EdgeKind) -> char {
    match kind {
        EdgeKind::FallThrough => 'f',
        EdgeKind::Branch => 'b',
        EdgeKind::Jump => 'j',
        EdgeKind::Indirect => 'i',
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kernel::{F, G, H, tables, with};

    #[test]
    fn a_shape_has_blocks_edges_and_calls() {
        with(tables(), |kernel| {
            let block = |at, instructions, edges: &str, calls: &[u32]| {
                ShapeBlock(at, instructions, edges.into(), calls.to_vec())
            };
            let f = [
                block(0, 4, "f1 b2", &[5]),
                block(0x0c, 2, "f2", &[0x11]),
                block(0x17, 1, "", &[]),
            ];
            assert_eq!(Shape::of(kernel, F).blocks, f);
            assert_eq!(Shape::of(kernel, G).blocks, [block(0, 3, "", &[5])]);
            assert_eq!(Shape::of(kernel, F).instructions(), 7);
        });
    }

    #[test]
    fn shapes_are_compared_by_edges_and_calls_and_not_by_bytes() {
        with(tables(), |kernel| {
            let [f, g, h] = [F, G, H].map(|index| Shape::of(kernel, index));
            // One block each, with one call each.
            assert!(g.is_that_of(&h) && f.is_that_of(&f));
            assert!(!f.is_that_of(&g));
            let mut other = f.clone();
            other.blocks[0].2 = "f1 b1".into();
            assert!(!f.is_that_of(&other));
            let mut other = f.clone();
            other.blocks[1].3.clear();
            assert!(!f.is_that_of(&other));
            let mut moved = f.clone();
            moved.blocks[1].0 = 0x20;
            moved.blocks[1].3 = vec![0x25];
            assert!(f.is_that_of(&moved));
            let places: Vec<(u32, u32)> = f.places(&moved).collect();
            assert_eq!(places, [(0, 0), (5, 5), (0x0c, 0x20), (0x11, 0x25), (0x17, 0x17)]);
        });
    }

    #[test]
    fn executed_instructions_are_counted_by_blocks() {
        with(tables(), |kernel| {
            let f = Shape::of(kernel, F);
            let count = |at| if at == 0x0c { 5 } else { 10 };
            assert_eq!(f.executed(count), 10.0 * 4.0 + 5.0 * 2.0 + 10.0);
            assert!(f.check().is_ok());
            let mut damaged = f.clone();
            damaged.blocks[2].0 = 0;
            assert!(damaged.check().is_err());
        });
    }
}
