//! Scratch files and directories.
//!
//! Input: where to make them. Output: a path that is removed when the command ends. The next
//! command removes what a killed command left.

use anyhow::{Context, Result};
use std::path::Path;
use tempfile::TempDir;

/// Makes a directory in `parent` that belongs to this process alone. Its name is `prefix`, the
/// process id, `-` and random characters. Removes such directories of ended processes first.
///
/// # Errors
/// `parent` cannot be written to. Leftovers of another process that cannot be removed are not an
/// error.
pub fn directory(parent: &Path, prefix: &str) -> Result<TempDir> {
    remove_abandoned(parent, prefix);
    tempfile::Builder::new()
        .prefix(&own(prefix))
        .tempdir_in(parent)
        .with_context(|| format!("{}: no scratch directory can be made in it", parent.display()))
}

/// The beginning of the names that belong to this process.
pub(crate) fn own(prefix: &str) -> String {
    format!("{prefix}{}-", std::process::id())
}

/// Removes what ended processes have left in `parent`.
pub(crate) fn remove_abandoned(parent: &Path, prefix: &str) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name
            .to_str()
            .and_then(|name| name.strip_prefix(prefix)?.split_once('-'))
            .and_then(|(process, _)| process.parse::<u32>().ok());
        if process.is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists()) {
            // The next command tries again.
            let _ = match entry.file_type() {
                Ok(kind) if kind.is_dir() => std::fs::remove_dir_all(entry.path()),
                _ => std::fs::remove_file(entry.path()),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_killed_processes_left_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        // No process has a number beyond the kernel's limit of 2^22.
        let [abandoned, alive, foreign] = [
            ".x-4194305-a".to_owned(),
            format!(".x-{}-b", std::process::id()),
            ".x-thesis".to_owned(),
        ];
        for name in [&abandoned, &alive, &foreign] {
            std::fs::create_dir(parent.path().join(name)).unwrap();
            std::fs::write(parent.path().join(name).join("file"), "").unwrap();
        }
        std::fs::write(parent.path().join(".x-4194305-file"), "").unwrap();
        let made = directory(parent.path(), ".x-").unwrap();
        assert!(made.path().is_dir());
        assert!(!parent.path().join(&abandoned).exists());
        assert!(!parent.path().join(".x-4194305-file").exists());
        assert!([alive, foreign].iter().all(|name| parent.path().join(name).join("file").exists()));
    }
}
