//! Boots a kernel under QEMU, waits until its guest has done its work, and gives back what it
//! printed.
//!
//! Takes a boot image and a root file system made by `initramfs`; gives an `Outcome`. Prints
//! nothing. QEMU never outlives the call, not even when the caller is killed.

use crate::configuration::Boot;
use crate::qemu::Qemu;
use crate::state::Keeper;
use anyhow::{Context, Result, anyhow, bail};
use host::interrupt;
use host::recording::Recording;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// `/kernlane/main` ended with this status.
    Exited(i32),
    /// The machine stopped before `/kernlane/main` ended: a panic, or a kernel that did not boot.
    Stopped,
    TimeLimit,
    /// The guest stopped itself, and its state is where it was to be saved.
    Saved,
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
    pub cost: Cost,
}

/// What QEMU took of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// User and system, of all threads, in steps of a clock tick (10 ms).
    pub cpu_time: Duration,
    /// The most memory that was resident at once, the guest's included; looked at a few times a
    /// second.
    pub peak_memory_kb: u64,
}

const POLL: Duration = Duration::from_millis(50);
/// How long a QEMU may take to end that has closed its monitor.
const TO_END: Duration = Duration::from_secs(2);

impl Boot {
    /// Boots and waits. `directory` receives `console.log` and `output.log`. `watch` is told, a few
    /// times a second, what the guest last said it was doing.
    ///
    /// # Errors
    /// QEMU cannot be started, rejects the command line, or is killed by a signal that the caller
    /// did not send; the user interrupts. A guest that fails is no error but an `Outcome`.
    pub fn run(
        &self,
        qemu: &Qemu,
        directory: &Path,
        watch: &mut dyn FnMut(&str),
    ) -> Result<Outcome> {
        let (mut messages, writer) = std::io::pipe().context("making a pipe")?;
        let started = Instant::now();
        let mut command = qemu.command(self, directory)?;
        let keeper =
            self.state.clone().map(|state| Keeper::prepare(state, &mut command)).transpose()?;
        let (keeper, sockets) = keeper.unzip();
        // In a group of its own, so that Ctrl-C on the terminal reaches only the tool, which then
        // ends QEMU.
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
        // SAFETY: between fork and exec only system calls are made, which is safe there.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(
                    rustix::process::Signal::KILL,
                ))?;
                for socket in sockets.iter().flatten() {
                    rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty())?;
                }
                Ok(())
            });
        }
        let child =
            command.spawn().with_context(|| format!("running {}", qemu.program.display()))?;
        // The pipe and the sockets end when only QEMU had their other ends, and QEMU ends.
        drop(command);
        let messages = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            messages.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned())
        });
        let mut running = Running {
            child,
            log: Log::new(directory.join(Recording::CONSOLE)),
            cost: Cost::default(),
            keeper,
            is_saved: false,
        };
        let status = running.wait(started + self.time_limit, watch)?;
        let elapsed = started.elapsed();

        let console = read_text(&directory.join(Recording::CONSOLE));
        let output = read_text(&directory.join(Recording::OUTPUT));
        let messages = messages
            .join()
            .map_err(|_| anyhow!("the thread that reads QEMU's messages has panicked"))?;
        let qemu = messages.context("reading QEMU's messages")?;
        if let Some(status) = status.filter(|status| !status.success()) {
            bail!("QEMU ended with {status}: {}", last_lines(&qemu, 5));
        }
        // Only a QEMU that has started has made these files.
        let (console, output) = (console?, output?);
        let end = match (status, exit_status(&console)) {
            _ if running.is_saved => End::Saved,
            (_, Some(code)) => End::Exited(code),
            (None, None) => End::TimeLimit,
            (Some(_), None) => End::Stopped,
        };
        Ok(Outcome { end, console, output, qemu, elapsed, cost: running.cost })
    }
}

/// Whether the child has ended, without taking its exit status: until that is taken, `/proc` still
/// knows its CPU time.
fn has_ended(child: &Child) -> Result<bool> {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let id = WaitId::Pid(Pid::from_child(child));
    Ok(waitid(id, options).context("waiting for QEMU")?.is_some())
}

impl Cost {
    /// Reads what the process has taken so far. One that is gone changes nothing.
    fn look(&mut self, id: u32) {
        let read =
            |name: &str| std::fs::read_to_string(format!("/proc/{id}/{name}")).unwrap_or_default();
        if let Some(ticks) = cpu_ticks(&read("stat")) {
            self.cpu_time =
                Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second());
        }
        if let Some(peak) = peak_memory(&read("status")) {
            self.peak_memory_kb = peak;
        }
    }
}

/// Fields 14 and 15 of `/proc/PID/stat`, proc(5). The second field, the name in parentheses, may
/// contain anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let (user, system) = (fields.next()?, fields.next()?);
    Some(user.parse::<u64>().ok()? + system.parse::<u64>().ok()?)
}

fn peak_memory(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// QEMU while it runs; killed when this is dropped.
struct Running {
    child: Child,
    log: Log,
    cost: Cost,
    keeper: Option<Keeper>,
    is_saved: bool,
}

impl Running {
    /// `None` when the deadline has been reached.
    fn wait(
        &mut self,
        deadline: Instant,
        watch: &mut dyn FnMut(&str),
    ) -> Result<Option<ExitStatus>> {
        let id = self.child.id();
        while !has_ended(&self.child)? {
            interrupt::check()?;
            if Instant::now() >= deadline {
                self.cost.look(id);
                interrupt::kill(&mut self.child);
                return Ok(None);
            }
            self.log.follow()?;
            self.cost.look(id);
            watch(&self.log.said);
            self.keep()?;
            std::thread::sleep(POLL);
        }
        self.cost.look(id);
        Ok(Some(self.child.wait().context("waiting for QEMU")?))
    }

    fn keep(&mut self) -> Result<()> {
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        match keeper.step(&self.log.said) {
            Ok(is_saved) => self.is_saved |= is_saved,
            Err(error) => {
                // A QEMU that closes its monitor is ending, and has said why.
                let ends = Instant::now() + TO_END;
                while !has_ended(&self.child)? {
                    if Instant::now() >= ends {
                        return Err(error);
                    }
                    std::thread::sleep(POLL);
                }
            }
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        interrupt::kill(&mut self.child);
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
        Log { path, position: 0, partial: Vec::new(), said: "boot".into() }
    }

    fn follow(&mut self) -> Result<()> {
        // QEMU makes the file.
        let Ok(mut file) = File::open(&self.path) else { return Ok(()) };
        file.seek(SeekFrom::Start(self.position))?;
        self.position +=
            file.read_to_end(&mut self.partial).context("reading the guest's console")? as u64;
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
        std::fs::write(
            &path,
            "[ 1.0] kernlane: phase set-up\n[ 2.0] kernlane: phase counting\n[ 3.0] x\n",
        )
        .unwrap();
        log.follow().unwrap();
        assert_eq!(log.said, "counting");
    }

    #[test]
    fn proc_files_are_read() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 100 0 0 0 12 34 0 0 20 0 3 0 5 1 2";
        assert_eq!(cpu_ticks(stat), Some(46));
        assert_eq!(cpu_ticks("42 (a"), None);
        assert_eq!(peak_memory("Name:\tx\nVmHWM:\t  177336 kB\nVmRSS: 1 kB\n"), Some(177336));
        assert_eq!(peak_memory(""), None);
    }

    #[test]
    fn last_lines_of_short_and_long_texts() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 5), "a");
        assert_eq!(last_lines("", 5), "");
    }
}
