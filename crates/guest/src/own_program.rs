//! This program as files of a guest. There it runs with the libraries that it runs with here,
//! whatever the guest has.
//!
//! Input: the process's own program, and what the kernel says of the files in its memory. Output:
//! files, and how to call the program.

use crate::loaded_part;
use crate::needs::dynamic::Dynamic;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A file of a guest: path, permissions, content.
pub type GuestFile = (String, u32, Vec<u8>);

/// A program in a guest.
#[derive(Debug)]
pub struct OwnProgram {
    /// The program, its loader and its libraries.
    pub files: Vec<GuestFile>,
    /// The words before the program's own arguments, for a shell.
    pub command: String,
}

impl OwnProgram {
    /// The program of this process. `home`: the directory of the guest for its files, whose path
    /// has no blanks.
    ///
    /// # Errors
    /// Files of the process cannot be read.
    pub fn new(home: &str) -> Result<OwnProgram> {
        let program = std::env::current_exe().context("the path of this program is unknown")?;
        let bytes = read(&program)?;
        let interpreter = Dynamic::read(&bytes).and_then(|dynamic| dynamic.interpreter);
        let at = |name: &str| format!("{home}/{name}");
        let own = at("program");
        let mut files = vec![(own.clone(), 0o755, loaded_part::of(bytes)?)];
        let Some(interpreter) = interpreter else { return Ok(OwnProgram { files, command: own }) };
        let loader = fs::canonicalize(&interpreter).context(interpreter)?;
        files.push((at("loader"), 0o755, read(&loader)?));
        let maps = fs::read_to_string("/proc/self/maps").context("reading /proc/self/maps")?;
        let mut libraries = BTreeMap::new();
        for path in executable(&maps).filter(|path| *path != loader) {
            let bytes = read(&path)?;
            if let Some(name) = Dynamic::read(&bytes).and_then(|dynamic| dynamic.name) {
                libraries.insert(name, loaded_part::of(bytes)?);
            }
        }
        for (name, bytes) in libraries {
            files.push((at(&name), 0o755, bytes));
        }
        let command = format!("{} --library-path {home} {own}", at("loader"));
        Ok(OwnProgram { files, command })
    }
}

/// The files of which a process has code in its memory, by its `maps` (proc_pid_maps(5)).
fn executable(maps: &str) -> impl Iterator<Item = PathBuf> {
    maps.lines().filter_map(|line| {
        let mut words = line.splitn(6, ' ');
        let is_code = words.nth(1)?.contains('x');
        let path = words.nth(3)?.trim_start();
        (is_code && path.starts_with('/')).then(|| PathBuf::from(path))
    })
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    #[test]
    fn the_program_runs_from_its_files_alone() {
        let home = tempfile::tempdir().unwrap();
        let own = OwnProgram::new(home.path().to_str().unwrap()).unwrap();
        for (path, permissions, bytes) in &own.files {
            fs::write(path, bytes).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(*permissions)).unwrap();
        }
        let list = format!("{} --list", own.command);
        let listed = Command::new("sh").args(["-c", &list]).output().unwrap();
        let printed = String::from_utf8_lossy(&listed.stdout);
        assert!(printed.contains("the_program_runs_from_its_files_alone: test"), "{listed:?}");
        // Without the libraries it does not.
        for (path, ..) in own.files.iter().filter(|(path, ..)| path.ends_with("libc.so.6")) {
            fs::write(path, "no library").unwrap();
        }
        assert!(!Command::new("sh").args(["-c", &list]).output().unwrap().status.success());
    }

    #[test]
    fn code_in_memory_is_told_from_data() {
        let maps = "55a0-55b0 r--p 00000000 08:01 11                      /usr/bin/a b\n\
            55b0-55c0 r-xp 00001000 08:01 11                      /usr/bin/a b\n\
            7ffe-7fff rw-p 00000000 00:00 0                       [stack]\n\
            7fff-8000 r-xp 00000000 00:00 0                       [vdso]\n\
            8000-9000 r-xp 00000000 00:00 0 \n";
        assert_eq!(executable(maps).collect::<Vec<_>>(), [PathBuf::from("/usr/bin/a b")]);
    }
}
