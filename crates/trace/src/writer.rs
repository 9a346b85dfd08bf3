//! Writes a recording: checks the records, packs them and writes chunk by chunk.
//!
//! Input: records. Output: bytes to a `Write`. Records that break a rule give an error and are not
//! written.

use crate::access::{Accesses, ObservedAccesses};
use crate::access_encoder::AccessEncoder;
use crate::error::{Violation, WriteError};
use crate::frame::{
    ChunkFrame, ChunkKind, FORMAT_VERSION, MAGIC, UNPACKED_LIMIT, VERSION_OF_SEVERAL_CPUS,
    VERSION_OF_SEVERAL_CPUS_WITH_DATA, VERSION_WITHOUT_DATA, WITH_MODULES,
};
use crate::tally::Tally;
use crate::{
    AccessTotals, CpuCount, ModuleChange, RecordingHeader, RecordingTotals, Task, Translation,
    payload,
};
use std::io::Write;

/// The level of zstd. On streams, level 3 is as fast as level 1, because it finds longer
/// repetitions, and gives half the bytes. Level 4 gives no fewer bytes.
const LEVEL: i32 = 3;

/// Writes one recording. A writer that is dropped without [`RecordingWriter::end`] leaves a
/// recording without a clean end, which readers report as cut off.
pub struct RecordingWriter<W: Write> {
    out: W,
    tally: Tally,
    packer: zstd::bulk::Compressor<'static>,
    /// The definitions of the next chunk.
    unpacked: Vec<u8>,
    /// The words of the next chunk.
    stream: Vec<u8>,
    packed: Vec<u8>,
    /// Whether loads of modules are recorded.
    modules: bool,
    data: Option<DataEncoder>,
}

/// The additional state for a recording with data accesses.
#[derive(Default)]
struct DataEncoder {
    accesses: AccessEncoder,
    totals: AccessTotals,
}

impl<W: Write> RecordingWriter<W> {
    /// The number of words in a chunk of a stream. Chunks of this size are long enough to find
    /// repetitions.
    pub const CHUNK: usize = 1 << 20;
    /// The number of words in a chunk of a stream with data accesses. Smaller chunks keep a
    /// reader's addresses in the nearer caches.
    pub(crate) const CHUNK_WITH_DATA: usize = 1 << 18;
    /// The size in bytes of a chunk's accesses at which the chunk ends before it has this number of
    /// words.
    const DATA_CHUNK: usize = 4 << 20;

    /// Writes magic, version and header of a recording without data accesses.
    ///
    /// # Errors
    /// The header is too long, or writing fails.
    pub fn new(out: W, header: &RecordingHeader) -> Result<Self, WriteError> {
        let version = match header.cpus {
            CpuCount::ONE => VERSION_WITHOUT_DATA,
            _ => VERSION_OF_SEVERAL_CPUS,
        };
        Self::begin(out, header, version, None)
    }

    /// Writes magic, version and header of a recording with data accesses. Streams then go to
    /// [`RecordingWriter::stream_with_data`].
    ///
    /// # Errors
    /// The header is too long, or writing fails.
    pub fn with_data(out: W, header: &RecordingHeader) -> Result<Self, WriteError> {
        let version = match header.cpus {
            CpuCount::ONE => FORMAT_VERSION,
            _ => VERSION_OF_SEVERAL_CPUS_WITH_DATA,
        };
        Self::begin(out, header, version, Some(DataEncoder::default()))
    }

    fn begin(
        mut out: W,
        header: &RecordingHeader,
        version: u32,
        data: Option<DataEncoder>,
    ) -> Result<Self, WriteError> {
        let version = version + if header.modules { WITH_MODULES } else { 0 };
        out.write_all(&MAGIC)?;
        out.write_all(&version.to_le_bytes())?;
        let mut writer = RecordingWriter {
            out,
            tally: Tally::new(true, header.cpus),
            packer: zstd::bulk::Compressor::new(LEVEL)?,
            unpacked: Vec::new(),
            stream: Vec::new(),
            packed: Vec::new(),
            modules: header.modules,
            data,
        };
        payload::put_header(header, &mut writer.unpacked)?;
        if writer.unpacked.len() > UNPACKED_LIMIT as usize {
            return Err(Violation::TooLong { what: "the header" }.into());
        }
        writer.chunk(ChunkKind::Header)?;
        Ok(writer)
    }

    /// Defines translations. Their ids must continue those before.
    ///
    /// # Errors
    /// A translation breaks a rule, or writing fails.
    pub fn translations(&mut self, translations: &[Translation]) -> Result<(), WriteError> {
        self.define(translations, ChunkKind::Translations, Tally::define, payload::put_translation)
    }

    /// Defines tasks. Their ids must continue those before.
    ///
    /// # Errors
    /// A task breaks a rule, or writing fails.
    pub fn tasks(&mut self, tasks: &[Task]) -> Result<(), WriteError> {
        self.define(tasks, ChunkKind::Tasks, Tally::define_task, payload::put_task)
    }

    /// Takes changes of the loaded modules. They hold for the translations that are defined behind
    /// them. The numbers of loads must continue those before.
    ///
    /// # Errors
    /// A change breaks a rule, the header says that loads are not recorded, or writing fails.
    pub fn modules(&mut self, changes: &[ModuleChange]) -> Result<(), WriteError> {
        if changes.is_empty() {
            return Ok(());
        }
        if !self.modules {
            let expected = "a chunk of a recording without modules";
            return Err(Violation::Misplaced { found: ChunkKind::Modules, expected }.into());
        }
        for change in changes {
            self.tally.change_module(change)?;
            payload::put_module(change, self.tally.next_translation(), &mut self.unpacked)?;
            if self.unpacked.len() > UNPACKED_LIMIT as usize {
                return Err(Violation::TooLong { what: "a module" }.into());
            }
            if self.unpacked.len() > UNPACKED_LIMIT as usize / 2 {
                self.chunk(ChunkKind::Modules)?;
            }
        }
        if !self.unpacked.is_empty() {
            self.chunk(ChunkKind::Modules)?;
        }
        Ok(())
    }

    /// Checks definitions, encodes them and writes them as chunks of this kind.
    fn define<T>(
        &mut self,
        definitions: &[T],
        kind: ChunkKind,
        check: impl Fn(&mut Tally, &T) -> Result<(), Violation>,
        encode: impl Fn(&T, &mut Vec<u8>),
    ) -> Result<(), WriteError> {
        for definition in definitions {
            check(&mut self.tally, definition)?;
            encode(definition, &mut self.unpacked);
            // A translation is below 9 kB and a pattern below 132 kB. So a chunk that ends at half
            // the limit never reaches the limit.
            if self.unpacked.len() > UNPACKED_LIMIT as usize / 2 {
                self.chunk(kind)?;
            }
        }
        if !self.unpacked.is_empty() {
            self.chunk(kind)?;
        }
        Ok(())
    }

    /// Takes the words of what happened next: at most 2 Mi words of whole events. Words of several
    /// calls become one chunk, which is written when it has [`CHUNK`](Self::CHUNK) words.
    /// Definitions made in the meantime are written before that chunk.
    ///
    /// # Errors
    /// The words break a rule, the recording has data accesses, or writing fails.
    pub fn stream(&mut self, words: &[u32]) -> Result<(), WriteError> {
        if self.data.is_some() {
            return Err(Violation::Accesses {
                what: "the recording has data accesses, but a stream comes without them",
            }
            .into());
        }
        self.take_words(words)?;
        if self.stream.len() >= 4 * Self::CHUNK {
            self.cut_stream()?;
        }
        Ok(())
    }

    /// The same as [`RecordingWriter::stream`], together with the accesses of these executions.
    ///
    /// # Errors
    /// The words or the accesses break a rule, the recording has no data accesses, or writing
    /// fails.
    pub fn stream_with_data(
        &mut self,
        words: &[u32],
        observed: &ObservedAccesses,
    ) -> Result<(), WriteError> {
        let Some(data) = &self.data else {
            return Err(Violation::Accesses {
                what: "data accesses come, but the recording was begun without",
            }
            .into());
        };
        if data.accesses.count() + observed.addresses.len() > Accesses::MAX {
            self.cut_stream()?;
        }
        self.take_words(words)?;
        let Some(data) = &mut self.data else { return Ok(()) };
        data.accesses.take(words, observed, &self.tally)?;
        let stores = observed.sites.iter().filter(|site| site.is_store()).count();
        data.totals.stores += stores as u64;
        data.totals.loads += (observed.sites.len() - stores) as u64;
        data.totals.mappings += observed.mappings.len() as u64;
        if self.stream.len() >= 4 * Self::CHUNK_WITH_DATA
            || data.accesses.size() >= Self::DATA_CHUNK
        {
            self.cut_stream()?;
        }
        Ok(())
    }

    fn take_words(&mut self, words: &[u32]) -> Result<(), WriteError> {
        if words.len() > 2 * Self::CHUNK {
            return Err(Violation::TooLong { what: "a stream" }.into());
        }
        self.tally.stream(words)?;
        payload::put_stream(words, &mut self.stream);
        Ok(())
    }

    /// Writes the words taken so far as a chunk, if there are any.
    ///
    /// # Errors
    /// The accesses of the words are too long for a chunk, or writing fails.
    pub fn cut_stream(&mut self) -> Result<(), WriteError> {
        if self.stream.is_empty() {
            return Ok(());
        }
        self.cut_data()?;
        std::mem::swap(&mut self.unpacked, &mut self.stream);
        let result = self.chunk(ChunkKind::Stream);
        std::mem::swap(&mut self.unpacked, &mut self.stream);
        result
    }

    /// Writes the accesses of the words taken so far. They come before the chunk of the words.
    fn cut_data(&mut self) -> Result<(), WriteError> {
        let Some(mut data) = self.data.take() else { return Ok(()) };
        let patterns = data.accesses.new_patterns();
        self.define(&patterns, ChunkKind::Patterns, |_, _| Ok(()), payload::put_pattern)?;
        data.accesses.payload(&mut self.unpacked);
        if self.unpacked.len() > UNPACKED_LIMIT as usize {
            return Err(Violation::TooLong { what: "the accesses of a stream" }.into());
        }
        data.totals.count_payload(&self.unpacked);
        self.data = Some(data);
        self.chunk(ChunkKind::Data)
    }

    /// Writes the clean end, flushes, and gives the output back.
    ///
    /// # Errors
    /// The last accesses are too long for a chunk, or writing fails.
    pub fn end(mut self) -> Result<(W, RecordingTotals), WriteError> {
        self.cut_stream()?;
        let mut totals = self.tally.totals();
        totals.data = self.data.as_ref().map(|data| data.totals);
        payload::put_totals(&totals, &mut self.unpacked);
        self.chunk(ChunkKind::End)?;
        self.out.flush()?;
        Ok((self.out, totals))
    }

    /// Writes and flushes everything taken so far, without a clean end, and gives the output back.
    ///
    /// # Errors
    /// The last accesses are too long for a chunk, or writing fails.
    pub fn cut_off(mut self) -> Result<W, WriteError> {
        self.cut_stream()?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Packs and writes `unpacked`, and empties it.
    fn chunk(&mut self, kind: ChunkKind) -> Result<(), WriteError> {
        self.packed.clear();
        self.packed.reserve(zstd::zstd_safe::compress_bound(self.unpacked.len()));
        self.packer.compress_to_buffer(&self.unpacked, &mut self.packed)?;
        let frame = ChunkFrame::of(kind, &self.packed, self.unpacked.len() as u32);
        self.unpacked.clear();
        self.out.write_all(&frame.to_bytes())?;
        self.out.write_all(&self.packed)?;
        Ok(())
    }
}
