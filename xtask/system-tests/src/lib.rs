//! Tests of the program on real kernels: most of them boot guests.
//!
//! Input: trees of kernels, recordings, results. Output: a line for each test, and an error if one
//! failed. To add a test: a file with its function, and its line in
//! `xtask/src/cli/system_tests.rs`.

pub mod ab_test;
pub mod ask_test;
pub mod book_test;
pub mod check_test;
mod debian;
pub mod diff_test;
pub mod dist_test;
pub mod fields_test;
pub mod fleet_test;
pub mod guest_test;
pub mod in_tree_test;
pub mod inline_test;
pub mod known_case;
pub mod like_test;
pub mod live_fuzz;
pub mod live_test;
pub mod live_units;
pub mod live_versions;
mod machine;
pub mod matrix;
pub mod module_test;
pub mod optimize_live_test;
pub mod package_test;
pub mod page_test;
pub mod profiled_test;
pub mod python_test;
pub mod record_test;
pub mod relink_test;
pub mod road_test;
pub mod service_test;
pub mod services_test;
pub mod shift_test;
pub mod study_test;
pub mod uml_test;
pub mod vm_test;
