//! Work that runs on a thread of its own while Python's thread waits and looks for signals.
//!
//! Input: work. Output: its value, or an exception, [`Error`]. While it runs, other threads of
//! Python run. Ctrl-C interrupts all work of the process, and is raised when the work has ended.

use anyhow::{Result, anyhow};
use host::interrupt;
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

create_exception!(
    kernlane,
    Error,
    PyException,
    "What Kernlane cannot do: a wrong question, a damaged recording, a kernel that is not found."
);

/// The time between two looks at signals.
const POLL: Duration = Duration::from_millis(50);

/// An exception with the message that the program prints.
pub(crate) fn exception(error: anyhow::Error) -> PyErr {
    match error.downcast::<PyErr>() {
        Ok(error) => error,
        Err(error) => Error::new_err(format!("{error:#}")),
    }
}

/// Does work, and turns a panic into an error.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(anyhow!("a bug of Kernlane, please report it: {text}"))
    })
}

/// Does work on a thread of its own.
///
/// # Errors
/// The work fails, or a signal's handler raises an exception.
pub(crate) fn run<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    std::thread::scope(|scope| {
        let (sender, mut done) = sync_channel(1);
        // When nobody waits, nobody misses the result.
        scope.spawn(move || drop(sender.send(caught(work))));
        match receive(py, &mut done)? {
            Some(done) => done.map_err(exception),
            None => Err(exception(anyhow!("the work broke off: a bug of Kernlane"))),
        }
    })
}

/// What a text of JSON says, as values of Python.
pub(crate) fn from_json<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?.call_method1("loads", (text,))
}

/// Waits for what a thread sends; `None` when it has ended. After an exception the thread has
/// ended.
///
/// # Errors
/// A signal's handler raises an exception: `KeyboardInterrupt` for Ctrl-C.
pub(crate) fn receive<T: Send>(py: Python<'_>, from: &mut Receiver<T>) -> PyResult<Option<T>> {
    loop {
        match py.detach(|| next(from)) {
            Ok(received) => return Ok(Some(received)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(raised) = py.check_signals() {
            interrupt::interrupt();
            py.detach(|| drain(from));
            interrupt::resume();
            return Err(raised);
        }
    }
}

// A receiver belongs to one thread at a time, so these borrow it whole.
fn next<T>(from: &mut Receiver<T>) -> Result<T, RecvTimeoutError> {
    from.recv_timeout(POLL)
}

fn drain<T>(from: &mut Receiver<T>) {
    while from.recv().is_ok() {}
}
