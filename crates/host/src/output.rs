//! Files are written whole or not at all: under another name in the same directory, then renamed.

use anyhow::{Context, Result};
use std::io::Write;
use std::path::Path;

/// Writes `bytes` to `path`, replacing what was there.
///
/// # Errors
/// The directory cannot be written to, or the disk is full; then nothing is left behind, and what
/// was there is as it was.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_with(path, |file| Ok(file.write_all(bytes)?))
}

/// As `write`, what `work` writes as it goes.
///
/// # Errors
/// As `write`, and what `work` gives.
pub fn write_with<T>(
    path: &Path,
    work: impl FnOnce(&mut (dyn Write + Send)) -> Result<T>,
) -> Result<T> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let named = || format!("{}: cannot be written", path.display());
    let mut file = tempfile::NamedTempFile::new_in(directory).with_context(named)?;
    let mut buffer = std::io::BufWriter::with_capacity(1 << 18, file.as_file_mut());
    let made = work(&mut buffer).with_context(named)?;
    buffer.flush().with_context(named)?;
    drop(buffer);
    file.as_file().sync_all().with_context(named)?;
    set_usual_permissions(file.path()).with_context(named)?;
    file.persist(path).with_context(named)?;
    Ok(made)
}

/// Does `work` in `path`, by its canonical name, making the directory if there is none; one that
/// was made is removed again if nothing has come of it.
///
/// # Errors
/// The directory cannot be made, or what `work` gives.
pub fn in_directory<T>(path: &Path, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let is_new = !path.exists();
    std::fs::create_dir_all(path).with_context(|| format!("{}: cannot be made", path.display()))?;
    let done = std::fs::canonicalize(path)
        .with_context(|| format!("{}: cannot be used", path.display()))
        .and_then(|canonical| work(&canonical));
    if done.is_err() && is_new {
        // Fails if something is in it, which is then worth keeping.
        let _ = std::fs::remove_dir(path);
    }
    done
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

    #[test]
    fn a_directory_stays_if_something_came_of_it() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        let fail = |directory: &Path| -> Result<()> { anyhow::bail!("{}", directory.display()) };
        assert!(in_directory(&path, fail).is_err());
        assert!(!path.exists());
        in_directory(&path, |_| Ok(())).unwrap();
        assert!(in_directory(&path, fail).is_err());
        assert!(path.exists(), "it was there before");
        std::fs::remove_dir(&path).unwrap();
        assert!(
            in_directory(&path, |path| write(&path.join("x"), b"x").and_then(|()| fail(path)))
                .is_err()
        );
        assert!(path.join("x").exists());
    }
}
