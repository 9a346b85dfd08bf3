//! Studies: what layouts and live replacement bring, as tables.
//!
//! Input: a directory. Output: files in it, which the next run does not make again. To add a study:
//! a module with its function, and its line in `xtask/src/cli/studies.rs`.

mod directory;
pub mod import_study;
pub mod layout_times;
pub mod live_gain;
pub mod sampling;
pub mod speer;
