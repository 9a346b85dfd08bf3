//! Records in: reads chunk by chunk, unpacks, checks. Whatever the bytes are, gives records that
//! follow the rules, or a named error.

use crate::access::{Accesses, Patterns};
use crate::access_in::AccessesIn;
use crate::error::{ReadError, Violation};
use crate::frame::{
    ChunkKind, FORMAT_VERSION, FRAME_SIZE, Frame, MAGIC, PACKED_LIMIT, UNPACKED_LIMIT,
    VERSION_WITHOUT_DATA, VERSIONS_WITHOUT_CLOCK,
};
use crate::tally::{self, Tally};
use crate::{Header, Task, Totals, Translation, payload};
use std::io::{ErrorKind, Read};

/// A piece of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// Definitions; each comes before the first stream that names it, ids ascend without a gap over
    /// the whole recording.
    Translations(Vec<Translation>),
    /// As with translations.
    Tasks(Vec<Task>),
    /// What happened next; see [`events`](crate::events). Every id in it is defined. No event is
    /// cut in two.
    Stream(Vec<u32>),
    /// The clean end. A recording without one was cut off, and the reader gives
    /// [`ReadError::CutOff`].
    End(Totals),
}

/// Reads one recording. Does its own buffering by chunks; a bare `File` is fine.
pub struct Reader<R: Read> {
    from: R,
    header: Header,
    version: u32,
    tally: Tally,
    unpacker: zstd::bulk::Decompressor<'static>,
    packed: Vec<u8>,
    /// Number of the next chunk, and its offset in the file.
    chunk: u64,
    offset: u64,
    /// The clean end, or an error, was given.
    done: bool,
    data: DataIn,
}

/// What becomes of data accesses.
enum DataIn {
    /// The recording is one without.
    Absent,
    /// They are there, and nobody wants them.
    Ignored,
    Decoded(Box<Decoding>),
}

#[derive(Default)]
struct Decoding {
    accesses: AccessesIn,
    /// The payload of a DATA chunk whose STRM chunk is still to come.
    payload: Option<Vec<u8>>,
}

impl<R: Read> Reader<R> {
    /// Reads magic, version and header.
    pub fn new(mut from: R) -> Result<Self, ReadError> {
        let io = |source| ReadError::Io { chunk: 0, offset: 0, source };
        let mut prefix = Vec::new();
        from.by_ref().take(12).read_to_end(&mut prefix).map_err(io)?;
        let Some((magic, version)) = prefix.split_first_chunk::<8>() else {
            return Err(match MAGIC.starts_with(&prefix) && !prefix.is_empty() {
                true => ReadError::CutOff { chunk: 0, offset: prefix.len() as u64 },
                false => ReadError::Magic,
            });
        };
        if *magic != MAGIC {
            return Err(ReadError::Magic);
        }
        let Some(version) = version.first_chunk::<4>() else {
            return Err(ReadError::CutOff { chunk: 0, offset: prefix.len() as u64 });
        };
        let version = u32::from_le_bytes(*version);
        let [with_data, without_data] = VERSIONS_WITHOUT_CLOCK;
        let data = match version {
            VERSION_WITHOUT_DATA => DataIn::Absent,
            FORMAT_VERSION => DataIn::Decoded(Box::default()),
            old if old == without_data => DataIn::Absent,
            old if old == with_data => DataIn::Decoded(Box::default()),
            found => return Err(ReadError::Version { found }),
        };
        let mut reader = Reader {
            from,
            header: Header::default(),
            version,
            tally: Tally::new(!VERSIONS_WITHOUT_CLOCK.contains(&version)),
            unpacker: zstd::bulk::Decompressor::new().map_err(io)?,
            packed: Vec::new(),
            chunk: 0,
            offset: 12,
            done: false,
            data,
        };
        let at = Place { chunk: 0, offset: 12, kind: ChunkKind::Header };
        match reader.read_payload()? {
            Some((ChunkKind::Header, payload)) => {
                reader.header = payload::take_header(&payload).map_err(|v| at.wrong(v))?
            }
            Some((found, _)) => {
                return Err(at.wrong(Violation::Misplaced { found, expected: "HEAD" }));
            }
            None => {
                return Err(ReadError::CutOff { chunk: 0, offset: 12 });
            }
        }
        Ok(reader)
    }

    /// Leaves data accesses aside: for who wants to know only what was executed. They are then not
    /// decoded, nor checked beyond their checksums.
    pub fn without_data(mut self) -> Self {
        if let DataIn::Decoded(_) = self.data {
            self.data = DataIn::Ignored;
        }
        self
    }

    /// What was accessed during the stream that was given last, and the patterns to read it by;
    /// `None` in a recording without data accesses, or when they were left aside.
    pub fn accesses(&self) -> Option<(&Accesses, &Patterns)> {
        match &self.data {
            DataIn::Decoded(data) => Some((&data.accesses.accesses, &data.accesses.patterns)),
            DataIn::Absent | DataIn::Ignored => None,
        }
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What was read so far amounts to this; after the clean end the same as its totals.
    pub fn totals_so_far(&self) -> Totals {
        let data = match &self.data {
            DataIn::Decoded(data) => Some(data.accesses.totals()),
            DataIn::Absent | DataIn::Ignored => None,
        };
        Totals { data, ..self.tally.totals() }
    }

    /// The version of the format that the recording has.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The next chunk; `None` after the clean end. After an error every further call gives `None`.
    pub fn next_chunk(&mut self) -> Result<Option<Chunk>, ReadError> {
        if self.done {
            return Ok(None);
        }
        let result = self.next_chunk_or_cut_off();
        self.done = !matches!(result, Ok(ref chunk) if !matches!(chunk, Chunk::End(_)));
        result.map(Some)
    }

    fn next_chunk_or_cut_off(&mut self) -> Result<Chunk, ReadError> {
        loop {
            let (chunk, offset) = (self.chunk, self.offset);
            let Some((kind, payload)) = self.read_payload()? else {
                return Err(ReadError::CutOff { chunk, offset });
            };
            let wrong = |violation| Place { chunk, offset, kind }.wrong(violation);
            if matches!(kind, ChunkKind::Patterns | ChunkKind::Data) {
                self.take_data(kind, payload).map_err(wrong)?;
                continue;
            }
            let given = self.take(kind, &payload).map_err(wrong)?;
            if kind == ChunkKind::End {
                self.nothing_follows()?;
            }
            return Ok(given);
        }
    }

    /// Keeps what belongs to a stream that is still to come.
    fn take_data(&mut self, kind: ChunkKind, payload: Vec<u8>) -> Result<(), Violation> {
        match &mut self.data {
            DataIn::Absent => Err(Violation::Misplaced {
                found: kind,
                expected: "what a recording without data accesses has",
            }),
            DataIn::Ignored => Ok(()),
            DataIn::Decoded(data) if kind == ChunkKind::Patterns => {
                data.accesses.define(&payload::take_patterns(&payload)?, &self.tally)
            }
            DataIn::Decoded(data) if data.payload.is_none() => {
                data.payload = Some(payload);
                Ok(())
            }
            DataIn::Decoded(_) => Err(Violation::Misplaced { found: kind, expected: "STRM" }),
        }
    }

    /// A payload's records, checked and counted.
    fn take(&mut self, kind: ChunkKind, payload: &[u8]) -> Result<Chunk, Violation> {
        match kind {
            ChunkKind::Header => {
                Err(Violation::Misplaced { found: kind, expected: "anything else" })
            }
            ChunkKind::Translations => {
                let translations =
                    payload::take_translations(payload, self.tally.next_translation())?;
                translations.iter().try_for_each(|translation| self.tally.define(translation))?;
                Ok(Chunk::Translations(translations))
            }
            ChunkKind::Tasks => {
                let tasks = payload::take_tasks(payload, self.tally.next_task())?;
                tasks.iter().try_for_each(|task| self.tally.define_task(task))?;
                Ok(Chunk::Tasks(tasks))
            }
            ChunkKind::Stream => {
                let words = payload::take_stream(payload)?;
                self.tally.stream(&words)?;
                if let DataIn::Decoded(data) = &mut self.data {
                    let payload = data
                        .payload
                        .take()
                        .ok_or(Violation::Misplaced { found: kind, expected: "DATA" })?;
                    data.accesses.decode(&payload, &words, &self.tally)?;
                }
                Ok(Chunk::Stream(words))
            }
            ChunkKind::End => {
                let mut totals =
                    payload::take_totals(payload, !matches!(self.data, DataIn::Absent))?;
                self.tally.check(&totals)?;
                match &self.data {
                    DataIn::Absent => {}
                    DataIn::Ignored => totals.data = None,
                    DataIn::Decoded(data) => self.check_data(data, &totals)?,
                }
                Ok(Chunk::End(totals))
            }
            // Taken before.
            ChunkKind::Patterns | ChunkKind::Data => {
                Err(Violation::Misplaced { found: kind, expected: "anything else" })
            }
        }
    }

    fn check_data(&self, data: &Decoding, said: &Totals) -> Result<(), Violation> {
        if data.payload.is_some() {
            return Err(Violation::Misplaced { found: ChunkKind::End, expected: "STRM" });
        }
        let (said, counted) = (said.data.unwrap_or_default(), data.accesses.totals());
        tally::equal(&payload::named_data(&said), &payload::named_data(&counted))
    }

    /// Reads one chunk, checks its sum and unpacks it. `None` at the end of the file.
    fn read_payload(&mut self) -> Result<Option<(ChunkKind, Vec<u8>)>, ReadError> {
        let (chunk, offset) = (self.chunk, self.offset);
        self.read_packed(FRAME_SIZE as u64)?;
        let Some(bytes) = self.packed.first_chunk::<FRAME_SIZE>() else {
            return match self.packed.len() {
                0 => Ok(None),
                got => Err(ReadError::CutOff { chunk, offset: offset + got as u64 }),
            };
        };
        let frame =
            Frame::from_bytes(bytes).map_err(|found| ReadError::Kind { chunk, offset, found })?;
        let at = Place { chunk, offset, kind: frame.kind };
        for (size, limit) in [(frame.packed, PACKED_LIMIT), (frame.unpacked, UNPACKED_LIMIT)] {
            if size > limit {
                return Err(at.wrong(Violation::ChunkSize { size, limit }));
            }
        }
        self.read_packed(frame.packed.into())?;
        let end = offset + (FRAME_SIZE + self.packed.len()) as u64;
        if self.packed.len() < frame.packed as usize {
            return Err(ReadError::CutOff { chunk, offset: end });
        }
        let found = frame.checksum_with(&self.packed);
        if found != frame.checksum {
            let Frame { kind, checksum: expected, .. } = frame;
            return Err(ReadError::Checksum { chunk, kind, offset, found, expected });
        }
        let ignored = matches!(self.data, DataIn::Ignored) && frame.kind == ChunkKind::Data;
        let payload = if ignored { Ok(Vec::new()) } else { self.unpack(frame.unpacked) };
        let payload = payload.map_err(|violation| at.wrong(violation))?;
        self.chunk += 1;
        self.offset = end;
        Ok(Some((frame.kind, payload)))
    }

    fn unpack(&mut self, size: u32) -> Result<Vec<u8>, Violation> {
        let payload = self
            .unpacker
            .decompress(&self.packed, size as usize)
            .map_err(|error| Violation::Unpack(error.to_string()))?;
        match payload.len() == size as usize {
            true => Ok(payload),
            false => Err(Violation::UnpackedSize { unpacked: payload.len(), said: size }),
        }
    }

    /// Replaces `packed` by the next `size` bytes, fewer at the end of the file.
    fn read_packed(&mut self, size: u64) -> Result<(), ReadError> {
        self.packed.clear();
        match self.from.by_ref().take(size).read_to_end(&mut self.packed) {
            Ok(_) => Ok(()),
            Err(source) => Err(ReadError::Io { chunk: self.chunk, offset: self.offset, source }),
        }
    }

    fn nothing_follows(&mut self) -> Result<(), ReadError> {
        let mut byte = [0];
        loop {
            return match self.from.read(&mut byte) {
                Ok(0) => Ok(()),
                Ok(bytes) => Err(ReadError::Trailing { offset: self.offset, bytes }),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(source) => {
                    Err(ReadError::Io { chunk: self.chunk, offset: self.offset, source })
                }
            };
        }
    }
}

/// Which chunk an error is about.
struct Place {
    chunk: u64,
    offset: u64,
    kind: ChunkKind,
}

impl Place {
    fn wrong(&self, violation: Violation) -> ReadError {
        ReadError::Chunk { chunk: self.chunk, kind: self.kind, offset: self.offset, violation }
    }
}
