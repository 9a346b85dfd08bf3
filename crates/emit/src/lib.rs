//! Turns a placement into code that runs: a rewritten `vmlinux.o` that the kernel's build links, or
//! a module.
//!
//! Input: a kernel and an order of its code. Output: bytes, and the map from old to new addresses.
//! This crate never checks its own work: `check` does this, and may not use this crate.
//!
//! ```
//! // What a relink of a bootable kernel produces.
//! assert_eq!(kernlane_emit::configured::KernelTarget::X86.results()[0], "vmlinux");
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

mod branch;
pub mod build;
pub mod configured;
pub mod counting;
mod install;
pub mod kbuild;
pub mod loadable;
pub mod module;
pub mod object;
pub mod originals;
mod own_modules;
mod relative_words;
pub mod relink;
mod running_make;
mod scratch_tree;
pub mod sources;
pub mod tree_modules;

pub use install::NotPutBack;
