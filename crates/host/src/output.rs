//! Files and directories appear under their names whole or not at all.
//!
//! A file is written without a name, so that nothing is left of it when the process ends early, for
//! whatever reason. The file gets its name when it is whole. On file systems without nameless files
//! (NFS, FUSE), it has a hidden name until then. A directory is made under a hidden name. The next
//! command that writes there removes what a killed process left under such names.
//!
//! Input: a path, and bytes or a function that writes them. Output: the file or directory.

use crate::scratch;
use anyhow::{Context, Result, ensure};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

/// What hidden names begin with.
const HIDDEN: &str = ".kernlane-";

/// Writes `bytes` to `path`, replacing what was there.
///
/// # Errors
/// The directory cannot be written to, or the disk is full; then nothing is left behind, and an
/// older file is unchanged.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_with(path, |file| Ok(file.write_all(bytes)?))
}

/// Like `write`, with the bytes that `work` writes.
///
/// # Errors
/// As `write`, and those of `work`.
pub fn write_with<T>(
    path: &Path,
    work: impl FnOnce(&mut (dyn Write + Send)) -> Result<T>,
) -> Result<T> {
    let named = || format!("{}: cannot be written", path.display());
    let mut file = UnfinishedFile::new(parent_of(path)).with_context(named)?;
    let mut buffer = io::BufWriter::with_capacity(1 << 18, file.file());
    let made = work(&mut buffer).with_context(named)?;
    buffer.flush().with_context(named)?;
    drop(buffer);
    file.publish(path).with_context(named)?;
    Ok(made)
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A file that is being written.
enum UnfinishedFile {
    Nameless(File),
    Hidden(tempfile::NamedTempFile),
}

impl UnfinishedFile {
    fn new(directory: &Path) -> io::Result<UnfinishedFile> {
        scratch::remove_abandoned(directory, HIDDEN);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match open(directory, flags, Mode::from_raw_mode(0o600)) {
            Ok(file) => Ok(UnfinishedFile::Nameless(file.into())),
            // The file system has no nameless files. Any other cause fails again here.
            Err(_) => tempfile::Builder::new()
                .prefix(&scratch::own(HIDDEN))
                .tempfile_in(directory)
                .map(UnfinishedFile::Hidden),
        }
    }

    fn file(&mut self) -> &mut File {
        match self {
            UnfinishedFile::Nameless(file) => file,
            UnfinishedFile::Hidden(file) => file.as_file_mut(),
        }
    }

    /// Gives the file its name, and its place on the disk.
    fn publish(mut self, path: &Path) -> io::Result<()> {
        set_usual_permissions(self.file())?;
        self.file().sync_all()?;
        match self {
            UnfinishedFile::Hidden(file) => {
                file.persist(path).map(drop).map_err(|error| error.error)
            }
            UnfinishedFile::Nameless(file) => {
                // A link never replaces a file, but a renamed file does.
                let hidden = tempfile::Builder::new().prefix(&scratch::own(HIDDEN)).make_in(
                    parent_of(path),
                    |hidden| {
                        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
                        Ok(linkat(CWD, own, CWD, hidden, AtFlags::SYMLINK_FOLLOW)?)
                    },
                )?;
                hidden.into_temp_path().persist(path).map_err(|error| error.error)
            }
        }
    }
}

/// Does `work` in the directory `path`. A new directory has a hidden name until `work` is done, so
/// that it has all files or does not exist. In an existing directory, `work` is done in place.
/// `work` takes the path that it must write to.
///
/// # Errors
/// The directory cannot be made, or `work` fails.
pub fn whole_directory<T>(path: &Path, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    if path.exists() {
        return in_directory(path, work);
    }
    let named = || format!("{}: cannot be made", path.display());
    let parent = parent_of(path);
    std::fs::create_dir_all(parent).with_context(named)?;
    let holder = scratch::directory(parent, HIDDEN)?;
    let made = std::fs::canonicalize(holder.path()).with_context(named)?.join("new");
    std::fs::create_dir(&made).with_context(named)?;
    let done = work(&made)?;
    ensure!(!path.exists(), "{}: was made by another command meanwhile", path.display());
    std::fs::rename(&made, path).with_context(named)?;
    Ok(done)
}

/// Does `work` in the directory `path`, by its canonical name. Makes a missing directory, and
/// removes it again if it is still empty at the end. For work of several steps, whose results are
/// each worth keeping.
///
/// # Errors
/// The directory cannot be made, or `work` fails.
pub fn in_directory<T>(path: &Path, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let is_new = !path.exists();
    std::fs::create_dir_all(path).with_context(|| format!("{}: cannot be made", path.display()))?;
    let done = std::fs::canonicalize(path)
        .with_context(|| format!("{}: cannot be used", path.display()))
        .and_then(|canonical| work(&canonical));
    if done.is_err() && is_new {
        // Fails if the directory has files, which are then worth keeping.
        let _ = std::fs::remove_dir(path);
    }
    done
}

/// Temporary files are for their owner alone; results are for everyone.
fn set_usual_permissions(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
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

    fn names_in(directory: &Path) -> Vec<std::ffi::OsString> {
        let entries = std::fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }

    /// So that nothing is left when the process is killed meanwhile.
    #[test]
    fn a_file_has_no_name_while_it_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("result");
        write_with(&path, |file| {
            file.write_all(b"one")?;
            file.flush()?;
            assert!(names_in(directory.path()).is_empty());
            Ok(())
        })
        .unwrap();
        assert_eq!(names_in(directory.path()), ["result"]);
    }

    #[test]
    fn a_file_with_a_hidden_name_is_published_and_removed_like_a_nameless_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("result");
        let hidden = || {
            let prefix = scratch::own(HIDDEN);
            let file = tempfile::Builder::new().prefix(&prefix).tempfile_in(directory.path());
            UnfinishedFile::Hidden(file.unwrap())
        };
        drop(hidden());
        assert!(names_in(directory.path()).is_empty());
        let mut draft = hidden();
        draft.file().write_all(b"one").unwrap();
        draft.publish(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        // No process has a number beyond the kernel's limit of 2^22.
        std::fs::write(directory.path().join(".kernlane-4194305-a"), "").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(names_in(directory.path()), ["result"]);
    }

    #[test]
    fn a_directory_appears_when_it_is_whole() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("tables");
        let failed = whole_directory(&path, |made| -> Result<()> {
            write(&made.join("one"), b"1")?;
            assert!(!path.exists());
            anyhow::bail!("the second one")
        });
        assert_eq!(failed.unwrap_err().to_string(), "the second one");
        assert!(names_in(parent.path()).is_empty());
        whole_directory(&path, |made| write(&made.join("one"), b"1")).unwrap();
        whole_directory(&path, |made| write(&made.join("two"), b"2")).unwrap();
        assert_eq!((names_in(parent.path()).len(), names_in(&path).len()), (1, 2));
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
