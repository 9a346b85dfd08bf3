//! Files and directories that are made once: a command that was ended goes on behind the last one.
//!
//! Input: a path, and how to make what it names. Output: what it names. An interrupt ends the
//! command here, between two of them; what is half made, its maker removes.

use anyhow::{Context, Result};
use host::{interrupt, note};
use std::path::Path;

/// Calls `make`, which writes `output`, unless that exists.
///
/// # Errors
/// The errors of `make`, with the path; or the user has interrupted.
pub fn make(output: &Path, make: impl FnOnce() -> Result<()>) -> Result<()> {
    interrupt::check()?;
    if output.exists() {
        return Ok(());
    }
    note!("making {}", output.display());
    make().with_context(|| format!("making {}", output.display()))?;
    interrupt::check()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exists_is_not_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let output = directory.path().join("made");
        let once = |text: &str| make(&output, || Ok(std::fs::write(&output, text)?));
        once("first").unwrap();
        once("second").unwrap();
        assert_eq!(std::fs::read_to_string(&output).unwrap(), "first");
    }

    #[test]
    fn an_error_names_what_was_made() {
        let failed = make(Path::new("/no/such"), || anyhow::bail!("no kernel"));
        assert_eq!(format!("{:#}", failed.unwrap_err()), "making /no/such: no kernel");
    }
}
