//! The options `--from` and `--until`: a part of each recording.

use anyhow::{Context, Result};
use clap::Args;
use execution::part::RecordingPart;

/// A part of each recording. The bounds are shares of its instructions.
#[derive(Args)]
pub struct PartArgs {
    /// Leave out what ran before this share of the recording's instructions, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub from: f64,

    /// Leave out what ran after this share of the recording's instructions, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub until: f64,
}

impl PartArgs {
    /// The part.
    ///
    /// # Errors
    /// A bound is outside of 0 to 1, or the part does not end after it begins.
    pub fn part(&self) -> Result<RecordingPart> {
        let part = RecordingPart { from: self.from, until: self.until };
        part.validate().with_context(|| format!("--from {} --until {}", self.from, self.until))?;
        Ok(part)
    }
}
