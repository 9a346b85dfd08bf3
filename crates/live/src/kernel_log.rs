//! The kernel's complaints about installed code: an oops, a warning or a lockup whose instruction
//! pointer or stack lies in a copy, or in Kernlane's own module.
//!
//! Input: the records of `/dev/kmsg`, or the text of a log. Output: the first complaint, by the
//! lines that show it. The kernel prints a report as a first line ([`BEGINNINGS`]), then the
//! instruction pointer and the stack. Copies are known by their names, which kallsyms gives them:
//! `NAME.kernlane+0x12/0x80 [kernlane_1]`. This module changes nothing.

use anyhow::{Context, Result};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// What the first line of a report contains. A task that waits for long (`blocked for more than`)
/// is not among them: tasks may sleep in a copy for as long as what they wait for takes.
const BEGINNINGS: [&str; 12] = [
    "WARNING: ",
    "BUG: ",
    "kernel BUG at ",
    "Oops",
    "general protection fault",
    "invalid opcode",
    "divide error",
    "stack segment",
    "double fault",
    "detected stall",
    "hard LOCKUP",
    "UBSAN: ",
];
/// What the last line of a report contains.
const END: &str = "---[ end ";
/// A report without a last line has at most this number of lines.
const MOST_LINES: usize = 200;
/// What marks an entry of a stack that may be left from earlier calls.
const UNRELIABLE: &str = "? ";
/// What the names of copies end with, and what the names of Kernlane's modules begin with.
const COPY: &str = ".kernlane";
const MODULE: &str = "[kernlane";

/// The lines that show that installed code is at fault: the report's first one, and the one that
/// names the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The first line of the kernel's report.
    pub report: String,
    /// The line of the report that names installed code; the same line if the first one does.
    pub place: String,
}

impl std::fmt::Display for Complaint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.report == self.place {
            true => f.write_str(&self.report),
            false => write!(f, "{} ({})", self.report, self.place),
        }
    }
}

/// Finds complaints in lines that come one after the other.
#[derive(Debug, Default)]
pub struct Complaints {
    /// The first line of the present report, and the number of lines since.
    report: Option<(String, usize)>,
}

impl Complaints {
    /// Reads the next line, without its time and level. Gives a complaint when the line shows one;
    /// the rest of that report then gives none.
    pub fn add(&mut self, line: &str) -> Option<Complaint> {
        let line = line.trim();
        if BEGINNINGS.iter().any(|beginning| line.contains(beginning)) {
            // An oops has several such lines. The first one says most.
            self.report.get_or_insert_with(|| (line.to_owned(), 0));
        }
        let (report, lines) = self.report.as_mut()?;
        *lines += 1;
        if names_installed(line) {
            let report = std::mem::take(report);
            self.report = None;
            return Some(Complaint { report, place: line.to_owned() });
        }
        if line.contains(END) || *lines > MOST_LINES {
            self.report = None;
        }
        None
    }
}

/// Whether the line names a place in installed code: by its first symbol with an offset, so that
/// names of processes do not matter. An instruction pointer and a stack's entry have one each.
fn names_installed(line: &str) -> bool {
    if line.starts_with(UNRELIABLE) {
        return false;
    }
    let mut words = line.split([' ', ',', '(', ')']);
    let Some(place) = words.find_map(symbol) else { return false };
    place.ends_with(COPY) || words.next().is_some_and(|module| module.starts_with(MODULE))
}

/// The symbol of `SYMBOL+0xOFFSET/0xSIZE`, in front of which a segment may stand (`0010:`).
fn symbol(word: &str) -> Option<&str> {
    let (name, place) = word.rsplit_once("+0x")?;
    let (offset, size) = place.split_once("/0x")?;
    let is_hex =
        |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let name = name.split_once(':').map_or(name, |(_, name)| name);
    (is_hex(offset) && is_hex(size)).then_some(name)
}

/// The text of a record of `/dev/kmsg`: `LEVEL,NUMBER,MICROSECONDS,FLAGS;TEXT`, then lines of
/// further facts, each behind a space. `None` if the text is not a record.
pub fn text_of_record(record: &str) -> Option<&str> {
    let (head, text) = record.split_once(';')?;
    head.starts_with(|first: char| first.is_ascii_digit()).then_some(())?;
    text.lines().next()
}

/// The first complaint in the text of a log, such as one that a crashed kernel left: lines may
/// begin with a level and a time (`<4>[   12.345678] `).
pub fn complaint_in(log: &str) -> Option<Complaint> {
    let mut complaints = Complaints::default();
    log.lines().find_map(|line| complaints.add(without_time(line)))
}

fn without_time(line: &str) -> &str {
    let line = match line.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
        Some((level, rest)) if level.bytes().all(|byte| byte.is_ascii_digit()) => rest,
        _ => line,
    };
    let is_time = |time: &str| {
        time.trim().bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') && time.contains('.')
    };
    let mut line = line.trim_start();
    // Behind the time the CPU or the task may stand in brackets of its own.
    while let Some((head, rest)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let caller = head.trim().strip_prefix(['T', 'C']);
        let is_caller =
            caller.is_some_and(|id| id.bytes().all(|byte| byte.is_ascii_digit()) && !id.is_empty());
        if !is_time(head) && !is_caller {
            break;
        }
        line = rest.trim_start();
    }
    line
}

/// Where crashed kernels leave their logs: what the firmware kept, where systemd moves it, and what
/// kdump writes.
const CRASHES: [&str; 3] = ["/sys/fs/pstore", "/var/lib/systemd/pstore", "/var/crash"];

/// The complaint of a kernel that crashed after this time (seconds since 1970), if it left its log
/// on this machine and the log holds one.
pub fn crash_since(since: u64) -> Option<Complaint> {
    let since = SystemTime::UNIX_EPOCH + Duration::from_secs(since);
    CRASHES.iter().find_map(|place| crash_in(Path::new(place), since, 2))
}

/// Looks at the logs in a directory and, down to `depth` levels, below it. What cannot be read is
/// no crash: most machines have none of these directories.
fn crash_in(directory: &Path, since: SystemTime, depth: u32) -> Option<Complaint> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().find_map(|path| {
        let facts = std::fs::symlink_metadata(path).ok()?;
        if facts.is_dir() {
            return depth.checked_sub(1).and_then(|depth| crash_in(path, since, depth));
        }
        let is_log = path.file_name()?.to_str()?.starts_with("dmesg") && facts.is_file();
        let is_new = facts.modified().is_ok_and(|written| written >= since);
        (is_log && is_new && facts.len() <= MOST_LOG).then_some(())?;
        complaint_in(&String::from_utf8_lossy(&std::fs::read(path).ok()?))
    })
}

/// More bytes than a kernel's log has.
const MOST_LOG: u64 = 64 << 20;

/// The log of the running kernel, from now on.
pub struct KernelLog {
    file: File,
    complaints: Complaints,
}

/// More bytes than a record has.
const RECORD: usize = 8192;

impl KernelLog {
    /// Opens the log behind its last record.
    ///
    /// # Errors
    /// This is not root, or the kernel shows its log to nobody.
    pub fn open() -> Result<KernelLog> {
        const KMSG: &str = "/dev/kmsg";
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file = File::options().read(true).custom_flags(nonblocking).open(KMSG);
        let mut file = file.with_context(|| format!("opening {KMSG}"))?;
        file.seek(SeekFrom::End(0)).with_context(|| format!("reading {KMSG}"))?;
        Ok(KernelLog { file, complaints: Complaints::default() })
    }

    /// The next complaint that came since the last call, or `None` when `patience` is over.
    ///
    /// # Errors
    /// The log cannot be read, or Ctrl-C came.
    pub fn next(&mut self, patience: Duration) -> Result<Option<Complaint>> {
        const POLL: Duration = Duration::from_millis(200);
        let begun = Instant::now();
        loop {
            if let Some(complaint) = self.read()? {
                return Ok(Some(complaint));
            }
            host::interrupt::check()?;
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(left.min(POLL));
        }
    }

    /// Reads the records that are there, up to a complaint.
    fn read(&mut self) -> Result<Option<Complaint>> {
        let mut record = vec![0; RECORD];
        loop {
            let count = match self.file.read(&mut record) {
                Ok(0) => return Ok(None),
                Ok(count) => count,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => return Ok(None),
                    // Records were overwritten before they were read, or a signal came.
                    Some(Errno::PIPE | Errno::INTR) => continue,
                    _ => return Err(error).context("reading the kernel's log"),
                },
            };
            let record = String::from_utf8_lossy(&record[..count]);
            if let Some(complaint) =
                text_of_record(&record).and_then(|line| self.complaints.add(line))
            {
                return Ok(Some(complaint));
            }
        }
    }
}

#[cfg(test)]
mod tests;
