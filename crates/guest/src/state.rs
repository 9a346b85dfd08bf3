//! Saves the whole state of a stopped guest, memory and devices, to a file, or restores it.
//!
//! Input: the sockets of QEMU's monitor and debugger. Output: the file, or a guest that continues
//! where it stopped. A breakpoint stops the guest at the first instruction of a special program. A
//! checkpoint is therefore always at the same point, whatever kernel runs.

use crate::marker;
use crate::monitor::Monitor;
use anyhow::{Context, Result, bail, ensure};
use host::interrupt;
use serde_json::json;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const POLL: Duration = Duration::from_millis(20);

/// Whether to save or to restore a guest's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestState {
    /// Save the guest into this file when it stops itself, and end QEMU.
    SavedTo(PathBuf),
    /// Do not boot, but continue from the state in this file.
    RestoredFrom(PathBuf),
}

/// How long QEMU may take to answer as a debugger.
const PATIENCE: Duration = Duration::from_secs(60);

/// Saves or restores the state of a running guest.
pub(crate) struct StateKeeper {
    state: GuestState,
    monitor: Monitor,
    debugger: UnixStream,
    progress: KeeperProgress,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum KeeperProgress {
    /// QEMU has started, but not the guest.
    Begun,
    /// The guest runs to the breakpoint.
    Runs,
    /// The guest has stopped. Its last message may not have been read yet.
    Stopped,
    Done,
}

impl StateKeeper {
    /// Adds to the command line what QEMU needs. Returns the sockets that QEMU inherits. Sockets
    /// without a path cannot have a path that is too long, and no other process can find them.
    pub(crate) fn prepare(
        state: GuestState,
        command: &mut Command,
    ) -> Result<(StateKeeper, [OwnedFd; 2])> {
        let pair = || UnixStream::pair().context("making a pair of sockets for QEMU");
        let ((monitor, theirs), (debugger, debugged)) = (pair()?, pair()?);
        debugger.set_read_timeout(Some(PATIENCE))?;
        let sockets = [OwnedFd::from(theirs), OwnedFd::from(debugged)];
        for (name, socket) in ["monitor", "debugger"].iter().zip(&sockets) {
            command.arg("-chardev").arg(format!("socket,id={name},fd={}", socket.as_raw_fd()));
        }
        command.args(["-mon", "chardev=monitor,mode=control"]);
        // The saved state does not contain that a breakpoint stopped the guest, because QEMU cannot
        // continue from such a state.
        command.args(["-global", "migration.store-global-state=off"]);
        match state {
            GuestState::SavedTo(_) => command.args(["-gdb", "chardev:debugger", "-S"]),
            GuestState::RestoredFrom(_) => command.args(["-incoming", "defer"]),
        };
        let keeper = StateKeeper {
            state,
            monitor: Monitor::new(monitor)?,
            debugger,
            progress: KeeperProgress::Begun,
        };
        Ok((keeper, sockets))
    }

    /// Takes the next step, if it is time for it; call this repeatedly. Returns true when the state
    /// is saved and QEMU was told to end.
    ///
    /// # Errors
    /// The file cannot be written or read, or contains no such state, or the kernel panicked before
    /// the guest stopped itself.
    pub(crate) fn step(&mut self, phase: &str) -> Result<bool> {
        match (self.state.clone(), self.progress) {
            (_, KeeperProgress::Done) => return Ok(false),
            (GuestState::RestoredFrom(path), _) => {
                self.restore(&path).with_context(|| format!("restoring {}", path.display()))?;
                self.progress = KeeperProgress::Done;
                return Ok(false);
            }
            (GuestState::SavedTo(_), KeeperProgress::Begun) => {
                self.set_breakpoint().context("setting a breakpoint in the guest")?;
                self.monitor.execute("cont", json!({}))?;
                // The monitor also reports that the guest had not started.
                self.monitor.has_happened("STOP")?;
                self.progress = KeeperProgress::Runs;
            }
            (GuestState::SavedTo(_), KeeperProgress::Runs) => {
                if self.monitor.has_happened("STOP")? {
                    self.progress = KeeperProgress::Stopped;
                }
            }
            (GuestState::SavedTo(path), KeeperProgress::Stopped) => {
                ensure!(phase == "counting", "the guest stopped in the phase {phase}");
                self.save(&path).with_context(|| format!("writing {}", path.display()))?;
                self.progress = KeeperProgress::Done;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Uses gdb's remote protocol: `+` acknowledges a packet, and `OK` answers it.
    fn set_breakpoint(&mut self) -> Result<()> {
        let request = format!("Z0,{:x},1", marker::PAUSE_ADDRESS);
        let sum = request.bytes().fold(0u8, u8::wrapping_add);
        self.debugger.write_all(format!("${request}#{sum:02x}").as_bytes())?;
        let mut answer = [0; 7];
        self.debugger.read_exact(&mut answer)?;
        ensure!(&answer == b"+$OK#9a", "QEMU answered {:?}", String::from_utf8_lossy(&answer));
        Ok(self.debugger.write_all(b"+")?)
    }

    fn save(&mut self, path: &Path) -> Result<()> {
        // With the default, saving a gigabyte would take eight seconds.
        self.monitor.execute("migrate-set-parameters", json!({"max-bandwidth": 1u64 << 40}))?;
        self.monitor.execute("migrate", json!({"uri": uri(path)?}))?;
        self.completed()?;
        self.monitor.execute("quit", json!({}))?;
        Ok(())
    }

    fn restore(&mut self, path: &Path) -> Result<()> {
        // QEMU announces a guest to its network by timers of the host's clock, and ends a
        // translation block where such a timer may be due. Without this parameter these places
        // would differ between runs.
        self.monitor.execute("migrate-set-parameters", json!({"announce-rounds": 0}))?;
        self.monitor.execute("migrate-incoming", json!({"uri": uri(path)?}))?;
        // Then the guest continues.
        self.completed()
    }

    fn completed(&mut self) -> Result<()> {
        loop {
            interrupt::check()?;
            let answer = self.monitor.execute("query-migrate", json!({}))?;
            match answer["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => bail!(
                    "QEMU: {}",
                    answer["error-desc"].as_str().unwrap_or("failed without a reason")
                ),
                _ => std::thread::sleep(POLL),
            }
        }
    }
}

fn uri(path: &Path) -> Result<String> {
    Ok(format!("file:{}", path.to_str().context("the path is not UTF-8")?))
}
