//! The tool as a library: for its own `main` and for the tests that need a virtual machine. Not an
//! interface for others.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
pub mod command;
pub(crate) mod need;
pub mod run;
