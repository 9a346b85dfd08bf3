//! What groups are made from, kept so that they can be made again: after a reboot, and in another
//! build of the kernel.
//!
//! Input: the functions, options and profile of installed groups. Output: a file with a checksum,
//! and groups made from it. To begin with: `kept` has the file, `carry` finds its functions and
//! counts in another build, `restore` makes the groups, `state` has the directory in which the file
//! lies, `notes` remembers until the next boot what installed groups were made from.

pub mod carry;
pub mod guards;
pub mod kept;
pub mod notes;
pub mod restore;
mod shape;
pub mod state;
