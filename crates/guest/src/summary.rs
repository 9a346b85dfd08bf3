//! `recording.json` and `checkpoint.json`: JSON with a format number and a checksum.
//!
//! Input: the content of such a file. Output: its text; and the other way round.

use anyhow::{Context, Result, ensure};
use image::sealed;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// 2: with a checksum.
pub(crate) const FORMAT: u32 = 2;
/// The oldest format that is still read. It has no checksum.
const OLDEST: u32 = 1;

/// Checkpoints of the oldest format have no number.
pub(crate) fn oldest() -> u32 {
    OLDEST
}

#[derive(Deserialize)]
struct Seal {
    #[serde(default = "oldest")]
    format: u32,
    #[serde(default)]
    sha256: Option<String>,
}

/// The file's text.
pub(crate) fn to_json(summary: &impl Serialize) -> Result<String> {
    Ok(sealed::json(&serde_json::to_string_pretty(summary)?))
}

/// Reads what `to_json` wrote, and the format before it.
///
/// # Errors
/// The text is not such JSON, has another format, or is damaged.
pub(crate) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    let seal: Seal = serde_json::from_str(text).context("it is no JSON of Kernlane")?;
    ensure!(
        (OLDEST..=FORMAT).contains(&seal.format),
        "format {}; this version reads formats {OLDEST} to {FORMAT}: make it again",
        seal.format
    );
    sealed::verify_json(text, seal.sha256.as_deref(), seal.format > OLDEST)?;
    Ok(serde_json::from_str(text)?)
}
