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
    let file = File::open(path).with_context(|| unopened(path))?;
    // SAFETY: the mapping is private and read-only. If the file shrinks while it is read, SIGBUS
    // ends the process, as with every reader of a mapped file. A kernel build replaces its vmlinux
    // instead of writing into it.
    unsafe { Mmap::map(&file) }.with_context(|| format!("{}: cannot be read", path.display()))
}

/// Why a file cannot be opened. Where a kernel's tree is wanted, `vmlinux` was not typed.
fn unopened(path: &Path) -> String {
    let directory = path.parent().filter(|directory| directory.is_dir());
    match directory {
        Some(directory) if path.ends_with("vmlinux") && !path.exists() => format!(
            "{}: not a built kernel tree: there is no vmlinux in it. Give the directory in which \
             make built the kernel, or build it with make",
            directory.display()
        ),
        _ => format!("{}: cannot be opened", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_no_built_tree_is_named_with_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let error = map_file(&directory.path().join("vmlinux")).unwrap_err().to_string();
        assert!(error.starts_with(&directory.path().display().to_string()), "{error}");
        assert!(error.contains(": not a built kernel tree: ") && error.contains("make"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = map_file(Path::new("/missing/vmlinux")).unwrap_err();
        assert_eq!(error.to_string(), "/missing/vmlinux: cannot be opened");
    }
}
