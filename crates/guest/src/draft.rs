//! Makes a directory beside its final place and renames it when it is complete.
//!
//! Input: the final path, and the names of the files. Output: a directory to write the files to. If
//! anything fails before `publish`, nothing has the final name, or the old directory is unchanged.

use crate::refused::RefusedRequest;
use anyhow::{Context, Result, ensure};
use host::scratch;
use std::path::{Path, PathBuf};

/// A directory that is being made, and its final place.
pub(crate) struct OutputDirectory {
    /// It is removed with its contents when the command ends.
    holder: tempfile::TempDir,
    /// The directory for the files.
    pub work: PathBuf,
    output: PathBuf,
    /// The files that such a directory contains.
    files: &'static [&'static str],
}

impl OutputDirectory {
    /// Creates the directory for the files.
    ///
    /// # Errors
    /// `output` exists and may not be replaced, or nothing can be created beside it.
    pub(crate) fn reserve(
        output: &Path,
        force: bool,
        files: &'static [&'static str],
    ) -> Result<OutputDirectory> {
        if let Ok(metadata) = std::fs::symlink_metadata(output) {
            ensure!(metadata.is_dir(), "{} exists and is not a directory", output.display());
            let entries = std::fs::read_dir(output)
                .with_context(|| format!("reading {}", output.display()))?;
            for entry in entries {
                let name = entry?.file_name();
                ensure!(force, RefusedRequest::OutputNotEmpty(output.into()));
                ensure!(
                    files.iter().any(|file| name == *file),
                    "{} holds {name:?}, which is not a file of such a result, so it is not removed",
                    output.display()
                );
            }
        }
        let parent = match output.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        std::fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
        let holder = scratch::directory(parent, ".kernlane-record-")?;
        let work = std::path::absolute(holder.path())?.join("new");
        std::fs::create_dir(&work).with_context(|| format!("making {}", work.display()))?;
        Ok(OutputDirectory { holder, work, output: output.into(), files })
    }

    /// Where a file can lie that goes with this value, beside the directory.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.work.with_file_name(name)
    }

    /// Gives the directory its final name, when all its files are on the disk.
    pub(crate) fn publish(&self) -> Result<()> {
        for file in self.files {
            let path = self.work.join(file);
            std::fs::File::open(&path)
                .and_then(|file| file.sync_all())
                .with_context(|| format!("writing {}", path.display()))?;
        }
        let old = self.holder.path().join("replaced");
        let replaces = self.output.exists();
        if replaces {
            std::fs::rename(&self.output, &old)
                .with_context(|| format!("replacing {}", self.output.display()))?;
        }
        std::fs::rename(&self.work, &self.output)
            .inspect_err(|_| {
                if replaces {
                    // If this also fails, the error below is still reported.
                    let _ = std::fs::rename(&old, &self.output);
                }
            })
            .with_context(|| format!("giving {} its name", self.output.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: &[&str] = &["a", "b"];

    #[test]
    fn existing_directories_are_not_overwritten() {
        let parent = tempfile::tempdir().unwrap();
        let output = parent.path().join("r");
        drop(OutputDirectory::reserve(&output, false, FILES).unwrap());
        std::fs::create_dir(&output).unwrap();
        drop(OutputDirectory::reserve(&output, false, FILES).unwrap());
        std::fs::write(output.join("a"), "x").unwrap();
        let refused = OutputDirectory::reserve(&output, false, FILES).err().unwrap();
        assert!(matches!(
            refused.downcast_ref(),
            Some(RefusedRequest::OutputNotEmpty(path)) if *path == output
        ));
        drop(OutputDirectory::reserve(&output, true, FILES).unwrap());
        std::fs::write(output.join("thesis.tex"), "x").unwrap();
        assert!(OutputDirectory::reserve(&output, true, FILES).is_err());
        std::fs::write(parent.path().join("file"), "x").unwrap();
        assert!(OutputDirectory::reserve(&parent.path().join("file"), true, FILES).is_err());
        let left: Vec<_> = std::fs::read_dir(parent.path()).unwrap().collect();
        assert_eq!(left.len(), 2, "no temporary file remains: {left:?}");
    }
}
