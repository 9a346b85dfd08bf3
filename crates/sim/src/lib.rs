//! The machine: caches, TLBs and the taken branches; a stream of fetches in, counters out.
//!
//! Takes a [`Machine`] and the lines and pages that a processor fetches, in order; gives counters. Pure: knows nothing of ELF,
//! kernels or files, and never looks at a clock. The same stream gives the same counters.
//!
//! To add a level of cache: a `Geometry` in [`Machine`], a [`Cache`] that is asked when the level above misses.

mod branches;
mod cache;
mod geometry;
mod instruction_cache;
mod line;
mod machine;
mod plru;
mod time;
mod tlb;

pub use branches::{BranchKind, TakenBranches};
pub use cache::{Access, Cache};
pub use geometry::{Geometry, GeometryError, Replacement};
pub use instruction_cache::{InstructionCache, Misses};
pub use line::{Line, PerSide, Side};
pub use machine::{ItlbDescription, Machine, MachineError};
pub use time::SimpleModel;
pub use tlb::Tlb;
