//! The program as a library, for its own `main` and for the tests that need a virtual machine. It
//! is not a public interface.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
pub mod command;
pub(crate) mod need;
pub mod run;
