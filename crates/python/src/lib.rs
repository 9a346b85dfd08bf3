//! The Python module `kernlane`: recordings, tables, machines, layouts and replays.
//!
//! Input: calls from Python. Output: Arrow streams, dictionaries, files. A thin user of `road` and
//! `ask`: it computes nothing. Python calls no function of its own for each event. While Kernlane
//! works, other threads of Python run, and Ctrl-C ends the work.
//!
//! `kernlane.pyi` has the types of what is here. To add a function: write it here, in
//! `kernlane.pyi` and in `docs/how-to/python.md`.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod answer;
mod arrow;
mod machine;
mod recording;
mod remarks;
mod steps;
mod work;

use host::progress;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;

/// Opens a recording (a directory) with its kernel.
///
/// `kernel`: the kernel that was recorded: its build tree, its vmlinux, or its System.map. Without
/// it, the kernel is found by its build id: where it was recorded, in the cache, below
/// /usr/lib/debug. `annotations`: a file that says what the kernel's functions mean. Raises `Error`
/// if the recording or its kernel cannot be read.
///
///     >>> rec = kernlane.open("net.rec")
#[pyfunction]
#[pyo3(signature = (path, *, kernel=None, annotations=None))]
fn open(
    py: Python<'_>,
    path: PathBuf,
    kernel: Option<PathBuf>,
    annotations: Option<PathBuf>,
) -> PyResult<recording::Recording> {
    recording::Recording::open(py, path, kernel, annotations)
}

/// Kernlane: where a Linux kernel spends its time while it runs your workload.
///
///     >>> import kernlane, polars
///     >>> rec = kernlane.open("net.rec")
///     >>> polars.DataFrame(rec.ask("top-calls"))
#[pymodule(name = "kernlane")]
mod module {
    #[pymodule_export]
    use super::answer::Answer;
    #[pymodule_export]
    use super::machine::Machine;
    #[pymodule_export]
    use super::open;
    #[pymodule_export]
    use super::recording::{Recording, ask_several, questions, tables};
    #[pymodule_export]
    use super::steps::{layout, record, replay};
    #[pymodule_export]
    use super::work::Error;
    use super::*;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let _ = module;
        progress::observe(Arc::new(remarks::Logger));
        Ok(())
    }
}
