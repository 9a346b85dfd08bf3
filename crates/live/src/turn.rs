//! One program at a time loads, installs and removes modules of groups.
//!
//! A turn is a lock (flock) on the device. The kernel releases the lock when the process ends, for
//! whatever reason. The program that has the turn knows that a free name stays free, and that a
//! module without a group belongs to nobody. The kernel's module does not require the turn: its own
//! checks keep the kernel safe from programs that do not take turns.

use crate::device::PATH;
use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock, fstat, major, minor};
use rustix::io::Errno;
use std::fs::File;
use std::time::{Duration, Instant};

/// How long a command that installs waits for its turn. Another command may have a large group to
/// prove.
const LONG: Duration = Duration::from_secs(120);
/// How long a command that only removes modules waits. Modules that stay do no harm.
const SHORT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);

/// The turn. It ends when this value is dropped.
pub struct Turn(#[expect(dead_code, reason = "its lock ends with it")] File);

/// Another process that has the turn, in words for the user.
#[derive(Debug)]
pub struct Taken(pub String);

impl Turn {
    /// Waits for the turn, for up to two minutes. Calls `told` once if it has to wait.
    ///
    /// # Errors
    /// Another process keeps the turn; Ctrl-C came; the device cannot be opened.
    pub fn wait(told: &mut dyn FnMut(&str)) -> Result<Turn> {
        match wait(LONG, told)? {
            Ok(turn) => Ok(turn),
            Err(Taken(by)) => bail!(
                "{by} has been installing a group for {} s: wait until it has ended, or end it. \
                 Nothing was changed",
                LONG.as_secs()
            ),
        }
    }

    /// Waits for the turn, for a few seconds.
    ///
    /// # Errors
    /// Ctrl-C came; the device cannot be opened.
    pub fn wait_briefly() -> Result<Result<Turn, Taken>> {
        wait(SHORT, &mut |_| {})
    }
}

fn wait(limit: Duration, told: &mut dyn FnMut(&str)) -> Result<Result<Turn, Taken>> {
    let file = File::options().read(true).open(PATH).with_context(|| format!("opening {PATH}"))?;
    let begun = Instant::now();
    let mut waits = false;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Ok(Turn(file))),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error).with_context(|| format!("locking {PATH}")),
        }
        if begun.elapsed() >= limit {
            return Ok(Err(Taken(holder(&file)?)));
        }
        if !waits {
            told(&format!("{} is installing a group: waiting for it", holder(&file)?));
            waits = true;
        }
        host::interrupt::check()?;
        std::thread::sleep(POLL);
    }
}

/// The process that has the turn, in words.
fn holder(file: &File) -> Result<String> {
    let stat = fstat(file)?;
    let device = format!("{:02x}:{:02x}", major(stat.st_dev), minor(stat.st_dev));
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    Ok(holder_in(&locks, &format!("{device}:{}", stat.st_ino)))
}

/// `locks`: `1: FLOCK  ADVISORY  WRITE PROCESS MAJOR:MINOR:INODE START END`. Lines of those who
/// wait have an arrow behind the number.
fn holder_in(locks: &str, file: &str) -> String {
    let found = locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, process, of, ..] if of == file => Some(process),
            _ => None,
        }
    });
    match found {
        Some(process) => format!("another program of Kernlane (process {process})"),
        None => "another program of Kernlane".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_named() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 00:05:99 0 EOF\n\
            2: FLOCK  ADVISORY  WRITE 812 00:06:123 0 EOF\n\
            2: -> FLOCK  ADVISORY  WRITE 900 00:05:99 0 EOF\n";
        assert_eq!(holder_in(locks, "00:06:123"), "another program of Kernlane (process 812)");
        assert_eq!(holder_in(locks, "00:05:99"), "another program of Kernlane");
    }
}
