//! The tool as a library: for its own `main` and for the tests that need a virtual machine. Not an interface for others.

pub mod check;
pub mod cli;
pub mod command;
pub mod comparison;
pub mod emit;
pub mod estimate;
pub mod exchange;
pub mod guard;
pub mod guest;
pub mod image;
pub mod interrupt;
pub mod live;
pub mod machine;
pub mod map;
pub mod order;
pub mod output;
pub mod part;
pub mod place;
pub mod profile;
pub mod replay;
pub mod report;
pub mod results;
pub mod run;
pub mod scratch;
pub mod services;
pub mod sizes;
