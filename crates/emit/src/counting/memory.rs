//! The counts of a kernel that runs as a process: User Mode Linux.
//!
//! Input: a process and the program that it runs. Output: the counts. The process is stopped while
//! its memory is read, so that all counts are of one moment.

use crate::counting::NoCounts;
use crate::object::COUNTS;
use anyhow::{Context, Result, ensure};
use object::{Object, ObjectSymbol};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Where the counts lie in the memory of a counting kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    address: u64,
    /// Bytes.
    size: u64,
}

/// The counts of the process `pid`, one per counter, in the order of the list of counters. The
/// process runs the counting kernel `vmlinux`, which has `counters` counters.
///
/// # Errors
/// There is no such process, it may not be read, or it runs something else; the kernel has another
/// number of counters.
pub fn read(pid: u32, vmlinux: &Path, counters: usize) -> Result<Vec<u64>> {
    let bytes =
        fs::read(vmlinux).with_context(|| format!("{}: cannot be read", vmlinux.display()))?;
    let room = room(&bytes).with_context(|| vmlinux.display().to_string())?;
    ensure!(
        room.size / 8 == counters as u64,
        "{}: has {} counters, but {counters} are listed",
        vmlinux.display(),
        room.size / 8
    );
    let process = Path::new("/proc").join(pid.to_string());
    let program = fs::read(process.join("exe")).with_context(|| {
        format!("process {pid}: its program cannot be read; does it still run?")
    })?;
    ensure!(
        program == bytes,
        "process {pid} runs {}, which is not {}",
        fs::read_link(process.join("exe")).unwrap_or_default().display(),
        vmlinux.display()
    );
    let stopped = Stopped::new(pid)?;
    let memory = File::open(process.join("mem"))
        .with_context(|| format!("process {pid}: its memory cannot be opened"))?;
    let mut counts = vec![0; room.size as usize];
    memory
        .read_exact_at(&mut counts, room.address)
        .with_context(|| format!("process {pid}: its memory cannot be read"))?;
    drop(stopped);
    let (words, _) = counts.as_chunks::<8>();
    Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

/// Reads from the symbol table where the counts lie.
fn room(vmlinux: &[u8]) -> Result<Room> {
    let elf = object::File::parse(vmlinux).context("not an ELF file")?;
    let symbol = elf.symbol_by_name(COUNTS).ok_or(NoCounts::NoCounters)?;
    ensure!(
        elf.kind() == object::ObjectKind::Executable && symbol.size() > 0 && symbol.size() % 8 == 0,
        "is not a program whose counters could be read from a process"
    );
    Ok(Room { address: symbol.address(), size: symbol.size() })
}

/// A stopped process. Dropping this continues it.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: u32) -> Result<Stopped> {
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let id = id.with_context(|| format!("{pid} is not a number of a process"))?;
        kill_process(id, Signal::STOP)
            .with_context(|| format!("process {pid}: cannot be stopped"))?;
        let stopped = Stopped(id);
        for _ in 0..1000 {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
                .with_context(|| format!("process {pid}: has ended"))?;
            // The state stands behind the name, which may hold anything.
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            if matches!(state, Some('T' | 't')) {
                return Ok(stopped);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        anyhow::bail!("process {pid}: does not stop")
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // An error means that the process has ended.
        let _ = kill_process(self.0, Signal::CONT);
    }
}
