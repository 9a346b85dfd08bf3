//! The byte format of a recording: what QEMU's plugin writes and every other part of Kernlane reads.
//!
//! Takes and gives records; knows nothing of ELF, Linux or files (a `Write` or a `Read` is handed in).

/// An address as the guest executed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunAddr(pub u64);

/// A translation, numbered from 0 in the order in which they were first seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TranslationId(pub u32);

/// A task of the guest, numbered from 0 in the order in which they were first switched to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);
