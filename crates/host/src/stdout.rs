//! Standard output: the one writer that all commands print with.
//!
//! Input: text. Output: the text on standard output, or an [`Error`] that `main` turns into the
//! exit status. The writer never panics, and a failure to write is never lost: `main` ends with
//! [`finish`].

use anyhow::Result;
use std::fmt::Arguments;
use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};

/// Standard output cannot be written: the disk is full, or the reader has gone.
#[derive(Debug, thiserror::Error)]
#[error("standard output cannot be written")]
pub struct Error(#[source] io::Error);

/// Prints text, like `print!`; gives a `Result`.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => { $crate::stdout::print(format_args!($($text)*)) };
}

/// Prints a line, like `println!`; gives a `Result`.
#[macro_export]
macro_rules! outln {
    ($($text:tt)*) => { $crate::stdout::print(format_args!("{}\n", format_args!($($text)*))) };
}

/// The function behind `out!` and `outln!`.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: Arguments<'_>) -> Result<()> {
    Ok(io::stdout().lock().write_fmt(text).map_err(Error)?)
}

/// Runs `print`, which writes to standard output by itself.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_with(print: impl FnOnce() -> io::Result<()>) -> Result<()> {
    Ok(print().map_err(Error)?)
}

/// Does `work` with a buffered writer to standard output, for much text. Gives the result of
/// `work`.
///
/// # Errors
/// Standard output cannot be written.
pub fn write_with<T>(
    work: impl FnOnce(&mut BufWriter<StdoutLock<'static>>) -> io::Result<T>,
) -> Result<T> {
    let mut buffer = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let done = work(&mut buffer).and_then(|done| buffer.flush().map(|()| done));
    Ok(done.map_err(Error)?)
}

/// Writes what is still buffered.
///
/// # Errors
/// Standard output cannot be written.
pub fn finish() -> Result<()> {
    Ok(io::stdout().lock().flush().map_err(Error)?)
}

/// Whether `error` says that the reader of standard output has gone, as in `kernlane … | head`.
pub(crate) fn reader_is_gone(error: &anyhow::Error) -> bool {
    let unwritten = error.chain().find_map(|cause| cause.downcast_ref::<Error>());
    unwritten.is_some_and(|Error(cause)| cause.kind() == ErrorKind::BrokenPipe)
}
