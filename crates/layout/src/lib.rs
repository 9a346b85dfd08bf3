//! The layout algorithms: a [`Graph`] becomes a permutation of its blocks.
//!
//! Input: the blocks of an image with their sizes, counts, edges and calls. Output: an [`Ordered`],
//! the blocks in their new order. The crate knows nothing of ELF, kernels or files. It never gives
//! addresses: the placement does.
//!
//! To add an algorithm: a file with
//! `pub fn name(&Graph, &NameParameters) -> Result<Ordered, InputError>` and an `AlgorithmRow`, its
//! line in the table `algorithms!` below, and a page in `docs/algorithms/`. The tests in `tests/`
//! then fuzz it with all the others.
//!
//! * [`validate()`] checks the rules of a graph, which every algorithm relies on.
//! * [`check()`] checks an order. It shares no code with the algorithms.
//! * [`inlining`] chooses the calls to inline, by counts and sizes.
//! * [`score()`] scores an order. It also shares no code with the algorithms.
//!
//! ```
//! # use kernlane_layout as layout;
//! use layout::{Algorithm, BlockId, Edge, EdgeKind, Graph, check, order};
//!
//! // Three blocks of one function. The first jumps over the second, which never ran.
//! let graph = Graph {
//!     sizes: vec![8, 8, 8],
//!     counts: vec![10, 0, 10],
//!     glued: vec![false; 3],
//!     alignments: vec![16, 1, 1],
//!     functions: vec![0..3],
//!     edges: vec![Edge { from: BlockId(0), to: BlockId(2), count: 10, kind: EdgeKind::Branch }],
//!     ..Graph::default()
//! };
//! let ordered = order(&graph, Algorithm::ExtTsp, 0)?;
//! check(&graph, &ordered.order).unwrap();
//! assert_eq!(ordered.order.0, [0, 2, 1].map(BlockId));
//! assert_eq!(ordered.hot, 2);
//! # Ok::<(), layout::InputError>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

#[macro_use]
mod algorithm;

pub mod c3;
pub mod call_graph;
mod chains;
mod check;
pub mod chunks;
mod closest;
mod ext_tsp_parameters;
mod filling;
mod forced;
pub mod graph;
mod hot;
pub mod inlining;
mod jumps;
mod packing;
mod pieces;
pub mod random;
mod returns;
mod row;
mod score;
mod segments;
mod validate;

// The layout algorithms, in the order in which tables list them. Each line also declares its file.
algorithms! {
    reference:
        ORIGINAL as Original, REVERSE as Reverse, REVERSE_FUNCTIONS as ReverseFunctions,
        RANDOM as Random, RANDOM_FUNCTIONS as RandomFunctions;
    pettis_hansen: PETTIS_HANSEN as PettisHansen;
    chang_hwu: CHANG_HWU as ChangHwu;
    kerninst: KERNINST as KernInst;
    pub opts: OPTS as OptS, OPTL as OptL, CALL as Call;
    pub ext_tsp: #[default] EXT_TSP as ExtTsp;
    pub cdsort: EXT_TSP_CDSORT as ExtTspCdSort;
    balanced_partitioning: BALANCED_PARTITIONING as BalancedPartitioning;
    pub gloy_smith: GLOY_SMITH as GloySmith;
    codestitcher: CODESTITCHER as Codestitcher;
    pub global: EXT_TSP_GLOBAL as ExtTspGlobal;
    pub joint: JOINT as Joint;
    pub packed: PACKED as Packed;
}

pub use algorithm::order;
pub use check::{OrderError, check};
pub use graph::{
    BlockEpochs, BlockId, Call, Edge, EdgeKind, FunctionId, Graph, JointMiss, Order, Ordered, Seed,
    SeedClass, TemporalEdge,
};
pub use score::{Score, score};
pub use validate::{InputError, validate};
