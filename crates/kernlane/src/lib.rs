//! The program as a library, for its own `main` and for tests. It is not a public interface.
//!
//! Input: what was typed. Output: what the road and the stages gave, printed. This crate computes
//! nothing.
//!
//! ```
//! use clap::Parser;
//! use kernlane::cli::{Cli, Command};
//!
//! let typed = Cli::try_parse_from(["kernlane", "dump", "net.rec"]).unwrap();
//! assert!(matches!(typed.command, Command::Dump(_)));
//! assert!(Cli::try_parse_from(["kernlane", "paint"]).is_err());
//! ```

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
mod command;
mod need;
mod remedy;
pub mod run;
