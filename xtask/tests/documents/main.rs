//! The documents say what the program has. One program tests the book and the reference, because
//! linking the whole tool takes long.

mod book;
mod reference;
mod units;

use std::fs;
use std::path::{Path, PathBuf};

/// The checkout.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file of the checkout.
fn read(document: &str) -> String {
    fs::read_to_string(root().join(document)).unwrap_or_else(|error| panic!("{document}: {error}"))
}
