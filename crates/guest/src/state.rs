//! A stopped guest's whole state, memory and devices, goes into a file, or comes from one.
//!
//! Takes QEMU's monitor and its debugger's socket; gives the file, or a guest that runs on from
//! where it was stopped. A breakpoint stops the guest, at the first instruction of a program of its
//! own, so that a checkpoint is always of the same point, whatever kernel runs.

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

/// Where a guest's state goes to or comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The guest stops itself; then it is saved, and QEMU ends.
    SavedTo(PathBuf),
    /// The guest does not boot but runs on from there.
    RestoredFrom(PathBuf),
}

/// How long QEMU may take to answer as a debugger does.
const PATIENCE: Duration = Duration::from_secs(60);

/// Brings the running guest's state to where it belongs.
pub struct Keeper {
    state: State,
    monitor: Monitor,
    debugger: UnixStream,
    progress: Progress,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// QEMU has started, the guest has not.
    Begun,
    /// The guest runs up to the breakpoint.
    Runs,
    /// It has stopped; what it said last may not have been read yet.
    Stopped,
    Done,
}

impl Keeper {
    /// Adds to the command line what QEMU needs. It inherits the sockets that come back: no path of
    /// theirs can be too long or be found by others.
    pub fn prepare(state: State, command: &mut Command) -> Result<(Keeper, [OwnedFd; 2])> {
        let pair = || UnixStream::pair().context("making a pair of sockets for QEMU");
        let ((monitor, theirs), (debugger, debugged)) = (pair()?, pair()?);
        debugger.set_read_timeout(Some(PATIENCE))?;
        let sockets = [OwnedFd::from(theirs), OwnedFd::from(debugged)];
        for (name, socket) in ["monitor", "debugger"].iter().zip(&sockets) {
            command.arg("-chardev").arg(format!("socket,id={name},fd={}", socket.as_raw_fd()));
        }
        command.args(["-mon", "chardev=monitor,mode=control"]);
        // That a breakpoint stopped it is not part of its state: QEMU knows no way from there into
        // a run.
        command.args(["-global", "migration.store-global-state=off"]);
        match state {
            State::SavedTo(_) => command.args(["-gdb", "chardev:debugger", "-S"]),
            State::RestoredFrom(_) => command.args(["-incoming", "defer"]),
        };
        let keeper =
            Keeper { state, monitor: Monitor::new(monitor)?, debugger, progress: Progress::Begun };
        Ok((keeper, sockets))
    }

    /// Does what is to be done by now; to be called again and again. True when the state has been
    /// saved and QEMU told to end.
    ///
    /// # Errors
    /// The file cannot be written or read or is not such a state; the kernel panicked before the
    /// guest stopped itself.
    pub fn step(&mut self, phase: &str) -> Result<bool> {
        match (self.state.clone(), self.progress) {
            (_, Progress::Done) => return Ok(false),
            (State::RestoredFrom(path), _) => {
                self.restore(&path).with_context(|| format!("restoring {}", path.display()))?;
                self.progress = Progress::Done;
                return Ok(false);
            }
            (State::SavedTo(_), Progress::Begun) => {
                self.set_breakpoint().context("setting a breakpoint in the guest")?;
                self.monitor.execute("cont", json!({}))?;
                // That it had not started, the monitor says, too.
                self.monitor.has_happened("STOP")?;
                self.progress = Progress::Runs;
            }
            (State::SavedTo(_), Progress::Runs) => {
                if self.monitor.has_happened("STOP")? {
                    self.progress = Progress::Stopped;
                }
            }
            (State::SavedTo(path), Progress::Stopped) => {
                ensure!(phase == "counting", "the guest stopped in the phase {phase}");
                self.save(&path).with_context(|| format!("writing {}", path.display()))?;
                self.progress = Progress::Done;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// By the remote protocol of gdb: a packet is acknowledged by `+` and answered by `OK`.
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
        // Its default would make a gigabyte take eight seconds.
        self.monitor.execute("migrate-set-parameters", json!({"max-bandwidth": 1u64 << 40}))?;
        self.monitor.execute("migrate", json!({"uri": uri(path)?}))?;
        self.completed()?;
        self.monitor.execute("quit", json!({}))?;
        Ok(())
    }

    fn restore(&mut self, path: &Path) -> Result<()> {
        // Announcing a guest to its network goes by timers of the host's clock, and QEMU ends a
        // translation where such a timer may be due: where that is would differ from run to run.
        self.monitor.execute("migrate-set-parameters", json!({"announce-rounds": 0}))?;
        self.monitor.execute("migrate-incoming", json!({"uri": uri(path)?}))?;
        // Then the guest runs.
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
