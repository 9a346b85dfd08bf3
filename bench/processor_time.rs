//! What a thread has had of a processor: other work on the machine does not count.

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

/// The first number of proc(5)'s schedstat, in nanoseconds. It moves with the scheduler's ticks:
/// short work is to be repeated.
///
/// # Errors
/// The kernel keeps no such statistics.
pub(crate) fn processor_time() -> Result<Duration> {
    let path = "/proc/thread-self/schedstat";
    let text = std::fs::read_to_string(path)?;
    let nanoseconds = text.split_ascii_whitespace().next().and_then(|first| first.parse().ok());
    match nanoseconds {
        Some(nanoseconds) => Ok(Duration::from_nanos(nanoseconds)),
        None => Err(Error::new(ErrorKind::InvalidData, format!("{path}: {text:?}"))),
    }
}
