//! What can be wrong with a recording, by name: the broken rule, the chunk and its offset in the
//! file.

use crate::{TaskId, TranslationId, frame::ChunkKind};
use thiserror::Error;

/// A rule of the format that records break, on the way in or out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    #[error("translation {} is named before it is defined", id.0)]
    UndefinedTranslation { id: TranslationId },
    #[error("translation {} is defined when {expected} is next", id.0)]
    TranslationOutOfOrder { id: TranslationId, expected: u32 },
    #[error("translation {} has {instructions} instructions (1 to 512 can be)", id.0)]
    TranslationSize { id: TranslationId, instructions: usize },
    #[error("translation {} has an instruction of {length} bytes (1 to 15 can be)", id.0)]
    InstructionSize { id: TranslationId, length: u8 },
    #[error("translation {} has {code} bytes of code for instructions of {lengths}", id.0)]
    CodeSize { id: TranslationId, code: usize, lengths: usize },
    #[error("translation {} has {of} instructions and was left after {instructions}", id.0)]
    LeftOutOfRange { id: TranslationId, instructions: u32, of: u32 },
    #[error("task {} is named before it is defined", id.0)]
    UndefinedTask { id: TaskId },
    #[error("task {} is defined when {expected} is next", id.0)]
    TaskOutOfOrder { id: TaskId, expected: u32 },
    #[error("translation {} has {of} instructions, and {site:#06x} is no site in it", id.0)]
    Site { id: TranslationId, site: u16, of: u32 },
    #[error("translation {} has a second pattern", id.0)]
    SecondPattern { id: TranslationId },
    #[error("{what}")]
    Accesses { what: &'static str },
    #[error("word {at} of the stream is none that a writer makes")]
    UnknownWord { at: usize },
    #[error("more translations or tasks than the format can number")]
    TooMany,
    #[error("{what} is longer than the format allows")]
    TooLong { what: &'static str },
    #[error("{what} ends early")]
    Short { what: &'static str },
    #[error("{bytes} bytes too many")]
    Surplus { bytes: usize },
    #[error("{what} is not UTF-8")]
    NotText { what: &'static str },
    #[error("a flag has the value {0}")]
    Flag(u8),
    #[error("the totals at the end say {what} {said}, the records before say {counted}")]
    Totals { what: &'static str, said: u64, counted: u64 },
    #[error("unpacks to {unpacked} bytes, not the {said} its frame says")]
    UnpackedSize { unpacked: usize, said: u32 },
    #[error("does not unpack: {0}")]
    Unpack(String),
    #[error("{size} bytes, more than the {limit} a chunk may have")]
    ChunkSize { size: u32, limit: u32 },
    #[error("a {found} chunk where {expected} belongs")]
    Misplaced { found: ChunkKind, expected: &'static str },
}

/// Why a recording could not be read (further). What was read before stays good.
#[derive(Debug, Error)]
pub enum ReadError {
    #[error("not a recording: it does not begin with the magic number")]
    Magic,
    #[error(
        "format version {found}; this reader knows versions 1, 3, 4 and {}",
        crate::FORMAT_VERSION
    )]
    Version { found: u32 },
    #[error("cut off in chunk {chunk} at offset {offset}: the file ends before the clean end")]
    CutOff { chunk: u64, offset: u64 },
    #[error("chunk {chunk} at offset {offset} is damaged: no kind of chunk is called {found:02x?}")]
    Kind { chunk: u64, offset: u64, found: [u8; 4] },
    #[error(
        "chunk {chunk} ({kind}) at offset {offset} is damaged: its checksum is {found:08x}, not {expected:08x}"
    )]
    Checksum { chunk: u64, kind: ChunkKind, offset: u64, found: u32, expected: u32 },
    #[error("chunk {chunk} ({kind}) at offset {offset} is wrong: {violation}")]
    Chunk { chunk: u64, kind: ChunkKind, offset: u64, violation: Violation },
    #[error("{bytes} byte(s) or more follow the clean end at offset {offset}")]
    Trailing { offset: u64, bytes: usize },
    #[error("reading chunk {chunk} at offset {offset} failed")]
    Io { chunk: u64, offset: u64, source: std::io::Error },
}

/// Why records could not be written.
#[derive(Debug, Error)]
pub enum WriteError {
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("writing the recording failed")]
    Io(#[from] std::io::Error),
}
