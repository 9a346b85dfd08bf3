//! Values of a machine file, with their sources and their places in the file.
//!
//! Input: TOML. Output: the value and its place, for messages. A value without a source is an
//! error.

use anyhow::{Result, bail};
use serde::Deserialize;
use toml::Spanned;

/// A value and its source.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sourced<T> {
    value: T,
    source: String,
}

pub(crate) type SourcedInteger = Spanned<Sourced<u64>>;
pub(crate) type SourcedFraction = Spanned<Sourced<f64>>;

/// Reads the values of a file, and names the line of each.
pub(crate) struct MachineFileReader<'a> {
    pub text: &'a str,
    pub file: &'a str,
}

impl MachineFileReader<'_> {
    /// The value. It must have a source.
    pub(crate) fn sourced<'a, T>(&self, spanned: &'a Spanned<Sourced<T>>) -> Result<&'a T> {
        let sourced = spanned.get_ref();
        if sourced.source.trim().is_empty() {
            bail!(
                "{}: every number needs a source or the word \"assumed\"; this source is empty",
                self.at(spanned)
            );
        }
        Ok(&sourced.value)
    }

    /// "file:line" of a value.
    pub(crate) fn at<T>(&self, spanned: &Spanned<T>) -> String {
        let before = &self.text.as_bytes()[..spanned.span().start.min(self.text.len())];
        format!("{}:{}", self.file, 1 + before.iter().filter(|&&byte| byte == b'\n').count())
    }
}
