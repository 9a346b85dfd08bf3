//! Counting what a kernel runs by counters in its own code (the `+I` step of Speer 1994).
//!
//! Takes a kernel's object; gives where counters stand, as few as all counts follow from; takes
//! what they counted and gives a profile. The counters are written by `emit::object`; nothing here
//! writes code.

pub(crate) mod callees;
mod derivable;
mod file;
pub mod flags;
pub mod memory;
pub(crate) mod plan;
pub mod profile;

pub use file::{Counters, CountersError};
