//! Numbers become bytes: a text table, a page, a recording's text. One format a file; nothing here computes what is shown.
//!
//! To add one: a file that takes values of `results` and gives a `String`.

pub mod cross_validation;
pub mod difference;
pub mod dump;
pub mod evaluation;
pub mod locality;
pub mod misses;
pub mod page;
pub mod services;
pub mod sizes;
pub mod text;
