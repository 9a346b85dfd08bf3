//! The file of values that were read while a run was executed again (`probes.klp`).
//!
//! Input: hits of probes, in the order of the run; or bytes. Output: bytes, or the hits. The file
//! has chunks like a recording, under another magic number:
//!
//! ```text
//! HEAD  the program (UTF-8)
//! STRM  × (varint executions since the hit before (in the first: since the recording's begin),
//!       varint instruction, varint point, then for each value of the point:
//!       varint 0 not readable | varint 1, varint number | varint 2, varint bytes, bytes)
//! END   u64 hits  u64 the recording's hash
//! ```

use crate::frame::{ChunkFrame, ChunkKind, FRAME_SIZE, PACKED_LIMIT, UNPACKED_LIMIT};
use crate::probe::{LONGEST_TEXT, ProbeProgram};
use crate::varint::{self, VarintCursor};
use std::io::{self, Read, Write};
use thiserror::Error;

const MAGIC: [u8; 8] = *b"\x89KLP\r\n\x1a\n";
const VERSION: u32 = 1;
/// The payload at which a chunk ends. A hit is much smaller than what is left to the limit.
const CHUNK: usize = 4 << 20;
/// The most values of a point.
pub const MOST_VALUES: usize = 16;
const LEVEL: i32 = 3;

/// A value that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadValue {
    /// The memory could not be read.
    None,
    /// A number. A signed one has its sign in the upper bits.
    Number(u64),
    /// A text.
    Text(Box<[u8]>),
}

/// An instruction with a probe was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeHit {
    /// The number of the execution in the recording, from 0.
    pub execution: u64,
    /// The index of the instruction in the execution's translation.
    pub instruction: u16,
    /// The number of the point in the program.
    pub point: u32,
    /// The values, as many as the point has.
    pub values: Vec<ReadValue>,
}

/// The totals at the end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeTotals {
    /// The number of hits.
    pub hits: u64,
    /// The hash of the recording that was made beside: equal hashes mean the same run.
    pub hash: u64,
}

/// Why a file of values cannot be read.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum ProbeError {
    #[error("not a file of values of probes, or one of another version")]
    Magic,
    #[error("cut off: the file ends before its clean end")]
    CutOff,
    #[error("damaged: {0}")]
    Damaged(&'static str),
    #[error("reading or writing failed")]
    Io(#[from] io::Error),
}

/// Writes a file. Without [`ProbeWriter::end`] it has no clean end.
pub struct ProbeWriter<W: Write> {
    out: W,
    unpacked: Vec<u8>,
    last: u64,
    hits: u64,
}

impl<W: Write> ProbeWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// Writing fails.
    pub fn new(mut out: W, program: &ProbeProgram) -> io::Result<ProbeWriter<W>> {
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        let unpacked = program.to_string().into_bytes();
        let mut writer = ProbeWriter { out, unpacked, last: 0, hits: 0 };
        writer.chunk(ChunkKind::Header)?;
        Ok(writer)
    }

    /// Takes the next hit.
    ///
    /// # Errors
    /// Writing fails.
    pub fn hit(&mut self, hit: &ProbeHit) -> io::Result<()> {
        let out = &mut self.unpacked;
        varint::put(hit.execution.wrapping_sub(self.last), out);
        varint::put(hit.instruction.into(), out);
        varint::put(hit.point.into(), out);
        for value in &hit.values {
            match value {
                ReadValue::None => varint::put(0, out),
                ReadValue::Number(number) => {
                    varint::put(1, out);
                    varint::put(*number, out);
                }
                ReadValue::Text(text) => {
                    varint::put(2, out);
                    varint::put(text.len() as u64, out);
                    out.extend_from_slice(text);
                }
            }
        }
        self.last = hit.execution;
        self.hits += 1;
        match self.unpacked.len() >= CHUNK {
            true => self.chunk(ChunkKind::Stream),
            false => Ok(()),
        }
    }

    /// Ends the file, of a run with this hash.
    ///
    /// # Errors
    /// Writing fails.
    pub fn end(mut self, hash: u64) -> io::Result<W> {
        if !self.unpacked.is_empty() {
            self.chunk(ChunkKind::Stream)?;
        }
        self.unpacked.extend(self.hits.to_le_bytes());
        self.unpacked.extend(hash.to_le_bytes());
        self.chunk(ChunkKind::End)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn chunk(&mut self, kind: ChunkKind) -> io::Result<()> {
        let packed = zstd::bulk::compress(&self.unpacked, LEVEL)?;
        let frame = ChunkFrame::of(kind, &packed, self.unpacked.len() as u32);
        self.unpacked.clear();
        self.out.write_all(&frame.to_bytes())?;
        self.out.write_all(&packed)
    }
}

/// Reads a file, chunk by chunk.
pub struct ProbeReader<R: Read> {
    from: R,
    program: ProbeProgram,
    payload: Vec<u8>,
    at: usize,
    last: u64,
    hits: u64,
    totals: Option<ProbeTotals>,
}

impl<R: Read> ProbeReader<R> {
    /// Opens a file.
    ///
    /// # Errors
    /// The bytes are no such file, are damaged or cut off, or reading fails.
    pub fn new(mut from: R) -> Result<ProbeReader<R>, ProbeError> {
        let mut begin = [0; 12];
        from.read_exact(&mut begin).map_err(cut_off)?;
        if begin[..8] != MAGIC || begin[8..] != VERSION.to_le_bytes() {
            return Err(ProbeError::Magic);
        }
        let (kind, payload) = read_chunk(&mut from)?;
        if kind != ChunkKind::Header {
            return Err(ProbeError::Damaged("it has no program"));
        }
        let program = std::str::from_utf8(&payload).ok().and_then(|text| text.parse().ok());
        let program: ProbeProgram = program.ok_or(ProbeError::Damaged("its program"))?;
        Ok(ProbeReader {
            from,
            program,
            payload: Vec::new(),
            at: 0,
            last: 0,
            hits: 0,
            totals: None,
        })
    }

    /// What was read where.
    pub fn program(&self) -> &ProbeProgram {
        &self.program
    }

    /// The totals, after the last hit.
    pub fn totals(&self) -> Option<ProbeTotals> {
        self.totals
    }

    /// The next hit; `None` after the last.
    ///
    /// # Errors
    /// The file is damaged or cut off, or reading fails.
    pub fn next_hit(&mut self) -> Result<Option<ProbeHit>, ProbeError> {
        while self.at == self.payload.len() {
            if self.totals.is_some() {
                return Ok(None);
            }
            let (kind, payload) = read_chunk(&mut self.from)?;
            match kind {
                ChunkKind::Stream => (self.payload, self.at) = (payload, 0),
                ChunkKind::End => self.totals = Some(self.end(&payload)?),
                _ => return Err(ProbeError::Damaged("a chunk of another kind")),
            }
        }
        let mut cursor = VarintCursor(&self.payload[self.at..]);
        let hit = take_hit(&mut cursor, &self.program, self.last);
        let hit = hit.ok_or(ProbeError::Damaged("a hit"))?;
        self.at = self.payload.len() - cursor.0.len();
        self.last = hit.execution;
        self.hits += 1;
        Ok(Some(hit))
    }

    fn end(&mut self, payload: &[u8]) -> Result<ProbeTotals, ProbeError> {
        let word = |at| payload.get(at..).and_then(|rest| rest.first_chunk());
        let (Some(hits), Some(hash), 16) = (word(0), word(8), payload.len()) else {
            return Err(ProbeError::Damaged("its totals"));
        };
        let (hits, hash) = (u64::from_le_bytes(*hits), u64::from_le_bytes(*hash));
        if hits != self.hits {
            return Err(ProbeError::Damaged("its totals"));
        }
        match self.from.read(&mut [0])? {
            0 => Ok(ProbeTotals { hits, hash }),
            _ => Err(ProbeError::Damaged("bytes follow its end")),
        }
    }
}

fn take_hit(from: &mut VarintCursor<'_>, program: &ProbeProgram, last: u64) -> Option<ProbeHit> {
    let execution = last.checked_add(from.next()?)?;
    let instruction = u16::try_from(from.next()?).ok()?;
    let point = u32::try_from(from.next()?).ok()?;
    let values = program.points.get(point as usize)?.values.iter().map(|_| match from.next()? {
        0 => Some(ReadValue::None),
        1 => Some(ReadValue::Number(from.next()?)),
        2 => {
            let bytes = usize::try_from(from.next()?).ok().filter(|&it| it <= LONGEST_TEXT)?;
            let (text, rest) = from.0.split_at_checked(bytes)?;
            from.0 = rest;
            Some(ReadValue::Text(text.into()))
        }
        _ => None,
    });
    let values = values.collect::<Option<_>>()?;
    Some(ProbeHit { execution, instruction, point, values })
}

fn read_chunk(from: &mut impl Read) -> Result<(ChunkKind, Vec<u8>), ProbeError> {
    let mut frame = [0; FRAME_SIZE];
    from.read_exact(&mut frame).map_err(cut_off)?;
    let frame = ChunkFrame::from_bytes(&frame).map_err(|_| ProbeError::Damaged("a chunk"))?;
    if frame.packed > PACKED_LIMIT || frame.unpacked > UNPACKED_LIMIT {
        return Err(ProbeError::Damaged("the size of a chunk"));
    }
    let mut packed = Vec::new();
    from.take(frame.packed.into()).read_to_end(&mut packed)?;
    if packed.len() != frame.packed as usize {
        return Err(ProbeError::CutOff);
    }
    if frame.checksum_with(&packed) != frame.checksum {
        return Err(ProbeError::Damaged("a checksum"));
    }
    let payload = zstd::bulk::decompress(&packed, frame.unpacked as usize);
    let payload = payload.map_err(|_| ProbeError::Damaged("a chunk cannot be unpacked"))?;
    match payload.len() == frame.unpacked as usize {
        true => Ok((frame.kind, payload)),
        false => Err(ProbeError::Damaged("the size of a chunk")),
    }
}

fn cut_off(error: io::Error) -> ProbeError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => ProbeError::CutOff,
        _ => ProbeError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> ProbeProgram {
        "ffffffff81000000 rdi rsi,+8,text\nffffffff81000010 rax\n".parse().unwrap()
    }

    fn hits() -> Vec<ProbeHit> {
        let both = vec![ReadValue::Number(u64::MAX), ReadValue::Text((*b"eth0").into())];
        vec![
            ProbeHit { execution: 0, instruction: 3, point: 0, values: both },
            ProbeHit { execution: 0, instruction: 7, point: 1, values: vec![ReadValue::None] },
            ProbeHit {
                execution: 1 << 40,
                instruction: 0,
                point: 1,
                values: vec![ReadValue::Number(0)],
            },
        ]
    }

    fn file() -> Vec<u8> {
        let mut writer = ProbeWriter::new(Vec::new(), &program()).unwrap();
        hits().iter().for_each(|hit| writer.hit(hit).unwrap());
        writer.end(0x1234).unwrap()
    }

    fn read(bytes: &[u8]) -> Result<(Vec<ProbeHit>, Option<ProbeTotals>), ProbeError> {
        let mut reader = ProbeReader::new(bytes)?;
        let mut hits = Vec::new();
        while let Some(hit) = reader.next_hit()? {
            hits.push(hit);
        }
        Ok((hits, reader.totals()))
    }

    #[test]
    fn hits_are_read_back() {
        let bytes = file();
        assert_eq!(*ProbeReader::new(&bytes[..]).unwrap().program(), program());
        let totals = ProbeTotals { hits: 3, hash: 0x1234 };
        assert_eq!(read(&bytes).unwrap(), (hits(), Some(totals)));
    }

    #[test]
    fn damaged_files_are_refused() {
        let bytes = file();
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err(), "{length} bytes");
        }
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 4;
            assert!(read(&other).is_err(), "byte {at}");
        }
        assert!(read(&[&bytes[..], &[0]].concat()).is_err());
    }
}
