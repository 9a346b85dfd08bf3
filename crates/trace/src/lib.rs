//! The byte format of a recording: what QEMU's plugin writes and every other part of Kernlane
//! reads.
//!
//! Takes and gives records; knows nothing of ELF, Linux or files (a `Write` or a `Read` is handed
//! in). `docs/reference/recording-format.md` is normative for the bytes.
//!
//! A recording is a header, then chunks. [`Reader::next_chunk`] gives them one by one, in the order
//! in which they were written: a translation or a task is defined before the first stream that
//! names it, and [`Chunk::End`] is the last. [`events`] turns the words of a stream into
//! [`Event`]s.
//!
//! ```no_run
//! # use kernlane_trace as trace;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use trace::{Chunk, Event, Reader, events};
//! let mut reader = Reader::new(std::fs::File::open("trace.klt")?)?;
//! let mut lengths = Vec::new();
//! let mut instructions = 0_u64;
//! while let Some(chunk) = reader.next_chunk()? {
//!     match chunk {
//!         Chunk::Translations(defined) => lengths.extend(defined.iter().map(|t| t.instructions())),
//!         Chunk::Tasks(_) => {}
//!         Chunk::Stream(words) => {
//!             for event in events(&words) {
//!                 match event {
//!                     Event::Executed(t) => instructions += u64::from(lengths[t.0 as usize]),
//!                     Event::Left { instructions: reached, .. } => instructions += u64::from(reached),
//!                     Event::Task(_) | Event::Marker(_) | Event::Woken(_) | Event::Clock(_) => {}
//!                 }
//!             }
//!         }
//!         Chunk::End(totals) => assert_eq!(instructions, totals.instructions()),
//!     }
//! }
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

mod access;
mod access_in;
mod access_out;
mod error;
mod frame;
mod payload;
mod reader;
mod record;
mod stream;
mod tally;
mod uses;
mod varint;
mod writer;

pub use access::{
    Accesses, FrameUse, Mapping, PageKind, Pattern, Patterns, SeenAccesses, Site, UseChange, Walk,
};
pub use error::{ReadError, Violation, WriteError};
pub use frame::{ChunkKind, FORMAT_VERSION, MAGIC};
pub use reader::{Chunk, Reader};
pub use record::{DataTotals, Header, Task, TaskPointer, Totals, Translation};
pub use stream::{Event, Events, events, pieces};
pub use writer::Writer;

use std::fmt;

/// An address as the guest executed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunAddr(pub u64);

impl RunAddr {
    /// Whether the address lies in the kernel's half of the address space (bit 63 is set).
    pub fn is_kernel(self) -> bool {
        self.0 >> 63 == 1
    }
}

impl fmt::Display for RunAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A translation, numbered from 0 in the order in which they were first seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TranslationId(pub u32);

/// A task of the guest, numbered from 0 in the order in which they were first switched to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);
