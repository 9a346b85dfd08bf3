//! A recording that is open: its conditions are known, and observers can walk over it once.
//!
//! Input: a directory, and the wanted part of its recording. Output: the results of observers.
//! Every message names the file.

use crate::part::RecordingPart;
use crate::walk::{self, Observer};
use anyhow::{Context, Result};
use host::progress::Progress;
use host::recording::Recording;
use image::module::ImageModule;
use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::{ControlFlow, Range};
use std::path::Path;
use trace::{Chunk, RecordingHeader, RecordingReader, RecordingTotals};

/// Reads a file.
pub type Reader = RecordingReader<Box<dyn Read>>;

/// A recording at its beginning.
pub struct OpenedRecording {
    reader: Reader,
    /// The name of the file, for messages.
    name: String,
    bounds: Range<u64>,
}

impl OpenedRecording {
    /// Opens a part of a recording. The walk shows progress on a terminal, titled
    /// `title`.
    ///
    /// # Errors
    /// The recording cannot be opened, its beginning is damaged, or the bounds of the part are
    /// wrong.
    pub fn open(
        recording: &Recording,
        part: &RecordingPart,
        title: &str,
    ) -> Result<OpenedRecording> {
        let trace = recording.trace();
        let name = trace.display().to_string();
        let open = || {
            part.validate()?;
            let bounds = match part.is_whole() {
                true => 0..u64::MAX,
                false => part.bounds(instructions(&trace)?),
            };
            let file = File::open(&trace)?;
            let progress = Progress::of(file.metadata()?.len(), title);
            let file = BufReader::with_capacity(1 << 20, file);
            let from: Box<dyn Read> = Box::new(progress.reading(file));
            let reader = RecordingReader::new(from)?;
            anyhow::Ok(match part.is_whole() {
                true => (reader, bounds),
                false => (reader.of_part(bounds.start, bounds.end), bounds),
            })
        };
        let (reader, bounds) = open().with_context(|| name.clone())?;
        Ok(OpenedRecording { reader, name, bounds })
    }

    /// Opens a whole recording.
    ///
    /// # Errors
    /// As [`OpenedRecording::open`].
    pub fn whole(recording: &Recording, title: &str) -> Result<OpenedRecording> {
        OpenedRecording::open(recording, &RecordingPart::WHOLE, title)
    }

    /// Adds the part to the name of the workload.
    pub fn named_by(mut self, part: &RecordingPart) -> OpenedRecording {
        let workload = part.named(&self.header().workload);
        self.reader = self.reader.called(workload);
        self
    }

    /// Leaves out the data accesses.
    pub fn without_data(mut self) -> OpenedRecording {
        self.reader = self.reader.without_data();
        self
    }

    /// The instructions of the recording at which the part begins and ends.
    pub fn bounds(&self) -> Range<u64> {
        self.bounds.clone()
    }

    /// The recording's header.
    pub fn header(&self) -> &RecordingHeader {
        self.reader.header()
    }

    /// Whether the recording has data accesses and they are not left out.
    pub fn has_data(&self) -> bool {
        self.reader.accesses().is_some()
    }

    /// The name of its file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Calls `read` with the recording, and returns its result.
    ///
    /// # Errors
    /// The errors of `read`, with the name of the file.
    pub fn read<T>(self, read: impl FnOnce(Reader) -> Result<T>) -> Result<T> {
        let OpenedRecording { reader, name, .. } = self;
        read(reader).context(name)
    }

    /// Shows the recording to an observer, see [`walk::walk`].
    ///
    /// # Errors
    /// As [`walk::walk`].
    pub fn walk(self, observer: &mut dyn Observer) -> Result<RecordingTotals> {
        self.read(|reader| walk::walk(reader, observer))
    }

    /// The same as [`OpenedRecording::walk`]. The code of these modules is shown at its link
    /// addresses.
    ///
    /// # Errors
    /// As [`walk::walk`].
    pub fn walk_with(
        self,
        modules: &[ImageModule],
        observer: &mut dyn Observer,
    ) -> Result<RecordingTotals> {
        self.read(|reader| walk::walk_with(reader, modules, observer))
    }
}

/// The instructions of a part of a recording, counted.
///
/// # Errors
/// The recording cannot be opened or is damaged, or the bounds of the part are wrong.
pub fn instructions_of(recording: &Recording, part: &RecordingPart) -> Result<u64> {
    let trace = recording.trace();
    let count = || {
        part.validate()?;
        let all = instructions(&trace)?;
        let bounds = part.bounds(all);
        anyhow::Ok(bounds.end.min(all) - bounds.start)
    };
    count().with_context(|| trace.display().to_string())
}

/// The instructions of a whole recording, counted.
fn instructions(trace: &Path) -> Result<u64> {
    let file = BufReader::with_capacity(1 << 20, File::open(trace)?);
    let mut reader = RecordingReader::new(file)?.without_data();
    let mut all = 0;
    let read = walk::chunks(&mut reader, |chunk, _| {
        if let Chunk::End(totals) = chunk {
            all = totals.instructions();
        }
        anyhow::Ok(ControlFlow::Continue(()))
    })?;
    read?;
    Ok(all)
}
