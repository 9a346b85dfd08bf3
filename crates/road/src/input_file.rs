//! The text of a file. A file of another kind is refused, and its kind is named.
//!
//! Input: a path. Output: text. This module does not check the text.

use anyhow::{Context, Result};
use exchange::kinds::{FileKind, UnusableFile};
use std::path::Path;

/// Reads a file of one of the `wanted` kinds.
///
/// ```
/// use exchange::kinds::FileKind;
///
/// let home = road::examples::home();
/// let path = home.path().join("net.klp");
/// std::fs::write(&path, "kernlane-layout 2\n")?;
/// let refused = road::input_file::text_of(&path, &[FileKind::Profile]).unwrap_err();
/// assert!(format!("{refused:#}").contains("a layout"), "{refused:#}");
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// The file cannot be read, is not text, or is of another known kind.
pub fn text_of(path: &Path, wanted: &[FileKind]) -> Result<String> {
    let named = || path.display().to_string();
    let bytes =
        std::fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    match FileKind::of(&bytes) {
        // A list of symbols and a list of calls are texts of words. A damaged file may be one too.
        Some(FileKind::SymbolOrder | FileKind::CallGraph) | None => {}
        Some(kind) if wanted.contains(&kind) => {}
        Some(kind) => return Err(UnusableFile::Kind(kind)).with_context(named),
    }
    String::from_utf8(bytes).context("it is not text").with_context(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_kind_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            text_of(&path, &[FileKind::Profile]).map_err(|error| format!("{error:#}"))
        };
        let whole = "{\"kernlane_profile\":5}";
        assert_eq!(read(whole.as_bytes()).unwrap(), whole);
        assert_eq!(read(b"damaged").unwrap(), "damaged");
        for (bytes, advice) in [
            (&b"PERFILE2"[..], "this is perf.data: import it"),
            (b"f:1:1\n 1: 1\n", "this is a sample profile of LLVM"),
            (b"v1\nf f\nc 0\n", "this is Propeller's list of clusters"),
            (b"kernlane-layout 2\n", "this is a layout of Kernlane"),
            (b"\xff\xfe", "it is not text"),
        ] {
            let error = read(bytes).unwrap_err();
            assert!(error.contains(advice) && error.contains("/file: "), "{error}");
        }
    }
}
