//! From a placement to something that runs. One backend a room; `check` may not use it.

pub mod install;
pub mod kbuild;
pub mod object;
