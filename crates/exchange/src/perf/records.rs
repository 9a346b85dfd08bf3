//! The records of `perf.data`, one after the other, with those that are compressed in others.
//!
//! Input: the bytes of the records. Output: each record's kind and body. This module never uses
//! more memory than one compressed record and one other record need, whatever the bytes say.

use super::fields::Fields;
use anyhow::{Context, Result, bail};
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

/// Kinds of records of the kernel (`include/uapi/linux/perf_event.h`), and of the tool itself, from
/// 64 on (`tools/lib/perf/include/perf/event.h`).
pub(super) mod kind {
    pub(crate) const MMAP: u32 = 1;
    pub(crate) const SAMPLE: u32 = 9;
    pub(crate) const MMAP2: u32 = 10;
    pub(crate) const HEADER_ATTR: u32 = 64;
    pub(crate) const TRACING_DATA: u32 = 66;
    pub(crate) const AUXTRACE: u32 = 71;
    pub(crate) const COMPRESSED: u32 = 81;
    pub(crate) const COMPRESSED2: u32 = 83;
}

/// A record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) kind: u32,
    pub(super) misc: u16,
    pub(super) body: &'a [u8],
}

/// How records end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The last record ends with the last byte.
    Whole,
    /// The bytes end within a record that begins there.
    CutOff(usize),
}

/// The bytes of `struct perf_event_header`: type, misc, size.
const HEADER: usize = 8;
/// The bytes that are decompressed at once.
const AT_ONCE: usize = 1 << 16;

/// Calls `take` for each record.
///
/// # Errors
/// `take` fails, or a record is damaged.
pub(super) fn each(bytes: &[u8], take: &mut dyn FnMut(Record) -> Result<()>) -> Result<End> {
    let mut rest = bytes;
    let mut unpacker = Unpacker::default();
    while !rest.is_empty() {
        let at = bytes.len() - rest.len();
        let Some((record, behind)) = first(rest).with_context(|| format!("at byte {at}"))? else {
            return Ok(End::CutOff(at));
        };
        rest = behind;
        let packed = match record.kind {
            kind::COMPRESSED => Some(record.body),
            kind::COMPRESSED2 => {
                let mut fields = Fields(record.body);
                let packed = fields.number().and_then(|length| fields.bytes(length));
                Some(packed.with_context(|| format!("the record at byte {at} is damaged"))?)
            }
            _ => None,
        };
        match packed {
            Some(packed) => unpacker
                .each(packed, take)
                .with_context(|| format!("the compressed records at byte {at} of the records"))?,
            None => take(record)?,
        }
        let Some(behind) = behind_trace(record, rest) else {
            return Ok(End::CutOff(at));
        };
        rest = behind;
    }
    Ok(if unpacker.left.is_empty() { End::Whole } else { End::CutOff(bytes.len()) })
}

/// The first record and what is behind it. `None`: the bytes end within it.
fn first(bytes: &[u8]) -> Result<Option<(Record<'_>, &[u8])>> {
    let mut fields = Fields(bytes);
    let (Some(kind), Some(misc), Some(size)) = (fields.word(), fields.half(), fields.half()) else {
        return Ok(None);
    };
    let Some(length) = usize::from(size).checked_sub(HEADER) else {
        bail!("a record of {size} bytes is too short to be one: the file is damaged");
    };
    Ok(fields.bytes(length as u64).map(|body| (Record { kind, misc, body }, fields.0)))
}

/// The bytes behind the data that follows a record and is not counted in its size. `None`: the
/// bytes end within this data.
fn behind_trace<'a>(record: Record, behind: &'a [u8]) -> Option<&'a [u8]> {
    let mut body = Fields(record.body);
    let length = match record.kind {
        kind::AUXTRACE => body.number()?,
        kind::TRACING_DATA => u64::from(body.word()?).next_multiple_of(8),
        _ => return Some(behind),
    };
    let mut rest = Fields(behind);
    rest.bytes(length)?;
    Some(rest.0)
}

/// Unpacks compressed records, which are the parts of one stream of zstd.
#[derive(Default)]
struct Unpacker {
    stream: Option<Decoder<'static>>,
    /// The beginning of a record, the rest of which is in the next part.
    left: Vec<u8>,
}

impl Unpacker {
    fn each(&mut self, packed: &[u8], take: &mut dyn FnMut(Record) -> Result<()>) -> Result<()> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => Decoder::new()?,
        };
        let mut input = InBuffer::around(packed);
        let mut unpacked = vec![0; AT_ONCE];
        loop {
            let mut output = OutBuffer::around(&mut unpacked[..]);
            stream.run(&mut input, &mut output).context("they cannot be decompressed")?;
            let length = output.pos();
            self.left.extend_from_slice(&unpacked[..length]);
            let mut rest = &self.left[..];
            while let Some((record, behind)) = first(rest)? {
                take(record)?;
                rest = behind;
            }
            // A record is smaller than 64 KB, and so is what is left.
            let done = self.left.len() - rest.len();
            self.left.drain(..done);
            if length < AT_ONCE && input.pos() == packed.len() {
                break;
            }
        }
        self.stream = Some(stream);
        Ok(())
    }
}
