//! Boots a kernel under QEMU, waits until its guest has done its work, and gives back what it printed.
//!
//! Takes a boot image and a root file system made by `initramfs`; gives an `Outcome`. Prints nothing. QEMU never outlives the call, not
//! even when the caller is killed.

use crate::guest::qemu::{CONSOLE, OUTPUT, Qemu};
use crate::interrupt;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub struct Boot {
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    /// More words for the kernel's command line.
    pub command_line: Vec<String>,
    pub memory_mb: u32,
    /// More than one run in turns on one host thread.
    pub cpus: u32,
    /// As QEMU's `-cpu` takes it.
    pub cpu_model: String,
    pub kaslr: bool,
    pub clock: Clock,
    pub plugin: Option<Plugin>,
    /// Of the host's clock; then QEMU is killed.
    pub time_limit: Duration,
}

/// What the guest's time is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The host's: fast, never twice the same.
    Host,
    /// Executed instructions: the same guest does the same, instruction by instruction, every time.
    Instructions { seed: u64 },
}

/// A plugin for QEMU. The library must understand the arguments; values may hold any character.
#[derive(Clone, Debug)]
pub struct Plugin {
    pub library: PathBuf,
    pub arguments: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// `/kernlane/main` ended with this status.
    Exited(i32),
    /// The machine stopped before `/kernlane/main` ended: a panic, or a kernel that did not boot.
    Stopped,
    TimeLimit,
}

#[derive(Clone, Debug)]
pub struct Outcome {
    pub end: End,
    /// The kernel's log, carriage returns removed.
    pub console: String,
    /// What `/kernlane/main` printed.
    pub output: String,
    /// What QEMU and its plugin wrote to standard error.
    pub qemu: String,
    pub elapsed: Duration,
}

/// The CPU of recordings: everything that QEMU emulates, but not the string operations that QEMU would emulate byte by byte.
pub const CPU_OF_RECORDINGS: &str = "max,-erms,-fsrm";

const POLL: Duration = Duration::from_millis(50);
const MESSAGES: &str = "qemu.log";

impl Boot {
    /// One CPU, 512 MB, no KASLR, the host's clock, no plugin, ten minutes.
    pub fn new(kernel: PathBuf, initramfs: PathBuf) -> Boot {
        Boot {
            kernel,
            initramfs,
            command_line: Vec::new(),
            memory_mb: 512,
            cpus: 1,
            cpu_model: CPU_OF_RECORDINGS.into(),
            kaslr: false,
            clock: Clock::Host,
            plugin: None,
            time_limit: Duration::from_secs(600),
        }
    }

    /// Boots and waits. `directory` receives `console.log`, `output.log` and `qemu.log`. `watch` is told, a few times a second, what the
    /// guest last said it was doing.
    ///
    /// # Errors
    /// QEMU cannot be started, rejects the command line, or is killed by a signal that the caller did not send; the user interrupts.
    /// A guest that fails is no error but an `Outcome`.
    pub fn run(&self, qemu: &Qemu, directory: &Path, watch: &mut dyn FnMut(&str)) -> Result<Outcome> {
        let messages = directory.join(MESSAGES);
        let log = File::create(&messages).with_context(|| format!("making {}", messages.display()))?;
        let started = Instant::now();
        let mut command = qemu.command(self, directory)?;
        // In a group of its own, so that Ctrl-C on the terminal reaches only the tool, which then ends QEMU.
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        // SAFETY: between fork and exec only one system call is made, which is safe there.
        unsafe {
            command.pre_exec(|| {
                Ok(rustix::process::set_parent_process_death_signal(Some(
                    rustix::process::Signal::KILL,
                ))?)
            });
        }
        let mut child = Running(command.spawn().with_context(|| format!("running {}", qemu.program.display()))?);
        let status = self.wait(&mut child.0, started, directory, watch)?;
        let elapsed = started.elapsed();

        let console = read_text(&directory.join(CONSOLE))?;
        let output = read_text(&directory.join(OUTPUT))?;
        let qemu = read_text(&messages)?;
        let end = match (status, exit_status(&console)) {
            (_, Some(code)) => End::Exited(code),
            (None, None) => End::TimeLimit,
            (Some(status), None) if status.success() => End::Stopped,
            (Some(status), None) => anyhow::bail!("QEMU ended with {status}: {}", last_lines(&qemu, 5)),
        };
        Ok(Outcome {
            end,
            console,
            output,
            qemu,
            elapsed,
        })
    }

    /// `None` when the time limit has been reached.
    fn wait(&self, child: &mut Child, started: Instant, directory: &Path, watch: &mut dyn FnMut(&str)) -> Result<Option<ExitStatus>> {
        let mut log = Log::new(directory.join(CONSOLE));
        loop {
            if let Some(status) = child.try_wait().context("waiting for QEMU")? {
                return Ok(Some(status));
            }
            interrupt::check()?;
            if started.elapsed() >= self.time_limit {
                interrupt::kill(child);
                return Ok(None);
            }
            log.follow()?;
            watch(&log.said);
            std::thread::sleep(POLL);
        }
    }
}

/// Kills QEMU when the call is left early.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        interrupt::kill(&mut self.0);
    }
}

/// The console as it grows: what the guest last said about itself.
struct Log {
    path: PathBuf,
    position: u64,
    partial: Vec<u8>,
    said: String,
}

impl Log {
    fn new(path: PathBuf) -> Log {
        Log {
            path,
            position: 0,
            partial: Vec::new(),
            said: "boot".into(),
        }
    }

    fn follow(&mut self) -> Result<()> {
        // QEMU makes the file.
        let Ok(mut file) = File::open(&self.path) else { return Ok(()) };
        file.seek(SeekFrom::Start(self.position))?;
        self.position += file.read_to_end(&mut self.partial).context("reading the guest's console")? as u64;
        if let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') {
            let lines = String::from_utf8_lossy(&self.partial[..end]).into_owned();
            self.partial.drain(..=end);
            if let Some(said) = lines.lines().rev().find_map(said) {
                self.said = said.trim_start_matches("phase ").to_string();
            }
        }
        Ok(())
    }
}

/// The text of a line that the guest's own scripts have put into the kernel's log: `[    1.234567] kernlane: TEXT`, where a kernel
/// that names callers has `[    T1]` behind the time.
fn said(line: &str) -> Option<&str> {
    let (stamp, text) = line.trim_end().split_once("] kernlane: ")?;
    stamp.starts_with('[').then_some(text)
}

fn exit_status(console: &str) -> Option<i32> {
    console.lines().rev().find_map(said)?.strip_prefix("exit ")?.parse().ok()
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).replace('\r', ""))
}

/// The end of a text, for an error message.
pub fn last_lines(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_is_the_guests_own_last_word() {
        let console = "[    0.1] Linux\n[    4.5] kernlane: booted\n[    9.0] kernlane: exit 3\n[    9.1] reboot: Restarting system\n";
        assert_eq!(exit_status(console), Some(3));
        assert_eq!(exit_status("[    4.5] kernlane: booted\n"), None);
        assert_eq!(exit_status("kernlane: exit 0\n"), None, "not from the kernel's log");
        assert_eq!(exit_status("[ 1.0] kernlane: exit 0\n[ 2.0] kernlane: phase check\n"), None);
        assert_eq!(exit_status(""), None);
    }

    #[test]
    fn the_log_is_followed_across_partial_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("console.log");
        let mut log = Log::new(path.clone());
        log.follow().unwrap();
        assert_eq!(log.said, "boot");
        std::fs::write(&path, "[ 1.0] kernlane: phase set-up\n[ 2.0] kernlane: pha").unwrap();
        log.follow().unwrap();
        assert_eq!(log.said, "set-up");
        std::fs::write(&path, "[ 1.0] kernlane: phase set-up\n[ 2.0] kernlane: phase counting\n[ 3.0] x\n").unwrap();
        log.follow().unwrap();
        assert_eq!(log.said, "counting");
    }

    #[test]
    fn last_lines_of_short_and_long_texts() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 5), "a");
        assert_eq!(last_lines("", 5), "");
    }
}
