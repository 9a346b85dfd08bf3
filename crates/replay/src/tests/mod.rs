//! Tests replay against exact numbers: small recordings counted by hand, and random programs that
//! run in both layouts.

mod branches;
mod by_hand;
mod coherent;
mod core;
mod data;
mod divided;
pub(crate) mod guest;
mod program;
mod random;
mod sampled;
mod several_cpus;
mod side_by_side;
mod slices;
mod unseen;
