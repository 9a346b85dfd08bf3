//! Everything that Kernlane knows of a recording, as tables, and SQL on them.
//!
//! Input: recordings with their kernels, and a question in SQL. Output: rows. [`schema`] lists the
//! tables. [`produce`] makes their rows in batches of typed columns, by the one walk over a
//! recording; it knows no SQL. [`sql`] is a thin user of it. Nothing is written, neither to a
//! recording nor to the terminal.
//!
//! To add a table: add its schema to [`schema::TABLES`], and its rows to a module of [`produce`].

#![warn(missing_docs, clippy::missing_errors_doc)]

pub mod batch;
pub mod form;
pub mod named;
pub mod probe;
pub mod produce;
pub mod recording;
pub mod schema;
pub mod sql;
pub mod words;
