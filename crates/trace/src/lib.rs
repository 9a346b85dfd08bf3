//! The byte format of a recording. QEMU's plugin writes it, and every other part of Kernlane reads
//! it.
//!
//! Input and output are records and bytes. The crate knows nothing of ELF, Linux or files: the
//! caller hands in a `Write` or a `Read`. `docs/reference/recording-format.md` is normative for the
//! bytes.
//!
//! A recording is a header, then chunks. [`RecordingReader::next_chunk`] gives the chunks in the
//! order in which they were written. A translation or a task is defined before the first stream
//! that names it, and [`Chunk::End`] comes last. [`events`] turns the words of a stream into
//! [`StreamEvent`]s.
//!
//! ```
//! # use kernlane_trace as trace;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use trace::{Chunk, RecordingHeader, RecordingReader, RecordingWriter, RunAddr};
//! use trace::{StreamEvent, Translation, TranslationId, events};
//!
//! // Two instructions at one address of the kernel, executed twice.
//! let mut writer = RecordingWriter::new(Vec::new(), &RecordingHeader::default())?;
//! let id = TranslationId(0);
//! writer.translations(&[Translation {
//!     id,
//!     addr: RunAddr(0xffff_ffff_8100_0000),
//!     lengths: [1, 1].into(),
//!     code: [0x90, 0x90].into(),
//! }])?;
//! let mut words = Vec::new();
//! StreamEvent::Executed(id).append_to(&mut words);
//! StreamEvent::Executed(id).append_to(&mut words);
//! writer.stream(&words)?;
//! let (bytes, _) = writer.end()?;
//!
//! let mut reader = RecordingReader::new(&bytes[..])?;
//! let mut executions = 0;
//! while let Some(chunk) = reader.next_chunk()? {
//!     match chunk {
//!         Chunk::Stream(words) => executions += events(&words).count(),
//!         Chunk::End(totals) => assert_eq!(totals.kernel_instructions, 4),
//!         Chunk::Translations(_) | Chunk::Tasks(_) | Chunk::Modules(_) => {}
//!     }
//! }
//! assert_eq!(executions, 2);
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

mod access;
mod access_decoder;
mod access_encoder;
mod error;
mod frame;
mod frame_use;
mod module;
mod part;
mod payload;
pub mod probe;
pub mod probe_file;
mod reader;
mod record;
mod stream;
mod tally;
mod varint;
mod writer;

pub use access::{
    AccessPattern, AccessPatterns, AccessSite, AccessWalk, Accesses, FrameUse, FrameUseChange,
    Mapping, ObservedAccesses, PageKind,
};
pub use error::{ReadError, SeveralCpus, Violation, WriteError};
pub use frame::{ChunkKind, FORMAT_VERSION, MAGIC};
pub use module::{LoadedModule, LoadedModules, ModuleChange, ModuleId, ModuleSection};
pub use reader::{Chunk, RecordingReader};
pub use record::{
    AccessTotals, CpuCount, RecordingHeader, RecordingTotals, Task, TaskPointer, Translation,
};
pub use stream::{StreamEvent, StreamEvents, events, pieces, turns};
pub use writer::RecordingWriter;

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

/// The number of a translation. The first translation of a recording has number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TranslationId(pub u32);

/// The number of a CPU of the guest, as the kernel counts them, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u8);

/// The number of a task of the guest. The first task that the kernel switched to has number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);
