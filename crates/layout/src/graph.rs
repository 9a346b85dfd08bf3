//! The data of all algorithms. Input: the blocks of an image with their sizes, counts, edges and
//! calls. Output: an order.
//!
//! This module has only data. `validate.rs` says which graphs are well formed.

use std::ops::Range;

/// The number of a block, in the original order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// The number of a function, in the original order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId(pub u32);

/// How control goes from one block to another within a function, or by a jump between functions.
/// Calls and returns are not edges. A block that ends in a call has a `FallThrough` edge to the
/// block behind the call. The count of this edge is the number of returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeKind {
    /// The block ends without a branch or with a call, or its conditional branch was not taken. The
    /// successor is the next block.
    FallThrough,
    /// A conditional branch that was taken.
    Branch,
    /// An unconditional direct jump.
    Jump,
    /// An indirect jump or anything else that no layout can turn into a fall-through.
    Indirect,
}

/// A transfer of control, with how often it was taken. Several edges may join the same two blocks.
/// Then their counts add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The source block.
    pub from: BlockId,
    /// The target block.
    pub to: BlockId,
    /// How often the edge was taken.
    pub count: u64,
    /// How control takes the edge.
    pub kind: EdgeKind,
}

/// An executed call: from the block that contains the call to the entry block of the callee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The calling block.
    pub from: BlockId,
    /// The entry block of the callee.
    pub to: BlockId,
    /// The number of calls.
    pub count: u64,
}

/// The class of an entry into the operating system (Torrellas 1998, section 3.2.1, table 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SeedClass {
    /// An interrupt.
    Interrupt,
    /// A page fault.
    PageFault,
    /// A system call.
    SystemCall,
    /// Any other entry.
    Other,
}

/// A block at which the kernel is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The block.
    pub block: BlockId,
    /// The class of the entry.
    pub class: SeedClass,
    /// The number of entries.
    pub count: u64,
}

/// Two different blocks that missed one directly after the other, in either order, in an ideal
/// cache with the size of a real one. In one line, they would have come with one miss instead of
/// two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JointMiss {
    /// One block.
    pub a: BlockId,
    /// The other block.
    pub b: BlockId,
    /// How often they missed one after the other.
    pub count: u64,
}

/// A temporal-relationship edge (Gloy and Smith): two different chunks of code (`chunks.rs`) that
/// alternate. The count is the number of times that one ran between two runs of the other, both
/// within the last code that fills a cache twice. Each chunk is named by one of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemporalEdge {
    /// A block of one chunk.
    pub a: BlockId,
    /// A block of the other chunk.
    pub b: BlockId,
    /// How often the chunks alternated.
    pub count: u64,
}

/// The working-set epochs in which a block ran. An epoch is a stretch of the execution in which an
/// ideal cache with the size of a real one fetched as many bytes as it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockEpochs {
    /// The block.
    pub block: BlockId,
    /// Bit n % 64 of word n / 64 is set when the block ran in epoch n. Words missing at the end are
    /// 0.
    pub epochs: Vec<u64>,
}

/// An image and its profile, as arrays indexed by `BlockId` and `FunctionId`.
///
/// Counts need not balance: a profile may know the count of a block and not those of its edges, and
/// the other way round.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The bytes of each block in the original encoding, including its branches; at least 1.
    pub sizes: Vec<u32>,
    /// How often each block ran.
    pub counts: Vec<u64>,
    /// `glued[b]`: block b must directly follow block b-1, because the code could not be fully
    /// understood. `glued[0]` is false.
    pub glued: Vec<bool>,
    /// The alignment of each block's start in bytes, a power of two: 1 for most blocks, 16 for
    /// function entries.
    pub alignments: Vec<u32>,
    /// The blocks of each function: ascending, disjoint, not empty, together all blocks. The first
    /// is the entry.
    pub functions: Vec<Range<u32>>,
    /// The edges.
    pub edges: Vec<Edge>,
    /// The calls.
    pub calls: Vec<Call>,
    /// The blocks at which the kernel is entered.
    pub seeds: Vec<Seed>,
    /// Joint misses. Several may name the same two blocks. Then their counts add up. Only `joint`
    /// uses them.
    pub joint_misses: Vec<JointMiss>,
    /// Temporal-relationship edges. Several may name the same two chunks. Then their counts add up.
    /// Only `gloy-smith` uses them.
    pub temporal_edges: Vec<TemporalEdge>,
    /// Working-set epochs. Several elements may name the same block, which then ran in the epochs
    /// of each. Only `packed` uses them.
    pub block_epochs: Vec<BlockEpochs>,
}

impl BlockId {
    /// The index into the arrays of a `Graph`.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl FunctionId {
    /// The index into `Graph::functions`.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl Graph {
    /// The number of blocks.
    pub fn len(&self) -> usize {
        self.sizes.len()
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }
}

/// A permutation of the blocks: `order.0[i]` is placed at position i.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order(pub Vec<BlockId>);

/// The result of an algorithm: an order, and where its hot part ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// The order of all blocks.
    pub order: Order,
    /// The number of leading blocks that the algorithm arranged. The cold part follows: blocks that
    /// never ran, in their original order. An algorithm that does not separate hot from cold
    /// arranges all blocks.
    pub hot: usize,
}
