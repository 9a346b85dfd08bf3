//! Counters in the kernel's own code (the `+I` step of Speer 1994).
//!
//! Before the kernel runs: from the kernel's object to the places of the counters, the fewest from
//! which the counts of all blocks follow. After it ran: from the counters' values to a profile.
//! `emit::object` writes the counters. This module writes no code.

pub(crate) mod callees;
mod derivable;
mod file;
pub mod flags;
pub mod memory;
pub(crate) mod plan;
pub mod profile;

pub use file::{Counters, CountersError};

use crate::object::COUNTS;
use image::BuildId;

/// A kernel whose counters cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCounts {
    /// The kernel has no counters.
    #[error("has no symbol {COUNTS}: it is not a counting kernel")]
    NoCounters,
    /// The counting kernel was made from the tree before the tree was built again.
    #[error(
        "the counters are of the kernel {}, but the tree has {}: it was built anew; make the \
         counting kernel again",
        .counted.0, .tree.0
    )]
    Rebuilt {
        /// The kernel that was counted.
        counted: BuildId,
        /// The tree's kernel.
        tree: BuildId,
    },
}
