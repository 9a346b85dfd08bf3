//! Ctrl-C, for commands that must put things back before they end.
//!
//! After `catch`, a SIGINT, SIGTERM or SIGHUP sets a flag that `check` turns into an error; the
//! command then returns as from any other error, and what it had begun is removed on the way. Never
//! ends the process itself.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
const POLL: Duration = Duration::from_millis(20);

/// From now on an interrupt only sets the flag: call it once, in a command that calls `check`
/// often.
pub fn catch() -> Result<()> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::SeqCst)).context("cannot catch Ctrl-C")
}

/// An error if the user has interrupted.
pub fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::SeqCst) {
        bail!("interrupted");
    }
    Ok(())
}

/// Starts a program at the head of a group of its own: Ctrl-C on the terminal reaches only this
/// process, and `kill` the program with all that it started. It does not outlive this process.
pub fn spawn(command: &mut Command) -> std::io::Result<Child> {
    command.process_group(0);
    // SAFETY: between fork and exec only one system call is made, which is safe there.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command.spawn()
}

/// Waits for a child; when interrupted, kills it and returns the error.
pub fn wait(child: &mut Child) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().context("waiting for a program")? {
            return Ok(status);
        }
        if let Err(error) = check() {
            kill(child);
            return Err(error);
        }
        std::thread::sleep(POLL);
    }
}

/// Kills a child, with its group if it heads one, and waits until it is gone. That it is gone
/// already is no error.
pub fn kill(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.kill();
    let _ = child.wait();
}
