//! What every algorithm takes: the blocks of an image with their sizes, counts, edges and calls.

use std::ops::Range;

/// A block, numbered in the original order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// A function, numbered in the original order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// How control gets from one block to another within a function (or by a jump between functions).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeKind {
    /// The block ends without a branch, or its conditional branch was not taken; the successor is the next block.
    FallThrough,
    /// A conditional branch that was taken.
    Branch,
    /// An unconditional direct jump.
    Jump,
    /// An indirect jump or anything else that no layout can turn into a fall-through.
    Indirect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    pub from: BlockId,
    pub to: BlockId,
    pub count: u64,
    pub kind: EdgeKind,
}

/// A call as executed: from the block that ends in (or contains) the call to the callee's entry block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub from: BlockId,
    pub to: BlockId,
    pub count: u64,
}

/// Torrellas' classes of operating-system entry (1998, section 3.2.1, table 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SeedClass {
    Interrupt,
    PageFault,
    SystemCall,
    Other,
}

/// A block at which the kernel is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    pub block: BlockId,
    pub class: SeedClass,
    pub count: u64,
}

/// An image and its profile, as arrays indexed by `BlockId` and `FunctionId`.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Bytes of each block, its branches included, in the original encoding.
    pub sizes: Vec<u32>,
    /// How often each block ran.
    pub counts: Vec<u64>,
    /// `glued[b]`: block b must directly follow block b-1 (code that could not be fully understood). `glued[0]` is false.
    pub glued: Vec<bool>,
    /// Required alignment of each block's start in bytes, a power of two; 1 for most, 16 for function entries.
    pub alignments: Vec<u32>,
    /// The blocks of each function; ascending, disjoint, covering all blocks. The first is the entry.
    pub functions: Vec<Range<u32>>,
    pub edges: Vec<Edge>,
    pub calls: Vec<Call>,
    pub seeds: Vec<Seed>,
}

/// A permutation of the blocks: `order.0[i]` is placed at position i.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order(pub Vec<BlockId>);
