//! A machine: caches, TLBs and branch prediction.
//!
//! Input: a [`MachineModel`], the lines and pages that a processor fetches, loads and stores, and
//! the branches that it executes, in order. Output: counters. The crate knows nothing of ELF,
//! kernels or files, and never looks at a clock. The same stream gives the same counters.
//!
//! | to simulate | use |
//! |---|---|
//! | instructions only | [`InstructionCache`], [`Tlb`] |
//! | instructions and data | [`Hierarchy`] |
//! | many caches at once | [`Sweep`] |
//! | branches | [`BranchPredictor`] |
//! | cycles of an out-of-order core | [`core`] |
//! | several cores with coherent caches | [`coherent`] |
//!
//! ```
//! # use kernlane_sim as sim;
//! use sim::{CacheGeometry, InstructionCache, LineId, Mode, Replacement};
//!
//! // Four sets of one way: the lines 0 and 4 share a set.
//! let geometry = CacheGeometry::cache(64, 1, 16, Replacement::Lru)?;
//! let mut cache = InstructionCache::new(geometry);
//! let line = |index| LineId::new(Mode::Kernel, index).unwrap();
//! assert!(cache.fetch(line(0)));
//! assert!(!cache.fetch(line(0)));
//! assert!(cache.fetch(line(4)));
//! assert!(cache.fetch(line(0)));
//! let misses = cache.misses().kernel;
//! assert_eq!((misses.cold, misses.own, misses.other), (2, 1, 0));
//! # Ok::<(), sim::GeometryError>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

#[macro_use]
mod counters;
#[macro_use]
mod replacement;

mod access;
mod branch_counters;
mod branches;
mod cache;
pub mod coherent;
pub mod core;
mod direction;
mod geometry;
mod hierarchy;
mod instruction_cache;
mod level;
mod line;
mod machine;
mod policy;
mod prediction;
mod predictor;
mod return_stack;
mod stalls;
mod sweep;
mod target_buffer;
mod time;
mod tlb;
mod wide;

// The replacement policies. Each line also declares its file.
policies! {
    lru::Lru as Lru;
    plru::PlruTrees as TreePlru;
    fifo::Fifo as Fifo;
}

pub use access::CacheAccess;
pub use branch_counters::{BranchCounters, PredictionFailure};
pub use branches::{Branch, BranchKind, CodeAddr, TakenBranches};
pub use cache::Cache;
pub use geometry::{CacheGeometry, GeometryError};
pub use hierarchy::{Hierarchy, MachineCounters, MissedLevels};
pub use instruction_cache::InstructionCache;
pub use level::{MissCause, MissCounts, Requester};
pub use line::{LineId, Mode, PerMode, PhysAddr};
pub use machine::{
    CacheDescription, ItlbDescription, MachineError, MachineModel, MemoryDescription,
};
pub use prediction::{
    BranchPrediction, DirectionPrediction, HeldBranches, PredictionError, TargetBufferDescription,
};
pub use predictor::BranchPredictor;
pub use stalls::Stalls;
pub use sweep::Sweep;
pub use time::{Latencies, SimpleModel};
pub use tlb::Tlb;
