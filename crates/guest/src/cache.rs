//! The directory for files that can be made again: `$KERNLANE_CACHE`, or
//! `$XDG_CACHE_HOME/kernlane`, or `~/.cache/kernlane`.
//!
//! Output: paths. Nothing in the directory is needed for correctness: a lost file is made again.

use anyhow::{Context, Result};
use std::path::PathBuf;

pub(crate) fn directory() -> Result<PathBuf> {
    let variable =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("KERNLANE_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("kernlane")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/kernlane")))
        .context("no place for a cache: set HOME, XDG_CACHE_HOME or KERNLANE_CACHE")
}
