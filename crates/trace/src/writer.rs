//! Records out: checks them, packs them, writes chunk by chunk.

use crate::error::{Violation, WriteError};
use crate::frame::{ChunkKind, FORMAT_VERSION, Frame, MAGIC, UNPACKED_LIMIT};
use crate::tally::Tally;
use crate::{Header, Task, Totals, Translation, payload};
use std::io::Write;

/// zstd's level. On streams, level 3 is as fast as 1, because it finds longer repetitions, and gives half the bytes; 4 gives no fewer.
const LEVEL: i32 = 3;

/// Writes one recording. What is dropped without [`Writer::end`] has no clean end, and readers say so.
pub struct Writer<W: Write> {
    out: W,
    tally: Tally,
    packer: zstd::bulk::Compressor<'static>,
    /// The definitions of the next chunk.
    unpacked: Vec<u8>,
    /// The words of the next chunk.
    stream: Vec<u8>,
    packed: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Words of a stream's chunk, more or less: enough for repetitions to be found.
    pub const CHUNK: usize = 1 << 20;

    /// Writes magic, version and header.
    pub fn new(mut out: W, header: &Header) -> Result<Self, WriteError> {
        out.write_all(&MAGIC)?;
        out.write_all(&FORMAT_VERSION.to_le_bytes())?;
        let mut writer = Writer {
            out,
            tally: Tally::default(),
            packer: zstd::bulk::Compressor::new(LEVEL)?,
            unpacked: Vec::new(),
            stream: Vec::new(),
            packed: Vec::new(),
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
        // One translation is below 9 kB, so a chunk that is ended at half the limit never reaches it.
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

    /// Takes what happened next: at most 2 Mi words, and no event may be cut in two. Words of several calls become one chunk, which is
    /// written when it has [`CHUNK`](Self::CHUNK) words; definitions that come meanwhile are written before it.
    pub fn stream(&mut self, words: &[u32]) -> Result<(), WriteError> {
        if words.len() > 2 * Self::CHUNK {
            return Err(Violation::TooLong { what: "a stream" }.into());
        }
        self.tally.stream(words)?;
        payload::put_stream(words, &mut self.stream);
        if self.stream.len() >= 4 * Self::CHUNK {
            self.cut_stream()?;
        }
        Ok(())
    }

    /// Writes the words taken so far, if any, as a chunk.
    pub fn cut_stream(&mut self) -> Result<(), WriteError> {
        if self.stream.is_empty() {
            return Ok(());
        }
        std::mem::swap(&mut self.unpacked, &mut self.stream);
        let result = self.chunk(ChunkKind::Stream);
        std::mem::swap(&mut self.unpacked, &mut self.stream);
        result
    }

    /// Writes the clean end and flushes; gives the output back.
    pub fn end(mut self) -> Result<(W, Totals), WriteError> {
        self.cut_stream()?;
        let totals = self.tally.totals();
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
