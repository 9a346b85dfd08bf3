//! What every command needs of the host: whole files, the files of a recording, scratch
//! directories, programs, Ctrl-C, standard output, tables, and the progress of work on a terminal.
//!
//! Input: paths and commands. This crate knows no kernels and no file formats.
//!
//! ```
//! // The file appears under its name when it is whole.
//! let directory = tempfile::tempdir().unwrap();
//! let path = directory.path().join("greeting");
//! kernlane_host::output::write(&path, b"hello\n").unwrap();
//! assert_eq!(std::fs::read(&path).unwrap(), b"hello\n");
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod ending;
pub mod interrupt;
pub mod output;
pub mod progress;
pub mod recording;
pub mod scratch;
pub mod stdout;
pub mod table;
pub mod terminal;
