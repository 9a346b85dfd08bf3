//! The exact profile of the executions that branch stacks cover.
//!
//! Input: a recording, and stacks. Output: the profile of these executions. The last execution of a
//! stack is cut, so that no control goes from one stack's code to the next one's.

use super::stacks::BranchStack;
use anyhow::Result;
use execution::part::{PartFilter, open_executions};
use host::recording::Recording;
use profile::Profile;
use profile::collect::{ExtraCounts, collect};
use std::path::Path;
use trace::{Chunk, RecordingReader, RecordingWriter, StreamEvent};

/// The profile of what ran between the first and the last branch of each stack.
pub(super) fn profile(recording: &Path, stacks: &[BranchStack], vmlinux: &Path) -> Result<Profile> {
    let mut reader = open_executions(&Recording::at(recording))?;
    let mut writer = RecordingWriter::new(Vec::new(), &reader.header().clone())?;
    let mut stacks = stacks.iter().map(|stack| &stack.executions).peekable();
    let (mut execution, mut lengths) = (0, Vec::new());
    while let Some(chunk) = reader.next_chunk()? {
        match chunk {
            Chunk::Translations(translations) => {
                lengths.extend(translations.iter().map(|t| t.instructions()));
                writer.translations(&translations)?;
            }
            Chunk::Tasks(tasks) => writer.tasks(&tasks)?,
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
    }
    let (bytes, _) = writer.end()?;
    let image = image::vmlinux::read(vmlinux)?;
    let mut reader = RecordingReader::new(&bytes[..])?;
    collect(&mut reader, &image, &mut PartFilter::whole(), ExtraCounts::None)
}
