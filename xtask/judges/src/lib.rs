//! Judges: Kernlane's numbers beside those of this machine's processor and of other tools.
//!
//! Input: recordings, kernels, programs of others. Output: tables, and an error if the numbers
//! differ by more than they may. To add a judge: a module with its function, and its line in
//! `xtask/src/cli/judges.rs`.

pub mod bench_uml;
pub mod champsim_test;
pub mod drmemtrace_test;
pub mod export_test;
pub mod judge_processor;
pub mod layout_test;
pub mod memory_test;
pub mod sample_profile;
pub mod slowdown_test;
