//! The layout algorithms: arrays in, a permutation out. Pure; knows nothing of ELF, kernels or
//! files.
//!
//! Takes a [`Graph`]: the blocks of an image with their sizes, counts, edges and calls. Gives an
//! [`Ordered`]: the blocks in their new order. Never gives addresses: that is the placer's part.
//!
//! To add an algorithm: a file with
//! `pub fn name(&Graph, &NameParameters) -> Result<Ordered, InputError>`, a row in `algorithm.rs`,
//! and a page in `docs/algorithms/`. The tests in `tests/` then fuzz it with all the others.
//!
//! * [`validate`] says whether a graph keeps the rules that every algorithm relies on.
//! * [`check`] says whether an order is one; it shares no code with the algorithms.
//! * [`score`] says how good an order is; neither does it.

#![forbid(unsafe_code)]

pub mod algorithm;
pub mod balanced_partitioning;
pub mod c3;
pub mod call_graph;
pub mod cdsort;
mod chains;
pub mod chang_hwu;
pub mod check;
pub mod chunks;
mod closest;
pub mod codestitcher;
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
pub mod kerninst;
pub mod opts;
pub mod packed;
mod packing;
pub mod pettis_hansen;
mod pieces;
pub mod random;
pub mod reference;
mod returns;
pub mod score;
mod segments;
pub mod validate;

pub use algorithm::{Algorithm, order};
pub use check::{OrderError, check};
pub use graph::{
    BlockEpochs, BlockId, Call, Edge, EdgeKind, FunctionId, Graph, JointMiss, Order, Ordered, Seed,
    SeedClass, TemporalEdge,
};
pub use score::{Score, score};
pub use validate::{InputError, validate};
