//! Ctrl-C, for commands that must put things back before they end.
//!
//! After `catch`, a SIGINT, SIGTERM or SIGHUP sets a flag that `check` turns into an error; the command then returns as from any other error,
//! and what it had begun is removed on the way. Never ends the process itself.

use anyhow::{Context, Result, bail};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
const POLL: Duration = Duration::from_millis(20);

/// From now on an interrupt only sets the flag: call it once, in a command that calls `check` often.
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

/// Kills a child and waits until it is gone. That it is gone already is no error.
pub fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
