//! Turns a placement into code that runs: a rewritten `vmlinux.o` that the kernel's build links, or
//! a module. `check` may not use this crate.
//!
//! ```
//! // What a relink of a bootable kernel produces.
//! assert_eq!(kernlane_emit::kbuild::KernelTarget::X86.results()[0], "vmlinux");
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod branch;
#[allow(missing_docs, reason = "the fields of plans are documented where they are filled in")]
pub mod counting;
mod install;
pub mod kbuild;
#[allow(missing_docs, reason = "the fields of plans are documented where they are filled in")]
pub mod module;
pub mod object;
pub mod relink;
