//! The machine: caches, TLBs, branch prediction and the taken branches; a stream of fetches and
//! data accesses in, counters out.
//!
//! Takes a [`Machine`] and the lines and pages that a processor fetches, loads and stores, and the
//! branches that it executes, in order; gives counters. Pure: knows nothing of ELF, kernels or
//! files, and never looks at a clock. The same stream gives the same counters.
//!
//! Only instructions: [`InstructionCache`], [`Tlb`]. Instructions and data: [`Hierarchy`]. Many
//! caches at once: [`Sweep`]. Branches: [`Predictor`].

#![forbid(unsafe_code)]

mod access;
mod branch_counters;
mod branches;
mod cache;
mod direction;
mod geometry;
mod hierarchy;
mod instruction_cache;
mod level;
mod line;
mod lru;
mod machine;
mod plru;
mod policy;
mod prediction;
mod predictor;
mod replacement;
mod return_stack;
mod stalls;
mod sweep;
mod target_buffer;
mod time;
mod tlb;
mod wide;

pub use access::Access;
pub use branch_counters::{BranchCounters, Wrong};
pub use branches::{Branch, BranchKind, CodeAddr, TakenBranches};
pub use cache::Cache;
pub use geometry::{Geometry, GeometryError, Replacement};
pub use hierarchy::{Counters, Hierarchy, Missed, PhysAddr};
pub use instruction_cache::InstructionCache;
pub use level::{Cause, Level, Misses, Requester};
pub use line::{Line, Mode, PerMode};
pub use machine::{CacheDescription, ItlbDescription, Machine, MachineError, Memory};
pub use prediction::{BranchPrediction, Direction, Held, PredictionError, TargetBufferDescription};
pub use predictor::Predictor;
pub use stalls::Stalls;
pub use sweep::Sweep;
pub use time::{Latencies, SimpleModel};
pub use tlb::Tlb;
