//! Records out: checks them, packs them, writes chunk by chunk.

use crate::access::SeenAccesses;
use crate::access_out::AccessesOut;
use crate::error::{Violation, WriteError};
use crate::frame::{ChunkKind, FORMAT_VERSION, Frame, MAGIC, UNPACKED_LIMIT, VERSION_WITHOUT_DATA};
use crate::tally::Tally;
use crate::{DataTotals, Header, Task, Totals, Translation, payload};
use std::io::Write;

/// zstd's level. On streams, level 3 is as fast as 1, because it finds longer repetitions, and
/// gives half the bytes; 4 gives no fewer.
const LEVEL: i32 = 3;

/// Writes one recording. What is dropped without [`Writer::end`] has no clean end, and readers say
/// so.
pub struct Writer<W: Write> {
    out: W,
    tally: Tally,
    packer: zstd::bulk::Compressor<'static>,
    /// The definitions of the next chunk.
    unpacked: Vec<u8>,
    /// The words of the next chunk.
    stream: Vec<u8>,
    packed: Vec<u8>,
    data: Option<DataOut>,
}

/// What a recording with data accesses has besides.
#[derive(Default)]
struct DataOut {
    accesses: AccessesOut,
    totals: DataTotals,
}

impl<W: Write> Writer<W> {
    /// Words of a stream's chunk, more or less: enough for repetitions to be found.
    pub const CHUNK: usize = 1 << 20;
    /// The same where data accesses come along: so few that a reader's addresses fit the nearer
    /// caches.
    pub const CHUNK_WITH_DATA: usize = 1 << 18;
    /// Bytes of accesses at which a chunk is cut before it has so many words.
    const DATA_CHUNK: usize = 4 << 20;

    /// Writes magic, version and header of a recording without data accesses.
    pub fn new(out: W, header: &Header) -> Result<Self, WriteError> {
        Self::begin(out, header, VERSION_WITHOUT_DATA, None)
    }

    /// Writes magic, version and header of a recording with data accesses: streams go to
    /// [`Writer::stream_with_data`].
    pub fn with_data(out: W, header: &Header) -> Result<Self, WriteError> {
        Self::begin(out, header, FORMAT_VERSION, Some(DataOut::default()))
    }

    fn begin(
        mut out: W,
        header: &Header,
        version: u32,
        data: Option<DataOut>,
    ) -> Result<Self, WriteError> {
        out.write_all(&MAGIC)?;
        out.write_all(&version.to_le_bytes())?;
        let mut writer = Writer {
            out,
            tally: Tally::default(),
            packer: zstd::bulk::Compressor::new(LEVEL)?,
            unpacked: Vec::new(),
            stream: Vec::new(),
            packed: Vec::new(),
            data,
        };
        payload::put_header(header, &mut writer.unpacked)?;
        if writer.unpacked.len() > UNPACKED_LIMIT as usize {
            return Err(Violation::TooLong { what: "the header" }.into());
        }
        writer.chunk(ChunkKind::Header)?;
        Ok(writer)
    }

    /// Defines translations; their ids must continue those before.
    pub fn translations(&mut self, translations: &[Translation]) -> Result<(), WriteError> {
        // One translation is below 9 kB, so a chunk that is ended at half the limit never reaches
        // it.
        for translation in translations {
            self.tally.define(translation)?;
            payload::put_translation(translation, &mut self.unpacked);
            if self.unpacked.len() > UNPACKED_LIMIT as usize / 2 {
                self.chunk(ChunkKind::Translations)?;
            }
        }
        if !self.unpacked.is_empty() {
            self.chunk(ChunkKind::Translations)?;
        }
        Ok(())
    }

    /// Defines tasks; their ids must continue those before.
    pub fn tasks(&mut self, tasks: &[Task]) -> Result<(), WriteError> {
        for task in tasks {
            self.tally.define_task(task)?;
            payload::put_task(task, &mut self.unpacked);
            if self.unpacked.len() > UNPACKED_LIMIT as usize / 2 {
                self.chunk(ChunkKind::Tasks)?;
            }
        }
        if !self.unpacked.is_empty() {
            self.chunk(ChunkKind::Tasks)?;
        }
        Ok(())
    }

    /// Takes what happened next: at most 2 Mi words, and no event may be cut in two. Words of
    /// several calls become one chunk, which is written when it has [`CHUNK`](Self::CHUNK) words;
    /// definitions that come meanwhile are written before it.
    pub fn stream(&mut self, words: &[u32]) -> Result<(), WriteError> {
        if self.data.is_some() {
            return Err(
                Violation::Accesses { what: "a stream comes without its data accesses" }.into()
            );
        }
        self.take_words(words)?;
        if self.stream.len() >= 4 * Self::CHUNK {
            self.cut_stream()?;
        }
        Ok(())
    }

    /// As [`Writer::stream`], with what these words' executions accessed.
    pub fn stream_with_data(
        &mut self,
        words: &[u32],
        seen: &SeenAccesses,
    ) -> Result<(), WriteError> {
        if self.data.is_none() {
            return Err(Violation::Accesses {
                what: "there are data accesses in a recording without",
            }
            .into());
        }
        self.take_words(words)?;
        let Some(data) = &mut self.data else { return Ok(()) };
        data.accesses.take(words, seen, &self.tally)?;
        let stores = seen.sites.iter().filter(|site| site.is_store()).count();
        data.totals.stores += stores as u64;
        data.totals.loads += (seen.sites.len() - stores) as u64;
        data.totals.mappings += seen.mappings.len() as u64;
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

    /// Writes the words taken so far, if any, as a chunk.
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

    /// Writes the accesses of the words taken so far, before their chunk.
    fn cut_data(&mut self) -> Result<(), WriteError> {
        let Some(mut data) = self.data.take() else { return Ok(()) };
        for pattern in data.accesses.new_patterns() {
            payload::put_pattern(&pattern, &mut self.unpacked);
            if self.unpacked.len() > UNPACKED_LIMIT as usize / 2 {
                self.chunk(ChunkKind::Patterns)?;
            }
        }
        if !self.unpacked.is_empty() {
            self.chunk(ChunkKind::Patterns)?;
        }
        data.accesses.payload(&mut self.unpacked);
        if self.unpacked.len() > UNPACKED_LIMIT as usize {
            return Err(Violation::TooLong { what: "the accesses of a stream" }.into());
        }
        data.totals.count_payload(&self.unpacked);
        self.data = Some(data);
        self.chunk(ChunkKind::Data)
    }

    /// Writes the clean end and flushes; gives the output back.
    pub fn end(mut self) -> Result<(W, Totals), WriteError> {
        self.cut_stream()?;
        let mut totals = self.tally.totals();
        totals.data = self.data.as_ref().map(|data| data.totals);
        payload::put_totals(&totals, &mut self.unpacked);
        self.chunk(ChunkKind::End)?;
        self.out.flush()?;
        Ok((self.out, totals))
    }

    /// Writes and flushes what was taken, without a clean end; gives the output back.
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
        let frame = Frame::of(kind, &self.packed, self.unpacked.len() as u32);
        self.unpacked.clear();
        self.out.write_all(&frame.to_bytes())?;
        self.out.write_all(&self.packed)?;
        Ok(())
    }
}
