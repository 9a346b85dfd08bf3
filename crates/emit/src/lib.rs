//! From a placement to something that runs. One backend a room; `check` may not use it.

#![forbid(unsafe_code)]

mod branch;
pub mod counting;
mod install;
pub mod kbuild;
pub mod module;
pub mod object;
pub mod relink;
