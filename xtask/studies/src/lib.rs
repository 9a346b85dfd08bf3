//! Studies: what layouts and live replacement bring, as tables.
//!
//! Input: a directory. Output: files in it, which the next run does not make again. To add a study:
//! a file in `bench/studies`, for `kernlane study`. What such a file cannot say is a module with
//! its function, and its line in `xtask/src/cli/studies.rs`.

#[cfg(test)]
mod at_hand;
mod directory;
pub mod import_study;
pub mod live_gain;
pub mod sampling;
pub mod speer;
