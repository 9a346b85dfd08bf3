//! A part of a recording, given by shares of its instructions. It serves to train on one part and
//! to test on another.
//!
//! Input: the events of a recording, one by one. Output: whether an event belongs to the part. This
//! module changes no event.

use anyhow::{Result, ensure};
use host::recording::Recording;
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use std::ops::Range;
use trace::{Chunk, RecordingReader, StreamEvent, Translation};

/// Opens a recording and skips its data accesses.
///
/// # Errors
/// The recording cannot be opened or read.
pub fn open_executions(recording: &Recording) -> Result<RecordingReader<BufReader<File>>> {
    Ok(RecordingReader::new(BufReader::with_capacity(1 << 20, File::open(recording.trace())?))?
        .without_data())
}

/// A part of a recording. The bounds are shares of the instructions: 0 is the beginning of the
/// recording, 1 its end.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
pub struct RecordingPart {
    /// Leave out what ran before this share of the recording's instructions, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub from: f64,

    /// Leave out what ran after this share of the recording's instructions, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub until: f64,
}

impl RecordingPart {
    /// The whole recording.
    pub const WHOLE: RecordingPart = RecordingPart { from: 0.0, until: 1.0 };

    /// Whether the part is the whole recording.
    pub fn is_whole(&self) -> bool {
        *self == RecordingPart::WHOLE
    }

    /// Checks the bounds of the part.
    ///
    /// # Errors
    /// A bound is outside 0 to 1, or the part does not end after it begins.
    pub fn validate(&self) -> Result<()> {
        ensure!(
            self.from >= 0.0 && self.until <= 1.0 && self.from < self.until,
            "--from {} --until {}: a part of a recording must lie between 0 and 1 and begin before \
             it ends",
            self.from,
            self.until
        );
        Ok(())
    }

    /// Where the part begins and ends, in instructions. `None`: it is the whole recording. `again`
    /// opens the recording to count its instructions.
    ///
    /// # Errors
    /// As [`RecordingPart::cut`].
    pub fn bounds(
        &self,
        again: impl FnOnce() -> Result<RecordingReader<BufReader<File>>>,
    ) -> Result<Option<Range<u64>>> {
        self.validate()?;
        if self.is_whole() {
            return Ok(None);
        }
        let filter = self.cut(again)?;
        Ok(Some(filter.from..filter.until))
    }

    /// A filter for the events of this part. `again` opens the recording to count its instructions.
    /// It is not called when the part is the whole recording.
    ///
    /// # Errors
    /// The bounds of the part are wrong, or the recording is damaged.
    pub fn cut(
        &self,
        again: impl FnOnce() -> Result<RecordingReader<BufReader<File>>>,
    ) -> Result<PartFilter> {
        self.validate()?;
        if self.is_whole() {
            return Ok(PartFilter::whole());
        }
        let mut reader = again()?;
        let mut all = 0;
        while let Some(chunk) = reader.next_chunk()? {
            if let Chunk::End(totals) = chunk {
                all = totals.instructions();
            }
        }
        Ok(PartFilter::new(self, all))
    }
}

impl fmt::Display for RecordingPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.from, self.until)
    }
}

/// Goes through the events of a recording and selects those of a part.
#[derive(Clone)]
pub struct PartFilter {
    from: u64,
    until: u64,
    /// The instructions before the next event.
    at: u64,
    /// The number of instructions of each translation.
    instructions: Vec<u32>,
}

impl PartFilter {
    /// A filter that keeps every event.
    pub fn whole() -> PartFilter {
        PartFilter::between(0, u64::MAX)
    }

    /// The filter for a part of a recording with `all` instructions.
    fn new(part: &RecordingPart, all: u64) -> PartFilter {
        let place = |share: f64| (share * all as f64).round() as u64;
        let until = if part.until < 1.0 { place(part.until) } else { u64::MAX };
        PartFilter::between(place(part.from), until)
    }

    fn between(from: u64, until: u64) -> PartFilter {
        PartFilter { from, until, at: 0, instructions: Vec::new() }
    }

    /// Learns translations. Later events name them.
    pub fn define(&mut self, translations: &[Translation]) {
        self.instructions.extend(translations.iter().map(Translation::instructions));
    }

    /// Whether all executions of the part came.
    pub fn has_ended(&self) -> bool {
        self.at >= self.until
    }

    /// Whether the event belongs to the part. An execution does when it begins in the part. Other
    /// events always do.
    #[inline]
    pub fn keeps(&mut self, event: &StreamEvent) -> bool {
        let Some((id, reached)) = event.execution() else { return true };
        let all = self.instructions.get(id.0 as usize).copied().unwrap_or(0);
        let ran = reached.unwrap_or(all);
        let inside = (self.from..self.until).contains(&self.at);
        self.at += u64::from(ran);
        inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::{RunAddr, TaskId, TranslationId};

    fn cut(from: f64, until: f64) -> PartFilter {
        let mut cut = PartFilter::new(&RecordingPart { from, until }, 12);
        cut.define(&[Translation {
            id: TranslationId(0),
            addr: RunAddr(0),
            lengths: [1, 1, 1].into(),
            code: [0x90; 3].into(),
        }]);
        cut
    }

    #[test]
    fn the_parts_of_a_recording_make_up_the_whole() {
        let executed = StreamEvent::Executed(TranslationId(0));
        let kept = |mut cut: PartFilter| (0..4).map(|_| cut.keeps(&executed)).collect::<Vec<_>>();
        assert_eq!(kept(cut(0.0, 0.5)), [true, true, false, false]);
        assert_eq!(kept(cut(0.5, 1.0)), [false, false, true, true]);
        assert_eq!(
            kept(cut(0.3, 0.7)),
            [false, false, true, false],
            "an execution that begins before the part does not belong to it"
        );
        assert_eq!(kept(PartFilter::whole()), [true; 4]);
        let mut half = cut(0.0, 0.5);
        let ended = [(); 3].map(|()| (half.has_ended(), half.keeps(&executed)));
        assert_eq!(ended, [(false, true), (false, true), (true, false)]);
    }

    #[test]
    fn left_translations_count_their_reached_instructions_and_tasks_are_always_kept() {
        let mut cut = cut(0.5, 1.0);
        let left = StreamEvent::Left { translation: TranslationId(0), instructions: 1 };
        let kept: Vec<bool> = (0..8).map(|_| cut.keeps(&left)).collect();
        assert_eq!(kept, [false, false, false, false, false, false, true, true]);
        let mut cut = super::tests::cut(0.5, 1.0);
        assert!(cut.keeps(&StreamEvent::Task(TaskId(0))));
    }

    #[test]
    fn impossible_parts_are_refused() {
        for (from, until) in [(0.5, 0.5), (-0.1, 1.0), (0.0, 1.1), (f64::NAN, 1.0)] {
            assert!(RecordingPart { from, until }.validate().is_err(), "{from} {until}");
        }
    }
}
