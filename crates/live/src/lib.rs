//! The kernel that is running: what it is, which of its functions can be replaced, and replacing
//! them.
//!
//! Takes the vmlinux of the running kernel; gives groups of functions in another layout, installed
//! through `kmod/`, and undone. When in doubt it refuses, with the reason; nothing here writes to
//! the kernel's memory itself.

pub mod bottleneck;
mod callers;
pub mod chunks;
pub mod counters;
pub mod device;
pub mod eligible;
mod explain;
pub mod group;
pub mod hot;
pub mod install;
pub mod occupancy;
pub mod owners;
mod recount;
pub mod roots;
pub mod running;
pub mod sample;
pub mod survey;
pub mod watch;
