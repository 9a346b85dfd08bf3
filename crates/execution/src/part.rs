//! A part of a recording, given by shares of its instructions. It serves to train on one part and
//! to test on another.
//!
//! Input: shares, and the instructions of a recording. Output: the instructions at which the part
//! begins and ends. This module reads no recording.

use anyhow::{Result, ensure};
use std::fmt;
use std::ops::Range;

/// A part of a recording. The bounds are shares of the instructions: 0 is the beginning of the
/// recording, 1 its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordingPart {
    /// Where the part begins.
    pub from: f64,
    /// Where the part ends.
    pub until: f64,
}

impl RecordingPart {
    /// The whole recording.
    pub const WHOLE: RecordingPart = RecordingPart { from: 0.0, until: 1.0 };

    /// Whether the part is the whole recording.
    pub fn is_whole(&self) -> bool {
        *self == RecordingPart::WHOLE
    }

    /// The name of the workload, with the part if it is not the whole recording.
    pub fn named(&self, workload: &str) -> String {
        match self.is_whole() {
            true => workload.to_owned(),
            false => format!("{workload}, {self} of it"),
        }
    }

    /// Checks the bounds of the part.
    ///
    /// # Errors
    /// A bound is outside 0 to 1, or the part does not end after it begins.
    pub fn validate(&self) -> Result<()> {
        ensure!(
            self.from >= 0.0 && self.until <= 1.0 && self.from < self.until,
            "a part of a recording must lie between 0 and 1 and begin before it ends, not from {} to \
             {}",
            self.from,
            self.until
        );
        Ok(())
    }

    /// Where the part of a recording with `all` instructions begins and ends, in instructions. An
    /// execution belongs to the part in which it begins.
    pub fn bounds(&self, all: u64) -> Range<u64> {
        let place = |share: f64| (share * all as f64).round() as u64;
        let until = if self.until < 1.0 { place(self.until) } else { u64::MAX };
        place(self.from)..until
    }
}

impl fmt::Display for RecordingPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.from, self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_recording_make_up_the_whole() {
        let bounds = |from, until| RecordingPart { from, until }.bounds(12);
        assert_eq!(bounds(0.0, 0.5), 0..6);
        assert_eq!(bounds(0.5, 1.0), 6..u64::MAX);
        assert_eq!(bounds(0.3, 0.7), 4..8);
        assert_eq!(RecordingPart::WHOLE.bounds(12), 0..u64::MAX);
    }

    #[test]
    fn impossible_parts_are_refused() {
        for (from, until) in [(0.5, 0.5), (-0.1, 1.0), (0.0, 1.1), (f64::NAN, 1.0)] {
            assert!(RecordingPart { from, until }.validate().is_err(), "{from} {until}");
        }
    }
}
