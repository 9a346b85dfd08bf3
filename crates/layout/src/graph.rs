//! What every algorithm takes: the blocks of an image with their sizes, counts, edges and calls;
//! and what it gives: an order.
//!
//! Only data. `validate.rs` says which graphs are well formed.

use std::ops::Range;

/// A block, numbered in the original order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// A function, numbered in the original order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// How control gets from one block to another within a function (or by a jump between functions).
/// Calls and returns are no edges: a block that ends in a call has a `FallThrough` edge to the
/// block behind the call, counted as often as the call returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeKind {
    /// The block ends without a branch or with a call, or its conditional branch was not taken; the
    /// successor is the next block.
    FallThrough,
    /// A conditional branch that was taken.
    Branch,
    /// An unconditional direct jump.
    Jump,
    /// An indirect jump or anything else that no layout can turn into a fall-through.
    Indirect,
}

/// A transfer of control, with how often it was taken. Several edges may join the same two blocks;
/// their counts add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    pub from: BlockId,
    pub to: BlockId,
    pub count: u64,
    pub kind: EdgeKind,
}

/// A call as executed: from the block that ends in (or contains) the call to the callee's entry
/// block.
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

/// Two different blocks that missed one directly after the other, in either order, in an ideal
/// cache of the size of a real one: code that would have come with one miss instead of two, had it
/// shared a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JointMiss {
    pub a: BlockId,
    pub b: BlockId,
    pub count: u64,
}

/// Two different chunks of code (`chunks.rs`) that alternate: how often one ran between two runs of
/// the other, both within the code that ran last and fills a cache twice (Gloy and Smith's temporal
/// relationship graph). Each is named by one of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemporalEdge {
    pub a: BlockId,
    pub b: BlockId,
    pub count: u64,
}

/// In which *epochs* a block ran: stretches of the execution in each of which an ideal cache of
/// the size of a real one fetched as many bytes as it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockEpochs {
    pub block: BlockId,
    /// Bit n % 64 of word n / 64 is set when it ran in epoch n. Words that are missing at the
    /// end are 0.
    pub epochs: Vec<u64>,
}

/// An image and its profile, as arrays indexed by `BlockId` and `FunctionId`.
///
/// Counts need not balance: a profile may know of a block what it does not know of its edges, and
/// the other way round.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Bytes of each block, its branches included, in the original encoding; at least 1.
    pub sizes: Vec<u32>,
    /// How often each block ran.
    pub counts: Vec<u64>,
    /// `glued[b]`: block b must directly follow block b-1 (code that could not be fully
    /// understood). `glued[0]` is false.
    pub glued: Vec<bool>,
    /// Required alignment of each block's start in bytes, a power of two; 1 for most, 16 for
    /// function entries.
    pub alignments: Vec<u32>,
    /// The blocks of each function; ascending, disjoint, not empty, covering all blocks. The first
    /// is the entry.
    pub functions: Vec<Range<u32>>,
    pub edges: Vec<Edge>,
    pub calls: Vec<Call>,
    pub seeds: Vec<Seed>,
    /// Several may name the same two blocks; their counts add up. May be empty: only `joint` uses
    /// them.
    pub joint_misses: Vec<JointMiss>,
    /// Several may name the same two chunks; their counts add up. May be empty: only `gloy-smith`
    /// uses them.
    pub temporal_edges: Vec<TemporalEdge>,
    /// Several may name the same block: it ran in the epochs of each. May be empty: only
    /// `packed` uses them.
    pub block_epochs: Vec<BlockEpochs>,
}

impl BlockId {
    /// Index into the arrays of a `Graph`.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl FunctionId {
    /// Index into `Graph::functions`.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Graph {
    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.sizes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }
}

/// A permutation of the blocks: `order.0[i]` is placed at position i.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order(pub Vec<BlockId>);

/// What an algorithm gives: an order, and where in it the part that runs ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    pub order: Order,
    /// How many leading blocks the algorithm arranged; behind them comes the cold part: blocks that
    /// never ran, in their original order. An algorithm that does not tell hot from cold arranges
    /// all blocks.
    pub hot: usize,
}
