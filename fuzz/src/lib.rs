//! Fuzz targets: each takes bytes, gives them to one reader of Kernlane, and fails when the reader
//! breaks a promise.
//!
//! The promises: a reader never panics, never takes longer than a second for an input, never needs
//! more than 256 MB of memory, and what it accepts it writes and reads again as the same. The last
//! target, [`emit_check::relinked`], holds `emit` against `check`.
//!
//! Everything that a target uses of a crate of Kernlane is in the module with that crate's name, so
//! that a new name in a crate changes one file here. `fuzz/tests/targets.rs` makes a test of each
//! target. To add one: a function and its seeds in the crate's module, and a line in
//! [`targets::ALL`] and in `fuzz/tests/targets.rs`.

// When a test is named, cargo also builds this crate's own tests. Without the fuzzer's library they
// could not be linked for a fuzzer.
#[cfg(all(test, fuzzing))]
use bolero as _;

pub mod attribution_files;
pub mod boot;
pub mod check_readers;
pub mod elf;
pub mod emit_check;
pub mod exchange_files;
pub mod harness;
pub mod image_readers;
pub mod limits;
pub mod linker;
pub mod machine_files;
pub mod module_files;
pub mod program;
pub mod recording;
pub mod source;
pub mod targets;
pub mod text_files;
