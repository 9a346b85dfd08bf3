//! What system tests, studies and judges work with.
//!
//! Demo kernels and their trees ([`kernel`]), programs for guests without a library ([`bare`]),
//! recordings of guests with files of their own ([`recording`], [`plugin`]), kernels for User Mode
//! Linux ([`uml`]), live replacement in a guest ([`live_tool`]), the processor and slices that were
//! timed on it ([`processor`], [`timed`]), the score of a test ([`score`]), and work that goes on
//! where it was ended ([`made`], [`session`], [`kept`]). What is published ([`dist`]). Tests
//! nothing itself, and knows no command line.

mod apt;
pub mod bare;
mod built;
mod command;
pub mod dist;
pub mod kept;
pub mod kernel;
pub mod live_tool;
pub mod machine_file;
pub mod made;
pub mod plugin;
pub mod processor;
pub mod profiled;
pub mod recording;
pub mod score;
pub mod session;
pub mod timed;
pub mod uml;

pub use apt::{security_site as debian_security_archive, site as debian_archive};
pub use built::{build_plugin, kernlane, static_suite, target_directory};
pub use command::{joined, run, succeeded};
