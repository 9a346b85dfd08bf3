//! The exact profile of the executions that branch stacks cover.
//!
//! Input: a recording, and stacks. Output: the profile of these executions. The last execution of a
//! stack is cut, so that no control goes from one stack's code to the next one's.

use super::stacks::BranchStack;
use anyhow::Result;
use execution::opened::OpenedRecording;
use execution::walk::{ReaderState, chunks};
use host::recording::Recording;
use profile::Profile;
use profile::collect::{ExtraCounts, collect};
use std::ops::ControlFlow;
use std::path::Path;
use trace::{Chunk, RecordingReader, RecordingWriter, StreamEvent};

/// The profile of what ran between the first and the last branch of each stack.
pub(super) fn profile(recording: &Path, stacks: &[BranchStack], vmlinux: &Path) -> Result<Profile> {
    let opened = OpenedRecording::whole(&Recording::at(recording), "windows")?.without_data();
    let mut writer = RecordingWriter::new(Vec::new(), opened.header())?;
    let mut stacks = stacks.iter().map(|stack| &stack.executions).peekable();
    let (mut execution, mut lengths) = (0, Vec::new());
    let copy = |chunk, _: ReaderState<'_>| {
        match chunk {
            Chunk::Translations(translations) => {
                lengths.extend(translations.iter().map(|t| t.instructions()));
                writer.translations(&translations)?;
            }
            Chunk::Tasks(tasks) => writer.tasks(&tasks)?,
            Chunk::Modules(changes) => writer.modules(&changes)?,
            Chunk::End(_) => {}
            Chunk::Stream(words) => {
                let mut kept = Vec::new();
                for event in trace::events(&words) {
                    let Some((translation, reached)) = event.execution() else {
                        if matches!(event, StreamEvent::Task(_)) {
                            event.append_to(&mut kept);
                        }
                        continue;
                    };
                    while stacks.peek().is_some_and(|range| *range.end() < execution) {
                        stacks.next();
                    }
                    let inside = stacks.peek().filter(|range| range.contains(&execution));
                    let all = lengths[translation.0 as usize];
                    let is_last = inside.is_some_and(|range| *range.end() == execution);
                    match (inside, is_last && reached.is_none()) {
                        (None, _) => {}
                        (Some(_), false) => event.append_to(&mut kept),
                        (Some(_), true) if all > 1 => {
                            StreamEvent::Left { translation, instructions: all - 1 }
                                .append_to(&mut kept);
                        }
                        (Some(_), true) => {}
                    }
                    execution += 1;
                }
                writer.stream(&kept)?;
            }
        }
        anyhow::Ok(ControlFlow::Continue(()))
    };
    opened.read(|mut reader| Ok(chunks(&mut reader, copy)??))?;
    let (bytes, _) = writer.end()?;
    let image = image::vmlinux::read(vmlinux)?;
    collect(RecordingReader::new(&bytes[..])?, &image, ExtraCounts::None)
}
