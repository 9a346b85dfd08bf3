//! A recorded execution, followed step by step: which way control went, what was fetched and
//! accessed, and the machines to run it on.
//!
//! ```text
//! trace → flow: fragments ─→ moved: fetches of a layout ─→ numbering: lines and pages
//!       └→ data: executions with their loads and stores
//! ```
//!
//! Takes the events of a recording, and [`image::place::Placement`]s; gives what an analysis
//! counts. Counts nothing itself, and never looks at ELF.

#![forbid(unsafe_code)]

pub mod branches;
pub mod code;
pub mod data;
pub mod division;
pub mod flow;
pub mod machine;
pub mod moved;
pub mod numbering;
pub mod part;
