//! Public suites that are installed on this machine, with one way to run and compare them.
//!
//! Input: programs of other projects, and what they print. Output: results like those of the
//! suite's own benchmarks, with each program's version and command line. Programs that are not
//! installed are listed.
//!
//! To add a program: an entry in `list.rs`, and a reader in `figures.rs` if the program prints its
//! figure in a new form.

pub(crate) mod figures;
pub(crate) mod list;
pub(crate) mod run;
pub(crate) mod server;
