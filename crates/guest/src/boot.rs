//! Boots a kernel under QEMU, waits until the guest has done its work, and returns what it printed.
//!
//! Input: a boot image, and a root file system made by `initramfs`. Output: a `GuestOutcome`. This
//! module prints nothing. QEMU never outlives the call, even if the caller is killed.

use crate::configuration::Boot;
use crate::qemu::Qemu;
use crate::state::StateKeeper;
use crate::turn::OneHostCpu;
use anyhow::{Context, Result, anyhow, bail};
use host::interrupt;
use host::recording::Recording;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestEnd {
    /// `/kernlane/main` ended with this status.
    Exited(i32),
    /// The machine stopped before `/kernlane/main` ended: by a panic, or because the kernel did not
    /// boot.
    Stopped,
    /// The time limit was reached.
    TimeLimit,
    /// The guest stopped itself, and its state was saved.
    Saved,
}

/// What a running guest said since it was watched last.
#[derive(Clone, Copy, Debug)]
pub struct GuestNews<'n> {
    /// Its last message about its phase.
    pub phase: &'n str,
    /// The messages of its own scripts, in order. Those that come just before the guest's end may
    /// be missing: `GuestOutcome` has the whole console.
    pub messages: &'n [String],
}

/// What a guest did.
#[derive(Clone, Debug)]
pub struct GuestOutcome {
    /// How it ended.
    pub end: GuestEnd,
    /// The kernel's log without carriage returns.
    pub console: String,
    /// What `/kernlane/main` printed.
    pub output: String,
    /// What QEMU and its plugin wrote to standard error.
    pub qemu: String,
    /// How long the guest ran, by the host's clock.
    pub elapsed: Duration,
    /// The resources that QEMU used on the host.
    pub cost: HostCost,
}

/// The resources that QEMU used on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCost {
    /// User and system time of all threads, in steps of a clock tick (10 ms).
    pub cpu_time: Duration,
    /// The largest resident memory, including the guest's. It is sampled a few times a second.
    pub peak_memory_kb: u64,
}

const POLL: Duration = Duration::from_millis(50);
/// How long QEMU may take to end after it closed its monitor.
const TO_END: Duration = Duration::from_secs(2);

impl Boot {
    /// Boots and waits. `console.log` and `output.log` are written to `directory`. `watch` gets the
    /// guest's news a few times a second.
    ///
    /// # Errors
    /// QEMU cannot be started, rejects the command line, or is killed by a signal that the caller
    /// did not send, or the user interrupts. An error of `watch` ends the guest. A guest that fails
    /// is not an error; its `GuestOutcome` says so.
    pub fn run(
        &self,
        qemu: &Qemu,
        directory: &Path,
        watch: &mut dyn FnMut(GuestNews<'_>) -> Result<()>,
    ) -> Result<GuestOutcome> {
        let (mut messages, writer) = std::io::pipe().context("making a pipe")?;
        let started = Instant::now();
        let mut command = qemu.command(self, directory)?;
        let keeper = self
            .state
            .clone()
            .map(|state| StateKeeper::prepare(state, &mut command))
            .transpose()?;
        let (keeper, sockets) = keeper.unzip();
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        inherit(&mut command, sockets);
        let one_cpu = self.turn.map(|_| OneHostCpu::take()).transpose()?;
        let child =
            command.spawn().with_context(|| format!("running {}", qemu.program.display()))?;
        drop(one_cpu);
        // The pipe and the sockets end when QEMU ends, if only QEMU has their other ends.
        drop(command);
        let messages = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            messages.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned())
        });
        let mut running = RunningGuest {
            child,
            log: ConsoleLog::new(directory.join(Recording::CONSOLE)),
            cost: HostCost::default(),
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
        // These files exist only if QEMU has started.
        let (console, output) = (console?, output?);
        let end = match (status, exit_status(&console)) {
            _ if running.is_saved => GuestEnd::Saved,
            (_, Some(code)) => GuestEnd::Exited(code),
            (None, None) => GuestEnd::TimeLimit,
            (Some(_), None) => GuestEnd::Stopped,
        };
        Ok(GuestOutcome { end, console, output, qemu, elapsed, cost: running.cost })
    }
}

/// Lets the program inherit the sockets, and die with this process. Puts the program into a group
/// of its own, so that Ctrl-C on the terminal reaches only this process.
#[allow(unsafe_code, reason = "what is done between fork and exec is unsafe by nature")]
fn inherit(command: &mut Command, sockets: Option<[OwnedFd; 2]>) {
    command.process_group(0);
    // SAFETY: between fork and exec only system calls are made, which is safe there.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            for socket in sockets.iter().flatten() {
                rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty())?;
            }
            Ok(())
        });
    }
}

/// Whether the child has ended. The exit status is not taken, because `/proc` has the child's CPU
/// time until then.
fn has_ended(child: &Child) -> Result<bool> {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let id = WaitId::Pid(Pid::from_child(child));
    Ok(waitid(id, options).context("waiting for QEMU")?.is_some())
}

impl HostCost {
    /// Reads what the process has used so far. If the process is gone, nothing changes.
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
/// contain any character.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let (user, system) = (fields.next()?, fields.next()?);
    Some(user.parse::<u64>().ok()? + system.parse::<u64>().ok()?)
}

fn peak_memory(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// QEMU while it runs. Dropping this kills QEMU.
struct RunningGuest {
    child: Child,
    log: ConsoleLog,
    cost: HostCost,
    keeper: Option<StateKeeper>,
    is_saved: bool,
}

impl RunningGuest {
    /// Waits for QEMU to end; `None` if the deadline is reached.
    fn wait(
        &mut self,
        deadline: Instant,
        watch: &mut dyn FnMut(GuestNews<'_>) -> Result<()>,
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
            watch(GuestNews { phase: &self.log.phase, messages: &self.log.messages })?;
            self.keep()?;
            std::thread::sleep(POLL);
        }
        self.cost.look(id);
        Ok(Some(self.child.wait().context("waiting for QEMU")?))
    }

    fn keep(&mut self) -> Result<()> {
        let Some(keeper) = &mut self.keeper else { return Ok(()) };
        match keeper.step(&self.log.phase) {
            Ok(is_saved) => self.is_saved |= is_saved,
            Err(error) => {
                // A QEMU that closes its monitor is ending, and has printed the reason.
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

impl Drop for RunningGuest {
    fn drop(&mut self) {
        interrupt::kill(&mut self.child);
    }
}

/// The console while it grows: the guest's messages of the last look, and the last one about its
/// phase.
struct ConsoleLog {
    path: PathBuf,
    position: u64,
    partial: Vec<u8>,
    messages: Vec<String>,
    phase: String,
}

impl ConsoleLog {
    fn new(path: PathBuf) -> ConsoleLog {
        ConsoleLog {
            path,
            position: 0,
            partial: Vec::new(),
            messages: Vec::new(),
            phase: "boot".into(),
        }
    }

    fn follow(&mut self) -> Result<()> {
        self.messages.clear();
        // QEMU creates the file.
        let Ok(mut file) = File::open(&self.path) else { return Ok(()) };
        file.seek(SeekFrom::Start(self.position))?;
        self.position +=
            file.read_to_end(&mut self.partial).context("reading the guest's console")? as u64;
        if let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') {
            let lines = String::from_utf8_lossy(&self.partial[..end]).into_owned();
            self.partial.drain(..=end);
            self.messages.extend(lines.lines().filter_map(guest_message).map(str::to_owned));
            if let Some(text) = self.messages.last() {
                self.phase = text.trim_start_matches("phase ").to_string();
            }
        }
        Ok(())
    }
}

/// The text of a line that the guest's own scripts put into the kernel's log:
/// `[    1.234567] kernlane: TEXT`. Some kernels print `[    T1]` behind the time.
fn guest_message(line: &str) -> Option<&str> {
    let (stamp, text) = line.trim_end().split_once("] kernlane: ")?;
    stamp.starts_with('[').then_some(text)
}

fn exit_status(console: &str) -> Option<i32> {
    console.lines().rev().find_map(guest_message)?.strip_prefix("exit ")?.parse().ok()
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).replace('\r', ""))
}

/// The end of a text, for an error message.
pub(crate) fn last_lines(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_is_in_the_last_message_of_the_guest() {
        let console = "[    0.1] Linux\n[    4.5] kernlane: booted\n[    9.0] kernlane: exit 3\n\
            [    9.1] reboot: Restarting system\n";
        assert_eq!(exit_status(console), Some(3));
        assert_eq!(exit_status("[    4.5] kernlane: booted\n"), None);
        assert_eq!(exit_status("kernlane: exit 0\n"), None, "not from the kernel's log");
        assert_eq!(exit_status("[ 1.0] kernlane: exit 0\n[ 2.0] kernlane: phase check\n"), None);
        assert_eq!(exit_status(""), None);
    }

    #[test]
    fn a_log_that_grows_by_partial_lines_is_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("console.log");
        let mut log = ConsoleLog::new(path.clone());
        log.follow().unwrap();
        assert_eq!(log.phase, "boot");
        std::fs::write(&path, "[ 1.0] kernlane: phase set-up\n[ 2.0] kernlane: pha").unwrap();
        log.follow().unwrap();
        assert_eq!((log.phase.as_str(), log.messages.len()), ("set-up", 1));
        let text = "[ 1.0] kernlane: phase set-up\n[ 2.0] kernlane: phase counting\r\n[ 3.0] x\n\
                    [ 4.0] kernlane: a: b\n";
        std::fs::write(&path, text).unwrap();
        log.follow().unwrap();
        assert_eq!(log.messages, ["phase counting", "a: b"]);
        log.follow().unwrap();
        assert_eq!((log.phase.as_str(), log.messages.len()), ("a: b", 0));
    }

    #[test]
    fn cpu_time_and_memory_are_read_from_proc() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 100 0 0 0 12 34 0 0 20 0 3 0 5 1 2";
        assert_eq!(cpu_ticks(stat), Some(46));
        assert_eq!(cpu_ticks("42 (a"), None);
        assert_eq!(peak_memory("Name:\tx\nVmHWM:\t  177336 kB\nVmRSS: 1 kB\n"), Some(177336));
        assert_eq!(peak_memory(""), None);
    }

    #[test]
    fn the_last_lines_of_short_and_long_texts_are_returned() {
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines("a", 5), "a");
        assert_eq!(last_lines("", 5), "");
    }
}
