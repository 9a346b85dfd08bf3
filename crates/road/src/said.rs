//! What the user reads while a road is taken.

use anyhow::Result;
use host::{interrupt, note};

/// Reports a step. An interrupted road ends here, between two steps.
///
/// # Errors
/// The user has interrupted.
pub(crate) fn say(what: &str) -> Result<()> {
    interrupt::check()?;
    note!("{what}");
    Ok(())
}
