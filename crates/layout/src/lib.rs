//! The layout algorithms: a [`Graph`] becomes a permutation of its blocks.
//!
//! Input: the blocks of an image with their sizes, counts, edges and calls. Output: an [`Ordered`],
//! the blocks in their new order. The crate knows nothing of ELF, kernels or files. It never gives
//! addresses: the placement does.
//!
//! To add an algorithm: a file with
//! `pub fn name(&Graph, &NameParameters) -> Result<Ordered, InputError>`, a row in `algorithm.rs`,
//! and a page in `docs/algorithms/`. The tests in `tests/` then fuzz it with all the others.
//!
//! * [`validate()`] checks the rules of a graph, which every algorithm relies on.
//! * [`check()`] checks an order. It shares no code with the algorithms.
//! * [`score()`] scores an order. It shares no code with the algorithms, either.
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

mod algorithm;
mod balanced_partitioning;
pub mod c3;
pub mod call_graph;
pub mod cdsort;
mod chains;
mod chang_hwu;
mod check;
pub mod chunks;
mod closest;
mod codestitcher;
pub mod ext_tsp;
mod ext_tsp_parameters;
mod filling;
mod forced;
pub mod global;
pub mod gloy_smith;
pub mod graph;
mod hot;
pub mod joint;
mod jumps;
mod kerninst;
pub mod opts;
pub mod packed;
mod packing;
mod pettis_hansen;
mod pieces;
pub mod random;
mod reference;
mod returns;
mod score;
mod segments;
mod validate;

pub use algorithm::{Algorithm, order};
pub use check::{OrderError, check};
pub use graph::{
    BlockEpochs, BlockId, Call, Edge, EdgeKind, FunctionId, Graph, JointMiss, Order, Ordered, Seed,
    SeedClass, TemporalEdge,
};
pub use score::{Score, score};
pub use validate::{InputError, validate};
