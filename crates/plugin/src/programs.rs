//! Follows which files the guest's processes map, and which tasks run in which process.
//!
//! Input: the registers and the guest's memory at the entry of `perf_event_mmap(vma)`, which the
//! kernel calls for each new mapping, and the running task. Output: lines of a text file, with tabs
//! between their fields: `map`, the process, the task's name, begin, end and offset in the file in
//! hex, the path (empty: memory without a file); and `task`, the pid, the process, the task's name.
//! Each line is written once.

use crate::arguments::ProgramPlaces;
use crate::qemu::{Register, read_memory};
use crate::tasks::TaskIdentity;
use crate::warn;
use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// The longest name of a file, in bytes, and the most directories above it.
const LONGEST: usize = 255;
const DEEPEST: usize = 32;

/// Follows mappings, before a recording and during it.
pub(crate) struct ProgramWatch {
    pub places: ProgramPlaces,
    argument: Option<Register>,
    out: File,
    /// What was written.
    known: HashSet<String>,
    failed: bool,
}

impl ProgramWatch {
    /// # Errors
    /// The file cannot be created.
    pub(crate) fn new(places: ProgramPlaces, out: &Path) -> std::io::Result<ProgramWatch> {
        let out = File::create(out)?;
        Ok(ProgramWatch { places, argument: None, out, known: HashSet::new(), failed: false })
    }

    /// Reads the mapping at the entry of the function. Must be called in a callback that reads
    /// registers.
    pub(crate) fn mapped(&mut self, task: TaskIdentity) {
        self.argument = self.argument.or_else(|| Register::find(c"rdi"));
        let Some(vma) = self.argument.and_then(Register::value) else { return };
        let word = |at: u64| read_memory(vma.wrapping_add(at)).map(u64::from_le_bytes);
        let ProgramPlaces { start, end, pgoff, file, .. } = self.places;
        let read = || Some((word(start)?, word(end)?, word(pgoff)?, word(file)?));
        let Some((start, end, pgoff, file)) = read() else { return };
        let offset = pgoff.wrapping_mul(4096);
        let path = if file == 0 { Some(String::new()) } else { self.path(file) };
        if let (Some(process), Some(path)) = (self.process(&task), path) {
            let name = comm(&task);
            self.write(format!("map\t{process}\t{name}\t{start:x}\t{end:x}\t{offset:x}\t{path}"));
        }
    }

    /// A task runs.
    pub(crate) fn runs(&mut self, task: TaskIdentity) {
        if let (Some(pid), Some(process)) = (task.1, self.process(&task)) {
            self.write(format!("task\t{pid}\t{process}\t{}", comm(&task)));
        }
    }

    /// The number of the process that a task belongs to.
    fn process(&self, task: &TaskIdentity) -> Option<u32> {
        read_memory(task.0.0.wrapping_add(self.places.tgid)).map(u32::from_le_bytes)
    }

    /// The path of a `struct file` from the root of its file system on, without a slash in front.
    fn path(&self, file: u64) -> Option<String> {
        let word = |at: u64| read_memory(at).map(u64::from_le_bytes);
        let mut entry = word(file.wrapping_add(self.places.dentry))?;
        let mut parts = Vec::new();
        for _ in 0..DEEPEST {
            let parent = word(entry.wrapping_add(self.places.parent))?;
            if parent == entry {
                break;
            }
            parts.push(text(word(entry.wrapping_add(self.places.name))?)?);
            entry = parent;
        }
        parts.reverse();
        let path = parts.join("/");
        (!path.is_empty() && !path.contains(char::is_control)).then_some(path)
    }

    fn write(&mut self, line: String) {
        if self.failed || self.known.contains(&line) {
            return;
        }
        if let Err(error) = writeln!(self.out, "{line}") {
            warn(&format!("mappings of programs cannot be written: {error}"));
            self.failed = true;
        }
        self.known.insert(line);
    }
}

/// The name of a task. Bytes that would break a line are replaced.
fn comm((_, _, name): &TaskIdentity) -> String {
    let length = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..length]).replace(char::is_control, "?")
}

/// The text at an address, up to a NUL.
fn text(addr: u64) -> Option<String> {
    let mut bytes = Vec::new();
    while bytes.len() <= LONGEST {
        match read_memory::<1>(addr.wrapping_add(bytes.len() as u64))? {
            [0] => return String::from_utf8(bytes).ok(),
            [byte] => bytes.push(byte),
        }
    }
    None
}
