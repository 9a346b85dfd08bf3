//! What each service of the running kernel costs on this machine, before and after a change.
//!
//! Takes the running machine, or two results; gives a result (JSON), a table, verdicts. Needs
//! neither root nor anything else of Kernlane. It never prints a figure whose benchmark failed its
//! check, and never leaves a benchmark out without the reason.
//!
//! ```
//! let getpid = kernlane_suite::list::named("call/getpid").unwrap();
//! let place = kernlane_suite::benchmark::Place { directory: std::env::temp_dir() };
//! let mut work = kernlane_suite::worker::attempt(getpid, &place).unwrap();
//! work.run(1000).unwrap();
//! ```

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod ab;
pub mod benchmark;
pub mod clock;
pub mod command;
pub mod compare;
pub mod conditions;
pub mod counted;
pub mod generations;
pub mod list;
pub mod measure;
pub mod page;
pub mod public;
pub mod random;
pub mod result;
pub mod statistics;
pub mod sys;
pub mod table;
pub mod watch;
pub mod worker;
