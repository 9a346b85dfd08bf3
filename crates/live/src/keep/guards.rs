//! Which commands guard installed groups: the last one that stops takes them back.
//!
//! Each guard holds a shared lock (flock) on a file in `/run/kernlane`, which the kernel releases
//! when its process ends, for whatever reason.

use super::notes::RUN;
use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// The lock of one guard.
pub struct GuardLock(File);

impl GuardLock {
    /// Says that this process guards what is installed.
    ///
    /// # Errors
    /// The file cannot be made, or not be locked.
    pub fn new() -> Result<GuardLock> {
        GuardLock::in_directory(Path::new(RUN))
    }

    fn in_directory(directory: &Path) -> Result<GuardLock> {
        let named = || directory.display().to_string();
        std::fs::create_dir_all(directory).with_context(named)?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(directory.join("guards"))
            .with_context(named)?;
        flock(&file, FlockOperation::LockShared).with_context(named)?;
        Ok(GuardLock(file))
    }

    /// Whether another process also guards what is installed. For a guard that stops: afterwards
    /// others may not see it any more.
    ///
    /// # Errors
    /// The lock cannot be asked for.
    pub fn has_others(&self) -> Result<bool> {
        match flock(&self.0, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(false),
            Err(Errno::AGAIN) => Ok(true),
            Err(error) => Err(error).context("locking the file of guards"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_guard_knows_that_it_is_the_last() {
        let directory = tempfile::tempdir().unwrap();
        let guard = || GuardLock::in_directory(directory.path()).unwrap();
        let (first, second) = (guard(), guard());
        assert!(first.has_others().unwrap());
        drop(first);
        assert!(!second.has_others().unwrap());
    }
}
