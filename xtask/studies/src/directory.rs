//! What studies of layouts share: recordings, profiles, layouts and results of the demo kernel, in
//! one directory.
//!
//! Input: a directory. Output: files in it. What exists is not made again, so an interrupted study
//! resumes.

use anyhow::{Context, Result, ensure};
use lab::kernel::{self, Compiler};
use replay::results::{ResultFile, ResultRow};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A directory of a study.
pub(crate) struct StudyDirectory {
    kernlane: PathBuf,
    /// The demo kernel's tree.
    pub tree: PathBuf,
    directory: PathBuf,
}

impl StudyDirectory {
    /// Builds Kernlane and the demo kernel, and makes the directory.
    pub(crate) fn new(directory: &Path) -> Result<StudyDirectory> {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("making {}", directory.display()))?;
        Ok(StudyDirectory {
            kernlane: lab::kernlane()?,
            tree: kernel::tree(Compiler::Gcc)?,
            directory: directory.to_owned(),
        })
    }

    /// A file of the study.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A command of Kernlane, without its arguments.
    pub(crate) fn kernlane(&self, command: &str) -> Command {
        let mut kernlane = Command::new(&self.kernlane);
        kernlane.arg(command);
        kernlane
    }

    /// Runs a command that writes `output`, unless that exists.
    pub(crate) fn make(&self, output: &Path, command: &mut Command) -> Result<()> {
        lab::make(output, command)
    }

    /// The profile `NAME.klp`, in which each input weighs the same.
    pub(crate) fn profile(&self, name: &str, inputs: &[PathBuf], options: &[&str]) -> Result<()> {
        let mut command = self.kernlane("profile");
        command.args(inputs).arg("--kernel").arg(&self.tree).args(["--merge", "average"]);
        self.make(&self.path(&format!("{name}.klp")), command.args(options))
    }

    /// The layout `NAME.ALGORITHM.kll` for the profile `NAME.klp`. Returns its path.
    pub(crate) fn layout(&self, name: &str, algorithm: &str) -> Result<PathBuf> {
        let output = self.path(&format!("{name}.{algorithm}.kll"));
        let mut command = self.kernlane("layout");
        command.arg(self.path(&format!("{name}.klp"))).arg("--kernel").arg(&self.tree);
        self.make(&output, command.args(["--algorithm", algorithm]))?;
        Ok(output)
    }

    /// The rows that `kernlane replay` prints, kept in `path`.
    pub(crate) fn replayed(&self, path: &Path, command: &mut Command) -> Result<Vec<ResultRow>> {
        if !path.exists() {
            eprintln!("making {}", path.display());
            let output = command.arg("--json").stderr(Stdio::inherit()).output()?;
            ensure!(output.status.success(), "{command:?}: {}", output.status);
            host::output::write(path, &output.stdout)?;
        }
        Ok(ResultFile::read(path)?.rows)
    }
}
