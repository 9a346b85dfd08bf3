//! Measurements that take minutes on one CPU, and go on in a later session where they were ended.
//!
//! Input: how long to measure, and how long was measured before. Output: when to stop, and what
//! else ran meanwhile. Measures nothing itself.

use crate::processor;
use anyhow::{Context, Result, bail};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};
use suite::random::Random;
use suite::{Disturbances, Usage};

/// How long to measure: 0 minutes or more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Minutes(f64);

impl Minutes {
    /// `minutes` is not negative.
    pub const fn new(minutes: f64) -> Minutes {
        Minutes(minutes)
    }
}

impl FromStr for Minutes {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Minutes> {
        match text.parse() {
            // A year is shorter; a Duration holds it.
            Ok(minutes) if (0.0..=1e6).contains(&minutes) => Ok(Minutes(minutes)),
            _ => bail!("give a number of minutes, 0 or more"),
        }
    }
}

impl fmt::Display for Minutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One run of a command that measures.
pub struct Session {
    cpu: usize,
    begun: Instant,
    before: Option<Usage>,
    budget: Duration,
    /// Seconds of earlier sessions.
    spent: f64,
}

impl Session {
    /// Begins a session. This thread, and the processes that it starts, stay on the last CPU from
    /// now on. `spent`: the seconds of earlier sessions.
    ///
    /// # Errors
    /// The thread cannot be kept on a CPU.
    pub fn begin(minutes: Minutes, spent: f64) -> Result<Session> {
        let cpu = processor::last_cpu()?;
        processor::pin(cpu)?;
        Ok(Session {
            cpu,
            begun: Instant::now(),
            before: Usage::now(Some(cpu)),
            budget: Duration::from_secs_f64(60.0 * minutes.0),
            spent,
        })
    }

    /// Whether the session goes on.
    pub fn has_time(&self) -> bool {
        self.begun.elapsed() < self.budget
    }

    /// The seconds of all sessions until now.
    pub fn seconds(&self) -> f64 {
        self.spent + self.begun.elapsed().as_secs_f64()
    }

    /// What else ran in this session. `None`: the system does not say.
    pub fn disturbances(&self) -> Option<Disturbances> {
        Some(Usage::now(Some(self.cpu))?.since(self.before?))
    }

    /// Random numbers, others in each session.
    pub fn random(&self) -> Random {
        Random::new(self.spent.to_bits())
    }
}

/// Makes a directory of results. Returns its whole path.
///
/// # Errors
/// The directory cannot be made.
pub fn directory(path: &Path) -> Result<PathBuf> {
    let made = std::fs::create_dir_all(path).and_then(|()| path.canonicalize());
    made.with_context(|| format!("making {}", path.display()))
}

/// Writes the file `bench/…` of a checkout. In another directory, nothing is written.
///
/// # Errors
/// The file cannot be written.
pub fn keep_in_checkout(path: &str, text: &str) -> Result<()> {
    let path = Path::new(path);
    if path.parent().is_some_and(Path::is_dir) {
        host::output::write(path, text.as_bytes())?;
    }
    Ok(())
}

/// A share of time that the system may not know, for a sentence.
pub fn percent(share: Option<f64>) -> String {
    share.map_or("an unknown share".to_owned(), |share| format!("{share:.1} %"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_not_negative() {
        assert_eq!("2.5".parse::<Minutes>().unwrap(), Minutes::new(2.5));
        assert_eq!("0".parse::<Minutes>().unwrap().to_string(), "0");
        for text in ["", "-1", "many", "NaN", "inf"] {
            let error = text.parse::<Minutes>().unwrap_err();
            assert_eq!(error.to_string(), "give a number of minutes, 0 or more", "{text:?}");
        }
    }

    #[test]
    fn a_session_ends_and_adds_to_the_time_of_earlier_ones() {
        // A thread of its own, because a session keeps its thread on one CPU.
        let sessions = std::thread::spawn(|| {
            [(0.0, 30.0), (60.0, 0.0)].map(|(minutes, spent)| {
                let session = Session::begin(Minutes::new(minutes), spent).unwrap();
                (session.has_time(), session.seconds())
            })
        });
        let [(ended, seconds), (goes_on, _)] = sessions.join().unwrap();
        assert!(!ended && goes_on);
        assert!(seconds >= 30.0, "{seconds}");
    }

    #[test]
    fn a_table_is_kept_only_where_its_directory_is() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("bench/table.txt");
        keep_in_checkout(path.to_str().unwrap(), "a\n").unwrap();
        assert!(!path.exists());
        let made = directory(&root.path().join("bench")).unwrap();
        keep_in_checkout(path.to_str().unwrap(), "a\n").unwrap();
        assert_eq!(std::fs::read_to_string(made.join("table.txt")).unwrap(), "a\n");
    }
}
