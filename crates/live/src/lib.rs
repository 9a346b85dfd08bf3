//! Replaces functions of the running kernel by copies in another layout.
//!
//! Input: the vmlinux of the running kernel. Output: groups of functions that are installed through
//! `kmod/`, and undone. When in doubt it refuses, with the reason. This crate does not write to the
//! kernel's memory itself.
//!
//! ```
//! use kernlane_live::occupancy::{InstructionCacheGeometry, Occupancy};
//!
//! // Two blocks that compete for the only way of a set.
//! let geometry = InstructionCacheGeometry { sets: 64, ways: 1, line: 64 };
//! let occupancy = Occupancy::of(geometry, [(0x1000, 16), (0x2000, 16)]);
//! assert_eq!((occupancy.total(), occupancy.without_room()), (2, 1));
//! ```

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod bottleneck;
mod callers;
pub mod choice;
pub mod chunks;
pub mod counters;
pub mod cycles;
pub mod decay;
pub mod device;
pub mod eligible;
mod explain;
pub mod freed;
pub mod gain;
pub mod group;
pub mod hot;
pub mod identity;
pub mod inline;
mod inlined_counts;
pub mod inlined_table;
pub mod install;
mod kcore;
pub mod keep;
pub mod kernel_log;
pub mod lasting;
pub mod learn;
pub mod memory;
pub mod module_sources;
pub mod modules;
pub mod occupancy;
pub mod origin;
pub mod owners;
pub mod planned;
mod recount;
pub mod resident;
pub mod roots;
pub mod running;
pub mod sample;
pub mod survey;
pub mod symbols;
#[cfg(test)]
#[path = "../../check/src/test_elf.rs"]
mod test_elf;
#[cfg(test)]
mod test_kernel;
#[cfg(test)]
mod tests;
pub mod timing;
pub mod turn;
pub mod undo;
pub mod watch;
