//! Blocks of the kernel, counted as a profile counts them.

use crate::batch::{Names, Rows, TableRequest};
use crate::recording::AskedRecording;
use anyhow::{Context, Result};
use execution::code::TranslatedCode;
use execution::walk::{Observer, Piece, WalkedRecording, Wants};
use image::{Image, vmlinux};
use profile::collect::{ExtraCounts, ProfileCollector};
use std::path::Path;
use trace::{RecordingHeader, Task, Translation};

/// The image of the recorded kernel.
///
/// # Errors
/// `kernel` is not a vmlinux.
pub(super) fn image(recording: &AskedRecording, kernel: &Path) -> Result<Image> {
    vmlinux::read(kernel).with_context(|| format!("the blocks of {}", recording.path.display()))
}

pub(super) struct CountedBlocks<'a> {
    image: &'a Image,
    collector: ProfileCollector<'a>,
    rows: Rows,
}

impl<'a> CountedBlocks<'a> {
    pub(super) fn new(image: &'a Image, request: TableRequest) -> CountedBlocks<'a> {
        let collector = ProfileCollector::new(image, ExtraCounts::None);
        CountedBlocks { image, collector, rows: Rows::new(request) }
    }

    /// Gives the rows.
    ///
    /// # Errors
    /// The walk did not come to the recording's end.
    pub(super) fn finish(self) -> Result<()> {
        let CountedBlocks { image, collector, mut rows } = self;
        let profile = collector.profile()?;
        let mut names = Names::default();
        for (addr, count) in &profile.blocks {
            let Some(block) = image.block_at(*addr) else { continue };
            let function = image.function_of(block);
            let cells = [
                addr.0.into(),
                u64::from(image.block(block).size).into(),
                names.id(&function.name).into(),
                names.id(&function.section).into(),
                (*count).into(),
            ];
            rows.push(&mut names, cells);
        }
        rows.finish(&mut names);
        Ok(())
    }
}

impl Observer for CountedBlocks<'_> {
    fn begin(&mut self, header: &RecordingHeader, has_data: bool) -> Result<Wants> {
        self.collector.begin(header, has_data)
    }

    fn define(&mut self, translations: &[Translation], codes: &[TranslatedCode]) -> Result<()> {
        self.collector.define(translations, codes)
    }

    fn define_tasks(&mut self, tasks: &[Task]) {
        self.collector.define_tasks(tasks);
    }

    fn piece(&mut self, piece: &Piece<'_>) -> Result<()> {
        self.collector.piece(piece)
    }

    fn end(&mut self, walked: &WalkedRecording<'_>) -> Result<()> {
        self.collector.end(walked)
    }
}
