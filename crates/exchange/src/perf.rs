//! Reads branch stacks of perf: `perf.data` of `perf record -b`, or the text of
//! `perf script -F brstack`.
//!
//! Output: branches by run-time addresses, and the address at which the kernel ran.
//! `include/uapi/linux/perf_event.h`, `PERF_RECORD_SAMPLE`, defines the format of a sample.

use super::branches::Branches;
use anyhow::{Context, Result, bail, ensure};
use linux_perf_data::linux_perf_event_reader::{
    BranchSampleFormat, EventRecord, RawEventRecord, RecordType, SampleFormat,
};
use linux_perf_data::{PerfFileReader, PerfFileRecord};
use std::io::Cursor;

/// The contents of a `perf.data` file.
#[derive(Debug, Default)]
pub struct PerfSamples {
    /// The branches.
    pub branches: Branches,
    /// The name and run-time address of the symbol by which perf records where the kernel's text
    /// lies, if the file has it.
    pub kernel: Option<(String, u64)>,
}

/// Reads `perf.data`.
///
/// # Errors
/// The file is damaged, or its samples have no branch stacks.
pub fn data(file: &[u8]) -> Result<PerfSamples> {
    // Kernlane's kernels run on x86-64. The checks below read little-endian numbers.
    ensure!(file.starts_with(b"PERFILE2"), "not a perf.data file of a little-endian machine");
    sections_are_inside(file)?;
    let PerfFileReader { mut perf_file, mut record_iter } =
        PerfFileReader::parse_file(Cursor::new(file)).context("not a readable perf.data file")?;
    let mut samples = PerfSamples::default();
    let (mut all, mut with_stack) = (0u64, 0u64);
    while let Some(record) =
        record_iter.next_record(&mut perf_file).context("the file is damaged or cut off")?
    {
        let PerfFileRecord::EventRecord { record, .. } = record else {
            continue;
        };
        if record.record_type == RecordType::SAMPLE {
            all += 1;
            if let Some(stack) = stack(&record).context("a sample is damaged")? {
                with_stack += 1;
                samples.branches.add_stack(&stack);
            }
        } else if samples.kernel.is_none() && record.record_type == RecordType::MMAP {
            samples.kernel = kernel(&record);
        }
    }
    if with_stack == 0 {
        bail!(
            "none of its {all} samples has a branch stack: record with `perf record -b` on a \
             processor that has branch records"
        );
    }
    Ok(samples)
}

/// The bytes of a `struct perf_event_attr`: from those of the first one (PERF_ATTR_SIZE_VER0) to a
/// page, above which the kernel takes none.
const ATTRIBUTE: std::ops::RangeInclusive<u64> = 64..=4096;
/// The feature HEADER_EVENT_DESC, and those from SIMPLEPERF_FILES on (tools/perf/util/header.h, and
/// simpleperf's record_file.h).
const EVENT_DESCRIPTIONS: u32 = 12;
const SIMPLEPERF: usize = 2;

/// Checks that the sections in the header lie in the file, because the reader allocates as much
/// memory as the header says.
fn sections_are_inside(file: &[u8]) -> Result<()> {
    let number = |at: usize| {
        file.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes)
    };
    let inside = |at: usize| {
        let end =
            number(at).zip(number(at + 8)).and_then(|(offset, size)| offset.checked_add(size));
        end.is_some_and(|end| end <= file.len() as u64)
    };
    // struct perf_file_header has magic, size and attr_size. The offsets and sizes of attrs, data
    // and event_types follow, and then the bits of features.
    let (attribute_size, attributes, data, event_types, features) = (16, 24, 40, 56, 72);
    if number(attribute_size).is_none_or(|size| !ATTRIBUTE.contains(&size)) {
        bail!("its event attributes have the size of no perf's: it is damaged or cut off");
    }
    if ![attributes, data, event_types].into_iter().all(inside) {
        bail!("a section lies outside of the file: it is damaged or cut off");
    }
    // Behind the data stand the offset and the size of each feature's section.
    let table = number(data)
        .zip(number(data + 8))
        .and_then(|(offset, size)| usize::try_from(offset + size).ok());
    let words: Vec<u64> = (0..4).filter_map(|word| number(features + 8 * word)).collect();
    let bits: u32 = words.iter().map(|word| word.count_ones()).sum();
    let Some(table) =
        table.filter(|table| (0..bits as usize).all(|feature| inside(table + 16 * feature)))
    else {
        bail!("the section of a feature lies outside of the file: it is damaged or cut off");
    };
    // The reader would take sizes of lists from them without a check.
    let simpleperf = words.iter().skip(SIMPLEPERF).any(|&word| word != 0);
    if simpleperf || number(event_types + 8) != Some(0) {
        bail!(
            "it was made by simpleperf, or by a perf before 3.8: use perf of the kernel's sources"
        );
    }
    let first = words.first().copied().unwrap_or(0);
    if first >> EVENT_DESCRIPTIONS & 1 == 1 {
        let before = (first & ((1 << EVENT_DESCRIPTIONS) - 1)).count_ones() as usize;
        let (offset, size) = (number(table + 16 * before), number(table + 16 * before + 8));
        let section = offset.zip(size).and_then(|(offset, size)| {
            file.get(usize::try_from(offset).ok()?..usize::try_from(offset + size).ok()?)
        });
        if section.and_then(event_descriptions_are_whole).is_none() {
            bail!("the descriptions of its events are damaged");
        }
    }
    let offset = number(data).and_then(|offset| usize::try_from(offset).ok());
    let records = offset.and_then(|offset| file.get(offset..));
    if !records.zip(number(data + 8)).is_some_and(|(rest, bytes)| traces_are_inside(rest, bytes)) {
        bail!("a trace lies outside of the file: it is damaged or cut off");
    }
    Ok(())
}

/// Records of the tool itself (tools/lib/perf/include/perf/event.h).
const FINISHED_ROUND: u32 = 68;
const AUXTRACE: u32 = 71;

/// Whether the trace of a processor that follows each record AUXTRACE lies in the file. `file`
/// begins at the records, which have `bytes`. Follows them as the reader does, which takes the body
/// of FINISHED_ROUND for the next record. Other damage is the reader's to find.
fn traces_are_inside(file: &[u8], bytes: u64) -> bool {
    let (mut rest, mut read) = (file, 0_u64);
    while read < bytes {
        // struct perf_event_header: type, misc, size.
        let Some(&[a, b, c, d, _, _, low, high]) = rest.first_chunk() else { return true };
        let (kind, size) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([low, high]));
        read = read.saturating_add(size.into());
        let length = if kind == FINISHED_ROUND { 8 } else { size.into() };
        let (Some(record), Some(behind)) = (rest.get(8..length), rest.get(length..)) else {
            return true;
        };
        rest = behind;
        if kind == AUXTRACE {
            let Some(trace) = record.first_chunk().copied().map(u64::from_le_bytes) else {
                return true;
            };
            read = read.saturating_add(trace);
            match usize::try_from(trace).ok().and_then(|trace| rest.get(trace..)) {
                Some(behind) => rest = behind,
                None => return false,
            }
        }
    }
    true
}

/// `None`: a list of the section says that it is longer than the section (struct
/// `header_event_desc` in tools/perf/Documentation/perf.data-file-format.txt).
fn event_descriptions_are_whole(section: &[u8]) -> Option<()> {
    fn number(rest: &mut &[u8]) -> Option<usize> {
        let (first, behind) = rest.split_first_chunk()?;
        *rest = behind;
        usize::try_from(u32::from_le_bytes(*first)).ok()
    }
    fn skip(rest: &mut &[u8], bytes: usize) -> Option<()> {
        *rest = rest.get(bytes..)?;
        Some(())
    }
    let mut rest = section;
    let (events, attribute) = (number(&mut rest)?, number(&mut rest)?);
    if events > 0 && !ATTRIBUTE.contains(&(attribute as u64)) || events > section.len() {
        return None;
    }
    for _ in 0..events {
        skip(&mut rest, attribute)?;
        let ids = number(&mut rest)?;
        let name = number(&mut rest)?;
        skip(&mut rest, name)?;
        skip(&mut rest, ids.checked_mul(8)?)?;
    }
    Some(())
}

/// The mapping `[kernel.kallsyms]_text`. Its page offset is the symbol's run-time address
/// (tools/perf/util/machine.c).
fn kernel(record: &RawEventRecord) -> Option<(String, u64)> {
    let Ok(EventRecord::Mmap(mapping)) = record.parse() else {
        return None;
    };
    let path = mapping.path.as_slice();
    let symbol = std::str::from_utf8(&path).ok()?.strip_prefix("[kernel.kallsyms]")?;
    (!symbol.is_empty()).then(|| (symbol.to_owned(), mapping.page_offset))
}

/// A sample's branch stack, the latest branch first. `None` if its event has none.
fn stack(record: &RawEventRecord) -> Result<Option<Vec<(u64, u64)>>> {
    let format = record.parse_info.sample_format;
    if !format.contains(SampleFormat::BRANCH_STACK) {
        return Ok(None);
    }
    if format.contains(SampleFormat::READ) {
        bail!(
            "Kernlane does not support samples with counters; record without reading groups of \
             counters"
        );
    }
    let bytes = record.data.as_slice();
    let mut fields = SampleFields(&bytes);
    let before = [
        SampleFormat::IDENTIFIER,
        SampleFormat::IP,
        SampleFormat::TID,
        SampleFormat::TIME,
        SampleFormat::ADDR,
        SampleFormat::ID,
        SampleFormat::STREAM_ID,
        SampleFormat::CPU,
        SampleFormat::PERIOD,
    ];
    for _ in before.into_iter().filter(|&field| format.contains(field)) {
        fields.number()?;
    }
    if format.contains(SampleFormat::CALLCHAIN) {
        let length = fields.number()?;
        fields.skip(length.saturating_mul(8))?;
    }
    if format.contains(SampleFormat::RAW) {
        let length = fields.half()?;
        fields.skip(u64::from(length))?;
    }
    let entries = fields.number()?;
    let indexed = record.parse_info.branch_sample_format.contains(BranchSampleFormat::HW_INDEX);
    if indexed {
        fields.number()?;
    }
    let mut stack = Vec::new();
    for _ in 0..entries {
        let (from, to) = (fields.number()?, fields.number()?);
        fields.number()?;
        stack.push((from, to));
    }
    Ok(Some(stack))
}

/// Little-endian fields that are taken from the front.
struct SampleFields<'a>(&'a [u8]);

impl SampleFields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>().context("the sample ends too early")?;
        self.0 = rest;
        Ok(*field)
    }

    fn number(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn half(&mut self) -> Result<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        let rest = usize::try_from(bytes).ok().and_then(|bytes| self.0.get(bytes..));
        self.0 = rest.context("the sample ends too early")?;
        Ok(())
    }
}

/// Reads the output of `perf script -F brstack`. Each line is a stack, with the latest branch
/// first. A branch is FROM/TO/FLAGS….
///
/// # Errors
/// A line has a word that is not a branch, or no line has a branch.
pub fn script(text: &str) -> Result<Branches> {
    let mut branches = Branches::default();
    for (number, line) in text.lines().enumerate() {
        let words = line.split_whitespace().filter(|word| word.contains('/'));
        let stack: Option<Vec<(u64, u64)>> = words.map(branch).collect();
        let stack = stack.with_context(|| {
            format!("line {}: a branch is FROM/TO/…, both in hex with 0x", number + 1)
        })?;
        branches.add_stack(&stack);
    }
    if branches.taken.is_empty() {
        bail!("no line has a branch: print them with `perf script -F brstack`");
    }
    Ok(branches)
}

fn branch(word: &str) -> Option<(u64, u64)> {
    let mut parts = word.split('/');
    let mut address = || u64::from_str_radix(parts.next()?.strip_prefix("0x")?, 16).ok();
    Some((address()?, address()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::random::SplitMix64;

    /// A perf.data file with one event (samples of IP and branch stack), one kernel mapping and one
    /// sample.
    fn file(stack: &[(u64, u64)]) -> Vec<u8> {
        let words =
            |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
        let record = |kind: u32, misc: u16, body: Vec<u8>| {
            let mut bytes = kind.to_le_bytes().to_vec();
            bytes.extend(misc.to_le_bytes());
            bytes.extend((body.len() as u16 + 8).to_le_bytes());
            bytes.extend(body);
            bytes
        };
        let mut mapping = [u32::MAX.to_le_bytes(), 0u32.to_le_bytes()].concat();
        mapping.extend(words(&[0xffff_ffff_9000_0000, 0x100_0000, 0xffff_ffff_9000_0000]));
        mapping.extend(b"[kernel.kallsyms]_text\0\0");
        let mut sample = words(&[0xffff_ffff_9000_0010, stack.len() as u64]);
        stack.iter().for_each(|&(from, to)| sample.extend(words(&[from, to, 0])));
        let data = [record(1, 1, mapping), record(9, 1, sample)].concat();
        // struct perf_event_attr of 112 bytes: type, size, config, period, sample_type, …,
        // branch_sample_type at 72.
        let mut attr = vec![0; 112];
        attr[4..8].copy_from_slice(&112u32.to_le_bytes());
        attr[16..24].copy_from_slice(&1u64.to_le_bytes());
        attr[24..32].copy_from_slice(&(1u64 | 1 << 11).to_le_bytes());
        attr[72..80].copy_from_slice(&8u64.to_le_bytes());
        attr.extend(words(&[0, 0]));
        let mut header = b"PERFILE2".to_vec();
        let attrs_at = 104;
        let data_at = attrs_at + attr.len() as u64;
        header.extend(words(&[
            104,
            attr.len() as u64,
            attrs_at,
            attr.len() as u64,
            data_at,
            data.len() as u64,
        ]));
        header.extend(words(&[0; 6]));
        [header, attr, data].concat()
    }

    #[test]
    fn branch_stacks_are_read_from_perf_data() {
        let samples = data(&file(&[(0x30, 0x40), (0x10, 0x20)])).unwrap();
        assert_eq!(
            samples.branches.taken.keys().copied().collect::<Vec<_>>(),
            [(0x10, 0x20), (0x30, 0x40)]
        );
        assert_eq!(samples.branches.straight.keys().copied().collect::<Vec<_>>(), [(0x20, 0x30)]);
        assert_eq!(samples.kernel, Some(("_text".to_owned(), 0xffff_ffff_9000_0000)));
    }

    #[test]
    fn damaged_files_are_refused_or_read_and_never_panic() {
        let whole = file(&[(0x30, 0x40), (0x10, 0x20)]);
        let mut random = SplitMix64::new(1);
        for _ in 0..3000 {
            let mut bytes = whole.clone();
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next_u64() as u8;
            bytes.truncate(bytes.len() - (random.below(4) * random.below(60)) as usize);
            if let Ok(samples) = data(&bytes) {
                assert!(samples.branches.total() <= 2);
            }
        }
        assert!(data(b"no perf.data").is_err());
        // No size of the attributes, by which the reader would divide.
        let mut bytes = whole.clone();
        bytes[16..24].fill(0);
        assert!(data(&bytes).is_err_and(|error| error.to_string().contains("attributes")));
        // Types of events, whose lists the reader would believe.
        let mut bytes = whole.clone();
        bytes[64] = 8;
        assert!(data(&bytes).is_err_and(|error| error.to_string().contains("before 3.8")));
    }

    #[test]
    fn descriptions_of_events_hold_their_lists() {
        let mut section = [1_u32.to_le_bytes(), 64_u32.to_le_bytes()].concat();
        section.extend([0; 64]);
        for number in [1_u32, 4] {
            section.extend(number.to_le_bytes());
        }
        section.extend(b"e\0\0\0");
        section.extend([0; 8]);
        assert!(event_descriptions_are_whole(&section).is_some());
        assert!(
            (0..section.len()).all(|end| event_descriptions_are_whole(&section[..end]).is_none())
        );
        let trace = |bytes: u8| [71, 0, 0, 0, 0, 0, 16, 0, bytes, 0, 0, 0, 0, 0, 0, 0, 9];
        assert!(traces_are_inside(&trace(1), 17) && !traces_are_inside(&trace(2), 17));
        // The records end within the last one, and its body lies in the file.
        assert!(!traces_are_inside(&trace(2), 8));
        let round = [68, 0, 0, 0, 0, 0, 16, 0];
        assert!(!traces_are_inside(&[&round[..], &trace(2)].concat(), 24));
        section[72] = 255;
        assert!(event_descriptions_are_whole(&section).is_none());
    }

    #[test]
    fn branch_stacks_are_read_from_the_output_of_perf_script() {
        let text = "  0x30/0x40/P/-/-/2/COND/-  0x10/0x20/P/-/-/0\n\n 0x10/0x20/M/-/-/0\n";
        let branches = script(text).unwrap();
        assert_eq!(branches.taken, [((0x10, 0x20), 2), ((0x30, 0x40), 1)].into());
        assert_eq!(branches.straight, [((0x20, 0x30), 1)].into());
        assert!(script("").is_err());
        let error = script("0x1/0x2/P\nnothing/here").unwrap_err();
        assert!(error.to_string().starts_with("line 2:"), "{error}");
    }
}
