//! Numbers become bytes: a text table, a page, a recording's text. One format a file; nothing here
//! computes what is shown.
//!
//! To add one: a file that takes values of `results` and gives a `String`.

#![forbid(unsafe_code)]

pub mod cross_validation;
pub mod difference;
pub mod dump;
pub mod evaluation;
pub mod locality;
pub mod misses;
pub mod overview;
pub mod page;
pub mod profile;
pub mod services;
pub mod sizes;
pub mod text;
