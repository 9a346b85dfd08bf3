//! From a placement to something that runs. One backend a room; `check` may not use it.

mod branch;
pub mod install;
pub mod kbuild;
pub mod module;
pub mod object;
