//! Remarks of Kernlane go to Python's logging: the logger `kernlane`.

use host::progress::{Observer, Work};
use pyo3::prelude::*;

/// Gives remarks to the logger. Progress is not shown.
pub(crate) struct Logger;

struct Unseen;

impl Observer for Logger {
    fn begin(&self, _: &str, _: Option<u64>) -> Box<dyn Work> {
        Box::new(Unseen)
    }

    fn remark(&self, text: &str) {
        let (level, text) = match text.strip_prefix("warning: ") {
            Some(text) => ("warning", text),
            None => ("info", text),
        };
        let log = |py: Python<'_>| -> PyResult<()> {
            let logger = py.import("logging")?.call_method1("getLogger", ("kernlane",))?;
            logger.call_method1(level, ("%s", text)).map(drop)
        };
        // A remark that cannot be logged changes no result.
        drop(Python::try_attach(log));
    }
}

impl Work for Unseen {
    fn say(&self, _: &str) {}

    fn advance(&self, _: u64) {}
}
