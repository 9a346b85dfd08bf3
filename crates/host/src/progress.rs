//! What work reports while it runs: the current step, the progress, and remarks.
//!
//! Input: reports of any part of Kernlane. Output: the same reports, at the one [`Observer`] of the
//! process. A program sets it: [`crate::terminal::Terminal`] shows the reports to a person, another
//! observer may draw them elsewhere. Without an observer, reports are dropped. This module prints
//! nothing, and reporting never fails.
//!
//! The observer belongs to the process, because work reports from all of its threads.
//!
//! ```
//! use kernlane_host::progress::{self, Observer, Progress, Work};
//! use std::sync::{Arc, Mutex};
//!
//! #[derive(Clone, Default)]
//! struct Log(Arc<Mutex<Vec<String>>>);
//!
//! impl Log {
//!     fn line(&self, text: String) {
//!         self.0.lock().unwrap().push(text);
//!     }
//! }
//!
//! impl Observer for Log {
//!     fn begin(&self, what: &str, length: Option<u64>) -> Box<dyn Work> {
//!         self.line(format!("{what}, {length:?}"));
//!         Box::new(self.clone())
//!     }
//!
//!     fn remark(&self, text: &str) {
//!         self.line(text.to_owned());
//!     }
//! }
//!
//! impl Work for Log {
//!     fn say(&self, what: &str) {
//!         self.line(what.to_owned());
//!     }
//!
//!     fn advance(&self, by: u64) {
//!         self.line(format!("+{by}"));
//!     }
//! }
//!
//! let log = Log::default();
//! progress::observe(Arc::new(log.clone()));
//! let work = Progress::of(2, "layouts");
//! work.say("the first layout");
//! work.advance(1);
//! kernlane_host::note!("one is left");
//! let expected = ["layouts, Some(2)", "the first layout", "+1", "one is left"];
//! assert_eq!(*log.0.lock().unwrap(), expected);
//! ```

use crate::interrupt;
use std::fmt::Arguments;
use std::io::{self, Read};
use std::sync::{Arc, PoisonError, RwLock};

/// Receives the reports of all work in the process, in the threads that do the work.
pub trait Observer: Send + Sync {
    /// Work begins. `length`: how many steps or bytes it has, if that is known. The work ends when
    /// the value is dropped.
    fn begin(&self, what: &str, length: Option<u64>) -> Box<dyn Work>;

    /// A remark: a warning, or a step that is done.
    fn remark(&self, text: &str);
}

/// Work under way, as an observer sees it.
pub trait Work: Send + Sync {
    /// Names the current step.
    fn say(&self, what: &str);

    /// Adds this number of steps or bytes to the progress.
    fn advance(&self, by: u64);
}

static OBSERVER: RwLock<Option<Arc<dyn Observer>>> = RwLock::new(None);

/// Makes all work of the process report to `observer`. Work that has begun keeps its observer.
pub fn observe(observer: Arc<dyn Observer>) {
    *OBSERVER.write().unwrap_or_else(PoisonError::into_inner) = Some(observer);
}

fn observer() -> Option<Arc<dyn Observer>> {
    OBSERVER.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Work that reports. It ends when this and every reader of it are dropped.
pub struct Progress(Option<Arc<dyn Work>>);

impl Progress {
    /// Work whose length is not known.
    pub fn new(what: impl Into<String>) -> Progress {
        Progress::begun(what.into(), None)
    }

    /// Work of `length` steps or bytes.
    pub fn of(length: u64, what: impl Into<String>) -> Progress {
        Progress::begun(what.into(), Some(length))
    }

    fn begun(what: String, length: Option<u64>) -> Progress {
        Progress(observer().map(|observer| Arc::from(observer.begin(&what, length))))
    }

    /// Names the current step.
    pub fn say(&self, what: impl Into<String>) {
        if let Some(work) = &self.0 {
            work.say(&what.into());
        }
    }

    /// Adds this number to the progress.
    pub fn advance(&self, by: u64) {
        if let Some(work) = &self.0 {
            work.advance(by);
        }
    }

    /// A reader that adds the bytes read through it to the progress. Reading fails when the user
    /// has interrupted.
    pub fn reading<R: Read>(&self, from: R) -> impl Read + use<R> {
        ReportedRead { progress: Progress(self.0.clone()), from }
    }
}

struct ReportedRead<R> {
    progress: Progress,
    from: R,
}

impl<R: Read> Read for ReportedRead<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        interrupt::check().map_err(io::Error::other)?;
        let count = self.from.read(buffer)?;
        self.progress.advance(count as u64);
        Ok(count)
    }
}

/// Reports a remark to the observer of the process, as `println!` formats text.
#[macro_export]
macro_rules! note {
    ($($text:tt)*) => { $crate::progress::remark(format_args!($($text)*)) };
}

/// What `note!` calls.
pub fn remark(text: Arguments<'_>) {
    if let Some(observer) = observer() {
        observer.remark(&text.to_string());
    }
}
