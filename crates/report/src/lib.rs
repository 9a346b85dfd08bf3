//! Turns numbers into bytes: a text table, a page, the text of a recording. One format per file.
//! Computes no shown number.
//!
//! To add a format: add a file that takes results and gives a `String`.
//!
//! ```
//! use replay::search::{SearchedLayouts, TriedLayouts};
//!
//! let tries = vec![(1, vec![150]), (2, vec![100])];
//! let tried = TriedLayouts::new("server-32k".into(), vec!["net".into()], vec![200], tries);
//! let text = kernlane_report::search::text(&SearchedLayouts::Misses(tried));
//! assert_eq!(text.lines().nth(1), Some("  seed       net      mean"));
//! assert_eq!(text.lines().nth(2), Some("  1     -25.00 %  -25.00 %"));
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod carried;
mod coherence;
pub mod constants;
mod core_time;
pub mod cross_validation;
pub mod difference;
pub mod dump;
pub mod evaluation;
pub mod fields;
pub mod generations;
pub mod locality;
pub mod locks;
pub mod misses;
pub mod multiprocessor;
mod order;
pub mod os_core;
pub mod overview;
pub mod page;
pub mod per_operation;
pub mod profile;
pub mod profile_coverage;
pub mod rebuilt;
pub mod search;
pub mod services;
pub mod sharing;
pub mod sizes;
pub mod slices;
pub mod staying_code;
pub mod text;
pub mod top;
