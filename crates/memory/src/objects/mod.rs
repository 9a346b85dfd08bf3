//! The objects that lie at addresses: where they begin, and which fields they have.
//!
//! Input: a vmlinux, a recording's header, and accesses. Output: names, types, sizes, fields. This
//! module counts nothing.

pub mod names;
pub mod slabs;
