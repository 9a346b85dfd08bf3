//! Kernlane's dealings with the host: whole files, the files of a recording, scratch directories,
//! programs, Ctrl-C, standard output, progress on a terminal.
//!
//! Takes paths and commands. Knows no kernels and no formats.

#![forbid(unsafe_code)]

pub mod ending;
pub mod interrupt;
pub mod output;
pub mod progress;
pub mod recording;
pub mod scratch;
pub mod stdout;
