//! The errors of reading and writing a recording. Each names the broken rule, the chunk and its
//! offset in the file.

use crate::{CpuId, ModuleId, TaskId, TranslationId, frame::ChunkKind};
use thiserror::Error;

/// A rule of the format that a record breaks. The reader and the writer check the same rules.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum Violation {
    #[error("translation {} is used before it is defined", id.0)]
    UndefinedTranslation { id: TranslationId },
    #[error("translation {} is defined when {expected} is next", id.0)]
    TranslationOutOfOrder { id: TranslationId, expected: u32 },
    #[error("translation {} has {instructions} instructions (allowed: 1 to 512)", id.0)]
    TranslationSize { id: TranslationId, instructions: usize },
    #[error("translation {} has an instruction of {length} bytes (allowed: 1 to 15)", id.0)]
    InstructionSize { id: TranslationId, length: u8 },
    #[error("translation {} has {code} bytes of code, but its instructions have {lengths}", id.0)]
    CodeSize { id: TranslationId, code: usize, lengths: usize },
    #[error("translation {} has {of} instructions and was left after {instructions}", id.0)]
    LeftOutOfRange { id: TranslationId, instructions: u32, of: u32 },
    #[error("{cpus} CPUs: a recording of several CPUs has 2 to {}", crate::CpuCount::MOST)]
    CpuCount { cpus: u32 },
    #[error("CPU {} executes, but the machine has {cpus}", cpu.0)]
    UnknownCpu { cpu: CpuId, cpus: u8 },
    #[error("task {} is used before it is defined", id.0)]
    UndefinedTask { id: TaskId },
    #[error("task {} is defined when {expected} is next", id.0)]
    TaskOutOfOrder { id: TaskId, expected: u32 },
    #[error("load {} of a module is defined when {expected} is next", id.0)]
    ModuleOutOfOrder { id: ModuleId, expected: u32 },
    #[error("modules change before translation {named}, but {next} is next")]
    ModuleMisplaced { named: u32, next: u32 },
    #[error("load {} of a module ends, but the module is not loaded", id.0)]
    NotLoaded { id: ModuleId },
    #[error("translation {} has {of} instructions, and the site {site:#06x} is not in it", id.0)]
    Site { id: TranslationId, site: u16, of: u32 },
    #[error("translation {} has a second pattern", id.0)]
    SecondPattern { id: TranslationId },
    #[error("{what}")]
    Accesses { what: &'static str },
    #[error("word {at} of the stream is unknown: no writer makes it")]
    UnknownWord { at: usize },
    #[error("there are more translations or tasks than the format can number")]
    TooMany,
    #[error("{what} is longer than the format allows")]
    TooLong { what: &'static str },
    #[error("{what} ends early")]
    Short { what: &'static str },
    #[error("{bytes} surplus bytes at the end")]
    Surplus { bytes: usize },
    #[error("{what} is not UTF-8")]
    NotText { what: &'static str },
    #[error("a flag has the value {0}")]
    Flag(u8),
    #[error(
        "the totals at the end give {what} as {recorded}, but the records before give {counted}"
    )]
    Totals { what: &'static str, recorded: u64, counted: u64 },
    #[error("unpacks to {unpacked} bytes, but its frame says {recorded}")]
    UnpackedSize { unpacked: usize, recorded: u32 },
    #[error("cannot be unpacked: {0}")]
    Unpack(String),
    #[error("has {size} bytes, but a chunk may have at most {limit}")]
    ChunkSize { size: u32, limit: u32 },
    #[error("found a {found} chunk where {expected} was expected")]
    Misplaced { found: ChunkKind, expected: &'static str },
}

/// A recording of several CPUs came where one CPU is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the recording has {} CPUs, and this works on recordings of one CPU", .0.get())]
pub struct SeveralCpus(pub crate::CpuCount);

/// Why a recording could not be read further. Everything read before the error is good.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum ReadError {
    #[error("not a recording: it does not begin with the magic number")]
    Magic,
    #[error(
        "format version {found}; this reader knows versions 1, 3, 4, {}, {}, {}, and the last four \
         of these plus 8",
        crate::FORMAT_VERSION,
        crate::frame::VERSION_OF_SEVERAL_CPUS,
        crate::frame::VERSION_OF_SEVERAL_CPUS_WITH_DATA
    )]
    Version { found: u32 },
    #[error("cut off in chunk {chunk} at offset {offset}: the file ends before the clean end")]
    CutOff { chunk: u64, offset: u64 },
    #[error("chunk {chunk} at offset {offset} is damaged: {found:02x?} is not a kind of chunk")]
    Kind { chunk: u64, offset: u64, found: [u8; 4] },
    #[error(
        "chunk {chunk} ({kind}) at offset {offset} is damaged: its checksum is {found:08x}, but \
         should be {expected:08x}"
    )]
    Checksum { chunk: u64, kind: ChunkKind, offset: u64, found: u32, expected: u32 },
    #[error("chunk {chunk} ({kind}) at offset {offset} breaks a rule: {violation}")]
    Chunk { chunk: u64, kind: ChunkKind, offset: u64, violation: Violation },
    #[error("at least {bytes} byte(s) follow the clean end at offset {offset}")]
    Trailing { offset: u64, bytes: usize },
    #[error("reading chunk {chunk} at offset {offset} failed")]
    Io { chunk: u64, offset: u64, source: std::io::Error },
}

/// Why records could not be written.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum WriteError {
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("writing the recording failed")]
    Io(#[from] std::io::Error),
}
