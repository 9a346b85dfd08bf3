//! The header of `perf.data`: where the records are, and which events they are of.
//!
//! Input: the bytes of a file (`tools/perf/Documentation/perf.data-file-format.txt`). Output: the
//! events, and the bytes of the records. Sections lie in the file, or there is an error.

use super::events::{ATTRIBUTE, Event, Events};
use super::fields::Fields;
use anyhow::{Context, Result, bail, ensure};

/// The first bytes of a file.
pub(super) const MAGIC: &[u8] = b"PERFILE2";
/// The same on a big-endian machine.
const BIG_ENDIAN: &[u8] = b"2ELIFREP";
/// The bytes of `struct perf_file_header` and of `struct perf_pipe_file_header`.
const FILE_HEADER: u64 = 104;
const PIPE_HEADER: u64 = 16;
/// The bytes of `struct perf_file_section`.
const SECTION: u64 = 16;

/// The content of a file.
#[derive(Debug)]
pub(super) struct Header<'a> {
    /// The events. A file that came through a pipe describes them in its records.
    pub(super) events: Events,
    /// The records.
    pub(super) records: &'a [u8],
    /// How the file was written.
    pub(super) written: Written,
}

/// How a file was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Written {
    /// Completely.
    #[default]
    Completely,
    /// Through a pipe (`perf record -o -`): its header does not say how long it is.
    Piped,
    /// Not to its end. perf writes the size of the data last.
    Killed,
}

/// Whether a file is `perf.data` of some machine.
pub(super) fn is_perf_data(file: &[u8]) -> bool {
    file.starts_with(MAGIC) || file.starts_with(BIG_ENDIAN)
}

/// Reads the header.
///
/// # Errors
/// The file is of another kind of machine, is not perf.data, or is damaged or cut off.
pub(super) fn read(file: &[u8]) -> Result<Header<'_>> {
    ensure!(!file.is_empty(), "it is empty: perf ended before it wrote anything");
    // Kernlane's kernels run on x86-64.
    ensure!(!file.starts_with(BIG_ENDIAN), "it is of a big-endian machine, not of x86-64");
    ensure!(file.starts_with(MAGIC), "not a perf.data file");
    let mut fields = Fields(&file[MAGIC.len()..]);
    let size = fields.number().context("the file ends within its header")?;
    if size == PIPE_HEADER {
        return Ok(Header {
            events: Events::default(),
            records: fields.0,
            written: Written::Piped,
        });
    }
    ensure!(size == FILE_HEADER, "its header has {size} bytes, as of no perf: it is damaged");
    let header = Fields(file).bytes(FILE_HEADER).context("the file ends within its header")?;
    let mut fields = Fields(&header[16..]);
    let attribute_size = fields.number().unwrap_or(0);
    let attribute = attribute_size.checked_sub(SECTION).filter(|size| ATTRIBUTE.contains(size));
    let Some(attribute) = attribute else {
        bail!("its event attributes have the size of no perf's: it is damaged or cut off");
    };
    let outside = || format!("a section lies outside of the file: {DAMAGED}");
    let (_, _, attributes) = fields.section(file).with_context(outside)?;
    let attributes = attributes.with_context(outside)?;
    let (begin, length, records) = fields.section(file).with_context(outside)?;
    // The types of events, which perf wrote before 3.8, are not needed here.
    fields.section(file).with_context(outside)?;
    let mut events = Events::default();
    for entry in attributes.chunks_exact(attribute_size as usize) {
        let (event, mut ids) = (&entry[..attribute as usize], Fields(&entry[attribute as usize..]));
        let (_, _, ids) = ids.section(file).with_context(outside)?;
        let event = Event::read(event, numbers(ids.with_context(outside)?));
        events.push(event.with_context(|| format!("the attributes of an event: {DAMAGED}"))?);
    }
    ensure!(!events.all().is_empty(), "it has no events: {DAMAGED}");
    let features: u32 = fields.0.iter().map(|byte| byte.count_ones()).sum();
    if length == 0 && !has_features(file, begin, features) {
        let records = usize::try_from(begin).ok().and_then(|begin| file.get(begin..));
        let records = records.with_context(outside)?;
        return Ok(Header { events, records, written: Written::Killed });
    }
    Ok(Header { events, records: records.with_context(outside)?, written: Written::Completely })
}

/// The message for a wrong size or place.
pub(super) const DAMAGED: &str = "it is damaged or cut off";

/// Whether the table of the features' sections is there, which perf writes with the size of the
/// data. perf always writes some.
fn has_features(file: &[u8], at: u64, features: u32) -> bool {
    let mut table = Fields(file);
    features > 0
        && table.bytes(at).is_some()
        && (0..features).all(|_| table.section(file).is_some_and(|(_, _, bytes)| bytes.is_some()))
}

/// The 64-bit numbers in bytes.
pub(super) fn numbers(bytes: &[u8]) -> Vec<u64> {
    let mut fields = Fields(bytes);
    std::iter::from_fn(|| fields.number()).collect()
}
