//! Files are written whole or not at all: under another name in the same directory, then renamed.

use anyhow::{Context, Result};
use std::io::Write;
use std::path::Path;

/// Writes `bytes` to `path`, replacing what was there.
///
/// # Errors
/// The directory cannot be written to, or the disk is full; then nothing is left behind, and what was there is as it was.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let named = || format!("{}: cannot be written", path.display());
    let mut file = tempfile::NamedTempFile::new_in(directory).with_context(named)?;
    file.write_all(bytes).with_context(named)?;
    file.as_file().sync_all().with_context(named)?;
    set_usual_permissions(file.path()).with_context(named)?;
    file.persist(path).with_context(named)?;
    Ok(())
}

/// Temporary files are for their owner alone; results are for everyone.
fn set_usual_permissions(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("result");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        let error = write(&directory.path().join("none/result"), b"").unwrap_err();
        assert!(error.to_string().ends_with("none/result: cannot be written"));
    }
}
