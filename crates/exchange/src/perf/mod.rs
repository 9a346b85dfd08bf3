//! Reads branch stacks of perf: `perf.data` of `perf record -b`, or the text of `perf script`.
//!
//! Output: branches by run-time addresses, and the address at which the kernel ran. Each form that
//! perf writes is read: a file, what came through a pipe, the directory of `--threads`, compressed
//! records, and what a killed perf left. Stacks that do not hold every branch are not used.
//! The order of the samples is not needed, and not kept.

mod build_id;
mod events;
mod fields;
mod header;
mod records;
mod script;
#[cfg(test)]
mod tests;

pub use script::script;

use super::branches::Branches;
use anyhow::{Context, Result, bail};
use events::{Event, Events};
use fields::Fields;
use header::{Header, Written, numbers};
use image::BuildId;
use records::{End, Record, kind};
use std::path::Path;

/// The advice for recording every branch of the kernel.
pub(super) const RECORD: &str = "record with `perf record -b -a -e cycles:k -- sleep 10`";

/// The branches that perf sampled.
#[derive(Debug, Default)]
pub struct PerfSamples {
    /// The branches.
    pub branches: Branches,
    /// The name and run-time address of the symbol by which perf records where the kernel's text
    /// lies, if the file has it.
    pub kernel: Option<(String, u64)>,
    /// The build id of the kernel, if the file has it.
    pub build_id: Option<BuildId>,
    /// What was left out or is missing. Each note is a clause without a stop.
    pub notes: Vec<String>,
}

/// Whether a file is `perf.data`.
pub fn is_perf_data(file: &[u8]) -> bool {
    header::is_perf_data(file)
}

/// Reads `perf.data`.
///
/// # Errors
/// The file is damaged, its samples have no branch stacks, or the stacks do not hold every branch.
pub fn data(file: &[u8]) -> Result<PerfSamples> {
    let mut reader = SampleReader::default();
    reader.file(file)?;
    reader.finish()
}

/// Reads the directory that `perf record --threads` or `--kcore` writes: the file `data` has the
/// header, and each `data.N` has records of some CPUs.
///
/// # Errors
/// As [`data`], or a file cannot be read.
pub fn directory(path: &Path) -> Result<PerfSamples> {
    let first = path.join("data");
    let mut reader = SampleReader::default();
    let bytes = std::fs::read(&first).with_context(|| first.display().to_string())?;
    reader.file(&bytes).with_context(|| first.display().to_string())?;
    let mut parts = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let part = entry?.path();
        let name = part.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let number = name.strip_prefix("data.").and_then(|number| number.parse::<u32>().ok());
        parts.extend(number.map(|number| (number, part)));
    }
    parts.sort();
    for (_, part) in parts {
        let named = || part.display().to_string();
        let bytes = std::fs::read(&part).with_context(named)?;
        reader.records(&bytes).with_context(named)?;
    }
    reader.finish()
}

/// Collects the samples of a file, or of the files of a directory.
#[derive(Default)]
struct SampleReader {
    events: Events,
    written: Written,
    samples: PerfSamples,
    /// The samples by event, and the samples that belong to no event.
    counts: Vec<u64>,
    unknown: u64,
    stacks: u64,
    entries: u64,
    wrong_path: u64,
    cut_off: bool,
}

impl SampleReader {
    fn file(&mut self, file: &[u8]) -> Result<()> {
        let Header { events, records, written } = header::read(file)?;
        (self.events, self.written) = (events, written);
        self.samples.build_id = build_id::of_data(file);
        self.records(records)
    }

    fn records(&mut self, records: &[u8]) -> Result<()> {
        match (records::each(records, &mut |record| self.record(record))?, self.written) {
            (End::Whole, _) => {}
            (End::CutOff(_), Written::Killed | Written::Piped) => self.cut_off = true,
            (End::CutOff(at), Written::Completely) => {
                bail!("the record at byte {at} of the data has no end: {}", header::DAMAGED)
            }
        }
        Ok(())
    }

    fn record(&mut self, record: Record) -> Result<()> {
        match record.kind {
            kind::HEADER_ATTR if self.written == Written::Piped => {
                self.events.push(piped_event(record.body).with_context(|| {
                    format!("the description of an event: {}", header::DAMAGED)
                })?);
            }
            kind::MMAP | kind::MMAP2 if self.samples.kernel.is_none() => {
                self.samples.kernel = kernel(record);
            }
            kind::SAMPLE => self.sample(record.body)?,
            _ => {}
        }
        Ok(())
    }

    fn sample(&mut self, body: &[u8]) -> Result<()> {
        let Some(index) = self.events.of(body)? else {
            self.unknown += 1;
            return Ok(());
        };
        self.counts.resize(self.events.all().len(), 0);
        self.counts[index] += 1;
        let event = &self.events.all()[index];
        if event.holds_only().is_some() {
            return Ok(());
        }
        if let Some(stack) = event.stack(body)? {
            self.stacks += 1;
            self.wrong_path += stack.wrong_path;
            self.entries += stack.branches.len() as u64 + stack.wrong_path;
            self.samples.branches.add_stack(&stack.branches);
        }
        Ok(())
    }

    /// The samples, or why there are none.
    fn finish(mut self) -> Result<PerfSamples> {
        let all = self.counts.iter().sum::<u64>() + self.unknown;
        let killed = self.written == Written::Killed;
        let only = self.partial();
        if self.stacks == 0 {
            match only.first() {
                Some((what, count)) => bail!(
                    "the branch stacks of its {count} samples hold only {what}, not every branch \
                     that the kernel takes: {RECORD}"
                ),
                None if killed && all == 0 => bail!(
                    "perf was killed before it wrote a sample: record again, and end perf with \
                     Ctrl-C"
                ),
                None if all == 0 => bail!("it has no samples: {RECORD}"),
                None => bail!(
                    "none of its {all} samples has a branch stack: record with `perf record -b` on \
                     a processor that has branch records"
                ),
            }
        }
        if self.entries == 0 {
            bail!(
                "all of its {} branch stacks are empty: record on a processor that has branch \
                 records; most virtual machines have none",
                self.stacks
            );
        }
        let notes = &mut self.samples.notes;
        if killed {
            notes.push(format!(
                "perf was killed before it completed the file: the {all} samples that it had \
                 written are used"
            ));
        } else if self.cut_off {
            notes.push(format!(
                "the file ends within a record: the {all} samples in front of it are used"
            ));
        }
        if self.wrong_path > 0 {
            notes.push(wrong_path(self.wrong_path, self.entries));
        }
        for (what, count) in only {
            notes.push(format!("{count} samples have stacks that hold only {what}: left out"));
        }
        if self.unknown > 0 {
            notes.push(format!("{} samples are of no event of the file: left out", self.unknown));
        }
        Ok(self.samples)
    }

    /// The events whose stacks do not hold every branch: what they hold, and their samples.
    fn partial(&self) -> Vec<(String, u64)> {
        let events = self.events.all().iter().zip(&self.counts);
        let sampled = events.filter(|&(_, &count)| count > 0);
        sampled
            .filter_map(|(event, &count)| Some((event.holds_only()?.to_owned(), count)))
            .collect()
    }
}

/// The note on entries that AMD's processors mark.
fn wrong_path(marked: u64, entries: u64) -> String {
    format!(
        "{marked} of {entries} entries of the branch stacks are of wrong paths, which the \
         processor took back: they are left out"
    )
}

/// The event in a `struct perf_record_header_attr`: its attributes, and behind them its ids.
fn piped_event(body: &[u8]) -> Option<Event> {
    let mut fields = Fields(body);
    fields.word()?;
    let size = fields.word()?;
    let ids = body.get(usize::try_from(size).ok()?..)?;
    Event::read(body, numbers(ids))
}

/// The bits of `misc` for the processor's mode, and the kernel's in them.
const MODE: u16 = 7;
const KERNEL_MODE: u16 = 1;

/// The mapping `[kernel.kallsyms]_text`. Its page offset is the symbol's run-time address
/// (tools/perf/util/machine.c). perf writes it as MMAP, and since 6.17 as MMAP2.
fn kernel(record: Record) -> Option<(String, u64)> {
    let mut fields = Fields(record.body);
    // pid and tid, address, length.
    fields.bytes(24)?;
    let ran_at = fields.number()?;
    if record.kind == kind::MMAP2 {
        // The file's device and inode, or its build id; protection and flags.
        fields.bytes(32)?;
    }
    let path = fields.0.split(|&byte| byte == 0).next()?;
    let symbol = std::str::from_utf8(path).ok()?;
    (record.misc & MODE == KERNEL_MODE).then(|| mapped_symbol(symbol, ran_at))?
}

/// The symbol and address of a mapping of that name, if it is the kernel's. Address 0: perf was not
/// allowed to see addresses.
fn mapped_symbol(name: &str, ran_at: u64) -> Option<(String, u64)> {
    let symbol = name.strip_prefix("[kernel.kallsyms]")?;
    (!symbol.is_empty() && ran_at != 0).then(|| (symbol.to_owned(), ran_at))
}
