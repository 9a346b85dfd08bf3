//! Finds a file that belongs to Kernlane's program: beside the program, in `../lib/kernlane/`, or
//! where an environment variable says.
//!
//! Output: the path, or an error that names the places where the file can be.

use anyhow::{Context, Result, bail};
use std::path::PathBuf;

/// The file `name`. `variable` may hold its path. `remedy`: what to do if there is none.
///
/// # Errors
/// There is no such file.
pub(crate) fn find(name: &str, variable: &str, remedy: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        let path = PathBuf::from(path);
        return path
            .canonicalize()
            .with_context(|| format!("{variable} is {}, which does not exist", path.display()));
    }
    let executable = std::env::current_exe()
        .and_then(|path| path.canonicalize())
        .context("the path of this program is unknown")?;
    let directory = executable.parent().context("this program is in no directory")?;
    let candidates = [directory.join(name), directory.join("../lib/kernlane").join(name)];
    match candidates.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => bail!("{name} is not beside {}: {remedy}", executable.display()),
    }
}
