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
