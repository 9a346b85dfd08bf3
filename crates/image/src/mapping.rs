//! Maps files into memory for reading.
//!
//! Input: a path. Output: the file's bytes. This module never looks at them, and never writes.

use anyhow::{Context, Result};
use memmap2::Mmap;
use std::fs::File;
use std::path::Path;

/// The bytes of the file at `path`.
///
/// # Errors
/// The file cannot be opened or mapped.
#[allow(unsafe_code, reason = "only the operating system can map a file")]
pub fn map_file(path: &Path) -> Result<Mmap> {
    let file = File::open(path).with_context(|| format!("{}: cannot be opened", path.display()))?;
    // SAFETY: the mapping is private and read-only. If the file shrinks while it is read, SIGBUS
    // ends the process, as with every reader of a mapped file. A kernel build replaces its vmlinux
    // instead of writing into it.
    unsafe { Mmap::map(&file) }.with_context(|| format!("{}: cannot be read", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_named() {
        let error = map_file(Path::new("/missing/vmlinux")).unwrap_err();
        assert_eq!(error.to_string(), "/missing/vmlinux: cannot be opened");
    }
}
