//! Measures what each service of the running kernel costs on this machine, before and after a
//! change.
//!
//! Input: the running machine, or two results. Output: a result (JSON), a table, verdicts. The
//! suite needs neither root nor anything else of Kernlane. It never prints a figure whose benchmark
//! failed its check, and never leaves a benchmark out without the reason.
//!
//! ```
//! let getpid = kernlane_suite::list::named("call/getpid").unwrap();
//! let place = kernlane_suite::benchmark::Place { directory: std::env::temp_dir() };
//! let mut work = kernlane_suite::worker::attempt(getpid, &place).unwrap();
//! work.run(1000).unwrap();
//! ```

#![warn(missing_docs, clippy::missing_errors_doc)]
#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(
    not(feature = "program"),
    allow(dead_code, reason = "the program's options alone lead to most of what measures")
)]

#[cfg(feature = "program")]
mod ab;
pub mod benchmark;
mod clock;
#[cfg(feature = "program")]
pub mod command;
mod compare;
mod conditions;
pub mod counted;
mod generations;
pub mod list;
mod measure;
mod page;
mod public;
pub mod random;
mod result;
pub mod served;
pub mod statistics;
mod sys;
mod table;
mod watch;
pub mod worker;

pub use conditions::{Disturbances, Usage};
