//! A part of a recording, by shares of the instructions that it holds: to train on one part and
//! test on another.
//!
//! Takes a recording's events one by one; says which belong to the part. Never changes one.

use anyhow::{Result, ensure};
use host::recording::Recording;
use std::fmt;
use std::fs::File;
use std::io::BufReader;
use trace::{Chunk, Event, Reader, Translation, TranslationId};

/// What a recording executed, without its data accesses.
pub fn executed(recording: &Recording) -> Result<Reader<BufReader<File>>> {
    Ok(Reader::new(BufReader::with_capacity(1 << 20, File::open(recording.trace())?))?
        .without_data())
}

/// From where to where, as shares of the instructions: 0 is the recording's beginning, 1 its end.
#[derive(Clone, Copy, Debug, PartialEq, clap::Args)]
pub struct Part {
    /// Leave out what ran before this share of the recording's instructions, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub from: f64,

    /// Leave out what ran after this share of the recording's instructions, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub until: f64,
}

impl Part {
    pub const WHOLE: Part = Part { from: 0.0, until: 1.0 };

    pub fn is_whole(&self) -> bool {
        *self == Part::WHOLE
    }

    /// Whether there is such a part.
    pub fn validate(&self) -> Result<()> {
        ensure!(
            self.from >= 0.0 && self.until <= 1.0 && self.from < self.until,
            "--from {} --until {}: a part of a recording lies between 0 and 1, and begins before it ends",
            self.from,
            self.until
        );
        Ok(())
    }

    /// The cut through the recording that `again` reads; the whole of it needs no reading.
    ///
    /// # Errors
    /// There is no such part, or the recording is damaged.
    pub fn cut(&self, again: impl FnOnce() -> Result<Reader<BufReader<File>>>) -> Result<Cut> {
        self.validate()?;
        if self.is_whole() {
            return Ok(Cut::whole());
        }
        let mut reader = again()?;
        let mut all = 0;
        while let Some(chunk) = reader.next_chunk()? {
            if let Chunk::End(totals) = chunk {
                all = totals.instructions();
            }
        }
        Ok(Cut::new(self, all))
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.from, self.until)
    }
}

/// Goes through a recording and tells which events belong to a part of it.
pub struct Cut {
    from: u64,
    until: u64,
    /// Instructions before the next event.
    at: u64,
    /// Of each translation.
    instructions: Vec<u32>,
}

impl Cut {
    pub fn whole() -> Cut {
        Cut::between(0, u64::MAX)
    }

    /// The part of a recording of so many instructions.
    fn new(part: &Part, all: u64) -> Cut {
        let place = |share: f64| (share * all as f64).round() as u64;
        let until = if part.until < 1.0 { place(part.until) } else { u64::MAX };
        Cut::between(place(part.from), until)
    }

    fn between(from: u64, until: u64) -> Cut {
        Cut { from, until, at: 0, instructions: Vec::new() }
    }

    /// Learns the translations that events will name.
    pub fn define(&mut self, translations: &[Translation]) {
        self.instructions.extend(translations.iter().map(Translation::instructions));
    }

    /// Whether what an event says ran belongs to the part: it does when it begins in it. What is no
    /// execution always does.
    #[inline]
    pub fn keeps(&mut self, event: &Event) -> bool {
        let of = |id: TranslationId| self.instructions.get(id.0 as usize).copied().unwrap_or(0);
        let ran = match *event {
            Event::Executed(id) => of(id),
            Event::Left { instructions, .. } => instructions,
            Event::Task(_) | Event::Marker(_) | Event::Woken(_) | Event::Clock(_) => return true,
        };
        let inside = (self.from..self.until).contains(&self.at);
        self.at += u64::from(ran);
        inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::{RunAddr, TaskId};

    fn cut(from: f64, until: f64) -> Cut {
        let mut cut = Cut::new(&Part { from, until }, 12);
        cut.define(&[Translation {
            id: TranslationId(0),
            addr: RunAddr(0),
            lengths: [1, 1, 1].into(),
            code: [0x90; 3].into(),
        }]);
        cut
    }

    #[test]
    fn the_parts_together_are_the_whole() {
        let executed = Event::Executed(TranslationId(0));
        let kept = |mut cut: Cut| (0..4).map(|_| cut.keeps(&executed)).collect::<Vec<_>>();
        assert_eq!(kept(cut(0.0, 0.5)), [true, true, false, false]);
        assert_eq!(kept(cut(0.5, 1.0)), [false, false, true, true]);
        assert_eq!(
            kept(cut(0.3, 0.7)),
            [false, false, true, false],
            "what begins before the part is none of it"
        );
        assert_eq!(kept(Cut::whole()), [true; 4]);
    }

    #[test]
    fn what_was_left_midway_counts_as_far_as_it_ran_and_tasks_are_always_known() {
        let mut cut = cut(0.5, 1.0);
        let left = Event::Left { translation: TranslationId(0), instructions: 1 };
        let kept: Vec<bool> = (0..8).map(|_| cut.keeps(&left)).collect();
        assert_eq!(kept, [false, false, false, false, false, false, true, true]);
        let mut cut = super::tests::cut(0.5, 1.0);
        assert!(cut.keeps(&Event::Task(TaskId(0))));
    }

    #[test]
    fn parts_that_there_are_not_are_refused() {
        for (from, until) in [(0.5, 0.5), (-0.1, 1.0), (0.0, 1.1), (f64::NAN, 1.0)] {
            assert!(Part { from, until }.validate().is_err(), "{from} {until}");
        }
    }
}
