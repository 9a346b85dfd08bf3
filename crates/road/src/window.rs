//! The window of the guest's clock that a part of a recording has.
//!
//! Input: a recording and a part of it. Output: nanoseconds.

use anyhow::Result;
use execution::code::TranslatedCode;
use execution::opened::OpenedRecording;
use execution::part::RecordingPart;
use execution::walk::{Observer, Piece, WalkedRecording, Wants};
use host::recording::Recording;
use std::ops::Range;
use std::path::Path;
use trace::{RecordingHeader, StreamEvent, Translation};

/// Where a part of a recording (a directory) begins and ends, in nanoseconds of the guest's clock.
/// The whole recording has no end.
///
/// ```
/// use execution::part::RecordingPart;
/// use road::window::window;
///
/// let home = road::examples::home();
/// let recording = home.path().join("loop.rec");
/// assert_eq!(window(&recording, &RecordingPart::WHOLE)?, 0..u64::MAX);
/// let first = window(&recording, &RecordingPart { from: 0.0, until: 0.5 })?;
/// let second = window(&recording, &RecordingPart { from: 0.5, until: 1.0 })?;
/// assert!(first.start == 0 && first.end.abs_diff(second.start) <= 1 && second.end > second.start);
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// The bounds of the part are wrong, or the recording cannot be read, is damaged or cut off.
pub fn window(recording: &Path, part: &RecordingPart) -> Result<Range<u64>> {
    part.validate()?;
    if part.is_whole() {
        return Ok(0..u64::MAX);
    }
    let all = length(recording)? as f64;
    Ok((part.from * all) as u64..(part.until * all).ceil() as u64)
}

/// Nanoseconds of the guest's clock in a recording: an instruction takes one, but for the time in
/// which all CPUs were halted.
#[derive(Default)]
struct GuestTime {
    ticks: u64,
    instructions: u64,
}

impl Observer for GuestTime {
    fn begin(&mut self, _: &RecordingHeader, _has_data: bool) -> Result<Wants> {
        Ok(Wants::default())
    }

    fn define(&mut self, _: &[Translation], _: &[TranslatedCode]) -> Result<()> {
        Ok(())
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        let ticked = piece.events().map(|event| match event {
            StreamEvent::Clock(ticks) => u64::from(ticks),
            _ => 0,
        });
        self.ticks += ticked.sum::<u64>();
        Ok(())
    }

    fn end(&mut self, walked: &WalkedRecording<'_>) -> Result<()> {
        self.instructions = walked.totals.instructions();
        Ok(())
    }
}

fn length(recording: &Path) -> Result<u64> {
    let mut time = GuestTime::default();
    OpenedRecording::whole(&Recording::at(recording), "length")?.walk(&mut time)?;
    Ok(time.instructions.max(time.ticks))
}
