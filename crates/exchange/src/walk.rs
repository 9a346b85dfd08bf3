//! The one walk of the formats that hold every instruction: what ran in a part of a recording, with
//! the data accesses of each execution.
//!
//! Input: a recording of one CPU. Output: calls of an [`ExecutionSink`], in the order in which the
//! recording is read. This module writes nothing and decodes no instruction.

use anyhow::{Context, Result, ensure};
use execution::code::TranslatedCode;
use execution::data::{AccessStream, DataAccess, DataFlow, PIECE_WORDS};
use execution::flow::{ExecutionFlow, FragmentExit, FragmentId};
use execution::part::{PartFilter, RecordingPart, open_executions};
use host::recording::Recording;
use serde::Serialize;
use sim::PhysAddr;
use std::collections::VecDeque;
use std::io::Read;
use std::path::Path;
use trace::{
    AccessPatterns, Accesses, Chunk, RecordingReader, RunAddr, StreamEvent, Task, TaskId,
    Translation, TranslationId,
};

/// How much was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TracedAmounts {
    /// Instructions of the recording.
    pub instructions: u64,
    /// Records of the file.
    pub records: u64,
    /// Branches that something interrupted before their outcome showed, or that were the last of
    /// the part.
    pub interrupted_branches: u64,
}

/// Where an instruction lies in physical memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstructionPlace {
    /// Its first byte.
    pub first: PhysAddr,
    /// Its last byte, which may lie in another page.
    pub last: PhysAddr,
}

/// One way in which a translation runs.
pub(crate) struct WalkedFragment {
    pub translation: TranslationId,
    /// Where control arrives.
    pub start: RunAddr,
    pub exit: FragmentExit,
    /// The instructions that run, at least one.
    pub places: Box<[InstructionPlace]>,
}

/// An execution of a fragment.
pub(crate) struct WalkedExecution<'a> {
    pub fragment: &'a WalkedFragment,
    /// The task that was switched to just before.
    pub task: Option<TaskId>,
    /// In the order in which they were made. Some may be of instructions behind the last that runs.
    pub accesses: &'a [DataAccess],
    /// Knows the virtual addresses of `accesses`. `None`: the recording has no data accesses.
    pub data: Option<&'a DataFlow>,
}

/// What becomes of the executions.
pub(crate) trait ExecutionSink {
    /// Learns a translation. Translations come in the order of their ids.
    fn define(&mut self, translation: &Translation, code: &TranslatedCode) -> Result<()>;

    /// Learns tasks. They come in the order of their ids.
    fn define_tasks(&mut self, _tasks: &[Task]) {}

    /// Takes the next execution.
    fn execution(&mut self, execution: &WalkedExecution) -> Result<()>;
}

/// Selects the events of a part of a recording.
///
/// # Errors
/// The bounds of the part are wrong, or the recording is damaged.
pub(crate) fn cut(recording: &Path, part: &RecordingPart) -> Result<PartFilter> {
    part.cut(|| open_executions(&Recording::at(recording)))
}

/// Walks over what `cut` keeps of a recording of one CPU.
///
/// # Errors
/// The recording is damaged, or `sink` fails. With `needs_data`: it has no data accesses.
pub(crate) fn walk<R: Read>(
    reader: &mut RecordingReader<R>,
    cut: PartFilter,
    needs_data: bool,
    sink: &mut dyn ExecutionSink,
) -> Result<()> {
    let mut walk = Walk::new(cut, sink);
    while let Some(chunk) = reader.next_chunk().context("the recording is damaged")? {
        match chunk {
            Chunk::Translations(defined) => walk.define(&defined)?,
            Chunk::Tasks(tasks) => walk.sink.define_tasks(&tasks),
            Chunk::End(_) => {}
            Chunk::Stream(words) => {
                let data = reader.accesses();
                ensure!(
                    data.is_some() || !needs_data,
                    "the recording has no data accesses: make it with `kernlane record --data`"
                );
                walk.has_data = data.is_some();
                walk.words(&words, data)?;
                if walk.cut.has_ended() {
                    break;
                }
            }
        }
    }
    walk.finish(reader.accesses().map(|(_, patterns)| patterns))
}

struct Walk<'a> {
    cut: PartFilter,
    sink: &'a mut dyn ExecutionSink,
    flow: ExecutionFlow,
    data: DataFlow,
    /// By number. `None`: no instruction runs.
    fragments: Vec<Option<WalkedFragment>>,
    /// The executions of the part whose fragment is still to come: the number of their accesses,
    /// and the task that was switched to before.
    executions: VecDeque<(usize, Option<TaskId>)>,
    /// The accesses of these executions, behind the first `taken`.
    accesses: Vec<DataAccess>,
    taken: usize,
    /// The task that was switched to since the last execution.
    task: Option<TaskId>,
    has_data: bool,
}

impl<'a> Walk<'a> {
    fn new(cut: PartFilter, sink: &'a mut dyn ExecutionSink) -> Walk<'a> {
        Walk {
            cut,
            sink,
            flow: ExecutionFlow::default(),
            data: DataFlow::of_every_access(),
            fragments: Vec::new(),
            executions: VecDeque::new(),
            accesses: Vec::new(),
            taken: 0,
            task: None,
            has_data: false,
        }
    }

    fn define(&mut self, translations: &[Translation]) -> Result<()> {
        self.cut.define(translations);
        for translation in translations {
            self.flow.define(translation)?;
            let code = self.flow.codes.last().context("a translation was defined")?;
            self.sink.define(translation, code)?;
        }
        Ok(())
    }

    fn words(&mut self, words: &[u32], data: Option<(&Accesses, &AccessPatterns)>) -> Result<()> {
        let none = AccessPatterns::default();
        let patterns = data.map_or(&none, |(_, patterns)| patterns);
        let mut stream = data.map(|(accesses, patterns)| AccessStream::new(accesses, patterns));
        let (mut kept, mut run) = (Vec::new(), Vec::new());
        for piece in trace::pieces(words, PIECE_WORDS) {
            if let Some(stream) = &mut stream {
                self.data.follow(piece, stream);
            }
            self.keep(piece, &mut kept);
            self.flow.follow(kept.drain(..), &mut run)?;
            self.learn(patterns);
            run.drain(..).try_for_each(|fragment| self.fragment(fragment))?;
            self.accesses.drain(..self.taken);
            self.taken = 0;
        }
        if let Some(stream) = stream {
            self.data.finish(stream);
        }
        Ok(())
    }

    /// Appends the events of the part, and keeps the accesses of its executions.
    fn keep(&mut self, words: &[u32], kept: &mut Vec<StreamEvent>) {
        let mut rest = self.data.accesses();
        let mut executions = self.data.executions.iter();
        for event in trace::events(words) {
            let inside = self.cut.keeps(&event);
            if event.execution().is_some() {
                let count = executions.next().map_or(0, |execution| execution.accesses as usize);
                let (own, later) = rest.split_at(count.min(rest.len()));
                rest = later;
                if inside {
                    self.executions.push_back((own.len(), self.task.take()));
                    self.accesses.extend(own);
                }
            }
            if let StreamEvent::Task(task) = event {
                self.task = Some(task);
            }
            if inside {
                kept.push(event);
            }
        }
        self.data.forget(self.data.executions.len());
    }

    /// Adds the fragments that are new.
    fn learn(&mut self, patterns: &AccessPatterns) {
        for fragment in &self.flow.fragments[self.fragments.len()..] {
            let id = fragment.translation;
            let code = &self.flow.codes[id.0 as usize];
            let count = match fragment.exit {
                FragmentExit::LateNext | FragmentExit::LateTaken => 0,
                FragmentExit::Midway(reached) => usize::from(reached),
                FragmentExit::Next | FragmentExit::Taken | FragmentExit::Interrupted => usize::MAX,
            };
            let mut at = code.addr;
            let places = code.lengths.iter().take(count).map(|&length| {
                let (first, end) = (at, RunAddr(at.0.wrapping_add(length.into())));
                at = end;
                let last = RunAddr(end.0.wrapping_sub(1));
                let mut place = |addr| self.data.code(addr, code, id, patterns);
                InstructionPlace { first: place(first), last: place(last) }
            });
            let places: Box<[_]> = places.collect();
            let (translation, start, exit) = (id, code.addr, fragment.exit);
            let runs = !places.is_empty();
            self.fragments.push(runs.then_some(WalkedFragment {
                translation,
                start,
                exit,
                places,
            }));
        }
    }

    /// Gives the fragment that runs next to the sink.
    fn fragment(&mut self, id: FragmentId) -> Result<()> {
        let Some(fragment) = &self.fragments[id.0 as usize] else { return Ok(()) };
        let (count, task) = self.executions.pop_front().unwrap_or_default();
        let own = self.taken..(self.taken + count).min(self.accesses.len());
        self.taken = own.end;
        let (accesses, data) = (&self.accesses[own], self.has_data.then_some(&self.data));
        self.sink.execution(&WalkedExecution { fragment, task, accesses, data })
    }

    fn finish(mut self, patterns: Option<&AccessPatterns>) -> Result<()> {
        let mut run = Vec::new();
        self.flow.finish(&mut run);
        self.learn(patterns.unwrap_or(&AccessPatterns::default()));
        run.into_iter().try_for_each(|fragment| self.fragment(fragment))
    }
}
