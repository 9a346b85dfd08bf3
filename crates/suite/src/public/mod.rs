//! Public suites that are installed on this machine, with one way to run and compare them.
//!
//! Takes programs of others and what they print; gives results as the suite's own benchmarks do,
//! with each program's version and command line. A program that is not installed is named.
//!
//! To add one: an entry in `list.rs`, and a reader in `figures.rs` if it prints its figure as no
//! other does.

pub(crate) mod figures;
pub(crate) mod list;
pub(crate) mod run;
pub(crate) mod server;
