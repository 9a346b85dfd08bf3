//! The numbers of the papers that Kernlane's results stand beside.
//!
//! Output: numbers and short quotations, each with its table, figure or section, as they stand in
//! the paper, its rounding included. The code that compares a number says which of Kernlane's
//! benchmarks, services or layouts stands beside it. This crate computes nothing. To add a paper: a
//! file.
//!
//! * S. Speer, R. Kumar, C. Partridge, "Improving UNIX kernel performance using profile based
//!   optimization", USENIX Winter 1994.
//! * M. Rosenblum, E. Bugnion, S. Herrod, E. Witchel, A. Gupta, "The impact of architectural trends
//!   on operating system performance", SOSP 1995.
//! * J. Torrellas, C. Xia, R. Daigle, "Optimizing the instruction cache performance of the
//!   operating system", IEEE Transactions on Computers 47 (12), 1998.
//! * D. Nellans, R. Balasubramonian, E. Brunvand, "A case for increased operating system support in
//!   chip multi-processors", 2005.

#![forbid(unsafe_code)]

pub mod nellans;
pub mod rosenblum;
pub mod speer;
pub mod torrellas;
