//! Before the guest halts, the vCPU's thread waits until QEMU's main thread sleeps.
//!
//! Under `-icount sleep=off`, QEMU's main thread moves the guest's clock on to the next timer while
//! all vCPUs are halted (`icount_start_warp_timer()` in `accel/tcg/icount-common.c`). A vCPU marks
//! itself halted before it adds the instructions that it executed since the last timer to the
//! clock. If the main thread looks at it in between, it moves the clock too far, by these
//! instructions. It does so when another event woke it, such as the timer before, and the guest
//! already halts again. How often that happens depends on the host. A main thread that sleeps wakes
//! up only when the vCPU has halted and its instructions were added.
//!
//! Input: the state of the main thread in `/proc`. This module changes nothing but when a halt
//! begins by the host's clock.

use crate::warn;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How long a halt waits at most. The main thread needs microseconds. While it ends QEMU it waits
/// for the vCPU instead of events.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time between two looks at the main thread.
const INTERVAL: Duration = Duration::from_micros(20);

/// Whether an instruction halts a vCPU: `hlt`, or `mwait`, which QEMU executes as `hlt`.
pub(crate) fn halts(code: &[u8]) -> bool {
    matches!(code, [0xf4] | [0x0f, 0x01, 0xc9])
}

/// The main thread of this process, as `/proc` shows it.
pub(crate) struct MainThread {
    status: File,
    syscall: File,
    warned: bool,
}

impl MainThread {
    /// `None`, with a warning, if `/proc` does not show the thread.
    pub(crate) fn find() -> Option<MainThread> {
        MainThread::open()
            .inspect_err(|error| warn_that_halts_do_not_wait(&cannot_be_read(error)))
            .ok()
    }

    fn open() -> io::Result<MainThread> {
        let open = |name| File::open(format!("/proc/self/task/{}/{name}", std::process::id()));
        Ok(MainThread { status: open("stat")?, syscall: open("syscall")?, warned: false })
    }

    /// Returns when the thread sleeps until the next event.
    pub(crate) fn wait_for_sleep(&mut self) {
        let begin = Instant::now();
        loop {
            match self.sleeps() {
                Ok(true) => return,
                Ok(false) if begin.elapsed() < PATIENCE => std::thread::sleep(INTERVAL),
                Ok(false) => return self.warn_once("QEMU's main thread does not sleep"),
                Err(error) => return self.warn_once(&cannot_be_read(&error)),
            }
        }
    }

    /// Whether the thread sleeps until the next event. The order matters: a thread that was woken
    /// and does not run yet still shows the system call in which it slept. A thread that slept for
    /// another reason at the first look and waits for events at the second one has found no event.
    fn sleeps(&self) -> io::Result<bool> {
        let mut buffer = [0; 512];
        let size = self.status.read_at(&mut buffer, 0)?;
        if state(&buffer[..size]) != Some(b'S') {
            return Ok(false);
        }
        let size = self.syscall.read_at(&mut buffer, 0)?;
        Ok(waits_for_events(&buffer[..size]))
    }

    fn warn_once(&mut self, why: &str) {
        if !self.warned {
            warn_that_halts_do_not_wait(why);
            self.warned = true;
        }
    }
}

fn warn_that_halts_do_not_wait(why: &str) {
    warn(&format!("{why}: another recording of the same guest may differ"));
}

fn cannot_be_read(error: &io::Error) -> String {
    format!("the state of QEMU's main thread cannot be read in /proc: {error}")
}

/// The state in a `stat` file: the letter behind the name, which stands in parentheses and can
/// contain some itself (proc(5)).
fn state(stat: &[u8]) -> Option<u8> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end + 2).copied()
}

/// Whether a `syscall` file shows a thread that waits in `ppoll` or `poll`.
fn waits_for_events(syscall: &[u8]) -> bool {
    let number = syscall.split(|&byte| byte == b' ').next();
    let number = number.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    number.is_some_and(|number: i64| [libc::SYS_ppoll, libc::SYS_poll].contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halting_instructions_are_known_by_their_bytes() {
        assert!(halts(&[0xf4]) && halts(&[0x0f, 0x01, 0xc9]));
        assert!(!halts(&[0xfb]) && !halts(&[0x0f, 0x01, 0xc8]) && !halts(&[]));
    }

    #[test]
    fn the_state_stands_behind_the_name() {
        assert_eq!(state(b"7 (qemu-system-x86) S 1 7"), Some(b'S'));
        assert_eq!(state(b"7 (a) S (b) R 1 7"), Some(b'R'));
        assert_eq!(state(b"7 (cut off)"), None);
        assert_eq!(state(b""), None);
    }

    #[test]
    fn a_thread_waits_for_events_in_two_system_calls() {
        assert!(waits_for_events(b"271 0x55 0x4 0x0 0x0 0x8 0x0 0x7ffe 0x7f22\n"));
        assert!(waits_for_events(b"7 0x55 0x4 0xffffffff 0x0 0x8 0x0 0x7ffe 0x7f22\n"));
        assert!(!waits_for_events(b"202 0x55 0x0 0xffffffff 0x0 0x0 0x0 0x7f22 0x7f22\n"));
        assert!(!waits_for_events(b"running\n"));
        assert!(!waits_for_events(b"-1 0x7f22 0x7f22\n"));
    }

    /// The test's threads are not main threads. The main thread of this process waits for them.
    #[test]
    fn the_main_thread_of_this_process_is_found() {
        let main = MainThread::find().unwrap();
        assert!(!main.sleeps().unwrap(), "the main thread of a test waits for its end");
    }
}
