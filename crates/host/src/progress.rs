//! What a person at the terminal sees while a command works: one style of progress, and remarks.
//!
//! Input: what is being done, and how far it has come. Output: a line on standard error while that
//! is a terminal, else nothing; remarks go to standard error in any case. Never writes to standard
//! output, and never fails: a command goes on when nobody sees it.

use crate::interrupt;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::fmt::Arguments;
use std::io::{self, Read, Write};
use std::sync::LazyLock;
use std::time::Duration;

/// All that is under way, a line each. indicatif draws nothing when standard error is no terminal.
static LINES: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);
const TICK: Duration = Duration::from_millis(200);
const WORK: &str = "{spinner} {elapsed} {msg}";
const WORK_OF_KNOWN_LENGTH: &str =
    "{spinner} {elapsed} {msg} {wide_bar} {percent:>3} %  {eta} left";

/// Work under way: its line is taken away when this is dropped.
pub struct Progress(ProgressBar);

impl Progress {
    /// Work whose length is not known.
    pub fn new(what: impl Into<String>) -> Progress {
        Progress::shown(ProgressBar::no_length(), WORK, what.into())
    }

    /// Work of `length` steps or bytes.
    pub fn of(length: u64, what: impl Into<String>) -> Progress {
        Progress::shown(ProgressBar::new(length), WORK_OF_KNOWN_LENGTH, what.into())
    }

    fn shown(bar: ProgressBar, template: &str, what: String) -> Progress {
        let bar = LINES.add(bar);
        bar.set_style(ProgressStyle::with_template(template).expect("a constant template"));
        bar.set_message(what);
        bar.enable_steady_tick(TICK);
        Progress(bar)
    }

    /// Says what is being done now.
    pub fn say(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
    }

    /// So much more is done.
    pub fn advance(&self, by: u64) {
        self.0.inc(by);
    }

    /// What is read from it counts as done. Reading fails when the user has interrupted.
    pub fn reading<R: Read>(&self, from: R) -> impl Read + use<R> {
        Interruptible(self.0.wrap_read(from))
    }
}

struct Interruptible<R>(R);

impl<R: Read> Read for Interruptible<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        interrupt::check().map_err(io::Error::other)?;
        self.0.read(buffer)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
        LINES.remove(&self.0);
    }
}

/// Prints a remark, like `eprintln!`, above the lines of progress.
#[macro_export]
macro_rules! note {
    ($($text:tt)*) => { $crate::progress::remark(format_args!($($text)*)) };
}

/// What `note!` calls.
pub fn remark(text: Arguments<'_>) {
    // Nobody can be told that standard error is full.
    LINES.suspend(|| drop(writeln!(std::io::stderr().lock(), "{text}")));
}
