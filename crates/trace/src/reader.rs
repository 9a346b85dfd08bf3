//! Reads a recording chunk by chunk, unpacks it and checks it. Any bytes give records that follow
//! the rules, or a named error.
//!
//! Input: bytes from a `Read`. Output: chunks. A damaged chunk ends the reading with an error.

use crate::access::{AccessPatterns, Accesses};
use crate::access_decoder::AccessDecoder;
use crate::error::{ReadError, Violation};
use crate::frame::{
    ChunkFrame, ChunkKind, FORMAT_VERSION, FRAME_SIZE, MAGIC, PACKED_LIMIT, UNPACKED_LIMIT,
    VERSION_OF_SEVERAL_CPUS, VERSION_OF_SEVERAL_CPUS_WITH_DATA, VERSION_WITHOUT_DATA,
    VERSIONS_WITHOUT_CLOCK, WITH_MODULES,
};
use crate::part::PartOfRecording;
use crate::tally::{self, Tally};
use crate::{ModuleChange, RecordingHeader, RecordingTotals, Task, Translation, payload};
use std::io::{ErrorKind, Read};

/// One chunk of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// Definitions of translations. Each comes before the first stream that names it. Ids ascend
    /// without a gap over the whole recording.
    Translations(Vec<Translation>),
    /// Definitions of tasks, under the same rules.
    Tasks(Vec<Task>),
    /// Loads and unloads of kernel modules. They hold for the translations that are defined behind
    /// them.
    Modules(Vec<ModuleChange>),
    /// The words of what happened next; see [`events`](crate::events). Every id in them is defined,
    /// and they hold whole events.
    Stream(Vec<u32>),
    /// The clean end. A recording without a clean end was cut off, and the reader gives
    /// [`ReadError::CutOff`].
    End(RecordingTotals),
}

/// Reads one recording. The reader reads whole chunks, so `from` needs no buffer.
pub struct RecordingReader<R: Read> {
    from: R,
    header: RecordingHeader,
    version: u32,
    tally: Tally,
    unpacker: zstd::bulk::Decompressor<'static>,
    packed: Vec<u8>,
    /// The number of the next chunk, and its offset in the file.
    chunk: u64,
    offset: u64,
    /// The clean end or an error was reached.
    done: bool,
    data: DataMode,
    /// The part to give; `None` for the whole recording.
    part: Option<PartOfRecording>,
}

/// What the reader does with data accesses.
enum DataMode {
    /// The recording has none.
    Absent,
    /// The recording has them, and the caller does not want them.
    Ignored,
    Decoded(Box<DataDecoder>),
}

#[derive(Default)]
struct DataDecoder {
    accesses: AccessDecoder,
    /// The payload of a DATA chunk whose STRM chunk has not come yet.
    payload: Option<Vec<u8>>,
}

impl<R: Read> RecordingReader<R> {
    /// Opens a recording: reads magic, version and header.
    ///
    /// # Errors
    /// The bytes are not a recording, have another version, are cut off, damaged or break a rule,
    /// or reading fails.
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
        let has_modules = |base: &u32| base.is_multiple_of(2) && (4..=10).contains(base);
        let base = version.checked_sub(WITH_MODULES).filter(has_modules);
        // 8 and 10 are versions of several CPUs.
        let base = base.filter(|_| version > VERSION_OF_SEVERAL_CPUS_WITH_DATA);
        let data = match base.unwrap_or(version) {
            VERSION_WITHOUT_DATA | VERSION_OF_SEVERAL_CPUS => DataMode::Absent,
            FORMAT_VERSION | VERSION_OF_SEVERAL_CPUS_WITH_DATA => DataMode::Decoded(Box::default()),
            old if old == without_data => DataMode::Absent,
            old if old == with_data => DataMode::Decoded(Box::default()),
            _ => return Err(ReadError::Version { found: version }),
        };
        let mut reader = RecordingReader {
            from,
            header: RecordingHeader::default(),
            version,
            tally: Tally::default(),
            unpacker: zstd::bulk::Decompressor::new().map_err(io)?,
            packed: Vec::new(),
            chunk: 0,
            offset: 12,
            done: false,
            data,
            part: None,
        };
        let at = ChunkPosition { chunk: 0, offset: 12, kind: ChunkKind::Header };
        match reader.read_payload()? {
            Some((ChunkKind::Header, payload)) => {
                let of_several = [VERSION_OF_SEVERAL_CPUS, VERSION_OF_SEVERAL_CPUS_WITH_DATA];
                let several_cpus = of_several.contains(&base.unwrap_or(version));
                reader.header =
                    payload::take_header(&payload, several_cpus).map_err(|v| at.wrong(v))?;
                reader.header.modules = base.is_some();
                let has_clock = !VERSIONS_WITHOUT_CLOCK.contains(&version);
                reader.tally = Tally::new(has_clock, reader.header.cpus);
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

    /// Skips data accesses, for callers that need only the executions. The reader then checks the
    /// checksums of the data chunks, but does not decode them.
    pub fn without_data(mut self) -> Self {
        if let DataMode::Decoded(_) = self.data {
            self.data = DataMode::Ignored;
        }
        self
    }

    /// Refuses a stream with more accesses than `most`, which is at most [`Accesses::MAX`]. A few
    /// bytes can stand for very many accesses. So a caller with little memory or time, like a
    /// fuzzer, may ask for less than the format allows.
    pub fn with_most_accesses(mut self, most: usize) -> Self {
        if let DataMode::Decoded(data) = &mut self.data {
            data.accesses.most = most.min(Accesses::MAX);
        }
        self
    }

    /// Gives only the executions that begin in the instructions `from` to `until` of the recording,
    /// with their data accesses. Leaves out other events before and behind the part, except for
    /// switches of tasks and CPUs before it. The totals at the end are those of the part, as far as
    /// they count executions, instructions, loads and stores.
    pub fn of_part(mut self, from: u64, until: u64) -> Self {
        self.part = Some(PartOfRecording::new(from, until));
        self
    }

    /// Whether the reader gives a part of the recording, and all executions of the part came.
    pub fn is_behind_part(&self) -> bool {
        self.part.as_ref().is_some_and(PartOfRecording::has_ended)
    }

    /// Gives the workload another name in the header.
    pub fn called(mut self, workload: String) -> Self {
        self.header.workload = workload;
        self
    }

    /// The accesses during the last stream, and the patterns to read them with. `None`: the
    /// recording has no data accesses, or the reader skips them.
    pub fn accesses(&self) -> Option<(&Accesses, &AccessPatterns)> {
        match &self.data {
            DataMode::Decoded(data) => Some((&data.accesses.accesses, &data.accesses.patterns)),
            DataMode::Absent | DataMode::Ignored => None,
        }
    }

    /// The recording's header.
    pub fn header(&self) -> &RecordingHeader {
        &self.header
    }

    /// The totals of everything read so far. After the clean end they equal its totals.
    pub fn totals_so_far(&self) -> RecordingTotals {
        let data = match &self.data {
            DataMode::Decoded(data) => Some(data.accesses.totals()),
            DataMode::Absent | DataMode::Ignored => None,
        };
        RecordingTotals { data, ..self.tally.totals() }
    }

    /// The version of the recording's format.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The next chunk; `None` after the clean end. After an error, every further call gives `None`.
    ///
    /// # Errors
    /// The next chunk is cut off, damaged or breaks a rule, or reading fails.
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
            let wrong = |violation| ChunkPosition { chunk, offset, kind }.wrong(violation);
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

    /// Keeps the accesses of a stream that comes later.
    fn take_data(&mut self, kind: ChunkKind, payload: Vec<u8>) -> Result<(), Violation> {
        match &mut self.data {
            DataMode::Absent => Err(Violation::Misplaced {
                found: kind,
                expected: "a chunk of a recording without data accesses",
            }),
            DataMode::Ignored => Ok(()),
            DataMode::Decoded(data) if kind == ChunkKind::Patterns => {
                data.accesses.define(&payload::take_patterns(&payload)?, &self.tally)
            }
            DataMode::Decoded(data) if data.payload.is_none() => {
                data.payload = Some(payload);
                Ok(())
            }
            DataMode::Decoded(_) => Err(Violation::Misplaced { found: kind, expected: "STRM" }),
        }
    }

    /// Decodes a payload's records, checks them and counts them.
    fn take(&mut self, kind: ChunkKind, payload: &[u8]) -> Result<Chunk, Violation> {
        match kind {
            ChunkKind::Header => {
                Err(Violation::Misplaced { found: kind, expected: "another kind" })
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
            ChunkKind::Modules if !self.header.modules => Err(Violation::Misplaced {
                found: kind,
                expected: "a chunk of a recording without modules",
            }),
            ChunkKind::Modules => {
                let changes = payload::take_modules(payload, self.tally.next_translation())?;
                changes.iter().try_for_each(|change| self.tally.change_module(change))?;
                Ok(Chunk::Modules(changes))
            }
            ChunkKind::Stream => {
                let words = payload::take_stream(payload)?;
                self.tally.stream(&words)?;
                if let DataMode::Decoded(data) = &mut self.data {
                    let payload = data
                        .payload
                        .take()
                        .ok_or(Violation::Misplaced { found: kind, expected: "DATA" })?;
                    data.accesses.decode(&payload, &words, &self.tally)?;
                }
                let Some(part) = &mut self.part else { return Ok(Chunk::Stream(words)) };
                let data = match &mut self.data {
                    DataMode::Decoded(data) => {
                        Some((&mut data.accesses.accesses, &data.accesses.patterns))
                    }
                    DataMode::Absent | DataMode::Ignored => None,
                };
                Ok(Chunk::Stream(part.cut(&words, data, &self.tally)))
            }
            ChunkKind::End => {
                let mut totals =
                    payload::take_totals(payload, !matches!(self.data, DataMode::Absent))?;
                self.tally.check(&totals)?;
                match &self.data {
                    DataMode::Absent => {}
                    DataMode::Ignored => totals.data = None,
                    DataMode::Decoded(data) => self.check_data(data, &totals)?,
                }
                Ok(Chunk::End(match &self.part {
                    Some(part) => part.totals(totals),
                    None => totals,
                }))
            }
            // `next_chunk_or_cut_off` handles these kinds before.
            ChunkKind::Patterns | ChunkKind::Data => {
                Err(Violation::Misplaced { found: kind, expected: "another kind" })
            }
        }
    }

    fn check_data(&self, data: &DataDecoder, recorded: &RecordingTotals) -> Result<(), Violation> {
        if data.payload.is_some() {
            return Err(Violation::Misplaced { found: ChunkKind::End, expected: "STRM" });
        }
        let (recorded, counted) = (recorded.data.unwrap_or_default(), data.accesses.totals());
        tally::equal(&payload::named_data(&recorded), &payload::named_data(&counted))
    }

    /// Reads one chunk, checks its checksum and unpacks it. `None` at the end of the file.
    fn read_payload(&mut self) -> Result<Option<(ChunkKind, Vec<u8>)>, ReadError> {
        let (chunk, offset) = (self.chunk, self.offset);
        self.read_packed(FRAME_SIZE as u64)?;
        let Some(bytes) = self.packed.first_chunk::<FRAME_SIZE>() else {
            return match self.packed.len() {
                0 => Ok(None),
                got => Err(ReadError::CutOff { chunk, offset: offset + got as u64 }),
            };
        };
        let frame = ChunkFrame::from_bytes(bytes).map_err(|found| ReadError::Kind {
            chunk,
            offset,
            found,
        })?;
        let at = ChunkPosition { chunk, offset, kind: frame.kind };
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
            let ChunkFrame { kind, checksum: expected, .. } = frame;
            return Err(ReadError::Checksum { chunk, kind, offset, found, expected });
        }
        let ignored = matches!(self.data, DataMode::Ignored) && frame.kind == ChunkKind::Data;
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
            false => Err(Violation::UnpackedSize { unpacked: payload.len(), recorded: size }),
        }
    }

    /// Replaces `packed` with the next `size` bytes, or with fewer at the end of the file.
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

/// The chunk that an error is about.
struct ChunkPosition {
    chunk: u64,
    offset: u64,
    kind: ChunkKind,
}

impl ChunkPosition {
    fn wrong(&self, violation: Violation) -> ReadError {
        ReadError::Chunk { chunk: self.chunk, kind: self.kind, offset: self.offset, violation }
    }
}
