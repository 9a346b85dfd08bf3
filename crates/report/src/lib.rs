//! Turns numbers into bytes: a text table, a page, the text of a recording. One format per file.
//! Computes no shown number.
//!
//! To add a format: add a file that takes results and gives a `String`.
//!
//! ```
//! use kernlane_report::text::TextTable;
//!
//! let mut table = TextTable::new(&["service", "calls"]);
//! table.push(vec!["read".to_owned(), "12".to_owned()]);
//! assert_eq!(table.to_text(), "  service  calls\n  read        12\n");
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

mod coherence;
mod core_time;
pub mod cross_validation;
pub mod difference;
pub mod dump;
pub mod evaluation;
pub mod generations;
pub mod locality;
pub mod locks;
pub mod misses;
pub mod multiprocessor;
pub mod os_core;
pub mod overview;
pub mod page;
pub mod per_operation;
pub mod profile;
pub mod profile_coverage;
pub mod search;
pub mod services;
pub mod sharing;
pub mod sizes;
pub mod text;
mod text_table;
